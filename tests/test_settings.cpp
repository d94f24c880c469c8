// The settings file, what a shell offers, and the manual page.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <sstream>

#include <sys/stat.h>

#include "base/error.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "tests/support/contains.h"
#include "tests/support/settings_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(settings)

namespace {

using Words = std::vector<std::string>;

std::string complaint_about(const std::string& text) {
  const SettingsFile file(text);
  try {
    parse_options(Command::run, {});
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == ErrorKind::usage));
    return error.what();
  }
  return {};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_line_is_a_flag_and_the_command_line_wins) {
  const SettingsFile file(
      "# mine\n\n  --temp=0.5\r\n--max_tokens=7\n--gpus=1\n--stop=one\n--stop=two\n--model=set\n--no-think\n"
      "--system=Be brief = short, # really\n--decode=5\n");
  const Options run = parse_options(Command::run, {});
  BOOST_TEST((run.generation.sampling.temperature == 0.5f && run.generation.max_answer == 7));
  BOOST_TEST((!run.generation.thinking && run.system_text == "Be brief = short, # really"));
  BOOST_TEST((run.engine.gpus == std::vector<int>{1} && run.engine.model_path == "set"));
  BOOST_TEST((run.generation.stops == Words{"one", "two"}));
  BOOST_TEST(parse_options(Command::bench, {}).bench.n_decode == 5);
  const Options other = parse_options(
      Command::run, {"--think", "--temp", "1", "--system-file", "F", "--stop", "x", "-m", "given"});
  BOOST_TEST((other.generation.thinking && other.generation.sampling.temperature == 1.0f));
  BOOST_TEST((other.system_text.empty() && other.generation.stops == Words{"x"}));
  BOOST_TEST(other.engine.model_path == "given");
  BOOST_TEST(parse_options(Command::run, {"--reasoning", "on"}).generation.thinking);
  BOOST_TEST(parse_options(Command::run, {"--raw"}).system_text.empty());
  BOOST_TEST(parse_options(Command::bench, {"--synthetic"}).engine.model_path.empty());
  setenv("DSV32_MODEL", "named", 1);
  BOOST_TEST(parse_options(Command::run, {}).engine.model_path.empty());
  unsetenv("DSV32_MODEL");
}

BOOST_AUTO_TEST_CASE(a_pair_of_quotes_around_a_value_is_none_of_it) {
  const auto system = [](const std::string& value) {
    const SettingsFile file("--system=" + value + "\n");
    return parse_options(Command::run, {}).system_text;
  };
  BOOST_TEST(system("\"Be brief.\"") == "Be brief.");
  BOOST_TEST(system("' It\\s \"short\" '") == " It\\s \"short\" ");
  for (const char* text : {"\"a\" and \"b\"", "\"a", "a\"", "'a\"", "\""}) BOOST_TEST(system(text) == text);
}

// Opening one would wait for ever.
BOOST_AUTO_TEST_CASE(a_pipe_is_no_settings_file) {
  const SettingsFile file("");
  const std::string path = file.dir.file("dsv32/config");
  std::filesystem::remove(path);
  BOOST_REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  BOOST_CHECK_EXCEPTION(parse_options(Command::run, {}), Error,
                        [](const Error& error) { return contains(error.what(), "config: it is a pipe"); });
}

BOOST_AUTO_TEST_CASE(a_mistake_is_told_with_its_line) {
  BOOST_TEST(complaint_about("--temp=0.5\n") == "");
  const std::pair<const char*, const char*> wrong[] = {
      {"\n--temq=1", "config:2: unknown flag --temq (did you mean --temp?)"},
      {"--temp=warm", "config:1: --temp takes a number from 0 to 100, not 'warm'"},
      {"--temp", "config:1: --temp needs a value"},
      {"temp = 1", "config:1: expected a flag, not 'temp = 1'"},
      {"--temp = 1", "config:1: expected a flag, not '--temp = 1'"},
      {"--temp 1", "config:1: expected a flag, not '--temp 1'"},
      {"-qv", "config:1: expected a flag, not '-qv'"},
      {"--", "config:1: expected a flag, not '--'"},
      {"[run]\n--temp=1", "config:1: expected a flag, not '[run]'"},
      {"--quiet=maybe", "config:1: --quiet takes no value"},
      {"--prompt=hi", "config:1: --prompt belongs on the command line"},
      {"--decode=few", "config:1: --decode takes an integer from 1 to 1048576, not 'few'"},
      {"--kv-type=fp9", "config:1: --kv-type takes one of"},
  };
  for (const auto& [text, message] : wrong) BOOST_TEST(contains(complaint_about(text), message), text);
  BOOST_TEST(complaint_about("--seed=-1") == "");  // chat takes it, batch does not
}

BOOST_AUTO_TEST_CASE(the_manual_page_has_every_command_and_flag) {
  const std::string page = manual_page().substr(0, manual_page().find("\n.SH IN A CHAT"));
  for (const CommandRow& row : commands())
    BOOST_TEST(contains(page, "\n\\fB" + row.name() + "\\fR "), row.name());
  BOOST_TEST(count(page, "\n.TP\n") == commands().size() + flags().size());
}

BOOST_AUTO_TEST_SUITE_END()
