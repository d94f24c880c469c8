#include "cli/options/flag_parser.h"

#include <algorithm>

#include <cxxopts.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/help.h"

namespace dsv32 {
namespace {

constexpr size_t kUnbroken = 1 << 16;  // columns: fitted() breaks lines

cxxopts::Options make_parser(const CommandText& command, const FlagTexts& flags) {
  cxxopts::Options parser(command.name, command.about);
  parser.custom_help(command.usage).set_width(kUnbroken);
  for (const FlagText* flag : flags) {
    if (flag->value)
      parser.add_options(flag->group)(flag->names, flag->text, cxxopts::value<std::string>(), flag->value);
    else
      parser.add_options(flag->group)(flag->names, flag->text);
  }
  return parser;
}

std::string without_hyphens(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

std::string where_to_look(const CommandText& command) { return ", see " + command.name + " --help"; }

// `word`: with its hyphens.
[[noreturn]] void fail_unknown(const CommandText& command, const FlagTexts& flags, const std::string& word) {
  std::vector<std::string> known;
  for (const FlagText* flag : flags)
    for (const std::string& spelling : flag->spellings())
      if (spelling.size() > 1) known.push_back(spelling);
  const std::string name = without_hyphens(word);
  const std::string near = name.size() > 1 ? nearest(name, known) : "";
  fail(ErrorKind::usage, format("unknown flag %s%s", visible(word, false, 40).c_str(),
                                near.empty() ? "" : format(" (did you mean --%s?)", near.c_str()).c_str()) +
                             where_to_look(command));
}

// What cxxopts is to see: the multi-letter names behind one hyphen that hands know from elsewhere by their
// long form. A flag's value is left as it is.
std::vector<std::string> rewrite(const FlagTexts& flags, const std::vector<std::string>& args) {
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      words.insert(words.end(), args.begin() + static_cast<ptrdiff_t>(i), args.end());
      break;
    }
    const std::string word = args[i] == "-sys" ? "--system" : args[i] == "-sysf" ? "--system-file" : args[i];
    const bool is_flag = word.size() > 1 && word[0] == '-';
    const FlagText* flag = is_flag ? find_flag(flags, without_hyphens(word)) : nullptr;
    words.push_back(word);
    if (flag && flag->value && i + 1 < args.size()) words.push_back(args[++i]);
  }
  return words;
}

// cxxopts puts the name in question between its quotation marks, and nowhere else.
std::string quoted_part(const std::string& message) {
  const size_t begin = message.find(cxxopts::LQUOTE), end = message.rfind(cxxopts::RQUOTE);
  if (begin == std::string::npos || end == std::string::npos) return message;
  return message.substr(begin + cxxopts::LQUOTE.size(), end - begin - cxxopts::LQUOTE.size());
}

std::string dashed(const FlagTexts& flags, const std::string& name) {
  const FlagText* flag = find_flag(flags, name);
  return "--" + (flag ? flag->name() : visible(name, false, 80));
}

cxxopts::ParseResult parse(const CommandText& command, const FlagTexts& flags,
                           const std::vector<std::string>& args) {
  std::vector<const char*> argv{command.name.c_str()};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  try {
    return make_parser(command, flags).parse(static_cast<int>(argv.size()), argv.data());
  } catch (const cxxopts::exceptions::no_such_option& error) {
    const std::string name = quoted_part(error.what());
    fail_unknown(command, flags, (name.size() == 1 ? "-" : "--") + name);
  } catch (const cxxopts::exceptions::missing_argument& error) {
    fail(ErrorKind::usage,
         dashed(flags, quoted_part(error.what())) + " needs a value" + where_to_look(command));
  } catch (const cxxopts::exceptions::exception& error) {
    fail(ErrorKind::usage, format("cannot read '%s'", visible(quoted_part(error.what()), false, 80).c_str()) +
                               where_to_look(command));
  }
}

}  // namespace

std::vector<std::string> FlagText::spellings() const {
  std::vector<std::string> parts;
  const std::string all = names;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    parts.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string FlagText::name() const { return spellings().front(); }

const FlagText* find_flag(const FlagTexts& flags, const std::string& name) {
  for (const FlagText* flag : flags)
    if (std::ranges::count(flag->spellings(), name) > 0) return flag;
  return nullptr;
}

bool GivenWords::has(const std::string& name) const {
  return std::ranges::any_of(flags, [&](const GivenFlag& given) { return given.flag->name() == name; });
}

GivenWords take_apart(const CommandText& command, const FlagTexts& flags,
                      const std::vector<std::string>& args) {
  const cxxopts::ParseResult parsed = parse(command, flags, rewrite(flags, args));
  GivenWords given;
  for (const cxxopts::KeyValue& argument : parsed.arguments()) {
    const FlagText* flag = find_flag(flags, argument.key());
    const bool is_off = !flag->value && argument.value() == "false";
    if (!flag->value && !is_off && argument.value() != "true")
      fail(ErrorKind::usage, format("--%s takes no value", argument.key().c_str()));
    if (!is_off) given.flags.push_back({flag, argument.value()});
  }
  given.words = parsed.unmatched();
  if (!command.takes_words && !given.words.empty() && !given.has("help") && !given.has("version"))
    fail(ErrorKind::usage, format("unexpected word '%s'", visible(given.words.front(), false, 80).c_str()) +
                               where_to_look(command));
  return given;
}

std::string help_of(const CommandText& command, const FlagTexts& flags) {
  std::vector<std::string> groups;
  for (const FlagText* flag : flags)
    if (std::ranges::count(groups, flag->group) == 0) groups.push_back(flag->group);
  return fitted(make_parser(command, flags).help(groups));
}

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  if (word.size() > 64) return best;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name);
    if (distance < best_distance) best = name, best_distance = distance;
  }
  return best;
}

}  // namespace dsv32
