// See flags.h: cxxopts takes a command's words apart and prints its help.
//
// It gets the words with a hyphen one by one. So a complaint names the word, and any text can be a value.
#include <algorithm>

#include <unistd.h>

#define CXXOPTS_NO_REGEX  // std::regex recurses for each character of a word
#include <cxxopts.hpp>

#include "base/text.h"
#include "cli/options/flags.h"

namespace dsv32 {
namespace {

using Args = std::vector<std::string>;

// The flag that the whole of `word` names, "--ctx" or "-c", or else null.
const Flag* flag_of(const Flags& flags, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const std::string name = word.starts_with('-') ? word.substr(is_long ? 2 : 1) : "";
  return name.empty() || is_long != (name.size() > 1) ? nullptr : find_flag(flags, name);
}

[[noreturn]] void fail_switch(const Flags& flags, const std::string& name) {
  const std::string other = name.starts_with("no-") ? name.substr(3) : "no-" + name;
  fail(ErrorKind::usage, "--" + name + " takes no value",
       find_flag(flags, other) ? "--" + other + " is its opposite" : "it stands alone, or is left out");
}

std::string where_to_look(const CommandLine& line) {
  return std::string(", see ") + line.command.full_name + " --help";
}

// A word that looks like text gets a hint.
[[noreturn]] void fail_unknown(const CommandLine& line, const std::string& word) {
  Args known;
  for (const Flag* flag : line.flags)
    for (const std::string& spelling : flag->spellings())
      if (spelling.size() > 1) known.push_back(spelling);
  const std::string shown = word.substr(0, word.find_first_of("= "));
  const std::string name = shown.substr(std::min(shown.find_first_not_of('-'), shown.size()));
  const std::string near = name.size() > 1 ? did_you_mean(name, known, "--") : "";
  const bool is_text = word.find(' ') != word.npos || (word[1] >= '0' && word[1] <= '9');
  const Flag* letter = flag_of(line.flags, word.substr(0, 2));  // "-n-5"
  fail(ErrorKind::usage, "unknown flag " + visible(shown, false, 40) + near + where_to_look(line),
       is_text && line.command.takes_words       ? "a text that begins with a hyphen stands after --"
       : letter && letter->value && near.empty() ? "the value of a letter stands in a word of its own"
                                                 : "");
}

// What is wrong with a word is said before cxxopts reads it as something else.
void check_word(const CommandLine& line, const std::string& word) {
  const size_t end = std::min(word.find('='), word.size());
  const bool is_long = word.starts_with("--");
  if (!is_long && flag_of(line.flags, "-" + word.substr(0, end))) fail_unknown(line, word);
  const bool is_group = !is_long && word.size() > 2 && word.find(' ') == word.npos;
  for (size_t i = 1; is_group && i < word.size(); ++i) {
    const Flag* letter = find_flag(line.flags, word.substr(i, 1));
    if (!letter || letter->value) break;
    if (word[i] == 'h' || word[i] == 'V')
      fail(ErrorKind::usage, format("-%c stands alone, not in %s", word[i], visible(word, false, 40).c_str()),
           "a model is a file or a part of its name, -m FILE");
  }
  const Flag* flag = flag_of(line.flags, word.substr(0, end));
  if (end < word.size() && flag && !flag->value)
    fail_switch(line.flags, is_long ? word.substr(2, end - 2) : flag->name());
}

// The value of the last flag of `word`, which is args[i].
const std::string& next_value(const CommandLine& line, const Args& args, size_t i, const std::string& word) {
  const Flag* flag = flag_of(line.flags, word.starts_with("--") ? word : std::string("-") + word.back());
  const std::string name = "--" + flag->name();
  if (i + 1 == args.size()) fail(ErrorKind::usage, name + " needs a value" + where_to_look(line));
  const std::string& value = args[i + 1];
  if (flag_of(line.flags, value))
    fail(ErrorKind::usage, format("%s needs a value, and %s is a flag (%s=%s takes it as it stands)",
                                  name.c_str(), value.c_str(), name.c_str(), value.c_str()));
  return value;
}

// Takes the flags of args[i], one long name or several letters, and args[i + 1] if their last one needs it.
void take_flags(const CommandLine& line, const Args& args, size_t& i, std::vector<GivenFlag>& given) {
  // Other programs have these two long names with one hyphen.
  std::string word = args[i] == "-sys" ? "--system" : args[i] == "-sysf" ? "--system-file" : args[i];
  if (word.starts_with("--"))
    std::ranges::replace(word.begin(), word.begin() + std::min(word.find('='), word.size()), '_', '-');
  check_word(line, word);
  const char* words[] = {"", word.c_str(), nullptr};
  cxxopts::ParseResult parsed;
  try {
    parsed = line.parser->parse(2, words);
  } catch (const cxxopts::exceptions::missing_argument&) {
    words[2] = next_value(line, args, i++, word).c_str();
    parsed = line.parser->parse(3, words);
  } catch (const cxxopts::exceptions::exception&) {
    fail_unknown(line, word);
  }
  const bool is_off = word.starts_with("--no");
  for (const cxxopts::KeyValue& one : parsed.arguments()) {
    const Flag* flag = find_flag(line.flags, one.key());
    const bool is_negated = !flag->value && is_off && !flag->name().starts_with("no");
    given.push_back({flag, is_negated ? "false" : one.value()});
  }
}

}  // namespace

CommandLine make_command_line(const CommandRow& command, Flags flags) {
  constexpr size_t kNarrowest = 60;  // below that words would be broken
  cxxopts::Options parser(command.full_name, command.about + std::string("\n"));
  parser.custom_help(command.usage).set_width(std::max(window_size({STDOUT_FILENO}).columns, kNarrowest));
  for (const Flag* flag : flags) {
    const auto value = flag->value ? cxxopts::value<std::string>() : cxxopts::value<bool>();
    parser.add_options(flag->group)(flag->names, flag->help(), value, flag->value ? flag->value : "");
  }
  return {command, std::move(flags), std::make_shared<cxxopts::Options>(std::move(parser))};
}

GivenWords take_apart(const CommandLine& line, const Args& args) {
  GivenWords given;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      given.words.insert(given.words.end(), args.begin() + static_cast<ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (args[i].size() > 1 && args[i][0] == '-')
      take_flags(line, args, i, given.flags);
    else
      given.words.push_back(args[i]);
  }
  if (!line.command.takes_words && !given.words.empty() && !given.has("help"))
    fail(ErrorKind::usage, format("unexpected word '%s'", visible(given.words.front(), false, 80).c_str()) +
                               where_to_look(line));
  return given;
}

std::string help_of(const CommandLine& line) {
  Args groups;
  for (const Flag* flag : line.flags)
    if (std::ranges::count(groups, flag->group) == 0) groups.push_back(flag->group);
  return line.parser->help(groups);
}

const Flag* find_flag(const Flags& flags, const std::string& name) {
  for (const Flag* flag : flags)
    if (std::ranges::count(flag->spellings(), replaced(name, "_", "-")) > 0) return flag;
  return nullptr;
}

bool GivenWords::has(const std::string& name) const {
  return std::ranges::any_of(flags, [&](const GivenFlag& given) { return given.flag->name() == name; });
}

std::string parser_version() {
  return format("%d.%d.%d", cxxopts::version.major, cxxopts::version.minor, cxxopts::version.patch);
}

}  // namespace dsv32
