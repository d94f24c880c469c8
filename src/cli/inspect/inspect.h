// The commands that look at a model, its logits, the machine, and the cache on disk, those that measure, and
// those that tell what the program takes.
//
// Each returns the exit code and throws Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options/flags.h"
#include "engine/sequence.h"
#include "gguf/gguf.h"
#include "gguf/random_weights.h"
#include "text/tokenizer.h"

namespace dsv32 {

// What a model file holds, what a context costs, how text becomes tokens: headers and vocabulary are read.
int inspect_model(const Options& options);
int inspect_plan(const Options& options);
int inspect_tokens(const Options& options);
int inspect_prompt(const Options& options);

// The logits of every token of a prompt, for comparison with other programs: float32 [n_tokens, vocab_size],
// row-major, little-endian, in a file that appears only when it is whole. Throws Error{model} for logits that
// are no numbers.
int inspect_logits(const Options& options);

// "1,2 3" -> {1, 2, 3}: decimal ids with commas or white space between them. Throws Error{usage} for anything
// else, for ids outside [0, vocab_size), and for none at all.
std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size);

// Whether this machine computes a model as it should, without any other program. Decode with a small top-k
// buffer must give the bits of decode with every row resident, and a prompt the same bits however it is cut,
// on each backend. A GPU's logits must be near those of the CPU, which is the oracle; where they first leave
// it is told by position, layer and stage. 1: a comparison failed.
int check_command(const Options& options);

// What is kept on disk, whether it is whole, and how it is made smaller; no model is opened. A folder that is
// not there is an empty cache, and stays away. 1: verify found damage, or not all went that was to go.
int cache_command(const Options& options);

// Prefill and decode at context frontiers, for a model file or for synthetic weights of any shape.
int bench_model_command(const Options& options);
// How many sequences of given lengths a machine holds, and how fast they decode together.
int bench_batch_command(const Options& options);

// Scripts for bash, zsh and fish, and the manual page. Throws Error{usage} for another.
int completion_command(const Options& options);
// What may stand in the place of the last of these words, as the scripts read it; the first is a command's.
std::string offers_for(const std::vector<std::string>& line);
std::string manual_page();  // dsv32(1), for man, in its macros

// What holds when the command that the words name (none: run) is given no flags, and from where.
int config_command(const Options& options);
std::string config_text(const CommandRow& command);

// ---- what benches and plans share ----

// A model file, or random weights of the real dimensions.
class MeasuredModel {
 public:
  // Throws Error{usage, model} as find_model() and GgufFile do.
  explicit MeasuredModel(const Options& options);

  const ModelArgs& args() const { return args_; }
  const ModelBytes& bytes() const { return bytes_; }
  std::string name() const;              // for people
  uint64_t n_bytes_unused() const;       // in the file (MTP blocks)
  std::set<TensorType> formats() const;  // of its matrices
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

struct BatchTiming {
  int64_t n_sequences = 0;
  double step_seconds = 0;
  double n_rows = 0, n_misses = 0;  // of a step, in all layers; no rows: none was looked up in a buffer
};

// Tokens by which time_batch() makes each sequence longer.
int64_t timed_tokens(int64_t n_decode);

// Times n_decode steps of the loop in which each session appends a token behind the first n_tokens that it
// holds, with choices of that locality. The context has room for one token more than all of this takes.
BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sessions, int64_t n_tokens, int64_t n_decode,
                       const Locality& locality);

}  // namespace dsv32
