// Of each length: how many sequences fit with every row resident and how many with top-k buffers, then the
// steps of batches of these sizes, or of those asked for. A residency of a length has one engine.
#include "cli/inspect/bench_batch.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "cli/inspect/batch_timing.h"
#include "cli/inspect/fabricated.h"
#include "cli/inspect/forced_choices.h"
#include "cli/inspect/measured_model.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/capacity.h"

namespace dsv32 {
namespace {

constexpr int64_t kBufferRows = 4096;

// Sequences of one length, their rows in one residency: how many fit, and batches of them.
struct Residency {
  int64_t context = 0;
  int64_t buffer_rows = kEveryRow;
  int64_t n_fitting = 0;
  std::vector<BatchTiming> timings = {};
  bool is_full() const { return buffer_rows == kEveryRow; }
  std::string name() const {
    return is_full() ? "full" : format("%lld rows", static_cast<long long>(buffer_rows));
  }
};

class BatchBench {
 public:
  explicit BatchBench(const Options& options)
      : options_(options), model_(options), machine_(model_.machine(options.engine)) {
    std::vector<int64_t> contexts = options.bench.contexts;
    if (contexts.empty()) contexts = {16384, 32768, 65536};
    for (const int64_t context : contexts)
      for (const int64_t n_rows : residencies(context)) {
        Residency& at = all_.emplace_back(Residency{context, n_rows});
        at.n_fitting = largest_batch(model_.args(), engine_options(at), machine_);
      }
  }

  const std::vector<Residency>& residencies() const { return all_; }

  // Throws Error{usage} for a length without room for the timed tokens, Error{memory} when no batch fits.
  void time() {
    const int64_t n_least = timed_tokens(options_.bench.n_decode) + 2;
    if (all_.front().context < n_least)
      fail(ErrorKind::usage,
           format("--contexts has %lld, expected at least %lld for so many timed steps",
                  static_cast<long long>(all_.front().context), static_cast<long long>(n_least)));
    const std::unique_ptr<Tokenizer> tokenizer = fabricate_tokenizer(model_.args().vocab_size);
    for (Residency& at : all_) time(at, *tokenizer);
    if (std::ranges::all_of(all_, [](const Residency& at) { return at.timings.empty(); }))
      fail(ErrorKind::memory, "none of these batches fits", "--capacity says how many sequences fit");
  }

  double row_bytes() const { return row_bytes_; }

 private:
  // Buffers as long as a sequence are full residency.
  std::vector<int64_t> residencies(int64_t context) const {
    const int64_t n_rows = options_.engine.topk_buffer.value_or(kBufferRows);
    const bool has_buffers = n_rows < context && (model_.args().has_indexer() || options_.engine.topk_buffer);
    return has_buffers ? std::vector<int64_t>{kEveryRow, n_rows} : std::vector<int64_t>{kEveryRow};
  }

  EngineOptions engine_options(const Residency& at) const {
    EngineOptions options = options_.engine;
    options.context = at.context, options.topk_buffer = at.buffer_rows;
    return options;
  }

  // Forced choices need a place beside the plan.
  int64_t n_measurable(const Residency& at) const {
    if (options_.bench.locality == Locality{}) return at.n_fitting;
    Machine machine = machine_;
    machine.leave(ForcedChoices::n_bytes(model_.args(), at.n_fitting));
    return largest_batch(model_.args(), engine_options(at), machine);
  }

  // The sizes asked for that fit; else those that fill each residency of this length.
  std::vector<int64_t> sizes(const Residency& at) const {
    std::vector<int64_t> wanted = options_.bench.sequences, fitting;
    for (const Residency& other : all_)
      if (options_.bench.sequences.empty() && other.context == at.context)
        wanted.push_back(n_measurable(other));
    std::ranges::sort(wanted);
    const int64_t n_most = n_measurable(at);
    std::ranges::copy_if(wanted, std::back_inserter(fitting),
                         [&](int64_t n) { return 0 < n && n <= n_most; });
    fitting.erase(std::ranges::unique(fitting).begin(), fitting.end());
    return fitting;
  }

