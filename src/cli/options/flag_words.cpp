// See flags.h: the words of a command taken apart, and texts turned into values.
#include <algorithm>
#include <charconv>

#include <cxxopts.hpp>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "engine/plan_speed.h"

namespace dsv32 {
namespace {

constexpr size_t kUnbroken = 1 << 16;  // columns: fitted() breaks lines
constexpr size_t kMostGpus = 1024;

// "full or auto", "fp8, bf16 or f32"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

std::string expectation(const FlagValue& value, const std::string& expected) {
  return format("%s takes %s, not '%s'", value.flag.c_str(), expected.c_str(),
                visible(value.text, false, 80).c_str());
}

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

cxxopts::Options make_parser(const CommandRow& command, const Flags& flags) {
  cxxopts::Options parser(command.full_name, command.about);
  parser.custom_help(command.usage).set_width(kUnbroken);
  for (const Flag* flag : flags) {
    if (flag->value)
      parser.add_options(flag->group)(flag->names, flag->help(), cxxopts::value<std::string>(), flag->value);
    else
      parser.add_options(flag->group)(flag->names, flag->help());
  }
  return parser;
}

std::string without_hyphens(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

std::string where_to_look(const CommandRow& command) {
  return std::string(", see ") + command.full_name + " --help";
}

// `word`: with its hyphens.
[[noreturn]] void fail_unknown(const CommandRow& command, const Flags& flags, const std::string& word) {
  std::vector<std::string> known;
  for (const Flag* flag : flags)
    for (const std::string& spelling : flag->spellings())
      if (spelling.size() > 1) known.push_back(spelling);
  const std::string name = without_hyphens(word);
  fail(ErrorKind::usage, "unknown flag " + visible(word, false, 40) +
                             (name.size() > 1 ? did_you_mean(name, known, "--") : "") +
                             where_to_look(command));
}

// What cxxopts is to see: long names with hyphens, also for the two with one hyphen that hands know from
// elsewhere. A flag's value is left as it is.
std::vector<std::string> rewrite(const Flags& flags, std::vector<std::string> words) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    std::string& word = words[i];
    if (word == "-sys" || word == "-sysf") word = word == "-sys" ? "--system" : "--system-file";
    const size_t equals = std::min(word.find('='), word.size());
    const Flag* flag =
        word.starts_with('-') ? find_flag(flags, without_hyphens(word.substr(0, equals))) : nullptr;
    if (flag && word.starts_with("--"))
      word = replaced(word.substr(0, equals), "_", "-") + word.substr(equals);
    if (flag && flag->value && equals == word.size()) ++i;
  }
  return words;
}

// cxxopts puts the name in question between its quotation marks, and nowhere else.
std::string quoted_part(const std::string& message) {
  const size_t begin = message.find(cxxopts::LQUOTE), end = message.rfind(cxxopts::RQUOTE);
  if (begin == std::string::npos || end == std::string::npos) return message;
  return message.substr(begin + cxxopts::LQUOTE.size(), end - begin - cxxopts::LQUOTE.size());
}

std::string dashed(const Flags& flags, const std::string& name) {
  const Flag* flag = find_flag(flags, name);
  return "--" + (flag ? flag->name() : visible(name, false, 80));
}

cxxopts::ParseResult parse(const CommandRow& command, const Flags& flags,
                           const std::vector<std::string>& args) {
  std::vector<const char*> argv{command.full_name};
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

std::optional<uint64_t> size_in(const std::string& text) {
  try {
    return parse_bytes(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// One GPU or more, "24G", "2x141G" or "2xH200"; nothing when it is none.
std::vector<uint64_t> parse_gpus(const std::string& term) {
  const size_t x = std::min(term.find('x'), term.size());
  size_t n = 1;
  const bool is_counted = x < term.size() && parse_whole(term.substr(0, x), n);
  const std::string one = is_counted ? term.substr(x + 1) : term;
  if (!is_counted) n = 1;
  if (n > kMostGpus) return {};
  const GpuKind* kind = find_gpu(one);
  const uint64_t n_bytes = kind ? kind->n_bytes : size_in(one).value_or(0);
  return std::vector(n_bytes > 0 ? n : 0, n_bytes);
}

}  // namespace

std::vector<std::string> Flag::spellings() const { return split(names, ','); }

std::string Flag::name() const { return spellings().front(); }

const Flag* find_flag(const Flags& flags, const std::string& name) {
  for (const Flag* flag : flags)
    if (std::ranges::count(flag->spellings(), replaced(name, "_", "-")) > 0) return flag;
  return nullptr;
}

bool GivenWords::has(const std::string& name) const {
  return std::ranges::any_of(flags, [&](const GivenFlag& given) { return given.flag->name() == name; });
}

GivenWords take_apart(const CommandRow& command, const Flags& flags, const std::vector<std::string>& args) {
  const cxxopts::ParseResult parsed = parse(command, flags, rewrite(flags, args));
  GivenWords given;
  for (const cxxopts::KeyValue& argument : parsed.arguments()) {
    const Flag* flag = find_flag(flags, argument.key());
    const bool is_off = !flag->value && argument.value() == "false";
    if (!flag->value && !is_off && argument.value() != "true")
      fail(ErrorKind::usage, format("--%s takes no value", argument.key().c_str()));
    if (!is_off) given.flags.push_back({flag, argument.value(), ""});
  }
  given.words = parsed.unmatched();
  if (!command.takes_words && !given.words.empty() && !given.has("help") && !given.has("version"))
    fail(ErrorKind::usage, format("unexpected word '%s'", visible(given.words.front(), false, 80).c_str()) +
                               where_to_look(command));
  return given;
}

std::string help_of(const CommandRow& command, const Flags& flags) {
  std::vector<std::string> groups;
  for (const Flag* flag : flags)
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

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names, const char* prefix) {
  const std::string near = nearest(word, names);
  return near.empty() ? "" : " (did you mean " + (prefix + near) + "?)";
}

[[noreturn]] void fail_value(const FlagValue& value, const std::string& expected) {
  fail(ErrorKind::usage, expectation(value, expected));
}

WrongChoice::WrongChoice(const FlagValue& value, std::vector<std::string> fitting, const std::string& also)
    : Error(ErrorKind::usage,
            expectation(value, also.empty() ? "one of " + listed(fitting) : also + ", " + listed(fitting))),
      words(std::move(fitting)) {}

int64_t parse_integer(const FlagValue& value, int64_t least, int64_t most) {
  int64_t number = 0;
  if (!parse_whole(value.text, number) || number < least || number > most)
    fail_value(value, format("an integer from %lld to %lld", as_ll(least), as_ll(most)));
  return number;
}

size_t parse_word(const FlagValue& value, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, value.text);
  if (found == words.end()) throw WrongChoice(value, words);
  return static_cast<size_t>(found - words.begin());
}

std::optional<uint64_t> parse_seed(const FlagValue& value, bool may_be_random) {
  uint64_t seed = 0;
  if (may_be_random && value.text == "-1") return std::nullopt;
  if (!parse_whole(value.text, seed))
    fail_value(value,
               std::string("an integer from 0 to 18446744073709551615") + (may_be_random ? ", or -1" : ""));
  return seed;
}

Shard parse_shard(const FlagValue& value) {
  const std::vector<std::string> parts = split(value.text, '/');
  Shard shard;
  if (parts.size() != 2 || !parse_whole(parts[0], shard.number) || !parse_whole(parts[1], shard.n_shards) ||
      shard.number >= shard.n_shards)
    fail_value(value, "I/N with I from 0 to N - 1");
  return shard;
}

TensorType parse_type(const FlagValue& value) {
  std::vector<std::string> names;
  const std::string upper = upper_case(value.text);
  for (uint32_t number = 0; number < 64; ++number) {
    const auto type = static_cast<TensorType>(number);
    const TypeTraits* found = find_traits(type);
    if (!found || !found->is_supported) continue;
    if (upper == found->name) return type;
    names.emplace_back(found->name);
  }
  throw WrongChoice(value, names);
}

SyntheticTypes parse_file_type(const FlagValue& value) {
  constexpr std::string_view kPure = "-PURE";
  const std::string name = upper_case(value.text);
  if (name.ends_with(kPure))
    return {.matrices = parse_type({value.flag, name.substr(0, name.size() - kPure.size())})};
  if (const QuantMix* mix = find_mix(name)) return {.mix = mix};
  try {
    return {.matrices = parse_type({value.flag, name})};
  } catch (const WrongChoice&) {
    throw WrongChoice(value, mix_names(), "a format of all matrices (Q4_K, Q2_K-pure) or a mix");
  }
}

ImaginedMachine parse_machine(const FlagValue& value) {
  constexpr const char* kExpected = "GPUs and host memory, such as 2x141G+256G, 24G+256G or 0+768G";
  const std::string shown = visible(value.text, false, 80);
  std::vector<std::string> terms = split(value.text, '+');
  const std::optional<uint64_t> host = size_in(terms.back());
  if (!host || terms.size() == 1) {
    if (std::ranges::any_of(terms, [](const std::string& term) { return parse_gpus(term).empty(); }))
      fail_value(value, kExpected);
    const std::string given = value.flag + " " + shown;
    fail(ErrorKind::usage, given + " says nothing of the host's memory",
         "add it, such as " + given + "+256G; 0+256G has no GPU");
  }
  ImaginedMachine machine{shown, {}, *host};
  terms.pop_back();
  if (terms == std::vector<std::string>{"0"}) return machine;
  for (const std::string& term : terms) {
    const std::vector<uint64_t> some = parse_gpus(term);
    if (some.empty() || machine.gpus.size() + some.size() > kMostGpus) fail_value(value, kExpected);
    machine.gpus.insert(machine.gpus.end(), some.begin(), some.end());
  }
  return machine;
}

float parse_number(const FlagValue& value, double least, double most) {
  float number = 0;
  if (!parse_whole(value.text, number) || !(number >= least && number <= most))
    fail_value(value, format("a number from %.10g to %.10g", least, most));
  return number;
}

std::chrono::seconds parse_duration(const FlagValue& value) {
  constexpr int64_t kMost = 1'000'000;
  const char unit = value.text.empty() ? ' ' : value.text.back();
  const int64_t seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  int64_t number = 0;
  if (seconds == 0 || !parse_whole(value.text.substr(0, value.text.size() - 1), number) || number < 1 ||
      number > kMost)
    fail_value(value, "a time such as 90s, 30m or 8h");
  return std::chrono::seconds(number * seconds);
}

void GivenFlag::apply(Options& options) const {
  const std::string shown = where.empty() ? "--" + flag->name() : visible(where) + ": " + flag->name();
  flag->apply(options, {shown, value});
  options.given.insert(flag->name());
}

}  // namespace dsv32
