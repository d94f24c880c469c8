// A passage and its first question are prefilled; from there on the conversation is decode steps alone: the
// model's greedy answer, then the next question, and so on. What the indexer selects in each step is kept,
// and every policy and size is then tried on the very same selections.
#include "tests/tools/lab/buffer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "engine/sampler.h"
#include "tests/tools/lab/asked_passages.h"
#include "tests/tools/lab/recorded_steps.h"

namespace dsv32 {
namespace {

constexpr std::array kSizes = {1.0, 1.5, 2.0, 4.0};  // in top-k
constexpr int kMostReplayed = 64;

// The greedy answer, up to the token that ends it or until the context is full.
void answer(RecordedSteps& steps, ByHand& sequence, const Tokenizer& tokenizer) {
  for (int i = 0; i < kMostReplayed && sequence.context_left() > 0; ++i) {
    const std::vector<float>& logits = sequence.logits();
    const auto id = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    if (tokenizer.is_end_of_generation(id)) return;
    steps.step(id);
  }
}

// A turn behind an answer, which EOS ends: that stands where the first turn has BOS.
std::vector<int32_t> later_turn(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = first_turn(tokenizer, text);
  ids.front() = tokenizer.eos_id();
  return ids;
}

// The sequence holds the prompt; what follows is recorded, until every question is answered or the next one
// does not fit the context.
void converse(RecordedSteps& steps, ByHand& sequence, const Tokenizer& tokenizer,
              const AskedPassage& passage) {
  answer(steps, sequence, tokenizer);
  for (size_t i = 1; i < passage.questions.size(); ++i) {
    const std::vector<int32_t> turn = later_turn(tokenizer, passage.questions[i].ask);
    if (sequence.context_left() < std::ssize(turn)) return;
    for (const int32_t id : turn) steps.step(id);
    answer(steps, sequence, tokenizer);
  }
}

// Of one layer, or of several together.
struct LayerCounts {
  HitCounts overlap;                                                                  // with the step before
  std::array<std::array<HitCounts, std::size(kBufferPolicies)>, kSizes.size()> hits;  // [size][policy]

  LayerCounts& operator+=(const LayerCounts& other) {
    overlap += other.overlap;
    for (size_t size = 0; size < hits.size(); ++size)
      for (size_t policy = 0; policy < hits[size].size(); ++policy)
        hits[size][policy] += other.hits[size][policy];
    return *this;
  }
};

struct Replayed {
  std::vector<LayerCounts> layers;
  int64_t topk = 0, n_passages = 0, n_steps = 0;  // steps: those that count
  int64_t n_shortest = 0, n_longest = 0;          // tokens of prompts, and of whole conversations

