// cli/chat as a person meets it, on a pseudo-terminal: pastes, typing ahead, windows that change, keys,
// Ctrl-Z, commands, what is kept, and how soon Ctrl-C is heard. Skipped where there is no program or no
// terminal to be had.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>

#include <sys/stat.h>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "tests/support/chat_home.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/sanitized.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(chat_terminal, *boost::unit_test::precondition(has_terminal))

namespace fs = std::filesystem;

namespace {

constexpr const char* kPaste = "\x1b[200~";
constexpr const char* kPasteEnd = "\x1b[201~";
constexpr const char* kMarksOn = "\x1b[?2004h";
constexpr const char* kMarksOff = "\x1b[?2004l";

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// An environment variable for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const former = getenv(name)) former_ = former;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { former_ ? setenv(name_, former_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> former_;
};

// A chat that was called in a shell, so that it can be stopped.
struct ChatInShell {
  Home home;
  ChatTerminal chat;
  explicit ChatInShell(const std::vector<std::string>& more, const char* model = "models/demo.gguf")
      : chat(home.path, {"--norc", "--noprofile", "-i"}, 200, "/bin/bash") {
    std::string call = program_path();
    for (const std::string& word : home.words(more, model)) call += " " + word;
    BOOST_REQUIRE(has_shell());
    chat.type(call + "\n");
    BOOST_REQUIRE(chat.await_prompt());
  }
  bool has_shell() {
    return chat.await([&] { return chat.screen().cursor_row() == "SHELL$"; });
  }
  void leave() {
    chat.type("/bye\n");
    BOOST_TEST(has_shell());
    chat.type("exit\n");
    chat.end();
  }
};

}  // namespace

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

// Whichever a terminal sends, at the prompt and while an answer is written.
BOOST_AUTO_TEST_CASE(line_ends_of_a_paste) {
  const Home home;
  ChatTerminal chat(home.path, home.words({}, "models/tiny.gguf"));
  BOOST_REQUIRE(chat.await_prompt());
  const std::string lines = std::string(kPaste) + "one\r\ntwo\r\n\r\nthree\nfour\rfive" + kPasteEnd;
  const size_t from = chat.written().size();
  chat.type(lines + "\r");
  BOOST_TEST(chat.await([&] { return chat.written().size() > from + 200; }));
  chat.type(lines);
  chat.listen(0.1);
  chat.type("\x03");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> [paste 1: 6 lines]"; }));
  chat.type("\r");
  BOOST_TEST(chat.await([&] { return home.questions().size() == 2; }));
  for (const std::string& question : home.questions())
    BOOST_TEST(question == "one\ntwo\n\nthree\nfour\nfive");
}

BOOST_AUTO_TEST_CASE(a_window_of_absurd_size) {
  for (const char* term : {"xterm", "dumb"}) {
    const Home home;
    std::string call = "stty rows 30000 cols 30000; export TERM=" + std::string(term);
    call += "; exec " + program_path();
    for (const std::string& word : home.words()) call += " " + word;
    ChatTerminal chat(home.path, {"-c", call}, 80, "/bin/sh");
    BOOST_REQUIRE(chat.await_prompt());
    chat.type("/set n\n");
    BOOST_TEST(chat.await_text("n -1\r\n"));
    BOOST_TEST(chat.peak_memory() > 0u);
    BOOST_TEST(chat.peak_memory() < 500000u);
    chat.type("/bye\n");
    BOOST_TEST(chat.end() == 0);
  }
}

