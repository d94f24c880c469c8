// Progress on a terminal that another program writes to as well: whoever reads the answer from a pipe.
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "tests/support/chat_home.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(progress, *boost::unit_test::precondition(has_terminal))

namespace {

// A shell's line on a terminal. `run WORDS` there is the program with answers that are always the same.
struct Line {
  std::string written, screen;

  explicit Line(const std::string& line) {
    const Home home;
    write_file(home.temp.file("lines"), "What is 1+1?\nWhat is 2+2?\nWhat is 3+3?\n");
    const std::string run = "run() { command=$1; shift; " + program_path() + " $command -m " +
                            std::filesystem::absolute("models/demo.gguf").string() +
                            " --temp 0 --no-cache --warm never -t 2 \"$@\"; }; ";
    ChatTerminal terminal(home.path, {"-c", "cd " + home.path + "; " + run + line}, 200, "/bin/sh");
    BOOST_TEST(terminal.end() == 0);
    written = terminal.written(), screen = terminal.screen().text();
  }
  bool shows(const std::string& rows) const { return contains("\n" + screen, rows); }
  bool erases_behind(const std::string& text) const {
    return written.find("\x1b[K", written.find(text)) != std::string::npos;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(an_answer_in_a_pipe_is_not_erased) {
  const std::string answer = "Hello. Give me a text and ask me about it.";
  const Line line("run run --no-think Hello | cat");
  BOOST_TEST(line.shows("\n" + answer), line.screen);
  BOOST_TEST(line.erases_behind("opening"));
  BOOST_TEST(!line.erases_behind(answer));
  const Line json("run run --no-think --json Hello | cut -b 1-6");
  BOOST_TEST(json.shows("\n{\"id\":"), json.screen);
  BOOST_TEST(!json.erases_behind("{\"id\":"));
}

BOOST_AUTO_TEST_CASE(a_batch_in_a_pipe_is_not_erased) {
  const std::string text = "==> 1 <==\n2\n\n==> 2 <==\n4\n\n==> 3 <==\n6\n";
  const Line answers("run run --no-think --lines -f lines | cat");
  BOOST_TEST(answers.shows("\n" + text), answers.screen);
  for (const char* command :
       {"run batch lines --lines --no-think -o - | cut -b 1-6",
        "mkfifo pipe; cut -b 1-6 <pipe & run batch lines --lines --no-think -o pipe; wait"}) {
    const Line batch(command);
    BOOST_TEST(batch.shows("\n{\"id\":"), batch.screen);
    BOOST_TEST(!batch.erases_behind("{\"id\":"), batch.screen);
  }
}

BOOST_AUTO_TEST_CASE(thinking_is_not_erased) {
  for (const char* color : {"never", "always"}) {
    const Line line("run run --think-max 6 Hello >answer --color " + std::string(color));
    BOOST_TEST(line.shows("This is not about a\n"), line.screen);
    BOOST_TEST(contains(line.written, "answering, "));  // nobody else shows the file's bytes
  }
}

BOOST_AUTO_TEST_SUITE_END()
