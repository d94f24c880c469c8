// See inspect.h. A fabricated page's keys are a random piece of one long array of random values, which is
// much faster than drawing each value. The scale of each key is drawn, so that no two keys are equal.
#include "cli/inspect/inspect.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/numbers.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "engine/loop.h"
#include "weights/synthetic.h"

namespace dsv32 {
namespace {

constexpr int64_t kRealContext = 163840;  // DeepSeek-V3.2's own; a bench may go further
constexpr int64_t kPagesTogether = 64;    // pages whose keys are made at a time
constexpr uint8_t kScaleOfOne = 127;      // ue8m0
// Steps that record CUDA graphs and fill buffers; with guesses there are more graphs, some at the end of a
// page alone, and the number of guesses is found.
constexpr int64_t kUntimed = 3, kUntimedGuessing = 64;

class RandomKeys {
 public:
  explicit RandomKeys(const CachePlan& plan) : plan_(plan) {
    constexpr int64_t kMoreValues = int64_t{1} << 20;
    const int64_t n_values = kPageTokens * plan.layout.index_head_dim + kMoreValues;
    for (int64_t i = 0; i < n_values; ++i) floats_.push_back(rng_.unit());
    for (const float value : floats_) e4m3_.push_back(f32_to_e4m3(value));
  }

  // A page of keys of every layer, [n_layers, key_page_bytes].
  std::vector<uint8_t> page() {
    std::vector<uint8_t> bytes(static_cast<size_t>(plan_.n_layers * plan_.layout.key_page_bytes()));
    for (int64_t layer = 0; layer < plan_.n_layers; ++layer)
      fill(bytes.data() + layer * plan_.layout.key_page_bytes());
    return bytes;
  }

 private:
  void fill(uint8_t* page) {
    const CacheLayout& layout = plan_.layout;
    std::fill_n(page, kPageTokens * layout.scale_bytes(), kScaleOfOne);
    const size_t n_values = static_cast<size_t>(kPageTokens * layout.index_head_dim);
    const size_t first = rng_.next() % (floats_.size() - n_values + 1);
    const void* values = layout.kv_type == KvType::f32 ? static_cast<const void*>(floats_.data() + first)
                                                       : static_cast<const void*>(e4m3_.data() + first);
    std::memcpy(page + layout.keys_offset(), values, static_cast<size_t>(kPageTokens * layout.key_bytes()));
    uint8_t* scale = page + layout.key_scales_offset();
    for (int64_t i = 0; i < kPageTokens * layout.key_scale_bytes(); i += sizeof(float)) {
      const float value = 0.5f + rng_.uniform();
      std::memcpy(scale + i, &value, sizeof value);
    }
  }

  const CachePlan& plan_;
  Rng rng_{5};
  std::vector<float> floats_;  // between -2 and 2
  std::vector<uint8_t> e4m3_;  // the same
};

int64_t untimed_steps(int64_t n_guesses) { return n_guesses > 0 ? kUntimedGuessing : kUntimed; }

// One request on each sequence, from its admission to its last timed token, and the loop's steps.
class TimedSteps {
 public:
  TimedSteps(Engine& engine, const Tokenizer& tokenizer, std::span<const std::unique_ptr<ByHand>> sequences,
             int64_t n_tokens, const BenchOptions& bench)
      : engine_(engine),
        sequences_(sequences),
        n_guesses_(std::min(engine.plan().cache.n_guesses, CachePlan::kMostStepGuesses / n_sequences())),
        forced_(engine, n_sequences(), n_tokens, bench.locality, n_guesses_),
        accepted_(bench.accepted),
        sums_(bench.accepted.size(), 0.5) {
    const auto first = sequences.front()->tokens().begin();
    std::vector<int32_t> prompt(first, first + n_tokens);
    prompt.push_back(0);
    GenerationOptions options;
    options.thinking = false;
    for (const std::unique_ptr<ByHand>& sequence : sequences) {
      sequence->hold(prompt);
      Request request{sequence.get(), &tokenizer, prompt, options};
      request.is_held = true;
      numbers_.push_back(engine.loop().add(std::move(request), listener_));
    }
    watch();
  }
  ~TimedSteps() {
    engine_.loop().set_guesser({});
    engine_.loop().set_drawer({});
    for (const int64_t number : numbers_) engine_.loop().drop(number);
  }

  // Runs steps, and counts and times them.
  BatchTiming make(int64_t n_steps) {
    timing_ = {.n_sequences = n_sequences()};
    for (int64_t i = 0; i < n_steps; ++i) make();
    const auto n = static_cast<double>(n_steps);
    timing_.step_seconds /= n, timing_.guess_seconds /= n, timing_.n_tokens /= n;
    return timing_;
  }

