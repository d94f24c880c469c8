// See flag_values.h.
#include "cli/options/flag_values.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// "full or auto", "fp8, bf16 or f32"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

std::string expectation(const std::string& flag, const std::string& expected, const std::string& text) {
  return format("%s takes %s, not '%s'", flag.c_str(), expected.c_str(), visible(text, false, 80).c_str());
}

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

}  // namespace

[[noreturn]] void fail_value(const std::string& flag, const std::string& expected, const std::string& text) {
  fail(ErrorKind::usage, expectation(flag, expected, text));
}

WrongChoice::WrongChoice(const std::string& flag, std::vector<std::string> names, const std::string& text,
                         const std::string& also)
    : Error(ErrorKind::usage,
            expectation(flag, also.empty() ? "one of " + listed(names) : also + ", " + listed(names), text)),
      choices(std::move(names)) {}

float parse_float(const std::string& flag, const std::string& text, const OptionRange& range) {
  float value = 0;
  const bool is_number = parse_whole(text, value);
  if (!is_number || !(value >= range.least && value <= range.most))
    fail_value(flag, format("a number from %.10g to %.10g", range.least, range.most), text);
  return value;
}

int64_t parse_integer(const std::string& flag, const std::string& text, const OptionRange& range) {
  return parse_integer(flag, text, static_cast<int64_t>(range.least), static_cast<int64_t>(range.most));
}

std::optional<uint64_t> parse_seed(const std::string& flag, const std::string& text, bool may_be_random) {
  uint64_t value = 0;
  if (may_be_random && text == "-1") return std::nullopt;
  if (!parse_whole(text, value))
    fail_value(flag, format("an integer from 0 to 18446744073709551615%s", may_be_random ? ", or -1" : ""),
               text);
  return value;
}

std::optional<int64_t> parse_buffer_rows(const std::string& flag, const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "full") return kEveryRow;
  int64_t n_rows = 0;
  if (!parse_whole(text, n_rows) || n_rows < 1 || n_rows > std::numeric_limits<int32_t>::max())
    throw WrongChoice(flag, {"full", "auto"}, text, "a number of rows");
  return n_rows;
}

Shard parse_shard(const std::string& flag, const std::string& text) {
  const size_t slash = text.find('/');
  Shard shard;
  if (slash == std::string::npos || !parse_whole(text.substr(0, slash), shard.number) ||
      !parse_whole(text.substr(slash + 1), shard.n_shards) || shard.number >= shard.n_shards)
    fail_value(flag, "I/N with I from 0 to N - 1", text);
  return shard;
}

std::vector<int64_t> parse_numbers(const std::string& flag, const std::string& text, int64_t least) {
  std::vector<int64_t> values;
  for (const std::string& number : split(text, ','))
    values.push_back(parse_integer(flag, number, least, 1 << 20));
  std::ranges::sort(values);
  return values;
}

std::vector<uint64_t> parse_sizes(const std::string& flag, const std::string& text) {
  std::vector<uint64_t> sizes;
  for (const std::string& size : split(text, ',')) sizes.push_back(parse_bytes(size, flag.c_str()));
  return sizes;
}

TensorType parse_type(const std::string& flag, const std::string& text) {
  std::vector<std::string> names;
  const std::string upper = upper_case(text);
  for (uint32_t number = 0; number < 64; ++number) {
    const auto type = static_cast<TensorType>(number);
    const TypeTraits* found = find_traits(type);
    if (!found || !found->is_supported) continue;
    if (upper == found->name) return type;
    names.emplace_back(found->name);
  }
  throw WrongChoice(flag, names, text);
}

SyntheticTypes parse_file_type(const std::string& flag, const std::string& text) {
  constexpr std::string_view kPure = "-PURE";
  const std::string name = upper_case(text);
  if (name.ends_with(kPure))
    return {.matrices = parse_type(flag, name.substr(0, name.size() - kPure.size()))};
  if (const QuantMix* mix = find_mix(name)) return {.mix = mix};
  try {
    return {.matrices = parse_type(flag, name)};
  } catch (const WrongChoice&) {
    throw WrongChoice(flag, mix_names(), text, "a format of all matrices (Q4_K, Q2_K-pure) or a mix");
  }
}

std::chrono::seconds parse_duration(const std::string& flag, const std::string& text) {
  constexpr int64_t kMost = 1'000'000;
  const char unit = text.empty() ? ' ' : text.back();
  const int64_t seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  int64_t value = 0;
  if (seconds == 0 || !parse_whole(text.substr(0, text.size() - 1), value) || value < 1 || value > kMost)
    fail_value(flag, "a time such as 90s, 30m or 8h", text);
  return std::chrono::seconds(value * seconds);
}

int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  if (!parse_whole(text, value) || value < least || value > most)
    fail_value(
        flag,
        format("an integer from %lld to %lld", static_cast<long long>(least), static_cast<long long>(most)),
        text);
  return value;
}

}  // namespace dsv32
