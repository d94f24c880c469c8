#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dsv32 {
namespace {

using O = GenerationOptions;
using Field = GenerationOption::Field;

constexpr GenerationOption kGenerationOptions[] = {
    {"temperature", [](O& o) -> Field { return &o.sampling.temperature; }, 0, 100, "temp", "temp,temperature",
     "F",
     "temperature; 0 always takes the likeliest token, whatever the seed and other bounds are; a model's "
     "file "
     "may recommend another",
     true, "general.sampling.temp"},
    {"top_p", [](O& o) -> Field { return &o.sampling.top_p; }, 0, 1, "top-p", "top-p", "F",
     "choose among the likeliest tokens that together reach F", true, "general.sampling.top_p"},
    {"top_k", [](O& o) -> Field { return &o.sampling.top_k; }, -1, INT32_MAX, "top-k", "top-k", "N",
     "choose among the N likeliest tokens; 0 and -1: all", true, "general.sampling.top_k"},
    {"min_p", [](O& o) -> Field { return &o.sampling.min_p; }, 0, 1, "min-p", "min-p", "F",
     "drop tokens less than F times as likely as the likeliest", true, "general.sampling.min_p"},
    {"max_answer", [](O& o) -> Field { return &o.max_answer; }, -1, kMostTokenLimit, "n",
     "max-tokens,predict,n-predict,tokens,n", "N",
     "most tokens of the answer, thinking not counted; 0: only read the prompt; -1: until the context is "
     "full",
     true},
    {"max_thinking", [](O& o) -> Field { return &o.max_thinking; }, -1, kMostTokenLimit, "think-max",
     "think-max,reasoning-budget", "N",
     "most tokens of thinking, behind which the answer begins; -1: as many as it takes", true},
    {.name = "max_tokens",
     .field = [](O& o) -> Field { return &o.max_tokens; },
     .least = -1,
     .most = kMostTokenLimit,
     .is_batch_field = true},
    {"seed", [](O& o) -> Field { return &o.sampling.seed; }, 0, 0, "seed"},
    {"thinking", [](O& o) -> Field { return &o.thinking; }, 0, 1, "think"},
    {"stop", [](O& o) -> Field { return &o.stops; }, 0, 0, nullptr, "stop", "TEXT",
     "end the answer before TEXT; may be repeated"},
    {"top_logprobs", [](O& o) -> Field { return &o.n_top_logprobs; }, -1, kMostTopLogprobs},
    {"constraint", [](O& o) -> Field { return &o.constraint; }, 0, 0, "schema"},
    {"tools", [](O& o) -> Field { return &o.tools; }, 0, 1},
};

// [0, 1): SplitMix64 (Steele, Lea, Flood 2014), jumped to the n-th value of the seed's stream.
double uniform_at(uint64_t seed, uint64_t n) {
  uint64_t z = seed + n * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace

// Not const, because a test adds a row.
const std::vector<GenerationOption>& generation_options() {
  static std::vector<GenerationOption> options(std::begin(kGenerationOptions), std::end(kGenerationOptions));
  return options;
}

void GenerationOptions::check() const {
  GenerationOptions copy = *this;  // because field() is not for const options
  for (const GenerationOption& option : generation_options()) {
    const auto check = [&](const auto* value) {
      using T = std::remove_cvref_t<decltype(*value)>;
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, int64_t>)
        if (const auto number = static_cast<double>(*value);
            !(number >= option.least && number <= option.most))
          fail(ErrorKind::usage, format("%s is %.10g, expected %.10g to %.10g", option.name, number,
                                        option.least, option.most));
    };
    std::visit(check, option.field(copy));
  }
  if (!constraint.empty() && !stops.empty())
    fail(ErrorKind::usage, "stop would cut the document or the calls that the answer has to be");
}

int64_t GenerationOptions::n_most() const {
  const int64_t thought = !thinking ? 0 : max_thinking < 0 ? -1 : max_thinking + 1;
  const int64_t apart = max_answer <= 0 ? max_answer : thought < 0 ? -1 : thought + max_answer;
  return max_tokens < 0 ? apart : apart < 0 ? max_tokens : std::min(apart, max_tokens);
}

SampleRule SamplingOptions::rule(int64_t n_drawn) const {
  const double uniform = temperature == 0 ? 0 : uniform_at(seed, static_cast<uint64_t>(n_drawn) + 1);
  return {.temperature = temperature,
          .top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0)),
          .top_p = top_p,
          .min_p = min_p,
          .uniform = uniform};
}

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "interrupted"};
  return kNames[static_cast<size_t>(reason)];
}

void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens) {
  if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty, expected at least one token");
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      fail(ErrorKind::usage,
           format("token id %d is outside the model's vocabulary of %lld", token, as_ll(vocab_size)));
  const size_t n_most = most_encoded(context);
  if (std::ssize(tokens) > context)
    fail(ErrorKind::context_full,
         format("the prompt has %s%zu tokens, the context holds %lld",
                tokens.size() > n_most ? "more than " : "", std::min(tokens.size(), n_most), as_ll(context)),
         "a larger context (-c) holds more");
}

GenerationResult generate(Answerer& answerer, Request request, Listener& listener) {
  const int64_t number = answerer.add(std::move(request), listener);
  try {
    while (!answerer.is_done(number)) answerer.advance();
  } catch (...) {  // not the request's own error: the request is still there
    answerer.drop(number);
    throw;
  }
  return answerer.take(number);
}

}  // namespace dsv32