  int32_t capacity(double size) const { return static_cast<int32_t>(size * static_cast<double>(topk)); }
  // The rates of all layers together are the mean of theirs: every layer selects as many rows.
  LayerCounts all_layers() const {
    LayerCounts sum;
    for (const LayerCounts& layer : layers) sum += layer;
    return sum;
  }
};

void count(Replayed& measured, const RecordedSteps& steps) {
  for (int64_t layer = 0; layer < std::ssize(measured.layers); ++layer) {
    LayerCounts& counts = measured.layers[static_cast<size_t>(layer)];
    counts.overlap += count_repeated(steps.layer(layer));
    for (size_t size = 0; size < kSizes.size(); ++size)
      for (const BufferPolicy policy : kBufferPolicies)
        counts.hits[size][static_cast<size_t>(policy)] +=
            replay(policy, steps.layer(layer), measured.capacity(kSizes[size]));
  }
}

void measure_passage(Replayed& measured, Model& model, const AskedPassage& passage) {
  const std::vector<int32_t> prompt = first_turn(model.tokenizer(), passage, passage.questions.front());
  const int64_t n_prompt = std::ssize(prompt);
  if (n_prompt <= measured.topk)
    fail(ErrorKind::usage,
         format("a passage has %lld tokens, expected more than the %lld rows that every step selects",
                static_cast<long long>(n_prompt), static_cast<long long>(measured.topk)));
  ByHand sequence(model.engine());
  sequence.sync(prompt);
  RecordedSteps steps(model.engine(), sequence);
  converse(steps, sequence, model.tokenizer(), passage);
  count(measured, steps);
  const int64_t n_tokens = std::ssize(sequence.tokens());
  measured.n_shortest = measured.n_passages == 0 ? n_prompt : std::min(measured.n_shortest, n_prompt);
  measured.n_longest = std::max(measured.n_longest, n_tokens);
  measured.n_steps += std::max<int64_t>(0, n_tokens - n_prompt - 1);
  ++measured.n_passages;
}

std::string row_text(const std::string& name, const LayerCounts& counts) {
  std::string text = format("%-5s %8.1f%%", name.c_str(), 100 * counts.overlap.rate());
  for (const auto& of_size : counts.hits) {
    text += "  ";
    for (const HitCounts& hits : of_size) text += format(" %7.1f%%", 100 * hits.rate());
  }
  return text + "\n";
}

void print_table(const Replayed& measured, const char* backend) {
  std::string text = format(
      "%s: %lld steps at contexts of %lld to %lld tokens, each selecting %lld; shares found in a buffer of\n",
      backend, static_cast<long long>(measured.n_steps), static_cast<long long>(measured.n_shortest),
      static_cast<long long>(measured.n_longest), static_cast<long long>(measured.topk));
  text += format("%15s", "");
  for (const double size : kSizes)
    text += format("%29s", format("%g x top-k = %d rows", size, measured.capacity(size)).c_str());
  text += format("\n%-5s %9s", "layer", "overlap");
  for (size_t size = 0; size < kSizes.size(); ++size) {
    text += "  ";
    for (const BufferPolicy policy : kBufferPolicies) text += format(" %8s", policy_name(policy));
  }
  text += "\n";
  for (size_t layer = 0; layer < measured.layers.size(); ++layer)
    text += row_text(std::to_string(layer), measured.layers[layer]);
  write_out(text + row_text("mean", measured.all_layers()));
}

nlohmann::json to_json(const LayerCounts& counts, const Replayed& measured) {
  nlohmann::json sizes = nlohmann::json::array();
  for (size_t size = 0; size < kSizes.size(); ++size) {
    nlohmann::json& of_size = sizes.emplace_back();
    of_size["rows_per_topk"] = kSizes[size];
    of_size["rows"] = measured.capacity(kSizes[size]);
    for (const BufferPolicy policy : kBufferPolicies)
      of_size[policy_name(policy)] = counts.hits[size][static_cast<size_t>(policy)].rate();
  }
  return {{"overlap", counts.overlap.rate()}, {"hit_rates", sizes}};
}

void print_json(const Replayed& measured, const char* backend) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerCounts& layer : measured.layers) layers.push_back(to_json(layer, measured));
  const nlohmann::json all = {{"backend", backend},
                              {"index_topk", measured.topk},
                              {"passages", measured.n_passages},
                              {"steps", measured.n_steps},
                              {"shortest_context", measured.n_shortest},
                              {"longest_context", measured.n_longest},
                              {"layers", layers},
                              {"mean", to_json(measured.all_layers(), measured)}};
  write_out(all.dump() + "\n");
}

}  // namespace

int lab_buffer(const LabOptions& options) {
  if (options.words.size() != 1) fail(ErrorKind::usage, "name one file of questions");
  const std::vector<AskedPassage> passages = read_passages(options.words[0], options.n_passages);
  Model model(options);
  model.load();
  const ModelArgs& args = model.engine().args();
  if (!args.has_indexer())
    fail(ErrorKind::model, format("%s has no indexer that could select rows", visible(model.path()).c_str()));
  Replayed measured;
  measured.layers.resize(static_cast<size_t>(args.n_layers));
  measured.topk = args.index_topk;
  for (const AskedPassage& passage : passages) measure_passage(measured, model, passage);
  if (measured.n_steps == 0)
    fail(ErrorKind::usage, "the answers are too short to count anything", "ask more questions");
  (options.json ? print_json : print_table)(measured, model.engine().backend_name());
  return 0;
}

}  // namespace dsv32
