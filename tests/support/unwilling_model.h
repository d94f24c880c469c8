// A tiny model of random weights, which never wants what a constraint asks for, and requests to it.
#pragma once

#include <memory>
#include <string>

#include "cli/warm/model.h"
#include "engine/loop.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

struct UnwillingModel {
  GgufFile file;
  std::unique_ptr<Tokenizer> tokenizer;
  Engine engine;

  explicit UnwillingModel(const EngineOptions& options)
      : file(path()), tokenizer(load_tokenizer(file)), engine(file, options) {}

  static const std::string& path() {
    static const TinyFile model(least_shape());
    return model.path;
  }
  // Without thinking, with log-probabilities, from all tokens that the constraint allows.
  Request request(std::string constraint, float temperature, uint64_t seed, int64_t n_most) const {
    GenerationOptions options;
    options.sampling.temperature = temperature, options.sampling.top_p = 1, options.sampling.seed = seed;
    options.max_tokens = n_most, options.thinking = false, options.n_top_logprobs = 1;
    options.constraint = std::move(constraint);
    return {nullptr, tokenizer.get(), random_tokens(10 + static_cast<int64_t>(seed * 7 % 40), seed), options};
  }
};

}  // namespace dsv32
