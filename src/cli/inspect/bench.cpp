// `dsv32 bench` times at each frontier a prefill that begins there, and decode steps behind it. It shows the
// bytes of weights that decode reads a second, and their share of the ceiling: the bytes a second that the
// device moves when it adds one large array to another, measured in the same run.
//
// `dsv32 bench batch` shows for each length how many sequences fit with every row resident and how many with
// top-k buffers, then times steps of batches of these sizes, or of those of --sequences. Each residency of
// each length has its own engine.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/plan.h"

namespace dsv32 {
namespace {

constexpr int64_t kChunk = 2048;

struct Frontier {
  int64_t context = 0;
  double prefill_tps = 0;
  BatchTiming decode = {};

  double decode_tps() const { return decode.tokens_per_second(); }
};

struct Measured {
  const char* backend;
  uint64_t n_weight_bytes;  // that a decode step reads for one token
  double memory_gbps;
  double row_bytes;
  int64_t n_decode;
  std::vector<Frontier> frontiers = {};

  double weight_gbps(const Frontier& at) const {
    return static_cast<double>(n_weight_bytes) / at.decode.step_seconds / 1e9;
  }
};

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

// Runs the sequence up to the frontier, times n_prompt tokens, then decode steps.
Frontier measure(Engine& engine, const std::unique_ptr<ByHand>& sequence, const BenchOptions& bench,
                 int64_t n_prompt, int64_t context) {
  Rng rng(static_cast<uint64_t>(context) + 2);
  std::vector<int32_t> tokens = sequence->tokens();
  const auto append_random = [&](int64_t n) {
    const std::vector<int32_t> more = random_tokens(n, engine.args().vocab_size, rng);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(context)));
  append_random(context - std::ssize(tokens));
  if (!tokens.empty()) sequence->sync(tokens);
  append_random(n_prompt);
  const auto start = std::chrono::steady_clock::now();
  sequence->sync(tokens);
  const double prefill_tps = static_cast<double>(n_prompt) / seconds_since(start);
  const std::unique_ptr<Tokenizer> tokenizer = fabricate_tokenizer(engine.args().vocab_size);
  return {context, prefill_tps, time_batch(engine, *tokenizer, {&sequence, 1}, std::ssize(tokens), bench)};
}

// What guesses brought, a line; empty without guesses.
std::string guesses_line(const BatchTiming& timing) {
  if (timing.n_guessed == 0) return {};
  const double n = static_cast<double>(timing.n_sequences);
  return format("%8s %s, %.2f tokens a step and sequence, guessing %.3f ms, verifying %.3f ms\n", "",
                guess_summary(timing.n_guessed, timing.n_accepted).c_str(), timing.n_tokens / n,
                1e3 * timing.guess_seconds, 1e3 * (timing.step_seconds - timing.guess_seconds));
}

// Of a step; the counts are of all steps.
void add_guesses(Json& json, const BatchTiming& timing) {
  if (timing.n_guessed == 0) return;
  json["guesses"] = {{"guessed", timing.n_guessed},
                     {"accepted", timing.n_accepted},
                     {"tokens_per_step", timing.n_tokens / static_cast<double>(timing.n_sequences)},
                     {"guess_ms", 1e3 * timing.guess_seconds},
                     {"verify_ms", 1e3 * (timing.step_seconds - timing.guess_seconds)}};
}

std::string table(const Measured& measured) {
  std::string text = format("%s, %.2f GB of weights a token, memory moves %.0f GB/s\n", measured.backend,
                            static_cast<double>(measured.n_weight_bytes) / 1e9, measured.memory_gbps);
  text += format("%8s %14s %12s %12s %8s %10s %12s\n", "context", "prefill t/s", "decode t/s", "weights GB/s",
                 "share", "hit rate", "fetched MB/t");
  for (const Frontier& at : measured.frontiers) {
    const double gbps = measured.weight_gbps(at);
    text += format("%8lld %14.1f %12.1f %12.1f %7.1f%%", as_ll(at.context), at.prefill_tps, at.decode_tps(),
                   gbps, 100 * gbps / measured.memory_gbps);
    if (at.decode.n_rows > 0)
      text += format(" %9.1f%% %12.2f\n", 100 - 100 * at.decode.n_misses / at.decode.n_rows,
                     at.decode.n_misses * measured.row_bytes / 1e6);
    else
      text += format(" %10s %12s\n", "resident", "0");
    text += guesses_line(at.decode);
  }
  return text;
}

Json to_json(const Measured& measured) {
  const auto n_decode = static_cast<double>(measured.n_decode);
  Json list = Json::array();
  for (const Frontier& at : measured.frontiers) {
    list.push_back({{"context", at.context},
                    {"prefill_tokens_per_second", at.prefill_tps},
                    {"decode_tokens_per_second", at.decode_tps()},
                    {"weights_gbps", measured.weight_gbps(at)},
                    {"share_of_memory", measured.weight_gbps(at) / measured.memory_gbps},
                    {"buffer_rows", std::llround(at.decode.n_rows * n_decode)},
                    {"buffer_misses", std::llround(at.decode.n_misses * n_decode)}});
    add_guesses(list.back(), at.decode);
  }
  return {{"backend", measured.backend},
          {"weight_bytes_per_token", measured.n_weight_bytes},
          {"memory_gbps", measured.memory_gbps},
          {"frontiers", list}};
}

constexpr int64_t kBufferRows = 4096;

// Sequences of one length with one number of buffer rows: how many fit, and the batches that were timed.
struct Residency {
  int64_t context = 0;
  int64_t buffer_rows = kEveryRow;
  int64_t n_fitting = 0;
  double row_bytes = 0;
  std::vector<BatchTiming> timings = {};

