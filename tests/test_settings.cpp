// cli/settings and cli/completion: what a file says for flags, and that nothing made of the tables lacks a
// part of them.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "cli/inspect/completion.h"
#include "cli/inspect/manual.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

namespace {

using Words = std::vector<std::string>;

// While it lives this is the user's file.
struct SettingsFile {
  explicit SettingsFile(const std::string& text) {
    std::filesystem::create_directories(dir.file("dsv32"));
    write_file(dir.file("dsv32/config"), text);
    setenv("XDG_CONFIG_HOME", dir.file("").c_str(), 1);
  }
  ~SettingsFile() { setenv("XDG_CONFIG_HOME", before.c_str(), 1); }
  TempDir dir;
  std::string before = std::getenv("XDG_CONFIG_HOME");
};

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
  };
  for (const auto& [text, message] : wrong) BOOST_TEST(contains(complaint_about(text), message), text);
}

// Each shell's part for a command has that one's flags and no other's, and so has the manual page.
BOOST_AUTO_TEST_CASE(completions_and_manual_have_every_command_and_flag) {
  const std::string fish = shell_completion("fish");
  const std::string page = manual_page().substr(0, manual_page().find("\n.SH IN A CHAT"));
  for (const char* shell : {"bash", "zsh"}) {
    std::istringstream lines(shell_completion(shell));
    size_t n_found = 0;
    for (std::string line; std::getline(lines, line);)
      for (const CommandRow& row : commands()) {
        if (!line.starts_with("    '" + row.name() + " '*)")) continue;
        ++n_found;
        while (!contains(line, " words='--") && !contains(line, " flags=('--") && std::getline(lines, line)) {
        }
        for (const Flag* flag : flags_of(row.command))
          BOOST_TEST((contains(line, "--" + flag->name() + " ") ||
                      contains(line, "--" + flag->name() + "'") || contains(line, "--" + flag->name() + ":")),
                     shell << " " << row.name() << " " << flag->name());
        BOOST_TEST(count(line, shell == std::string("zsh") ? "'--" : "--") == flags_of(row.command).size());
        break;
      }
    BOOST_TEST(n_found == commands().size());
  }
  for (const CommandRow& row : commands()) {
    std::string spaced = row.name();
    const size_t space = spaced.find(' ');
    const std::string when =
        "__fish_seen_subcommand_from " + spaced.substr(0, space) +
        (space == spaced.npos ? "" : "; and __fish_seen_subcommand_from" + spaced.substr(space));
    BOOST_TEST(count(fish, "-n '" + when + "' -l ") == flags_of(row.command).size(), row.name());
    for (const Flag* flag : flags_of(row.command))
      BOOST_TEST(contains(fish, "-n '" + when + "' -l " + flag->name() + " "), row.name());
    BOOST_TEST(contains(page, "\n\\fB" + row.name() + "\\fR "), row.name());
  }
  BOOST_TEST(count(page, "\n.TP\n") == commands().size() + flags().size());
  BOOST_CHECK_THROW(shell_completion("tcsh"), Error);
}

BOOST_AUTO_TEST_SUITE_END()