  // Throws the error that ended a request, or Error{internal} when a sequence has less than n_tokens.
  void check(int64_t n_tokens) {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      if (engine_.loop().is_done(numbers_[i])) engine_.loop().take(numbers_[i]);
      if (std::ssize(sequences_[i]->tokens()) < n_tokens)
        fail(ErrorKind::internal, format("sequence %zu was left out of a step", i));
    }
  }

 private:
  int64_t n_sequences() const { return std::ssize(sequences_); }
  int64_t n_tokens() const {
    int64_t n = 0;
    for (const auto& sequence : sequences_) n += std::ssize(sequence->tokens());
    return n;
  }

  // Notes when the loop makes guesses, and leaves it to the pattern which of them are right.
  void watch() {
    engine_.loop().set_guesser([this](const Sequence&, int64_t nth, int32_t guessed) {
      guessed_at_ = std::chrono::steady_clock::now();
      n_guessed_each_ = std::max(n_guessed_each_, nth + 1);
      ++timing_.n_guessed;
      return guessed;
    });
    if (accepted_.empty()) return;
    engine_.loop().set_drawer([this](const Sequence& sequence, int64_t ahead, int32_t drawn) {
      const auto nth = static_cast<size_t>(ahead);
      if (nth >= sequence.guesses().size()) return drawn;
      const int32_t guess = sequence.guesses()[nth], other = guess == 0 ? 1 : 0;
      return accepts(nth) ? guess : other;
    });
  }

  // Whether the nth guess, after right ones, is right: as often as its share asks, evenly spread.
  bool accepts(size_t nth) {
    sums_[nth] += accepted_[nth];
    const bool is_right = sums_[nth] >= 1;
    if (is_right) sums_[nth] -= 1;
    return is_right;
  }

  // A step, of all sequences together or of one group after the other; groups' steps overlap from one to the
  // next. The choices are laid out for as many guesses as the step before had. A single sequence's tokens
  // have the same places for any number.
  void make() {
    forced_.next(n_sequences() == 1 ? n_guesses_ : n_guessed_each_, n_kept_);
    if (n_sequences() == 1 || engine_.forward().n_stages() == 1) engine_.forward().wait();
    n_kept_.clear(), n_guessed_each_ = 0;
    for (const auto& sequence : sequences_) n_kept_.push_back(-std::ssize(sequence->tokens()));
    const auto start = std::chrono::steady_clock::now();
    guessed_at_ = start;
    const int64_t n_before = n_tokens();
    while (engine_.loop().advance() && n_tokens() - n_before < n_sequences()) continue;
    timing_.step_seconds += seconds_since(start);
    timing_.guess_seconds += std::chrono::duration<double>(guessed_at_ - start).count();
    for (size_t i = 0; i < n_kept_.size(); ++i) n_kept_[i] += std::ssize(sequences_[i]->tokens());
    const int64_t n_won = std::accumulate(n_kept_.begin(), n_kept_.end(), int64_t{0});
    timing_.n_tokens += static_cast<double>(n_won);
    timing_.n_accepted += n_won - n_sequences();
  }

  Engine& engine_;
  std::span<const std::unique_ptr<ByHand>> sequences_;
  const int64_t n_guesses_;  // the most of a sequence
  ForcedChoices forced_;
  const std::vector<double> accepted_;  // shares; empty: the logits decide
  std::vector<double> sums_;            // of them, less what was right
  Listener listener_;
  std::vector<int64_t> numbers_;
  BatchTiming timing_;
  // Of the last step: when the last guess was made, the most of a sequence, and what each sequence kept.
  std::chrono::steady_clock::time_point guessed_at_;
  int64_t n_guessed_each_ = n_guesses_;
  std::vector<int64_t> n_kept_;
};

}  // namespace

MeasuredModel::MeasuredModel(const Options& options) : types_(options.bench.types) {
  const bool is_plan = options.command == Command::inspect_plan;
  if (!options.bench.is_synthetic && !(options.imagined && lacks_model(options)))
    file_.emplace(open_model(options));
  if (!file_ && !options.engine.added_paths.empty())
    fail(ErrorKind::usage, "--with adds to a model's file, and here is none", "-m names the model");
  args_ = file_     ? read_model_args(*file_)
          : is_plan ? full_size_args(61, 3)
                    : full_size_args(options.bench.n_layers,
                                     std::min(options.bench.n_dense, options.bench.n_layers));
  // A plan for the real model has the block for drafts if it is asked for, as most files are without it.
  if (!file_) args_.n_draft_layers = options.engine.n_guesses.value_or(is_plan ? 0 : 1) > 0;
  if (options.engine.n_guesses == 0) args_ = args_.without_draft();
  args_ = with_selector(args_, options.engine);
  if (is_plan && !file_) args_.max_seq_len = kRealContext;
  bytes_ = file_ ? model_bytes(*file_, args_) : model_bytes(args_, types_);
}

