#include "engine/generation_options.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

using O = GenerationOptions;
using Field = GenerationOption::Field;

constexpr GenerationOption kGenerationOptions[] = {
    {"temperature", [](O& o) -> Field { return &o.sampling.temperature; }, 0, 100, "temp", "temp,temperature",
     "F", "temperature; 0 always takes the likeliest token; a model's file may recommend another", true,
     "general.sampling.temp"},
    {"top_p", [](O& o) -> Field { return &o.sampling.top_p; }, 0, 1, "top-p", "top-p", "F",
     "choose among the likeliest tokens that together reach F", true, "general.sampling.top_p"},
    {"top_k", [](O& o) -> Field { return &o.sampling.top_k; }, -1, INT32_MAX, "top-k", "top-k", "N",
     "choose among the N likeliest tokens; 0 and -1: all", true, "general.sampling.top_k"},
    {"min_p", [](O& o) -> Field { return &o.sampling.min_p; }, 0, 1, "min-p", "min-p", "F",
     "drop tokens less than F times as likely as the likeliest", true, "general.sampling.min_p"},
    {"max_answer", [](O& o) -> Field { return &o.max_answer; }, -1, kMostTokenLimit, "n",
     "max-tokens,predict,n-predict,tokens,n", "N",
     "most tokens of the answer, thinking not counted; 0: only read the prompt; -1: until the context is "
     "full"},
    {"max_thinking", [](O& o) -> Field { return &o.max_thinking; }, -1, kMostTokenLimit, "think-max",
     "think-max", "N", "most tokens of thinking, behind which the answer begins; -1: as many as it takes"},
    {.name = "max_tokens",
     .field = [](O& o) -> Field { return &o.max_tokens; },
     .least = -1,
     .most = kMostTokenLimit,
     .is_batch_field = true},
    {"seed", [](O& o) -> Field { return &o.sampling.seed; }, 0, 0, "seed"},
    {"thinking", [](O& o) -> Field { return &o.thinking; }, 0, 1, "think"},
    {"stops", [](O& o) -> Field { return &o.stops; }, 0, 0, nullptr, "stop", "TEXT",
     "end the answer before TEXT; may be repeated"},
    {"top_logprobs", [](O& o) -> Field { return &o.n_top_logprobs; }, -1, kMostTopLogprobs},
};

}  // namespace

std::span<const GenerationOption> generation_options() { return kGenerationOptions; }

void GenerationOptions::check() const {
  GenerationOptions copy = *this;  // a row's field may be written
  for (const GenerationOption& option : kGenerationOptions) {
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
}

void SamplingOptions::check() const {
  GenerationOptions options;
  options.sampling = *this;
  options.check();
}

int64_t GenerationOptions::n_most() const {
  const int64_t thought = !thinking ? 0 : max_thinking < 0 ? -1 : max_thinking + 1;
  const int64_t apart = max_answer <= 0 ? max_answer : thought < 0 ? -1 : thought + max_answer;
  return max_tokens < 0 ? apart : apart < 0 ? max_tokens : std::min(apart, max_tokens);
}

}  // namespace dsv32
