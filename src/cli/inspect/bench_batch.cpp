// `dsv32 bench batch`: of each length how many sequences fit with every row resident and how many with top-k
// buffers, then the steps of batches of these sizes, or of those asked for. A residency of a length has one
// engine.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/inspect/measured.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/plan.h"

namespace dsv32 {
namespace {

constexpr int64_t kBufferRows = 4096;

// Sequences of one length, their rows in one residency: how many fit, and batches of them.
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
    const bool has_buffers = model_.args().has_indexer() || options.engine.topk_buffer;
    for (const int64_t context : contexts) {
      residencies_.push_back({context});
      if (has_buffers && n_rows < context) residencies_.push_back({context, n_rows});
    }
    for (Residency& at : residencies_) at.n_fitting = n_fitting(at, machine_);
  }

  const std::vector<Residency>& residencies() const { return residencies_; }

  // Throws Error{usage} for a length without room for the timed tokens, Error{memory} when no batch fits.
  void time() {
    const int64_t n_least = timed_tokens(options_.bench.n_decode) + 2;
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

  // Forced choices need a place beside the plan.
  int64_t n_measurable(const Residency& at) const {
    if (options_.bench.locality == Locality{}) return at.n_fitting;
    Machine machine = machine_;
    machine.leave(ForcedChoices::n_bytes(model_.args(), at.n_fitting));
    return n_fitting(at, machine);
  }

  // The sizes asked for that fit; else those that fill each residency of this length.
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
    const int64_t n_tokens = at.context - timed_tokens(options_.bench.n_decode) - 1;
    const auto sessions = fabricate_sessions(*engine, sizes.back(), n_tokens);
    for (const int64_t n : sizes) {
      write_err(format("%s: %lld at a time\n", name.c_str(), as_ll(n)));
      at.timings.push_back(time_batch(*engine, tokenizer, std::span(sessions).first(static_cast<size_t>(n)),
                                      n_tokens, options_.bench.n_decode, options_.bench.locality));
    }
  }

  const Options& options_;
  MeasuredModel model_;
  Machine machine_;
  std::vector<Residency> residencies_;
};

int part_width(const char* part) { return std::max(8, static_cast<int>(std::strlen(part))); }

std::string line(const Residency& at, const BatchTiming& timing) {
  const double n = static_cast<double>(timing.n_sequences);
  std::string text = format("%8lld %10s %6.0f %9.1f %9.3f", as_ll(at.context), at.name().c_str(), n,
                            n / timing.step_seconds, 1e3 * timing.step_seconds);
  text += timing.n_rows > 0 ? format(" %6.1f%%", 100 - 100 * timing.n_misses / timing.n_rows)
                            : format(" %7s", "-");
  text += format(" %8.2f |", timing.n_misses * at.row_bytes / 1e6);
  for (const char* part : kStepParts) {
    const auto found = timing.seconds.find(part);
    text += format(" %*.3f", part_width(part), found == timing.seconds.end() ? 0.0 : 1e3 * found->second);
  }
  return text + "\n";
}

std::string tables(const std::vector<Residency>& residencies, bool is_capacity) {
  std::string text = format("%8s %10s %10s\n", "context", "residency", "fitting");
  for (const Residency& at : residencies)
    text += format("%8lld %10s %10lld\n", as_ll(at.context), at.name().c_str(), as_ll(at.n_fitting));
  if (is_capacity) return text;
  text += "\nBehind the bar: milliseconds of each part, of steps in which nothing is done beside a fetch.\n";
  text += format("%8s %10s %6s %9s %9s %7s %8s |", "context", "residency", "seqs", "t/s", "ms/step", "hits",
                 "MB/step");
  for (const char* part : kStepParts) text += format(" %*s", part_width(part), part);
  text += "\n";
  for (const Residency& at : residencies)
    for (const BatchTiming& timing : at.timings) text += line(at, timing);
  return text;
}

Json to_json(const BatchTiming& timing, double row_bytes) {
  Json parts = Json::object();
  for (const auto& [part, seconds] : timing.seconds) parts[part] = 1e3 * seconds;
  return {{"sequences", timing.n_sequences},
          {"tokens_per_second", static_cast<double>(timing.n_sequences) / timing.step_seconds},
          {"step_ms", 1e3 * timing.step_seconds},
          {"hit_rate", timing.n_rows > 0 ? Json(1 - timing.n_misses / timing.n_rows) : Json(nullptr)},
          {"fetched_bytes_per_step", timing.n_misses * row_bytes},
          {"parts_ms", parts}};
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

int bench_batch_command(const Options& options) {
  BatchBench bench(options);
  if (!options.bench.is_capacity) bench.time();
  write_out(options.json ? to_json(bench.residencies()).dump() + "\n"
                         : tables(bench.residencies(), options.bench.is_capacity));
  return 0;
}

}  // namespace dsv32
