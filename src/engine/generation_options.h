// What may be asked of an answer: the fields, and the list that says of each its names, bounds and help.
//
// Flags with their help, the settings file, a batch line's fields, the warm process's wire, /set, and check()
// are made of the list: a new option is a field, a row of the list, and its use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "backend/sampling.h"

namespace dsv32 {

struct SamplingOptions {
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;         // keep the k most likely; 0 and -1: all
  float top_p = 0.95f;       // keep the fewest most likely whose probabilities reach p; 1: all
  float min_p = 0.0f;        // keep those at least min_p times as likely as the best; 0: all
  uint64_t seed = 0;

  // Throws Error{usage} naming the option that is out of its range.
  void check() const;
  // How a sequence's next token is drawn, after so many.
  SampleRule rule(int64_t n_drawn) const;
};

struct GenerationOptions {
  SamplingOptions sampling;
  // Most tokens; -1: until the context is full. Thinking that has had its own is closed, and the answer
  // begins; with max_answer or max_tokens 0 the prompt is read and no more.
  int64_t max_answer = -1, max_thinking = -1;
  int64_t max_tokens = -1;         // of both together
  std::vector<std::string> stops;  // end the answer; reasoning is not searched
  bool thinking = true;            // the prompt ended with <think>
  int64_t n_top_logprobs = -1;     // alternatives to record for each token; -1: no log-probabilities at all

  // Throws Error{usage} naming the option that is out of its range.
  void check() const;
  // What these limits allow, thinking, its end and answer; -1: there is no limit.
  int64_t n_most() const;
};

inline constexpr int64_t kMostTokenLimit = INT32_MAX;

struct GenerationOption {
  using Field = std::variant<bool*, int64_t*, uint64_t*, float*, std::vector<std::string>*>;

  const char* name;  // on the warm process's wire, and of a batch line's field
  Field (*field)(GenerationOptions& options);
  double least = 0, most = 0;      // of a number
  const char* setting = nullptr;   // as /set calls it; null: a chat cannot change it
  const char* flag = nullptr;      // its spellings; null: none, or rows of their own in cli/options/flags.cpp
  const char* value = nullptr;     // what stands for the flag's value in the help
  const char* help = nullptr;      // of the flag
  bool is_batch_field = false;     // false: batch lines have other forms for it, or none
  const char* gguf_key = nullptr;  // under which a model's file recommends a value
};

std::span<const GenerationOption> generation_options();

}  // namespace dsv32
