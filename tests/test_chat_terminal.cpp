// cli/chat as a person meets it, on a pseudo-terminal: pastes, typing ahead, windows that change, commands,
// what is kept, and how soon Ctrl-C is heard. Skipped where there is no program or no terminal to be had.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>

#include <sys/stat.h>

#include "base/stopwatch.h"
#include "tests/support/chat_home.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/sanitized.h"

using namespace dsv32;
namespace fs = std::filesystem;

namespace {

constexpr const char* kPaste = "\x1b[200~";
constexpr const char* kPasteEnd = "\x1b[201~";

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(chat_terminal, *boost::unit_test::precondition(has_terminal))

BOOST_AUTO_TEST_CASE(a_paste_is_one_message) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"-n", "3"}));
  BOOST_REQUIRE(chat.await_prompt());
  chat.type(std::string("see ") + kPaste + "/one\r\ttwo \\\r\"\"\"three\r" + kPasteEnd + " there");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> see [paste 1: 3 lines] there"; }));
  chat.say("");
  chat.type(std::string(kPaste) + "/quit\rand more" + kPasteEnd);
  chat.say("");
  chat.type(std::string(kPaste) + "of one line\r" + kPasteEnd);
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> of one line"; }));
  chat.say("");
  std::string large;
  for (int i = 0; i < 3000; ++i) large += "line " + std::to_string(i) + "\r";
  chat.type(kPaste + large + kPasteEnd);
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> [paste 1: 3000 lines]"; }));
  chat.type("\n");
  chat.listen(0.3);
  chat.type("\x03");  // too long to read here
  BOOST_TEST(chat.await_prompt());
  chat.type("\x1b[A\x1b[A");  // through the history, of which it is the last
  chat.listen(0.2);
  chat.type("\x15/bye\n");
  BOOST_TEST(chat.end() == 0);
  const std::vector<std::string> questions = home.questions();
  BOOST_REQUIRE_EQUAL(questions.size(), 4u);
  BOOST_TEST(questions[0] == "see /one\n\ttwo \\\n\"\"\"three there");
  BOOST_TEST(questions[1] == "/quit\nand more");
  BOOST_TEST(questions[2] == "of one line");
  BOOST_TEST(questions[3].size() == large.size() - 1);
}

// The answer runs in circles until it is stopped.
BOOST_AUTO_TEST_CASE(what_is_typed_ahead_waits) {
  const Home home;
  ChatTerminal chat(home.path, home.words({}, "models/tiny.gguf"));
  BOOST_REQUIRE(chat.await_prompt());
  const size_t from = chat.written().size();
  chat.type("hello\n");
  BOOST_TEST(chat.await([&] { return chat.written().size() > from + 200; }));
  chat.type("/stats\n/se");
  chat.listen(0.3);
  BOOST_TEST(count(chat.written(), "/stats") == 0u);
  chat.type("\x03");
  BOOST_TEST(chat.await_text("context: ", from));
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> /se"; }));
  BOOST_TEST(count(chat.written(), "/stats") == 1u);
  chat.type("\x15/bye\n");
  BOOST_TEST(chat.end() == 0);
}

BOOST_AUTO_TEST_CASE(a_line_follows_its_window) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"-q"}));
  BOOST_REQUIRE(chat.await_prompt());
  const std::string words = "one two three four five six seven eight nine ten eleven";
  const auto is_drawn = [&](size_t n_columns, const std::string& line) {
    std::string rows;
    for (size_t at = 0; at < line.size(); at += n_columns) {
      std::string row = line.substr(at, n_columns);
      row.resize(row.find_last_not_of(' ') + 1);
      rows += row + "\n";
    }
    return chat.screen().text() == rows;
  };
  chat.type(words);
  BOOST_TEST(chat.await([&] { return is_drawn(80, "> " + words); }));
  for (const size_t n_columns : {40, 20, 33, 80, 27, 30, 80, 45}) {
    chat.resize(n_columns);
    chat.listen(0.4);
    BOOST_TEST(is_drawn(n_columns, "> " + words), n_columns << " columns:\n" << chat.screen().text());
    chat.type("\x01x\x05y\x7f\x01\x04\x05");  // at both ends, and taken back
    chat.listen(0.1);
    BOOST_TEST(is_drawn(n_columns, "> " + words), n_columns << " columns, edited:\n" << chat.screen().text());
  }
}

