// See flags.h: turns texts into values.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "backend/memory_budget.h"
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

// Variables in which a cluster tells a process which of several it is. Those of an array count from `least`
// on, in steps.
struct Place {
  const char *number, *count, *least = nullptr, *step = nullptr;
};
constexpr Place kPlaces[] = {
    {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"},
    {"JOB_COMPLETION_INDEX", nullptr},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},  // last: processes that start MPI's have it too
};

// Nothing where the variable is unset. Throws Error{usage} when it is no number.
std::optional<uint64_t> number_in(const char* variable) {
  const char* text = variable ? std::getenv(variable) : nullptr;
  uint64_t number = 0;
  if (!text) return std::nullopt;
  if (!parse_whole(std::string(text), number))
    fail(ErrorKind::usage,
         format("%s is '%s' in the environment, expected a number", variable,
                visible(text, false, 40).c_str()),
         "else say I/N");
  return number;
}

// Sets what the environment says of this process; of the number of shards only if it `has_count` not. With a
// count that was given the number is taken as it stands: the array may be a part of a former one.
void take_place(const FlagValue& value, bool has_count, Shard& shard) {
  for (const Place& place : kPlaces) {
    const std::optional<uint64_t> number = number_in(place.number), count = number_in(place.count);
    if (!number || (!has_count && !place.count)) continue;
    if (!has_count && !count)
      fail(ErrorKind::usage, format("%s is in the environment without %s", place.number, place.count),
           "say auto/N");
    shard.number = *number, shard.source = place.number;
    if (has_count) return;
    const uint64_t least = number_in(place.least).value_or(0);
    const uint64_t step = std::max<uint64_t>(number_in(place.step).value_or(1), 1);
    if (*number < least)
      fail(ErrorKind::usage, format("%s is less than %s in the environment", place.number, place.least));
    shard.number = (*number - least) / step, shard.n_shards = *count;
    shard.source += std::string(" and ") + place.count;
    return;
  }
  fail(ErrorKind::usage,
       value.flag + " " + visible(value.text, false, 40) + " finds no place in the environment",
       "it reads SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX (with auto/N), OMPI_COMM_WORLD_RANK, PMI_RANK or "
       "SLURM_PROCID; else say I/N");
}

}  // namespace

std::vector<std::string> Flag::spellings() const { return split(names, ','); }

std::string Flag::name() const { return spellings().front(); }

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
  const bool is_auto = parts[0] == "auto", has_count = parts.size() == 2;
  Shard shard;
  if ((has_count && !parse_whole(parts[1], shard.n_shards)) || parts.size() > 2 || (!has_count && !is_auto))
    fail_value(value, "I/N, auto or auto/N");
  if (is_auto) take_place(value, has_count, shard);
  const bool is_number = is_auto || parse_whole(parts[0], shard.number);
  if (is_number && shard.number < shard.n_shards) return shard;
  const std::string found = format(": it is %llu/%llu, by ", ull(shard.number), ull(shard.n_shards));
  fail_value(value, "I/N with I from 0 to N - 1" + (is_auto ? found + shard.source : ""));
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

// "2x24+256" -> "2x24G+256G": terms that lack a unit, and are neither "0" nor a GPU's name, get one. No GPU
// has as many GiB as other names have in numbers, as 4080.
std::string with_units(std::vector<std::string> terms) {
  for (std::string& term : terms) {
    const std::string one = term.substr(term.find('x') + 1);
    double number = 0;
    const bool is_name = &term != &terms.back() && parse_whole(one, number) && number >= 1000;
    if (parse_whole(one, number) && number > 0 && !is_name && !find_gpu(one)) term += "G";
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
  const bool has_host = host && terms.size() > 1;
  if (has_host) terms.pop_back();
  const bool has_gpus = !has_host || terms != std::vector<std::string>{"0"};
  for (const std::string& term : terms)
    if (has_gpus && !add_gpus(term, machine)) fail_value(value, expected);
  const std::string given = value.flag + " " + machine.name;
  if (!has_host)
    fail(ErrorKind::usage, given + " lacks the host's memory",
         "add it, such as " + given + "+256G; 0+256G has no GPU");
  machine.host = *host;
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
  flag->field(options).set({"--" + flag->name(), value});
  options.given.insert(flag->name());
}

}  // namespace dsv32