// A NUL in one, an @ that would name a file, a command on one line; and a character that is cut in what is
// typed.
BOOST_AUTO_TEST_CASE(what_is_pasted_is_text) {
  const Home home;
  const std::string secret = home.temp.file("secret.txt"), history = home.temp.file("state/dsv32/history");
  write_file(secret, "hunter2\n");
  std::vector<std::string> expected;
  {
    ChatTerminal chat(home.path, home.words({"-n", "1"}), 200);
    BOOST_REQUIRE(chat.await_prompt());
    const auto paste = [&](const std::string& text) {
      chat.type(kPaste + text + kPasteEnd);
      return chat.say("");
    };
    const std::string note = "@" + secret + " was not typed and is sent as it is";
    paste(std::string("a\0b c", 5));
    BOOST_TEST(contains(paste("Dear friend,\r@" + secret + "\rregards"), note));
    BOOST_TEST(contains(paste("see @" + secret), note));
    chat.type("\x1b[A");  // the same from the history
    BOOST_TEST(contains(chat.say(" again"), note));
    BOOST_TEST(contains(chat.say("see @" + secret), secret + ", " + std::to_string(secret.size() + 11) +
                                                        " bytes, goes with the message"));
    chat.type("what is in @");
    BOOST_TEST(contains(paste(secret), "bytes, goes with the message"));
    BOOST_TEST(contains(paste("/set n"), "n 1"));
    chat.type("ol\xe9\rnext\r");
    BOOST_TEST(chat.await([&] { return home.questions().size() == 8; }));
    chat.type("\x15/bye\n");
    BOOST_TEST(chat.end() == 0);
    const std::string file = secret + ":\nhunter2\n\n";
    expected = {std::string("a\0b c", 5),
                "Dear friend,\n@" + secret + "\nregards",
                "see @" + secret,
                "see @" + secret + " again",
                file + "see @" + secret,
                file + "what is in @" + secret,
                "ol\ufffd",
                "next"};
    BOOST_TEST(home.questions() == expected, boost::test_tools::per_element());
  }
  BOOST_TEST(contains(read_file(history), "again"));
  BOOST_TEST(!contains(read_file(history), "regards"));
  ChatTerminal later(home.path, home.words({"-n", "1", "--continue"}), 200);
  BOOST_REQUIRE(later.await_prompt());
  later.type(
      "\x12"
      "again");
  later.await([&] { return contains(later.screen().text(), "see @" + secret + " again"); });
  later.say("");
  expected.push_back(expected[3]);
  BOOST_TEST(home.questions() == expected, boost::test_tools::per_element());
}

// In the midst of a line of several rows, of wide characters and of emoji with joiners too.
BOOST_AUTO_TEST_CASE(a_long_line_is_edited_anywhere) {
  for (const size_t n_columns : {40, 80}) {
    const Home home;
    ChatTerminal chat(home.path, home.words({"-q"}), n_columns);
    BOOST_REQUIRE(chat.await_prompt());
    const auto is_drawn = [&](const std::u32string& line, size_t cursor) {
      std::string rows, row = "> ", left;
      size_t column = 2;
      const auto end_row = [&] {
        row.resize(row.find_last_not_of(' ') + 1);
        rows += row + "\n";
        row.clear(), column = 0;
      };
      for (size_t i = 0; i <= line.size(); ++i) {
        std::string character;
        if (i < line.size()) append_utf8(character, line[i]);
        if (column + columns_of(character) > n_columns || (i == cursor && column == n_columns)) end_row();
        if (i == cursor) left = row;
        row += character, column += columns_of(character);
      }
      end_row();
      const bool is_right = chat.await(
          [&] { return chat.screen().text() == rows && chat.screen().left_of_cursor() == left; }, 10);
      BOOST_REQUIRE_MESSAGE(is_right, n_columns << " columns:\n"
                                                << chat.screen().text() << "and not\n"
                                                << rows);
    };
    std::u32string line;
    size_t at = 0;
    const auto insert = [&](const std::u32string& text) {
      std::string keys;
      for (const char32_t c : text) append_utf8(keys, c);
      line.insert(at, text), at += text.size();
      chat.type(keys);
      is_drawn(line, at);
    };
    const auto move = [&](const std::string& keys, size_t to) {
      chat.type(keys);
      is_drawn(line, at = to);
    };
    insert(
        U"one two three four five six seven eight nine ten eleven twelve 語語語語語 thirteen 👨\u200d👩\u200d👧 "
        U"end");
    move("\x01", 0);
    insert(U"x");
    insert(U"語 ");
    move("\033f\033f", 7 + 3);
    for (int i = 0; i < 30; ++i) insert(i % 3 ? U"y" : U"한");
    for (int i = 0; i < 10; ++i) {
      chat.type("\x7f");
      line.erase(--at, 1);
      is_drawn(line, at);
    }
    move("\x05", line.size());
    move("\033b", line.size() - 3);
    insert(U"👩\u200d👧 and more ");
    move("\x01", 0);
    for (int i = 0; i < 5; ++i) {
      chat.type("\x04");
      line.erase(0, 1);
      is_drawn(line, 0);
    }
  }
}

