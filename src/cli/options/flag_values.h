// What is written behind a flag, turned into a value: whole texts, within bounds, or one line that says what
// was expected.
//
// Each throws Error{usage} that names `flag`, which is "--max-tokens".
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/options/options.h"
#include "gguf/quant.h"

namespace dsv32 {

// "FLAG takes EXPECTED, not 'TEXT'"
[[noreturn]] void fail_value(const std::string& flag, const std::string& expected, const std::string& text);

// Decimal.
int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least, int64_t most);
int64_t parse_integer(const std::string& flag, const std::string& text, const OptionRange& range);
float parse_float(const std::string& flag, const std::string& text, const OptionRange& range);
std::chrono::seconds parse_duration(const std::string& flag, const std::string& text);  // "90s", "30m", "8h"
// Nothing for -1, a random one, where that makes sense.
std::optional<uint64_t> parse_seed(const std::string& flag, const std::string& text, bool may_be_random);
// A number of rows, "full" (kEveryRow), or "auto" (nothing).
std::optional<int64_t> parse_buffer_rows(const std::string& flag, const std::string& text);
Shard parse_shard(const std::string& flag, const std::string& text);  // "I/N"
// With commas between them. Numbers are sorted.
std::vector<int64_t> parse_numbers(const std::string& flag, const std::string& text, int64_t least);
std::vector<uint64_t> parse_sizes(const std::string& flag, const std::string& text);
// A storage format that can be computed with, by its name in any case.
TensorType parse_type(const std::string& flag, const std::string& text);
// What a file is called by: a mix of formats, else, and with "-pure" behind it, the format of all matrices.
SyntheticTypes parse_file_type(const std::string& flag, const std::string& text);

// Thrown where one of a few words was expected, which completion offers then.
struct WrongChoice : Error {
  // `also`: what else fits, such as "a number", or empty.
  WrongChoice(const std::string& flag, std::vector<std::string> names, const std::string& text,
              const std::string& also = {});
  std::vector<std::string> choices;
};

template <typename T>
struct Choice {
  const char* name;
  T value;
};

template <typename T>
T parse_choice(const std::string& flag, const std::string& text, std::initializer_list<Choice<T>> choices) {
  std::vector<std::string> names;
  for (const Choice<T>& choice : choices) {
    if (text == choice.name) return choice.value;
    names.emplace_back(choice.name);
  }
  throw WrongChoice(flag, names, text);
}

}  // namespace dsv32
