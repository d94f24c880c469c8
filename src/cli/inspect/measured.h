// What the benches measure: a model, fabricated sequences, choices that are forced, and the steps
// of many sequences on top of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "engine/by_hand.h"
#include "gguf/gguf.h"
#include "gguf/random_weights.h"
#include "text/tokenizer.h"

namespace dsv32 {

// A model file, or random weights of the real dimensions.
class MeasuredModel {
 public:
  // Throws Error{usage, model} as find_model() and GgufFile do.
  explicit MeasuredModel(const Options& options);

  const ModelArgs& args() const { return args_; }
  const ModelBytes& bytes() const { return bytes_; }
  std::string name() const;         // for people
  uint64_t n_bytes_unused() const;  // in the file (MTP blocks)
  // What is free on the backends of these options, with nothing on them.
  Machine machine(const EngineOptions& options) const;
  // Throws as Engine does.
  std::unique_ptr<Engine> open(const EngineOptions& options) const;

 private:
  std::optional<GgufFile> file_;
  SyntheticTypes types_;
  ModelArgs args_;
  ModelBytes bytes_;
};

// n ids of the vocabulary.
std::vector<int32_t> random_tokens(int64_t n, int64_t vocab_size, Rng& rng);

// n sessions that hold the same n_tokens random tokens, for steps behind them without hours of prefill. Their
// keys are random, so that scores have a realistic spread, and the same in pages of each session's own;
// latent rows, on which no operation's time depends, are zero. Throws as LatentCache::open() and reserve()
// do.
std::vector<std::unique_ptr<ByHand>> fabricate_sessions(Engine& engine, int64_t n, int64_t n_tokens);

// For models that have none. Token i is written " i". None of the n_vocab ids ends an answer.
std::unique_ptr<Tokenizer> fabricate_tokenizer(int64_t n_vocab);

// Choices with a chosen overlap from step to step, since random weights have none: of the rows that a token
// of a layer selects, or of its experts, a share stays, the others change.
class ForcedChoices {
 public:
  // What they take of a device.
  static uint64_t n_bytes(const ModelArgs& args, int64_t n_tokens);

  // For steps of n_tokens, as long as the object lives; of rows [0, n_visible), and none of them are forced
  // unless they are more than top-k. The engine must outlive it. Throws Error{memory}.
  ForcedChoices(Engine& engine, int64_t n_tokens, int64_t n_visible, const Locality& locality);
  ~ForcedChoices();
  ForcedChoices(const ForcedChoices&) = delete;
  ForcedChoices& operator=(const ForcedChoices&) = delete;

  // Those of the next step. Waits until they are there.
  void next();

 private:
  // Of some layers' tokens, on the device that has the layers.
  struct Choices {
    Backend* backend;
    int64_t n_all;
    double locality;
    Buffer<int32_t> device;                         // [n_lists, n_chosen]
    std::vector<std::vector<int32_t>> chosen = {};  // [n_lists], ascending
  };
  const int32_t* add(Backend& backend, int64_t n_lists, int64_t n_chosen, int64_t n_all, double locality);

  Engine& engine_;
  Rng rng_{7};
  std::vector<Choices> choices_;
};

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

// Times n_decode steps of the loop in which each session appends a token behind the first n_tokens that it
// holds, with choices of that locality. The parts are taken from a few more steps, in which the device marks
// each: there nothing runs beside anything else, and a fetch that is hidden otherwise shows its full length,
// so they may add up to more than a step. The context has room for one token more than all of this takes.
BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sessions, int64_t n_tokens, int64_t n_decode,
                       const Locality& locality);

}  // namespace dsv32