// What they do; and of those that do nothing, that nothing of them is left.
BOOST_AUTO_TEST_CASE(keys_of_several_bytes) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"-q"}), 200);
  BOOST_REQUIRE(chat.await_prompt());
  int n_typed = 0;
  const auto typed = [&](const std::string& keys, const std::string& left, const std::string& right) {
    const std::string mark = "<" + std::to_string(++n_typed) + ">", line = "> " + left + mark + right;
    chat.type("\001\013ab cd" + keys + mark);
    const bool is_there = chat.await([&] { return chat.screen().cursor_row() == line; }, 10);
    BOOST_TEST(is_there, visible(keys) << " made '" << chat.screen().cursor_row() << "'");
  };
  for (const char* nothing : {"\x1b[5~", "\x1b[6~", "\x1b[2~", "\x1b[15~", "\x1bOP", "\x1b[[A", "\x1b[13;2u",
                              "\x1b[27;2;13~", "\x1b[<0;10;10M", "\x1b[<0;10;10m", "\x1b[M !!", "\x1b[I",
                              "\x1b[O", "\x1b[201~", "\x1b[1;6A", "\x1b[?997;1n", "\xc2\x85"})
    typed(nothing, "ab cd", "");
  for (const char* word : {"\x1b[1;5D", "\x1bOd", "\x1b[1;3D", "\033b"}) typed(word, "ab ", "cd");
  typed("\x1b[1;5D\x1b[1;5D\x1b[1;5C", "ab", " cd");
  for (const char* begin : {"\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"}) typed(begin, "", "ab cd");
  for (const char* end : {"\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"})
    typed(std::string("\001") + end, "ab cd", "");
  typed("\x1b[D\x1b[D\x1b[3~", "ab ", "d");
  chat.type("\x01\x0b/set n\x1b[\r");  // a sequence that is cut leaves what comes behind it
  BOOST_TEST(chat.await_text("n -1\r\n"));
}

BOOST_AUTO_TEST_CASE(a_chat_is_stopped_and_goes_on) {
  ChatInShell in_shell({"-n", "1"});
  ChatTerminal& chat = in_shell.chat;
  chat.type("hello wor");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> hello wor"; }));
  for (int i = 0; i < 2; ++i) {
    size_t from = chat.written().size();
    chat.type("\x1a");
    BOOST_TEST(in_shell.has_shell());
    BOOST_TEST(contains(chat.written().substr(from), kMarksOff));
    from = chat.written().size();
    chat.type("fg\n");
    BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> hello wor"; }));
    BOOST_TEST(chat.is_edited());
    const std::string written = chat.written().substr(from);
    BOOST_TEST(written.rfind(kMarksOn) > written.find(program_path()));
    BOOST_TEST(written.rfind(kMarksOn) != std::string::npos);
  }
  chat.type("\x01X\x05ld");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> Xhello world"; }));
  chat.say("");
  BOOST_TEST(in_shell.home.questions().size() == 1u);
  in_shell.leave();
}

// And behind it the terminal is as it was: what is typed then is not echoed.
BOOST_AUTO_TEST_CASE(an_answer_is_stopped_and_goes_on) {
  ChatInShell in_shell({}, "models/tiny.gguf");
  ChatTerminal& chat = in_shell.chat;
  size_t from = chat.written().size();
  chat.type("hello\n");
  BOOST_TEST(chat.await([&] { return chat.written().size() > from + 200; }));
  chat.type("\x1a");
  BOOST_TEST(chat.await_text("Stopped", from));
  BOOST_TEST(in_shell.has_shell());
  from = chat.written().size();
  chat.type("fg\n");
  BOOST_TEST(chat.await([&] { return chat.is_edited() && chat.written().size() > from + 400; }));
  chat.type("/stats\n/se");
  chat.listen(0.3);
  BOOST_TEST(!contains(chat.written().substr(from), "/stats"));
  chat.type("\x03");
  BOOST_TEST(chat.await_text("context: ", from));
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> /se"; }));
  chat.type("\x15");
  in_shell.leave();
}

