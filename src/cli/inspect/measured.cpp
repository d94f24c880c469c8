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
constexpr int64_t kUntimed = 3;           // steps that record the CUDA graph and fill the buffers

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

// Draws the next choices: each stays with the probability `locality`, else another of [0, n_all) replaces it.
void change(std::vector<int32_t>& chosen, int64_t n_all, double locality, Rng& rng) {
  std::vector<bool> is_taken(static_cast<size_t>(n_all));
  for (const int32_t choice : chosen) is_taken[static_cast<size_t>(choice)] = true;
  for (int32_t& choice : chosen) {
    if (static_cast<double>(rng.uniform()) < locality) continue;
    is_taken[static_cast<size_t>(choice)] = false;
    do choice = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(n_all));
    while (is_taken[static_cast<size_t>(choice)]);
    is_taken[static_cast<size_t>(choice)] = true;
  }
  std::ranges::sort(chosen);
}

// One request on each sequence, from its admission to its last timed token, and the loop's steps.
class TimedSteps {
 public:
  TimedSteps(Engine& engine, const Tokenizer& tokenizer, std::span<const std::unique_ptr<ByHand>> sequences,
             int64_t n_tokens, const Locality& locality)
      : engine_(engine), sequences_(sequences), forced_(engine, std::ssize(sequences), n_tokens, locality) {
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
  }
  ~TimedSteps() {
    for (const int64_t number : numbers_) engine_.loop().drop(number);
  }

  // Runs a step. Returns its seconds.
  double make() {
    forced_.next();
    const auto start = std::chrono::steady_clock::now();
    engine_.loop().turn();
    return seconds_since(start);
  }

  // Throws the error that ended a request, or Error{internal} when a sequence does not have n_tokens.
  void check(int64_t n_tokens) {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      if (engine_.loop().is_done(numbers_[i])) engine_.loop().take(numbers_[i]);
      if (std::ssize(sequences_[i]->tokens()) != n_tokens)
        fail(ErrorKind::internal, format("sequence %zu was left out of a step", i));
    }
  }

 private:
  Engine& engine_;
  std::span<const std::unique_ptr<ByHand>> sequences_;
  ForcedChoices forced_;
  Listener listener_;
  std::vector<int64_t> numbers_;
};

}  // namespace

MeasuredModel::MeasuredModel(const Options& options) : types_(options.bench.types) {
  if (!options.bench.is_synthetic) file_.emplace(open_model(options));
  args_ = file_ ? read_model_args(*file_) : full_size_args(options.bench.n_layers, options.bench.n_dense);
  // A plan for the real model has the block for drafts if it is asked for, as most files are without it.
  const bool is_plan = options.command == Command::inspect_plan;
  if (!file_) args_.n_draft_layers = options.engine.n_guesses.value_or(is_plan ? 0 : 1) > 0;
  if (options.engine.n_guesses == 0) args_ = args_.without_draft();
  if (is_plan && !file_) args_.max_seq_len = kRealContext;
  bytes_ = file_ ? model_bytes(*file_, args_) : model_bytes(args_, types_);
}

std::string MeasuredModel::name() const {
  if (file_) return visible(file_->path());
  const std::string formats =
      types_.mix ? types_.mix->name : type_name(types_.matrices) + std::string("-pure");
  return "the 671B model in " + formats + ", without a file";
}

uint64_t MeasuredModel::n_bytes_unused(const ModelBytes& used) const {
  if (!file_) return 0;
  uint64_t n_bytes = 0;
  for (const GgufTensor& tensor : file_->tensors()) n_bytes += tensor.n_bytes;
  return less_bytes(n_bytes, total_bytes(used));
}

std::set<TensorType> MeasuredModel::formats() const {
  std::set<TensorType> formats{types_.matrices, types_.heads};
  if (const QuantMix* mix = types_.mix)
    formats = {mix->others, mix->head, mix->embedding, mix->attn_output, mix->down};
  if (types_.mix && types_.mix->which != QuantMix::Layers::none) formats.insert(types_.mix->better_down);
  if (!file_) return formats;
  formats.clear();
  for (const GgufTensor& tensor : file_->tensors())
    if (tensor.n_dims > 1) formats.insert(tensor.type);
  return formats;
}

