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

BOOST_AUTO_TEST_SUITE(settings)

BOOST_AUTO_TEST_CASE(the_more_particular_wins_and_the_command_line_over_all) {
  const SettingsFile file(
      "# mine\n\n temp=0.5\r\nn = 7\ngpus = 0\nstop = one\nmodel = set\n[run]\ntemp = 0.25\nno-think\n"
      "system = Be brief = short, # really\ngpus = 1\nstop = two\nstop = three\n[inspect]\njson\n"
      "[inspect plan]\njson = false\n");
  const Options run = parse_options(Command::run, {});
  BOOST_TEST((run.generation.sampling.temperature == 0.25f && run.generation.max_answer == 7));
  BOOST_TEST((!run.generation.thinking && run.system_text == "Be brief = short, # really"));
  BOOST_TEST((run.engine.gpus == std::vector<int>{1} && run.engine.model_path == "set"));
  BOOST_TEST((run.generation.stops == Words{"two", "three"}));
  const Options chat = parse_options(Command::chat, {"-n", "3"});
  BOOST_TEST((chat.generation.sampling.temperature == 0.5f && chat.generation.max_answer == 3));
  BOOST_TEST((chat.generation.thinking && chat.generation.stops == Words{"one"}));
  const Options other = parse_options(
      Command::run, {"--think", "--temp", "1", "--system-file", "F", "--stop", "x", "-m", "given"});
  BOOST_TEST((other.generation.thinking && other.generation.sampling.temperature == 1.0f));
  BOOST_TEST((other.system_text.empty() && other.generation.stops == Words{"x"}));
  BOOST_TEST(other.engine.model_path == "given");
  BOOST_TEST(parse_options(Command::run, {"--raw"}).system_text.empty());
  BOOST_TEST(parse_options(Command::bench, {"--synthetic"}).engine.model_path.empty());
  BOOST_TEST(
      (parse_options(Command::inspect_model, {}).json && !parse_options(Command::inspect_plan, {}).json));
  setenv("DSV32_MODEL", "named", 1);
  BOOST_TEST(parse_options(Command::run, {}).engine.model_path.empty());
  unsetenv("DSV32_MODEL");
}

BOOST_AUTO_TEST_CASE(a_pair_of_quotes_around_a_value_is_none_of_it) {
  const auto system = [](const std::string& value) {
    const SettingsFile file("system = " + value + "\n");
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
  BOOST_TEST(complaint_about("temp = 0.5\n") == "");
  const std::pair<const char*, const char*> wrong[] = {
      {"\ntemq = 1", "config:2: unknown flag temq (did you mean temp?)"},
      {"temp = warm", "config:1: temp takes a number from 0 to 100, not 'warm'"},
      {"[rnu]\ntemp = 1", "config:2: there is no command rnu"},
      {"[bench]\ntemp = 1", "config:2: unknown flag temp"},
      {"[run", "config:1: a section is [COMMAND]"},
      {"quiet = maybe", "config:1: --quiet is a switch, true or false"},
      {"prompt = hi", "config:1: --prompt belongs on the command line"},
      {"= 3", "config:1: unknown flag"},
      {"[bench]\ndecode = few", "config:2: decode takes an integer from 1 to 1048576, not 'few'"},
      {"[inspect]\nkv-type = fp9", "config:2: kv-type takes one of"},
  };
  for (const auto& [text, message] : wrong) BOOST_TEST(contains(complaint_about(text), message), text);
  BOOST_TEST(complaint_about("seed = -1") == "");  // chat takes it, batch does not
}

BOOST_AUTO_TEST_CASE(the_manual_page_has_every_command_and_flag) {
  const std::string page = manual_page().substr(0, manual_page().find("\n.SH IN A CHAT"));
  for (const CommandRow& row : commands())
    BOOST_TEST(contains(page, "\n\\fB" + row.name() + "\\fR "), row.name());
  BOOST_TEST(count(page, "\n.TP\n") == commands().size() + flags().size());
}

BOOST_AUTO_TEST_CASE(what_a_shell_offers) {
  const std::pair<Words, const char*> offered[] = {
      {{"ca"}, "words\nrun\nbatch\nchat\ninspect\ncheck\ncache\ntalks\nbench\nconfig\nwarm\ncompletion\n"},
      {{"warm", "st"},
       "words\nstart\tLoads the model and leaves a process that holds it, so that run, chat and batch begin "
       "at "
       "once.\nstatus\tThe processes that hold a model. Exit code 1: none answers.\nstop\tEnds warm "
       "processes (with -m only those of this model) after their running requests.\n"},
      {{"run", "--kv-type", ""}, "words\nfp8\nbf16\nf32\n"},
      {{"run", "--kv-type=f"}, "words\nfp8\nbf16\nf32\n"},
      {{"run", "--kv-type", "=", "f"}, "words\nfp8\nbf16\nf32\n"},
      {{"run", "--cache-policy", "s"}, "words\nlru\nlfu\nfifo\nslru\n"},
      {{"run", "-f", ""}, "files\n"},
      {{"run", "--json", ""}, "files\n"},
      {{"completion", ""}, "words\nbash\nzsh\nfish\nman\n"},
      {{"bench", "batch", "--topk-buffer", ""}, "words\nfull\nauto\n"},
      {{"warm", "stop", "--hel"},
       "words\n--model\tthe GGUF file\n--help\tthis text\n"
       "--version\tthe version\n"},
      {{"nothing", "here", ""}, "words\n"},
  };
  for (const auto& [line, text] : offered) BOOST_TEST(offers_for(line) == text, line.back());
}

BOOST_AUTO_TEST_SUITE_END()