std::string MeasuredModel::name() const {
  if (file_) return visible(file_->path());
  return "the 671B model in " + name_of(types_) + ", without a file";
}

uint64_t MeasuredModel::n_bytes_unused(const ModelBytes& used) const {
  if (!file_) return 0;
  uint64_t n_bytes = 0;
  for (const GgufTensor& tensor : file_->tensors()) n_bytes += tensor.n_bytes;
  return less_bytes(n_bytes, total_bytes(used));
}

Machine MeasuredModel::machine(const EngineOptions& options) const {
  return machine_of(make_backends(options, suffice_for(args_, bytes_, options)), bytes_, options);
}

std::unique_ptr<Engine> MeasuredModel::open(const EngineOptions& options) const {
  if (file_) return std::make_unique<Engine>(*file_, options);
  const auto load = [&](const ModelArgs& args, const WeightPlaces& places) {
    return synthetic_weights(args, types_, places);
  };
  const auto identify = [](const CacheLayout&, const std::string&) {
    return [] { return std::optional(Hash256{1}); };
  };
  return std::make_unique<Engine>(ModelSource(args_, bytes_, load, identify), options);
}

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab_size, Rng& rng) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(vocab_size));
  return tokens;
}

std::vector<std::unique_ptr<ByHand>> fabricate_sequences(Engine& engine, int64_t n, int64_t n_tokens) {
  Rng rng(3);
  const std::vector<int32_t> tokens = random_tokens(n_tokens, engine.args().vocab_size, rng);
  LatentCache& cache = engine.cache();
  std::vector<std::unique_ptr<ByHand>> sequences;
  for (int64_t i = 0; i < n; ++i) {
    CachedSequence& cached = sequences.emplace_back(std::make_unique<ByHand>(engine))->cached();
    cache.reserve(cached, n_tokens);
    cache.append(cached, tokens);
  }
  RandomKeys random(cache.plan());
  const int64_t n_pages = pages_for(n_tokens);
  for (int64_t first = 0; first < n_pages; first += kPagesTogether) {
    const int64_t end = std::min(first + kPagesTogether, n_pages);
    std::vector<std::vector<uint8_t>> keys;
    for (int64_t i = first; i < end; ++i) keys.push_back(random.page());
    for (const std::unique_ptr<ByHand>& sequence : sequences) {
      std::vector<PoolPage> pages;
      for (int64_t i = first; i < end; ++i) pages.push_back(sequence->cached().page(i));
      cache.publish(pages, keys);
    }
  }
  return sequences;
}

// A vocabulary with scores needs a token for each byte. These, and the token that ends answers, come after
// the ids that the model can sample.
std::unique_ptr<Tokenizer> fabricate_tokenizer(int64_t n_vocab) {
  Vocabulary vocabulary;
  const auto add = [&](std::string name, TokenType type) {
    vocabulary.tokens.push_back(std::move(name));
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(0);
  };
  for (int64_t i = 0; i < n_vocab; ++i) add("\u2581" + std::to_string(i), TokenType::normal);
  for (int byte = 0; byte < 256; ++byte) add(format("<0x%02X>", byte), TokenType::byte);
  add("<unknown>", TokenType::unknown);
  vocabulary.model = "llama";
  vocabulary.bos_id = vocabulary.eos_id = static_cast<int32_t>(vocabulary.tokens.size()) - 1;
  return Tokenizer::make(std::move(vocabulary));
}

int64_t timed_tokens(int64_t n_decode, int64_t n_guesses) {
  return (untimed_steps(n_guesses) + n_decode) * (1 + n_guesses);
}

BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sequences, int64_t n_tokens,
                       const BenchOptions& bench) {
  TimedSteps steps(engine, tokenizer, sequences, n_tokens, bench);
  const int64_t n_untimed = untimed_steps(engine.plan().cache.n_guesses);
  steps.make(n_untimed);
  const Forward::BufferTally before = engine.forward().buffer_tally();
  BatchTiming timing = steps.make(bench.n_decode);
  const Forward::BufferTally after = engine.forward().buffer_tally();
  const auto n_steps = static_cast<double>(bench.n_decode);
  timing.n_rows = static_cast<double>(after.n_rows - before.n_rows) / n_steps;
  timing.n_misses = static_cast<double>(after.n_misses - before.n_misses) / n_steps;
  steps.check(n_tokens + n_untimed + bench.n_decode);
  return timing;
}

}  // namespace dsv32