  std::string name() const {
    return buffer_rows == kEveryRow ? "full" : format("%lld rows", as_ll(buffer_rows));
  }
};

class BatchBench {
 public:
  explicit BatchBench(const Options& options)
      : options_(options), model_(options), machine_(model_.machine(options.engine)) {
    std::vector<int64_t> contexts = options.bench.contexts;
    if (contexts.empty()) contexts = {16384, 32768, 65536};
    const int64_t n_rows = options.engine.topk_buffer.value_or(kBufferRows);
    const bool has_buffers = model_.args().topk() > 0 || options.engine.topk_buffer;
    for (const int64_t context : contexts) {
      residencies_.push_back({context});
      if (has_buffers && n_rows < context) residencies_.push_back({context, n_rows});
    }
    for (Residency& at : residencies_) at.n_fitting = n_fitting(at, machine_);
  }

  const std::vector<Residency>& residencies() const { return residencies_; }

  // Throws Error{usage} for a length without room for the timed tokens, Error{memory} when no batch fits.
  void time() {
    const int64_t n_least = timed_tokens(options_) + 2;
    if (residencies_.front().context < n_least)
      fail(ErrorKind::usage, format("--contexts has %lld, expected at least %lld for so many timed steps",
                                    as_ll(residencies_.front().context), as_ll(n_least)));
    const std::unique_ptr<Tokenizer> tokenizer = fabricate_tokenizer(model_.args().vocab_size);
    for (Residency& at : residencies_) time(at, *tokenizer);
    if (std::ranges::all_of(residencies_, [](const Residency& at) { return at.timings.empty(); }))
      fail(ErrorKind::memory, "none of these batches fits", "--capacity says how many sequences fit");
  }

 private:
  EngineOptions engine_options(const Residency& at) const {
    EngineOptions options = options_.engine;
    options.context = at.context, options.topk_buffer = at.buffer_rows;
    return options;
  }

  int64_t n_fitting(const Residency& at, const Machine& machine) const {
    return largest_batch(model_.args(), engine_options(at), machine);
  }

  // How many sequences fit when the forced choices have their memory.
  int64_t n_measurable(const Residency& at) const {
    if (options_.bench.locality == Locality{}) return at.n_fitting;
    Machine machine = machine_;
    const int64_t n_guesses = std::min(options_.engine.n_guesses.value_or(kMostGuesses),
                                       CachePlan::kMostStepGuesses / std::max<int64_t>(at.n_fitting, 1));
    machine.leave(ForcedChoices::n_bytes(model_.args(), at.n_fitting * (1 + n_guesses)));
    return n_fitting(at, machine);
  }

  // The sizes of --sequences, else the largest batch of each residency of this length, if they fit.
  std::vector<int64_t> sizes(const Residency& at) const {
    std::vector<int64_t> sizes = options_.bench.sequences;
    if (sizes.empty())
      for (const Residency& other : residencies_)
        if (other.context == at.context) sizes.push_back(n_measurable(other));
    const int64_t n_most = n_measurable(at);
    std::erase_if(sizes, [&](int64_t n) { return n <= 0 || n > n_most; });
    std::ranges::sort(sizes);
    sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
    return sizes;
  }

  void time(Residency& at, const Tokenizer& tokenizer) {
    const std::vector<int64_t> sizes = this->sizes(at);
    const std::string name = format("%lld tokens, %s", as_ll(at.context), at.name().c_str());
    if (sizes.empty()) return write_err(name + ": no batch fits\n");
    write_err(name + ": preparing\n");
    const std::unique_ptr<Engine> engine =
        model_.open(options_for_batch(model_.args(), engine_options(at), sizes.back()));
    at.row_bytes = static_cast<double>(engine->plan().cache.layout.row_bytes());
    const int64_t n_tokens = at.context - timed_tokens(options_) - 1;
    const auto sequences = fabricate_sequences(*engine, sizes.back(), n_tokens);
    for (const int64_t n : sizes) {
      write_err(format("%s: %lld at a time\n", name.c_str(), as_ll(n)));
      at.timings.push_back(time_batch(*engine, tokenizer, std::span(sequences).first(static_cast<size_t>(n)),
                                      n_tokens, options_.bench));
    }
  }

