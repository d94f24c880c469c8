// `dsv32 bench`. Of one sequence it times a prompt after each context, and decode steps after that. It
// shows the bytes of weights that decode reads a second, and their share of the ceiling: the bytes a second
// that the device moves when it adds one large array to another, measured in the same run.
//
// Of several sequences (--sequences) it times decode steps. Each context has its own engine then, with room
// for as many as are asked for, and their contexts are fabricated.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/chat/answer.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/plan.h"

namespace dsv32 {
namespace {

constexpr int64_t kPromptTokens = 2048;

// GB a second that the device moves for y += x, two reads and a write, over arrays too large for its caches.
double memory_gbps(Backend& backend) {
  const auto n_fitting =
      static_cast<int64_t>(backend.memory_info(Place::device).n_bytes_free / 4 / sizeof(float));
  const int64_t n = std::min(n_fitting, backend.works_in_host_memory() ? int64_t{1} << 26 : int64_t{1} << 28);
  const Buffer<float> x(backend, Place::device, n, "a bandwidth measurement"),
      y(backend, Place::device, n, "a bandwidth measurement");
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    backend.download(nullptr, nullptr, 0);
    const auto start = std::chrono::steady_clock::now();
    backend.add({x.data(), y.data(), n});
    backend.download(nullptr, nullptr, 0);
    best = std::max(best, 3.0 * 4 * static_cast<double>(n) / seconds_since(start) / 1e9);
  }
  return best;
}

// Runs the sequence up to the context and times n_prompt tokens. Returns tokens a second.
double time_prompt(Engine& engine, ByHand& sequence, int64_t n_prompt, int64_t context) {
  Rng rng(static_cast<uint64_t>(context) + 2);
  std::vector<int32_t> tokens = sequence.tokens();
  const auto append_random = [&](int64_t n) {
    const std::vector<int32_t> more = random_tokens(n, engine.args().vocab_size, rng);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(context)));
  append_random(context - std::ssize(tokens));
  if (!tokens.empty()) sequence.sync(tokens);
  append_random(n_prompt);
  const auto start = std::chrono::steady_clock::now();
  sequence.sync(tokens);
  return static_cast<double>(n_prompt) / seconds_since(start);
}

// A value of a result: as people read it, and as programs do.
struct Cell {
  const char *name, *key;
  std::string text;
  Json value;

  std::string column(const std::string& what) const {
    return format("%*s", 2 + std::max(7, static_cast<int>(std::string(name).size())), what.c_str());
  }
};

Cell cell(const char* name, const char* key, std::optional<int64_t> n, const char* none = "-") {
  return {name, key, n ? std::to_string(*n) : none, n ? Json(*n) : Json(nullptr)};
}
Cell cell(const char* name, const char* key, std::optional<double> x, int n_digits, double times = 1,
          const char* unit = "") {
  return {name, key, x ? format("%.*f%s", n_digits, *x * times, unit) : "-", x ? Json(*x) : Json(nullptr)};
}

// A row of a table, and what else there is of it: a line below it, and fields.
struct Row {
  std::vector<Cell> cells;
  std::string line = {};
  Json fields = Json::object();
};

std::string text_of(const std::vector<Row>& rows) {
  std::string text;
  for (const Cell& one : rows.front().cells) text += one.column(one.name);
  for (const Row& row : rows) {
    text += "\n";
    for (const Cell& one : row.cells) text += one.column(one.text);
    text += row.line;
  }
  return text + "\n";
}

Json json_of(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    Json& json = list.emplace_back();
    for (const Cell& one : row.cells) json[one.key] = one.value;
    json.update(row.fields);
  }
  return list;
}