BOOST_AUTO_TEST_CASE(commands) {
  const Home home;
  write_file(home.temp.file("notes.txt"), "first\nsecond\n");
  ChatTerminal chat(home.path, home.words({"-n", "3"}));
  BOOST_REQUIRE(chat.await_prompt());
  BOOST_TEST(contains(chat.say("/help"), "/file PATH"));
  BOOST_TEST(contains(chat.say("/stats"), "context: "));
  BOOST_TEST(contains(chat.say("/set temp 0.5"), "temp 0.5, top-p 0.95"));
  BOOST_TEST(contains(chat.say("/set n 2"), "n 2, think-max -1, seed"));
  BOOST_TEST(contains(chat.say("/set seed 7"), "seed 7, think off"));
  BOOST_TEST(contains(chat.say("/set think on"), "thinking is on"));
  BOOST_TEST(contains(chat.say("/set think off"), "thinking is off"));
  BOOST_TEST(contains(chat.say("/set top-p 3"), "top-p"));
  BOOST_TEST(contains(chat.say("/set colour 3"), "/set takes one of"));
  BOOST_TEST(contains(chat.say("/set"),
                      "temp 0.5, top-p 0.95, top-k 0, min-p 0, n 2, think-max -1, seed 7, think off"));
  BOOST_TEST(contains(chat.say("/system"), "there is no system prompt"));
  BOOST_TEST(contains(chat.say("/system Be brief."), "Be brief."));
  BOOST_TEST(contains(chat.say("/retry"), "there is no answer yet"));
  BOOST_TEST(contains(chat.say("/undo"), "nothing to take back"));
  BOOST_TEST(contains(chat.say("/copy"), "there is no answer yet"));
  BOOST_TEST(contains(chat.say("/file absent"), "absent is no file"));
  for (const char* slip : {"/exti", "/clera", "/undp", "/quti", "/retri", "/byee"}) {
    const std::string said = chat.say(slip);
    BOOST_TEST(contains(said, "unknown command"));
    for (const char* drastic :
         {"mean /exit", "mean /clear", "mean /undo", "mean /quit", "mean /retry", "mean /bye", "mean /new"})
      BOOST_TEST(!contains(said, drastic), said);
  }
  BOOST_TEST(contains(chat.say("/stat"), "did you mean /stats?"));
  chat.say("/file " + home.temp.file("notes.txt"));
  chat.say("What is in it?");
  chat.say("And in @" + home.temp.file("notes.txt") + " again? me@home @nobody");
  chat.say("//slash");
  const std::vector<SavedTalk> talks = home.saved();
  BOOST_REQUIRE_EQUAL(talks.size(), 1u);
  const std::string file = home.temp.file("notes.txt") + ":\nfirst\nsecond\n\n";
  const std::vector<std::string> expected{
      file + "What is in it?", file + "And in @" + home.temp.file("notes.txt") + " again? me@home @nobody",
      "/slash"};
  BOOST_TEST(home.questions() == expected, boost::test_tools::per_element());
  BOOST_TEST(talks[0].messages[0].content == "Be brief.");
  const std::string tokens = chat.say("/tokens");
  BOOST_TEST(count(tokens, "  you     ") == 3u, tokens);
  BOOST_TEST(contains(tokens, "system  Be brief."));
  BOOST_TEST(contains(tokens, "of 32,768 tokens of context"));
  chat.say("/copy");
  BOOST_TEST(chat.screen().command().starts_with("52;c;"));
  BOOST_TEST(contains(chat.say("/undo"), "taken back: /slash"));
  BOOST_TEST(home.questions().size() == 2u);
  chat.say("/set n 5");
  chat.say("/set temp 1");
  const std::string former = home.saved()[0].messages.back().content;
  for (int i = 0; i < 20 && home.saved()[0].messages.back().content == former; ++i) chat.say("/retry");
  BOOST_TEST(home.saved()[0].messages.back().content != former);
  BOOST_TEST(home.questions().size() == 2u);
  BOOST_TEST(contains(chat.say("/save mine"), "kept as mine"));
  BOOST_TEST(contains(chat.say("/talks"), "mine  (this one)"));
  BOOST_TEST(contains(chat.say("/clear"), "the talk is kept as mine; another begins"));
  chat.say("of another");
  BOOST_TEST(contains(chat.say("/save mine"), "there is a talk mine already"));
  BOOST_TEST(home.questions().size() == 3u);
  chat.type("/bye\n");
  BOOST_TEST(chat.end() == 0);
}