// By a signal that nobody hears, while others have the terminal.
BOOST_AUTO_TEST_CASE(a_chat_goes_on_when_others_have_had_its_terminal) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"-n", "1"}));
  BOOST_REQUIRE(chat.await_prompt());
  chat.type("hello");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> hello"; }));
  for (const bool is_stopped : {true, false}) {
    const size_t from = chat.written().size();
    if (is_stopped) chat.send_signal(SIGSTOP);
    chat.set_plain_modes();
    if (is_stopped) chat.send_signal(SIGCONT);
    BOOST_TEST(chat.await_text(kMarksOn, from));
    BOOST_TEST(chat.await(
        [&] { return chat.is_edited() && chat.written().find("> hello", from) != std::string::npos; }));
  }
  chat.send_signal(SIGTSTP);  // of which nobody could wake it: it goes on by itself
  chat.type(" world");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == "> hello world"; }));
  BOOST_TEST(chat.is_edited());
  chat.type("\x15/bye\n");
  BOOST_TEST(chat.end() == 0);
}

// The terminal is the editor's own meanwhile. Until the editor is stopped it may take a key that is typed for
// the shell.
BOOST_AUTO_TEST_CASE(an_editor_is_stopped_and_goes_on) {
  const TempDir temp;
  const std::string number = temp.file("number");  // of the editor's process
  const std::string edit = "; echo editing; read line </dev/tty; printf 'of %s' \"$line\" >\"$1\"\n";
  write_file(temp.file("edit.sh"), "echo $$ >" + number + edit);
  const Variable editor("VISUAL", "sh " + temp.file("edit.sh"));
  ChatInShell in_shell({"-n", "1"});
  ChatTerminal& chat = in_shell.chat;
  chat.type("/edit\n");
  BOOST_TEST(chat.await_text("editing\r\n"));
  chat.type("\x1a");
  BOOST_TEST(in_shell.has_shell());
  const std::string status = "/proc/" + std::to_string(std::stoi(read_file(number))) + "/status";
  BOOST_TEST(chat.await([&] { return contains(read_file(status), "T (stopped)"); }));
  const size_t from = chat.written().size();
  chat.type("fg\n");
  BOOST_TEST(chat.await_text(program_path(), from));
  chat.type("an editor");
  BOOST_TEST(chat.await_text("an editor", from));  // the terminal's echo
  BOOST_TEST(!chat.is_edited());
  chat.type("\n");
  BOOST_TEST(chat.await([&] { return chat.screen().cursor_row() == ">" && chat.is_edited(); }));
  BOOST_TEST(contains(chat.written().substr(from), kMarksOn));
  BOOST_TEST(in_shell.home.questions() == std::vector<std::string>{"of an editor"},
             boost::test_tools::per_element());
  in_shell.leave();
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
  BOOST_TEST(contains(chat.say("/set temp"), "\r\ntemp 0.5\r\n"));
  BOOST_TEST(contains(chat.say("/set think"), "\r\nthink off\r\n"));
  BOOST_TEST(contains(chat.say("/set seed 7"), "seed 7, think off"));
  BOOST_TEST(contains(chat.say("/set think on"), "thinking is on"));
  BOOST_TEST(contains(chat.say("/set think off"), "thinking is off"));
  BOOST_TEST(contains(chat.say("/set top-p 3"), "top-p"));
  BOOST_TEST(contains(chat.say("/set colour 3"), "/set takes one of"));
  BOOST_TEST(contains(chat.say("/set"),
                      "temp 0.5, top-p 0.95, top-k 0, min-p 0, n 2, think-max -1, seed 7, think off, "
                      "schema off"));
  BOOST_TEST(contains(chat.say("/set schema true"), "\r\nschema {\"schema\":true}\r\n"));
  BOOST_TEST(contains(chat.say("/set schema absent.json"), "there is no file absent.json with a schema"));
  BOOST_TEST(contains(chat.say("/set schema -"), "the messages are on standard input"));
  BOOST_TEST(contains(chat.say("/set schema"), "\r\nschema {\"schema\":true}\r\n"));
  BOOST_TEST(contains(chat.say("/set schema off"), "\r\nschema off\r\n"));
  BOOST_TEST(contains(chat.say("/system"), "there is no system prompt"));
  BOOST_TEST(contains(chat.say("/system Be brief."), "Be brief."));
  BOOST_TEST(contains(chat.say("/retry"), "there is no answer yet"));
  BOOST_TEST(contains(chat.say("/undo"), "nothing to take back"));
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
  const std::vector<Talk> talks = home.saved();
  BOOST_REQUIRE_EQUAL(talks.size(), 1u);
  const std::string file = home.temp.file("notes.txt") + ":\nfirst\nsecond\n\n";
  const std::vector<std::string> expected{
      file + "What is in it?", file + "And in @" + home.temp.file("notes.txt") + " again? me@home @nobody",
      "/slash"};
  BOOST_TEST(home.questions() == expected, boost::test_tools::per_element());
  BOOST_TEST(talks[0].messages[0].content == "Be brief.");
  BOOST_TEST(contains(chat.say("/undo"), "taken back: /slash"));
  BOOST_TEST(home.questions().size() == 2u);
  chat.say("/set n 5");
  chat.say("/set temp 1");
  const std::string former = home.saved()[0].messages.back().content;
  for (int i = 0; i < 20 && home.saved()[0].messages.back().content == former; ++i) chat.say("/retry");
  BOOST_TEST(home.saved()[0].messages.back().content != former);
  BOOST_TEST(home.questions().size() == 2u);
  BOOST_TEST(contains(chat.say("/save mine"), "kept as mine"));
  const std::string listed = chat.say("/talks");
  BOOST_TEST(contains(listed, "mine (this one)"));
  BOOST_TEST(contains(listed, "2 turns, used just now"));
  BOOST_TEST(contains(listed, "first\\nsecond"));
  const std::string before = chat.say("/stats");
  BOOST_TEST(!contains(before, "no answers yet"));
  BOOST_TEST(contains(chat.say("/clear"), "the talk is kept as mine; another begins"));
  const std::string after = chat.say("/stats");
  BOOST_TEST(contains(after, "no answers yet"));
  BOOST_TEST(after.substr(after.find("context: "), 12) != before.substr(before.find("context: "), 12));
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
  completed("/set schema " + home.temp.file("fol"), "> /set schema " + home.temp.file("folder/"));
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
  const Variable editor("VISUAL", "sh " + home.temp.file("edit.sh"));
  ChatTerminal chat(home.path, home.words({"-n", "3"}));
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

// Nothing is lost, and nothing is left behind.
BOOST_AUTO_TEST_CASE(an_editor_that_fails) {
  const Home home;
  const std::string script = home.temp.file("edit.sh");
  write_file(script, "printf 'half a thought' >>\"$1\"; exit 1\n");
  const Variable editor("VISUAL", "sh " + script);
  ChatTerminal chat(home.path, home.words({"-n", "1"}));
  BOOST_REQUIRE(chat.await_prompt());
  const std::string said = chat.say("/edit");
  BOOST_TEST(contains(said, "failed"));
  BOOST_TEST(contains(said, kMarksOn));
  for (const fs::directory_entry& entry : fs::directory_iterator(home.path))
    BOOST_TEST(!entry.path().filename().string().starts_with("dsv32-"), entry.path());
  BOOST_TEST(home.questions().empty());
  write_file(script, "printf ', ended' >>\"$1\"\n");
  chat.say("/edit");
  BOOST_TEST(home.questions() == std::vector<std::string>{"half a thought, ended"},
             boost::test_tools::per_element());
  chat.type(kPaste + std::string("of a paste\rwith lines") + kPasteEnd);
  BOOST_TEST(chat.await_text(" lines]"));
  chat.say("");
  chat.type("/bye\n");
  BOOST_TEST(chat.end() == 0);
}

BOOST_AUTO_TEST_CASE(how_a_chat_is_left) {
  const Home home;
  const auto left_by = [&](const std::vector<std::string>& keys) {
    ChatTerminal chat(home.path, home.words({"-q"}));
    BOOST_REQUIRE(chat.await_prompt());
    for (const std::string& key : keys) {
      const size_t from = chat.written().size();
      chat.type(key);
      if (&key != &keys.back()) BOOST_TEST(chat.await([&] { return chat.written().size() > from; }));
      if (key == "\x03" && &key != &keys.back()) BOOST_TEST(chat.await_prompt());
    }
    const int code = chat.end();
    return std::pair(code, contains(chat.written(), "Ctrl-C once more leaves"));
  };
  BOOST_TEST((left_by({"exit\n"}) == std::pair(0, false)));
  BOOST_TEST((left_by({"quit\n"}) == std::pair(0, false)));
  BOOST_TEST((left_by({"\x03", "\x03"}) == std::pair(130, true)));
  BOOST_TEST((left_by({"text", "\x03", "text", "\x03", "/bye\n"}) == std::pair(0, false)));
  BOOST_TEST(home.questions().empty());
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
  BOOST_TEST(contains(first, "this talk is kept as " + TalkStore(home.talks).names()[0]));
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
