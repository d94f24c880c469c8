// The commands that show a model, the machine and the cache on disk, that measure, and that describe
// commands, flags and settings.
//
// Each returns the exit code and throws Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/options/flags.h"
#include "cli/options/json.h"
#include "engine/sequence.h"
#include "gguf/gguf.h"
#include "gguf/random_weights.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Show a model file, a plan, a prompt and its tokens. They read only headers and vocabulary.
int inspect_model(const Options& options);
int inspect_plan(const Options& options);
int inspect_tokens(const Options& options);

// Checks, without any other program, whether this machine computes a model correctly. On each backend decode
// with a small top-k buffer must give the bits of decode with every row resident, and a prompt the same bits
// in any chunks. A GPU's logits must be near the CPU's, the reference; the first deviation beyond the
// tolerance is shown by position, layer and stage of the layer. 1: a comparison failed.
int check_command(const Options& options);

// Lists, shows, verifies and shrinks the cache on disk, without loading a model. A missing folder is an empty
// cache, and is not made. 1: verify found damage, or prune or clear could not remove enough.
int cache_command(const Options& options);

// Times prefill and decode after contexts, of one sequence or of several together, for a model file or for
// synthetic weights of any shape; or says how many sequences fit.
int bench_command(const Options& options);

// Writes the script for bash, zsh or fish, or the manual page. Throws Error{usage} for any other word.
int completion_command(const Options& options);
std::string completion_script(const std::string& shell);
std::string manual_page();  // dsv32(1), in man's macros

// Writes a result: the text, or with --json the object.
void write_result(const Options& options, const std::string& text, const Json& json);

// ---- what benches and plans share ----

// A model file, or random weights of the real dimensions.
class MeasuredModel {
 public:
  // Throws Error{usage, model} as find_model() and GgufFile do.
  explicit MeasuredModel(const Options& options);

  const ModelArgs& args() const { return args_; }
  const ModelBytes& bytes() const { return bytes_; }
  std::string name() const;                               // for people
  uint64_t n_bytes_unused(const ModelBytes& used) const;  // in the file (blocks for drafts)
  // The memory of the backends of these options, with nothing placed yet.
  Machine machine(const EngineOptions& options) const;
  // Throws as Engine does.
  std::unique_ptr<Engine> open(const EngineOptions& options) const;

 private:
  std::optional<GgufFile> file_;
  SyntheticTypes types_;
  ModelArgs args_;
  ModelBytes bytes_;
};

// n random ids of the vocabulary.
std::vector<int32_t> random_tokens(int64_t n, int64_t vocab_size, Rng& rng);

// n sequences that hold the same n_tokens random tokens, so that steps after them need no hours of prefill.
// The keys are random, for a realistic spread of scores; each sequence has its own pages with the same keys.
// Rows are zero, since no operation's time depends on them. Throws as LatentCache::open() and reserve() do.
std::vector<std::unique_ptr<ByHand>> fabricate_sequences(Engine& engine, int64_t n, int64_t n_tokens);

// A tokenizer for models without one. Token i is written " i". None of the n_vocab ids ends an answer.
std::unique_ptr<Tokenizer> fabricate_tokenizer(int64_t n_vocab);

// Forces which rows and experts each token of each layer chooses: a given share stays from step to step, the
// others change. With random weights almost none would stay.
class ForcedChoices {
 public:
  // The memory that forced choices take on a device.
  static uint64_t n_bytes(const ModelArgs& args, int64_t n_tokens);

  // Holds for steps of n_sequences with up to n_guesses each, as long as the object lives. Rows are chosen of
  // [0, n_visible), and are forced only if n_visible is more than top-k. The engine must outlive the object.
  // Throws Error{memory}.
  ForcedChoices(Engine& engine, int64_t n_sequences, int64_t n_visible, const Locality& locality,
                int64_t n_guesses = 0);
  ~ForcedChoices();
  ForcedChoices(const ForcedChoices&) = delete;
  ForcedChoices& operator=(const ForcedChoices&) = delete;

  // Makes the choices of the next step, in which each sequence has n_guesses, after the work enqueued on the
  // devices. n_kept: how many tokens each sequence kept of the step before; empty: one.
  void next(int64_t n_guesses = 0, std::span<const int64_t> n_kept = {});

 private:
  // The choices for a stage's layers and their tokens, on the stage's device. Those of a team's members are
  // equal.
  using List = std::vector<int32_t>;  // ascending
  struct Choices {
    Backend* backend;
    int64_t n_all;
    double locality;
    Rng rng;
    Buffer<int32_t> device;         // [n_layers, n_tokens, n_chosen]
    std::vector<List> chosen = {};  // [n_layers * n_tokens]
  };
  const int32_t* add(Backend& backend, uint64_t seed, int64_t n_layers, int64_t n_chosen, int64_t n_all,
                     double locality);
  void follow(Choices& choices, std::span<List> layer, int64_t n_guesses, std::span<const int64_t> n_kept);

  Engine& engine_;
  const int64_t n_sequences_, n_tokens_;  // of the largest step
  int64_t n_each_ = 1;                    // tokens of each sequence in the last step
  std::vector<Choices> choices_;
};

struct BatchTiming {
  int64_t n_sequences = 0;
  double step_seconds = 0, guess_seconds = 0;  // the whole step; of this, its guessing
  double n_rows = 0, n_misses = 0;             // of a step, in all layers; n_rows is 0 without top-k buffers
  double n_tokens = 0;                         // that all sequences together won in a step
  int64_t n_guessed = 0, n_accepted = 0;       // in all steps

  double tokens_per_second() const { return n_tokens / step_seconds; }
};

// The most tokens that time_batch() appends to each sequence.
int64_t timed_tokens(int64_t n_decode, int64_t n_guesses = 0);

// Times bench.n_decode steps of the loop, in which each sequence appends tokens after the first n_tokens
// that it holds, with the forced choices and the accepted guesses of `bench`. The context must have room for
// one token more than timed_tokens().
BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sequences, int64_t n_tokens,
                       const BenchOptions& bench);

}  // namespace dsv32