// Adds what guesses brought, of a step; the counts are of all steps.
void add_guesses(Row& row, const BatchTiming& timing) {
  if (timing.n_guessed == 0) return;
  const double n_tokens = timing.n_tokens / static_cast<double>(timing.n_sequences);
  const double guess_ms = 1e3 * timing.guess_seconds, verify_ms = 1e3 * timing.step_seconds - guess_ms;
  row.line =
      format("\n%9s %s, %.2f tokens a step and sequence, guessing %.3f ms, verifying %.3f ms", "",
             guess_summary(timing.n_guessed, timing.n_accepted).c_str(), n_tokens, guess_ms, verify_ms);
  row.fields = {{"guesses",
                 {{"guessed", timing.n_guessed},
                  {"accepted", timing.n_accepted},
                  {"tokens_per_step", n_tokens},
                  {"guess_ms", guess_ms},
                  {"verify_ms", verify_ms}}}};
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        bench_(options.bench),
        contexts_(bench_.contexts.empty() ? std::vector<int64_t>{0, 4096, 32768, 131072} : bench_.contexts),
        model_(options) {
    if (options.engine.is_for_all) machine_ = model_.machine(options.engine);
  }

  // How many sequences of each context fit.
  void count() {
    std::vector<Row> rows;
    for (const int64_t context : contexts_)
      rows.push_back({{cell("context", "context", context),
                       cell("sequences", "sequences", n_fitting(std::max<int64_t>(context, 1), machine_))}});
    write_result(options_, text_of(rows), {{"capacity", json_of(rows)}});
  }

  void time() {
    memory_gbps_ = memory_gbps(*make_backends(options_.engine, [](const Backends&, size_t) {
                                  return true;
                                }).front());  // before the model takes the memory
    if (bench_.sequences.empty()) time_one();
    for (size_t i = 0; i < contexts_.size() && !bench_.sequences.empty(); ++i) time_many(contexts_[i]);
    if (rows_.empty())
      fail(ErrorKind::memory, "none of these batches fits", "--capacity says how many sequences fit");
    const std::string head =
        format("%s, %.2f GB of weights a token, memory moves %.0f GB/s\n", backend_.c_str(),
               static_cast<double>(n_weight_bytes_) / 1e9, memory_gbps_);
    write_result(options_, head + text_of(rows_),
                 {{"backend", backend_},
                  {"weight_bytes_per_token", n_weight_bytes_},
                  {"memory_gbps", memory_gbps_},
                  {"measured", json_of(rows_)}});
  }

 private:
  void time_one() {
    const int64_t n_prompt = bench_.n_prompt.value_or(options_.engine.chunk.value_or(kPromptTokens));
    EngineOptions asked = options_.engine;
    asked.context = contexts_.back() + n_prompt + timed_tokens(bench_.n_decode, n_guesses_) + 5;
    const std::unique_ptr<Engine> engine = open(asked);
    const auto sequence = std::make_unique<ByHand>(*engine);
    Rng rng(1);  // an untimed prompt first, after which memory is there and pinned, and kernels are loaded
    sequence->sync(random_tokens(n_prompt, engine->args().vocab_size, rng));
    for (const int64_t context : contexts_) {
      const double prefill_tps = time_prompt(*engine, *sequence, n_prompt, context);
      add(*engine, {&sequence, 1}, context, std::ssize(sequence->tokens()), prefill_tps);
    }
  }

  // Batches of the wanted sizes that fit after a context.
  void time_many(int64_t context) {
    const int64_t n_tokens = std::max<int64_t>(context, 1);
    EngineOptions asked = options_.engine;
    asked.context = n_tokens + timed_tokens(bench_.n_decode, n_guesses_) + 1;
    Machine machine = machine_;
    const int64_t n_wanted = bench_.sequences.back();
    if (bench_.locality != Locality{})
      machine.leave(ForcedChoices::n_bytes(
          model_.args(), n_wanted + std::min(CachePlan::kMostStepGuesses, n_wanted * n_guesses_)));
    const int64_t n_most = n_fitting(*asked.context, machine);
    std::vector<int64_t> sizes = bench_.sequences;
    std::erase_if(sizes, [&](int64_t n) { return n > n_most; });
    if (sizes.size() < bench_.sequences.size())
      write_err(format("%lld tokens: at most %lld sequences fit\n", as_ll(context), as_ll(n_most)));
    if (sizes.empty()) return;
    write_err(format("%lld tokens: preparing\n", as_ll(context)));
    const std::unique_ptr<Engine> engine = open(options_for_batch(model_.args(), asked, sizes.back()));
    const auto sequences = fabricate_sequences(*engine, sizes.back(), n_tokens);
    for (const int64_t n : sizes) {
      write_err(format("%lld tokens: %lld at a time\n", as_ll(context), as_ll(n)));
      add(*engine, std::span(sequences).first(static_cast<size_t>(n)), context, n_tokens);
    }
  }

  int64_t n_fitting(int64_t context, const Machine& machine) const {
    EngineOptions asked = options_.engine;
    asked.context = context;
    return largest_batch(model_.args(), asked, machine);
  }

  std::unique_ptr<Engine> open(const EngineOptions& asked) {
    std::unique_ptr<Engine> engine = model_.open(asked);
    backend_ = engine->backend_name();
    return engine;
  }

  // Times decode steps of sequences that hold n_tokens. Several share experts, so the bytes of weights that
  // they read are not known.
  void add(Engine& engine, std::span<const std::unique_ptr<ByHand>> sequences, int64_t context,
           int64_t n_tokens, std::optional<double> prefill_tps = {}) {
    const std::unique_ptr<Tokenizer> tokenizer = fabricate_tokenizer(engine.args().vocab_size);
    const CachePlan& cache = engine.plan().cache;
    const BatchTiming decode = time_batch(engine, *tokenizer, sequences, n_tokens, bench_);
    n_weight_bytes_ = engine.plan().n_bytes_read();
    std::optional<int64_t> buffer_rows;
    std::optional<double> gbps, share, hits;
    if (cache.has_buffers()) buffer_rows = cache.buffer_rows;
    if (sequences.size() == 1)
      gbps = static_cast<double>(n_weight_bytes_) / decode.step_seconds / 1e9, share = *gbps / memory_gbps_;
    if (decode.n_rows > 0) hits = 1 - decode.n_misses / decode.n_rows;
    const double n_fetched = decode.n_misses * static_cast<double>(cache.layout.row_bytes());
    rows_.push_back(
        {{cell("context", "context", context), cell("seqs", "sequences", decode.n_sequences),
          cell("buffer", "buffer_rows", buffer_rows, "full"),
          cell("prefill t/s", "prefill_tokens_per_second", prefill_tps, 1),
          cell("decode t/s", "decode_tokens_per_second", decode.tokens_per_second(), 1),
          cell("ms/step", "step_ms", 1e3 * decode.step_seconds, 3),
          cell("weights GB/s", "weights_gbps", gbps, 1), cell("share", "share_of_memory", share, 1, 100, "%"),
          cell("hits", "hit_rate", hits, 1, 100, "%"),
          cell("MB fetched", "fetched_bytes_per_step", n_fetched, 2, 1e-6)}});
    add_guesses(rows_.back(), decode);
  }

  const Options& options_;
  const BenchOptions& bench_;
  const std::vector<int64_t> contexts_;
  const int64_t n_guesses_ = options_.engine.n_guesses.value_or(kMostGuesses);
  MeasuredModel model_;
  Machine machine_;  // for counting how many sequences fit
  std::string backend_;
  uint64_t n_weight_bytes_ = 0;  // that a token reads
  double memory_gbps_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

int bench_command(const Options& options) {
  Options asked = options;
  asked.engine.is_for_all = options.bench.is_capacity || !options.bench.sequences.empty();
  Bench bench(asked);
  if (options.bench.is_capacity)
    bench.count();
  else
    bench.time();
  return 0;
}

}  // namespace dsv32
