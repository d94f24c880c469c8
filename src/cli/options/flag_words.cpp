// See flags.h: splits a command's words into flags and others, and turns texts into values.
#include <algorithm>
#include <charconv>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "engine/plan.h"

namespace dsv32 {
namespace {

constexpr size_t kMostGpus = 1024;

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

std::string where_to_look(const CommandRow& command) {
  return std::string(", see ") + command.full_name + " --help";
}

// `shown`: the flag in `word`, with its hyphens. A word that looks like text gets a hint.
[[noreturn]] void fail_unknown(const CommandRow& command, const Flags& flags, const std::string& shown,
                               const std::string& word) {
  std::vector<std::string> known;
  for (const Flag* flag : flags)
    for (const std::string& spelling : flag->spellings())
      if (spelling.size() > 1) known.push_back(spelling);
  const std::string name = shown.substr(std::min(shown.find_first_not_of('-'), shown.size()));
  const bool is_text = word.find(' ') != word.npos || (word[1] >= '0' && word[1] <= '9');
  fail(ErrorKind::usage,
       "unknown flag " + visible(shown, false, 40) +
           (name.size() > 1 ? did_you_mean(name, known, "--") : "") + where_to_look(command),
       is_text && command.takes_words ? "a text that begins with a hyphen stands behind --" : "");
}

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

// Takes the flags of args[i], which begins with a hyphen: one long name, "--ctx=64", or several letters,
// "-vn5". A value that args[i] lacks is args[++i].
void take_flags(const CommandRow& command, const Flags& flags, const std::vector<std::string>& args,
                size_t& i, std::vector<GivenFlag>& given) {
  // Other programs have these two long names with one hyphen.
  const std::string word = args[i] == "-sys" ? "--system" : args[i] == "-sysf" ? "--system-file" : args[i];
  const bool is_long = word.starts_with("--");
  const bool lacks_hyphen = !is_long && flag_of(flags, "-" + word.substr(0, word.find('=')));
  if (lacks_hyphen || (!is_long && word.size() > 2 && word[2] == ' '))
    fail_unknown(command, flags, word.substr(0, word.find(' ')), word);
  for (size_t at = is_long ? 2 : 1, end; at < word.size(); at = end) {
    end = is_long ? std::min(word.find('='), word.size()) : at + 1;
    const std::string name = word.substr(at, end - at);
    const Flag* flag = is_long == (name.size() > 1) ? find_flag(flags, name) : nullptr;
    if (!flag) fail_unknown(command, flags, (is_long ? "--" : "-") + name, word);
    if (!is_long && word.size() > 2 && (name == "h" || name == "V"))
      fail(ErrorKind::usage, "-" + name + " stands alone, not in " + visible(word, false, 40),
           "a model is a file or a part of its name, -m FILE");
    const bool has_value = end < word.size() && (is_long || flag->value);
    if (has_value && !flag->value) fail_switch(flags, flag->name());
    if (flag->value && !has_value && ++i == args.size())
      fail(ErrorKind::usage, "--" + flag->name() + " needs a value" + where_to_look(command));
    const std::string value = has_value ? word.substr(end + is_long) : flag->value ? args[i] : "true";
    if (!has_value && flag->value && flag_of(flags, value))
      fail(ErrorKind::usage,
           format("--%s needs a value, and %s is a flag (--%s=%s takes it as it stands)",
                  flag->name().c_str(), value.c_str(), flag->name().c_str(), value.c_str()));
    given.push_back({flag, value, ""});
    if (has_value) end = word.size();
  }
}

// "  -c, --ctx N"
std::string names_in_help(const Flag& flag) {
  const std::string letter = flag.spellings().back();
  return (letter.size() > 1 ? "     " : "  -" + letter + ",") + " --" + flag.name() +
         (flag.value ? std::string(" ") + flag.value : "");
}

std::optional<uint64_t> size_in(const std::string& text) {
  try {
    return parse_bytes(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<TensorType> computable_types() {
  std::vector<TensorType> types;
  for (uint32_t number = 0; number < 64; ++number)
    if (const TypeTraits* found = find_traits(TensorType{number}); found && found->is_supported)
      types.push_back(TensorType{number});
  return types;
}

// By its name, upper or lower case.
std::optional<TensorType> find_type(const std::string& name) {
  for (const TensorType type : computable_types())
    if (upper_case(name) == type_name(type)) return type;
  return std::nullopt;
}

// Adds one GPU or more, "24G", "2x141G" or "2xH200". False: the term is invalid.
bool add_gpus(const std::string& term, ImaginedMachine& machine) {
  const size_t x = std::min(term.find('x'), term.size());
  size_t n = 1;
  const bool is_counted = x < term.size() && parse_whole(term.substr(0, x), n);
  const std::string one = is_counted ? term.substr(x + 1) : term;
  if (!is_counted) n = 1;
  const GpuKind* kind = find_gpu(one);
  const uint64_t n_bytes = kind ? kind->n_bytes : size_in(one).value_or(0);
  if (n == 0 || n_bytes == 0 || n > kMostGpus - machine.gpus.size()) return false;
  machine.gpus.insert(machine.gpus.end(), n, n_bytes);
  machine.kinds.insert(machine.kinds.end(), n, kind ? kind : &gpu_like("", n_bytes));
  return true;
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
  GivenWords given;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      given.words.insert(given.words.end(), args.begin() + static_cast<ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (args[i].size() > 1 && args[i][0] == '-')
      take_flags(command, flags, args, i, given.flags);
    else
      given.words.push_back(args[i]);
  }
  if (!command.takes_words && !given.words.empty() && !given.has("help") && !given.has("version"))
    fail(ErrorKind::usage, format("unexpected word '%s'", visible(given.words.front(), false, 80).c_str()) +
                               where_to_look(command));
  return given;
}

std::string help_of(const CommandRow& command, const Flags& flags) {
  constexpr size_t kWidest = 30;  // columns of names
  std::string text = format("%s\nUsage:\n  %s %s\n", command.about, command.full_name, command.usage);
  std::vector<std::string> groups;
  for (const Flag* flag : flags)
    if (std::ranges::count(groups, flag->group) == 0) groups.push_back(flag->group);
  for (const std::string& group : groups) {
    Flags members;
    std::ranges::copy_if(flags, std::back_inserter(members), [&](auto flag) { return flag->group == group; });
    size_t width = 0;
    for (const Flag* flag : members) width = std::max(width, names_in_help(*flag).size());
    width = std::min(width, kWidest);
    text += "\n " + group + " options:\n";
    for (const Flag* flag : members) {
      std::string names = names_in_help(*flag);
      if (names.size() > width) names += "\n" + std::string(width, ' ');
      names.resize(std::max(names.size(), width), ' ');
      text += names + "  " + flag->help() + "\n";
    }
  }
  return fitted(text);
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
  fail(ErrorKind::usage, format("%s takes %s, not '%s'", value.flag.c_str(), expected.c_str(),
                                visible(value.text, false, 80).c_str()));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

int64_t parse_integer(const FlagValue& value, int64_t least, int64_t most) {
  int64_t number = 0;
  if (!parse_whole(value.text, number) || number < least || number > most)
    fail_value(value, format("an integer from %lld to %lld", as_ll(least), as_ll(most)));
  return number;
}

size_t parse_word(const FlagValue& value, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, value.text);
  if (found == words.end()) fail_value(value, "one of " + listed(words));
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

std::vector<double> parse_shares(const FlagValue& value) {
  const std::vector<std::string> parts = split(value.text, ',');
  if (std::ssize(parts) > kMostGuesses) fail_value(value, "at most 3 shares with commas between them");
  std::vector<double> shares;
  for (const std::string& part : parts)
    shares.push_back(static_cast<double>(parse_number({value.flag, part}, 0, 1)));
  shares.resize(kMostGuesses, shares.back());
  return shares;
}

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const TensorType type : computable_types()) names.emplace_back(type_name(type));
  return names;
}

TensorType parse_type(const FlagValue& value) {
  if (const auto type = find_type(value.text)) return *type;
  fail_value(value, "one of " + listed(type_names()));
}

SyntheticTypes parse_file_type(const FlagValue& value) {
  constexpr std::string_view kPure = "-PURE";
  const std::string name = upper_case(value.text);
  if (name.ends_with(kPure))
    return {.matrices = parse_type({value.flag, name.substr(0, name.size() - kPure.size())})};
  if (const QuantMix* mix = find_mix(name)) return {.mix = mix};
  if (const auto type = find_type(name)) return {.matrices = *type};
  fail_value(value, "one format for all matrices (Q2_K-pure) or a mix, " + listed(mix_names()));
}

std::string name_of(const SyntheticTypes& types) {
  return types.mix ? types.mix->name : type_name(types.matrices) + std::string("-pure");
}

// "2x24+256" -> "2x24G+256G": terms that lack a unit, and are neither "0" nor a GPU's name, get one.
std::string with_units(std::vector<std::string> terms) {
  for (std::string& term : terms) {
    const std::string one = term.substr(term.find('x') + 1);
    double number = 0;
    if (parse_whole(one, number) && number > 0 && !find_gpu(one)) term += "G";
  }
  return joined(terms, "+");
}

ImaginedMachine parse_machine(const FlagValue& value) {
  std::vector<std::string> names;
  for (const GpuKind& kind : gpu_kinds()) names.emplace_back(kind.name);
  const std::string expected = "GPUs, by memory or name (" + listed(names) +
                               "), and host memory, such as 2xRTX4090+384G, 24G+256G or 0+768G";
  ImaginedMachine machine{visible(value.text, false, 80), {}, {}, 0};
  std::vector<std::string> terms = split(replaced(value.text, " ", ""), '+');
  if (const std::string meant = with_units(terms); meant != joined(terms, "+"))
    fail(ErrorKind::usage, value.flag + " " + machine.name + " lacks a unit of memory",
         "say " + value.flag + " " + visible(meant, false, 80) + " for GiB");
  const std::optional<uint64_t> host = size_in(terms.back());
  if (!host || terms.size() == 1) {
    for (const std::string& term : terms)
      if (!add_gpus(term, machine)) fail_value(value, expected);
    const std::string given = value.flag + " " + machine.name;
    fail(ErrorKind::usage, given + " lacks the host's memory",
         "add it, such as " + given + "+256G; 0+256G has no GPU");
  }
  machine.host = *host;
  terms.pop_back();
  if (terms == std::vector<std::string>{"0"}) return machine;
  for (const std::string& term : terms)
    if (!add_gpus(term, machine)) fail_value(value, expected);
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
  flag->field(options).set({shown, value});
  options.given.insert(flag->name());
}

}  // namespace dsv32