  const Options& options_;
  MeasuredModel model_;
  Machine machine_;
  std::vector<Residency> residencies_;
};

std::string line(const Residency& at, const BatchTiming& timing) {
  const double n = static_cast<double>(timing.n_sequences);
  std::string text = format("%8lld %10s %6.0f %9.1f %9.3f", as_ll(at.context), at.name().c_str(), n,
                            timing.tokens_per_second(), 1e3 * timing.step_seconds);
  text += timing.n_rows > 0 ? format(" %6.1f%%", 100 - 100 * timing.n_misses / timing.n_rows)
                            : format(" %7s", "-");
  return text + format(" %8.2f\n", timing.n_misses * at.row_bytes / 1e6) + guesses_line(timing);
}

std::string tables(const std::vector<Residency>& residencies, bool is_capacity) {
  std::string text = format("%8s %10s %10s\n", "context", "residency", "fitting");
  for (const Residency& at : residencies)
    text += format("%8lld %10s %10lld\n", as_ll(at.context), at.name().c_str(), as_ll(at.n_fitting));
  if (is_capacity) return text;
  text += format("\n%8s %10s %6s %9s %9s %7s %8s\n", "context", "residency", "seqs", "t/s", "ms/step", "hits",
                 "MB/step");
  for (const Residency& at : residencies)
    for (const BatchTiming& timing : at.timings) text += line(at, timing);
  return text;
}

Json to_json(const BatchTiming& timing, double row_bytes) {
  Json json{{"sequences", timing.n_sequences},
            {"tokens_per_second", timing.tokens_per_second()},
            {"step_ms", 1e3 * timing.step_seconds},
            {"hit_rate", timing.n_rows > 0 ? Json(1 - timing.n_misses / timing.n_rows) : Json(nullptr)},
            {"fetched_bytes_per_step", timing.n_misses * row_bytes}};
  add_guesses(json, timing);
  return json;
}

Json to_json(const std::vector<Residency>& residencies) {
  Json list = Json::array();
  for (const Residency& at : residencies) {
    Json batches = Json::array();
    for (const BatchTiming& timing : at.timings) batches.push_back(to_json(timing, at.row_bytes));
    list.push_back({{"context", at.context},
                    {"buffer_rows", at.buffer_rows == kEveryRow ? Json(nullptr) : Json(at.buffer_rows)},
                    {"fitting", at.n_fitting},
                    {"batches", batches}});
  }
  return Json{{"residencies", list}};
}

}  // namespace

int bench_model_command(const Options& options) {
  const BenchOptions& bench = options.bench;
  const std::vector<int64_t> contexts =
      bench.contexts.empty() ? std::vector<int64_t>{0, 4096, 32768, 131072} : bench.contexts;
  EngineOptions asked = options.engine;
  asked.chunk = asked.chunk.value_or(kChunk);
  const int64_t n_prompt = bench.n_prompt.value_or(*asked.chunk);
  asked.context = contexts.back() + n_prompt + timed_tokens(options) + 5;
  const MeasuredModel model(options);
  const double ceiling = memory_gbps(*make_backends(asked, [](const Backends&, size_t) {
                                        return true;
                                      }).front());  // before the model takes the memory
  const std::unique_ptr<Engine> engine = model.open(asked);
  Measured measured{engine->backend_name(), engine->plan().n_bytes_read(), ceiling,
                    static_cast<double>(engine->plan().cache.layout.row_bytes()), bench.n_decode};
  const auto sequence = std::make_unique<ByHand>(*engine);
  Rng rng(1);  // an untimed prompt first, after which memory is there and pinned, and kernels are loaded
  sequence->sync(random_tokens(n_prompt, engine->args().vocab_size, rng));
  for (const int64_t context : contexts)
    measured.frontiers.push_back(measure(*engine, sequence, bench, n_prompt, context));
  write_out(options.json ? shown_json(to_json(measured)) + "\n" : table(measured));
  return 0;
}

int bench_batch_command(const Options& options) {
  Options together = options;
  together.engine.is_for_all = true;
  BatchBench bench(together);
  if (!options.bench.is_capacity) bench.time();
  write_out(options.json ? shown_json(to_json(bench.residencies())) + "\n"
                         : tables(bench.residencies(), options.bench.is_capacity));
  return 0;
}

}  // namespace dsv32