  void time(Residency& at, const Tokenizer& tokenizer) {
    const std::vector<int64_t> sizes = this->sizes(at);
    const std::string name = format("%lld tokens, %s", static_cast<long long>(at.context), at.name().c_str());
    if (sizes.empty()) return write_err(name + ": no batch fits\n");
    write_err(name + ": preparing\n");
    const std::unique_ptr<Engine> engine =
        model_.open(options_for_batch(model_.args(), engine_options(at), sizes.back()));
    row_bytes_ = static_cast<double>(engine->plan().cache.layout.row_bytes());
    const int64_t n_tokens = at.context - timed_tokens(options_.bench.n_decode) - 1;
    const auto sessions = fabricate_sessions(*engine, sizes.back(), n_tokens);
    for (const int64_t n : sizes) {
      write_err(format("%s: %lld at a time\n", name.c_str(), static_cast<long long>(n)));
      at.timings.push_back(time_batch(*engine, tokenizer, std::span(sessions).first(static_cast<size_t>(n)),
                                      n_tokens, options_.bench.n_decode, options_.bench.locality));
    }
  }

  const Options& options_;
  MeasuredModel model_;
  Machine machine_;
  std::vector<Residency> all_;
  double row_bytes_ = 0;
};

int part_width(const char* part) { return std::max(8, static_cast<int>(std::strlen(part))); }

std::string line(const Residency& at, const BatchTiming& timing, double row_bytes) {
  const double n = static_cast<double>(timing.n_sequences);
  std::string text = format("%8lld %10s %6.0f %9.1f %9.3f", static_cast<long long>(at.context),
                            at.name().c_str(), n, n / timing.step_seconds, 1e3 * timing.step_seconds);
  text += timing.n_rows > 0 ? format(" %6.1f%%", 100 - 100 * timing.n_misses / timing.n_rows)
                            : format(" %7s", "-");
  text += format(" %8.2f |", timing.n_misses * row_bytes / 1e6);
  for (const char* part : kStepParts) {
    const auto found = timing.seconds.find(part);
    text += format(" %*.3f", part_width(part), found == timing.seconds.end() ? 0.0 : 1e3 * found->second);
  }
  return text + "\n";
}

void print_tables(const BatchBench& bench, bool is_capacity) {
  std::string text = format("%8s %10s %10s\n", "context", "residency", "fitting");
  for (const Residency& at : bench.residencies())
    text += format("%8lld %10s %10lld\n", static_cast<long long>(at.context), at.name().c_str(),
                   static_cast<long long>(at.n_fitting));
  if (is_capacity) return write_out(text);
  text += "\nBehind the bar: milliseconds of each part, of steps in which nothing is done beside a fetch.\n";
  text += format("%8s %10s %6s %9s %9s %7s %8s |", "context", "residency", "seqs", "t/s", "ms/step", "hits",
                 "MB/step");
  for (const char* part : kStepParts) text += format(" %*s", part_width(part), part);
  text += "\n";
  for (const Residency& at : bench.residencies())
    for (const BatchTiming& timing : at.timings) text += line(at, timing, bench.row_bytes());
  write_out(text);
}

Json to_json(const BatchTiming& timing, double row_bytes) {
  Json parts = Json::object();
  for (const auto& [part, seconds] : timing.seconds) parts[part] = 1e3 * seconds;
  Json json = {{"sequences", timing.n_sequences},
               {"tokens_per_second", static_cast<double>(timing.n_sequences) / timing.step_seconds},
               {"step_ms", 1e3 * timing.step_seconds},
               {"hit_rate", nullptr},
               {"fetched_bytes_per_step", timing.n_misses * row_bytes},
               {"parts_ms", parts}};
  if (timing.n_rows > 0) json["hit_rate"] = 1 - timing.n_misses / timing.n_rows;
  return json;
}

void print_json(const BatchBench& bench) {
  Json list = Json::array();
  for (const Residency& at : bench.residencies()) {
    Json batches = Json::array();
    for (const BatchTiming& timing : at.timings) batches.push_back(to_json(timing, bench.row_bytes()));
    Json rows = at.is_full() ? Json(nullptr) : Json(at.buffer_rows);
    list.push_back(
        {{"context", at.context}, {"buffer_rows", rows}, {"fitting", at.n_fitting}, {"batches", batches}});
  }
  write_out(Json{{"residencies", list}}.dump() + "\n");
}

}  // namespace

int bench_batch_command(const Options& options) {
  BatchBench bench(options);
  if (!options.bench.is_capacity) bench.time();
  if (options.json)
    print_json(bench);
  else
    print_tables(bench, options.bench.is_capacity);
  return 0;
}

}  // namespace dsv32
