// Decode steps of many sequences on one engine: how long one takes, and where that time goes.
//
// Steps are the loop's, with everything that a batch of requests costs there. The parts of a step are taken
// from a few steps of their own, in which the device marks each: there nothing runs beside anything else, and
// a fetch that is hidden otherwise shows its full length. So the parts may add up to more than a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "engine/by_hand.h"
#include "text/tokenizer.h"

namespace dsv32 {

// "other": all of a step on the device that has no name of its own, as projections, dense layers and the
// head; "sampling": the draw from its logits; "host": the time that the device has nothing to do.
constexpr const char* kStepParts[] = {"index_scores", "topk",  "resolve",  "fetch", "attention",
                                      "experts",      "other", "sampling", "host"};

struct BatchTiming {
  int64_t n_sequences = 0;
  double step_seconds = 0;
  double n_rows = 0, n_misses = 0;  // of a step, in all layers; no rows: none was looked up in a buffer
  std::map<std::string, double> seconds = {};  // of a step, by kStepParts
};

// Tokens by which time_batch() makes each sequence longer.
int64_t timed_tokens(int64_t n_decode);

// Times n_decode steps in which each session appends a token behind the first n_tokens that it holds, with
// choices of that locality. The context has room for one token more than that takes.
BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sessions, int64_t n_tokens, int64_t n_decode,
                       const Locality& locality);

}  // namespace dsv32