Machine MeasuredModel::machine(const EngineOptions& options) const {
  return machine_of(make_backends(options, suffice_for(args_, bytes_, options)), bytes_);
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

uint64_t ForcedChoices::n_bytes(const ModelArgs& args, int64_t n_tokens) {
  return static_cast<uint64_t>(args.n_all_layers() * n_tokens *
                               (args.index_topk + args.n_activated_experts)) *
         sizeof(int32_t);
}

ForcedChoices::ForcedChoices(Engine& engine, int64_t n_tokens, int64_t n_visible, const Locality& locality)
    : engine_(engine) {
  const ModelArgs& args = engine.args();
  for (size_t i = 0; i < engine.plan().stages.size(); ++i) {
    const StagePlan& stage = engine.plan().stages[i];
    const int64_t n_lists = (stage.end_layer - stage.first_layer) * n_tokens;
    Backend& backend = *engine.backends()[i];
    Stage::Forced forced{.n_tokens = n_tokens};
    if (locality.selection && args.has_indexer() && n_visible > args.index_topk)
      forced.selection = add(backend, n_lists, args.index_topk, n_visible, *locality.selection);
    if (locality.experts && args.n_routed_experts > 0)
      forced.experts =
          add(backend, n_lists, args.n_activated_experts, args.n_routed_experts, *locality.experts);
    engine.forward().set_forced(i, forced);
  }
}

ForcedChoices::~ForcedChoices() {
  for (size_t i = 0; i < engine_.plan().stages.size(); ++i) engine_.forward().set_forced(i, {});
}

// Draws the first choices. Returns their place on the device.
const int32_t* ForcedChoices::add(Backend& backend, int64_t n_lists, int64_t n_chosen, int64_t n_all,
                                  double locality) {
  Choices& added = choices_.emplace_back(
      Choices{&backend, n_all, locality, {backend, Place::device, n_lists * n_chosen, "forced choices"}});
  std::vector<int32_t> all(static_cast<size_t>(n_all));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t list = 0; list < n_lists; ++list) {
    for (size_t i = 0; i < static_cast<size_t>(n_chosen); ++i)
      std::swap(all[i], all[i + rng_.next() % (all.size() - i)]);
    std::ranges::sort(added.chosen.emplace_back(all.begin(), all.begin() + n_chosen));
  }
  return added.device.data();
}

void ForcedChoices::next() {
  for (Choices& choices : choices_) {
    std::vector<int32_t> all;
    for (std::vector<int32_t>& chosen : choices.chosen) {
      if (choices.locality < 1) change(chosen, choices.n_all, choices.locality, rng_);
      all.insert(all.end(), chosen.begin(), chosen.end());
    }
    choices.backend->upload(choices.device.data(), all.data(), all.size() * sizeof(int32_t));
    choices.backend->download(nullptr, nullptr, 0);
  }
}

int64_t timed_tokens(int64_t n_decode) { return kUntimed + n_decode; }

BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sequences, int64_t n_tokens, int64_t n_decode,
                       const Locality& locality) {
  TimedSteps steps(engine, tokenizer, sequences, n_tokens, locality);
  for (int64_t i = 0; i < kUntimed; ++i) steps.make();
  const Forward::BufferTally before = engine.forward().buffer_tally();
  const double n_steps = static_cast<double>(n_decode);
  BatchTiming timing{.n_sequences = std::ssize(sequences)};
  for (int64_t i = 0; i < n_decode; ++i) timing.step_seconds += steps.make() / n_steps;
  const Forward::BufferTally after = engine.forward().buffer_tally();
  timing.n_rows = static_cast<double>(after.n_rows - before.n_rows) / n_steps;
  timing.n_misses = static_cast<double>(after.n_misses - before.n_misses) / n_steps;
  steps.check(n_tokens + timed_tokens(n_decode));
  return timing;
}

}  // namespace dsv32