BOOST_AUTO_TEST_CASE(tab_completes) {
  const Home home;
  fs::create_directory(home.temp.file("folder"));
  write_file(home.temp.file("folder/a file.txt"), "text");
  write_file(home.temp.file("folder/alone.txt"), "text");
  write_file(home.temp.file("folder/.hidden"), "text");
  ChatTerminal chat(home.path, home.words(), 200);
  BOOST_REQUIRE(chat.await_prompt());
  const auto completed = [&](const std::string& keys, const std::string& row) {
    chat.type("\x15" + keys + "\t");
    const bool is_there = chat.await([&] { return chat.screen().cursor_row() == row; }, 5);
    BOOST_TEST(is_there, "'" << keys << "' became '" << chat.screen().cursor_row() << "'");
  };
  completed("/sta", "> /stats");
  completed("/set to", "> /set top-");
  completed("/think o", "> /think o");
  completed("/file " + home.temp.file("fol"), "> /file " + home.temp.file("folder/"));
  completed("/file " + home.temp.file("folder/a "), "> /file " + home.temp.file("folder/a file.txt"));
  completed("compare @" + home.temp.file("folder/al"), "> compare @" + home.temp.file("folder/alone.txt"));
  chat.type("\x15/file " + home.temp.file("folder/a") + "\t");
  BOOST_TEST(chat.await_text("\na file.txt"));
  chat.type("\x15/t\t");
  BOOST_TEST(chat.await_text("\n/talks"));
}

BOOST_AUTO_TEST_CASE(a_message_from_an_editor) {
  const Home home;
  write_file(home.temp.file("edit.sh"), "printf 'it held %s\\nand more\\n' \"$(cat \"$1\")\" >\"$1\"\n");
  const std::string former = getenv("VISUAL") ? getenv("VISUAL") : "";
  setenv("VISUAL", ("sh " + home.temp.file("edit.sh")).c_str(), 1);
  ChatTerminal chat(home.path, home.words({"-n", "3"}));
  former.empty() ? unsetenv("VISUAL") : setenv("VISUAL", former.c_str(), 1);
  BOOST_REQUIRE(chat.await_prompt());
  chat.say("/edit");
  chat.say("hello");
  chat.say("/undo");
  chat.say("/edit");
  chat.type("/bye\n");
  BOOST_TEST(chat.end() == 0);
  const std::vector<std::string> expected{"it held \nand more", "it held hello\nand more"};
  BOOST_TEST(home.questions() == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(talks_and_history_are_kept_unless_told_otherwise) {
  const Home home;
  const auto talk = [&](const std::vector<std::string>& more, const std::string& line) {
    ChatTerminal chat(home.path, home.words(more));
    BOOST_REQUIRE(chat.await_prompt());
    chat.say(line);
    chat.type("/bye\n");
    BOOST_TEST(chat.end() == 0);
    return chat.written();
  };
  const std::string history = home.temp.file("state/dsv32/history");
  const std::string first = talk({"-n", "3"}, "remember me");
  BOOST_REQUIRE_EQUAL(home.saved().size(), 1u);
  BOOST_TEST(contains(first, "this talk is kept as " + TalkFolder(home.talks).names()[0]));
  BOOST_TEST(contains(read_file(history), "remember\\040me"));
  talk({"-n", "3", "--no-save"}, "not in a talk");
  talk({"-n", "3", "--no-history"}, "not in the history");
  BOOST_REQUIRE_EQUAL(home.saved().size(), 2u);
  const std::vector<std::string> kept{"remember me", "not in the history"};
  BOOST_TEST(home.questions() == kept, boost::test_tools::per_element());
  BOOST_TEST(contains(read_file(history), "not\\040in\\040a\\040talk"));
  BOOST_TEST(!contains(read_file(history), "history"));
  BOOST_TEST(contains(talk({"-n", "3", "--continue"}, "once more"), "resumed: 1 turn"));
  BOOST_TEST(home.saved().size() == 2u);
  BOOST_TEST(home.questions().size() == 3u);
}

// In the midst of a chunk that takes seconds.
BOOST_AUTO_TEST_CASE(ctrl_c_is_heard_at_once) {
  constexpr double kMost = kIsSanitized ? 2 : 0.2;
  const Home home;
  ChatTerminal chat(home.path, home.words({"--chunk", "4096"}));
  BOOST_REQUIRE(chat.await_prompt());
  std::string text;
  for (int i = 0; i < 1500; ++i) text += "word " + std::to_string(i) + " ";
  double best = 1000;
  for (int i = 0; i < 5; ++i) {  // the machine may be busy with other things
    chat.type(kPaste + text + std::to_string(i) + kPasteEnd);
    BOOST_TEST(chat.await_text("[paste 1: "));
    chat.type("\n");
    chat.listen(0.2 + 0.1 * i);
    const auto start = std::chrono::steady_clock::now();
    const size_t from = chat.written().size();
    chat.type("\x03");
    BOOST_TEST(chat.await_text("ended before the answer began", from));
    best = std::min(best, seconds_since(start));
  }
  BOOST_TEST(best < kMost);
}

BOOST_AUTO_TEST_SUITE_END()
