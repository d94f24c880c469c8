// A chat that is ended by a signal at any moment loses no message that had been shown: not one of before, not
// the question, and of the answer nothing where the signal can be heard.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <random>

#include "base/text.h"
#include "tests/support/chat_home.h"
#include "tests/support/contains.h"
#include "tests/support/sanitized.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(chat_kills, *boost::unit_test::precondition(has_terminal))

namespace {

constexpr size_t kWide = 4000;  // columns: no answer here is broken

// Without spaces, and without bytes that are no characters, which a file keeps as U+FFFD.
std::string squeezed(std::string text) {
  for (size_t at = 0; (at = text.find("\\x")) != std::string::npos;) text.erase(at, 4);
  for (size_t at = 0; (at = text.find("\ufffd")) != std::string::npos;) text.erase(at, 3);
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
  return text;
}

// What the screen shows behind the row of a question, up to the next prompt or the program's last words.
std::string shown_behind(const std::string& question, const Screen& screen) {
  const std::string text = screen.text();
  const size_t row = text.find("> " + question + "\n");
  if (row == std::string::npos) return {};
  const size_t begin = row + question.size() + 3;
  return text.substr(begin,
                     std::min(text.find("\nthis talk is kept as", begin), text.find("\n>", begin)) - begin);
}

struct Kill {
  int signal;
  const char* name;
  bool is_heard;  // the program has its say before it ends
};
constexpr Kill kKills[] = {{SIGHUP, "SIGHUP", true},
                           {SIGTERM, "SIGTERM", true},
                           {SIGINT, "SIGINT", true},
                           {SIGQUIT, "SIGQUIT", false},
                           {SIGKILL, "SIGKILL", false}};

// One chat: a question and its answer, then another that the signal interrupts.
void kill_once(const Kill& kill, std::mt19937& random) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"--talk", "kept", "-n", "40"}, "models/tiny.gguf"), kWide);
  BOOST_REQUIRE(chat.await_prompt());
  chat.say("first question");
  const std::string first = squeezed(shown_behind("first question", chat.screen()));
  BOOST_TEST(!first.empty());
  const size_t from = chat.written().size();
  chat.type("second question\n");
  chat.listen(std::uniform_real_distribution<>(0, 0.5)(random));
  chat.send_signal(kill.signal);
  if (kill.signal == SIGINT) chat.await_prompt(), chat.type("/bye\n");
  chat.end();

  const std::optional<Talk> talk = TalkStore(home.talks).load("kept");
  BOOST_REQUIRE(talk.has_value());
  const std::vector<Message>& messages = talk->messages;
  BOOST_REQUIRE(messages.size() >= 2);
  BOOST_TEST(messages[0].content == "first question");
  BOOST_TEST(squeezed(visible(messages[1].content, true)) == first);
  const std::string shown = squeezed(shown_behind("second question", chat.screen()));
  if (!contains(chat.written().substr(from), "reading prompt ") && shown.empty()) return;
  BOOST_REQUIRE(messages.size() >= 3);
  BOOST_TEST(messages[2].content == "second question");
  if (!kill.is_heard || contains(shown, "endedbeforetheanswerbegan") || shown.empty() ||
      shown.starts_with("reading"))
    return;
  BOOST_REQUIRE(messages.size() == 4);
  BOOST_TEST(squeezed(visible(messages[3].content, true)).starts_with(shown));
}

void kill_often(int n_times) {
  std::mt19937 random(std::random_device{}());
  for (const Kill& kill : kKills)
    for (int i = 0; i < n_times; ++i) BOOST_TEST_CONTEXT(kill.name << ", the " << i << "th time") {
        kill_once(kill, random);
      }
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_was_shown_is_kept) { kill_often(kIsSanitized ? 1 : 2); }

BOOST_AUTO_TEST_CASE(two_hundred_times_each,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  kill_often(200);
}

// An answer that takes longer is kept while it comes.
BOOST_AUTO_TEST_CASE(of_a_long_answer_the_last_second_is_lost_at_most) {
  const Home home;
  ChatTerminal chat(home.path, home.words({"--talk", "kept"}, "models/tiny.gguf"), kWide);
  BOOST_REQUIRE(chat.await_prompt());
  chat.type("hello\n");
  const auto kept = [&] {
    const std::optional<Talk> talk = TalkStore(home.talks).load("kept");
    return talk && talk->messages.size() == 2 ? talk->messages[1].content : "";
  };
  BOOST_TEST(chat.await([&] { return !kept().empty(); }));
  const std::string before = kept();
  BOOST_TEST(chat.await([&] { return kept().size() > before.size(); }));
  chat.send_signal(SIGKILL);
  chat.end();
  BOOST_TEST(kept().starts_with(before));
}

BOOST_AUTO_TEST_SUITE_END()
