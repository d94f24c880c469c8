// The device marks the end of each part, so nothing runs beside anything else, and a fetch that is hidden
// otherwise shows its full length: the parts may add up to more than a step of `dsv32 bench`.
#include "tests/tools/lab/steps.h"

#include <chrono>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/inspect/inspect.h"
#include "cli/terminal/streams.h"
#include "engine/loop.h"
#include "engine/plan.h"

namespace dsv32 {
namespace {

constexpr int32_t kToken = 1;  // any

// A step of all sequences, and the seconds of its parts; "host": the time that the device has nothing to do.
void make_step(Engine& engine, std::span<const std::unique_ptr<ByHand>> sequences, Laps& laps,
               std::map<std::string, double>& seconds) {
  Step step;
  step.role = Role::decode;
  for (const auto& sequence : sequences) step.sequences.push_back(&sequence->cached());
  step.tokens.assign(sequences.size(), kToken);
  laps.clear();
  const auto start = std::chrono::steady_clock::now();
  engine.forward().run(std::move(step));
  const std::vector<double> lap_seconds = engine.backend().laps();
  double host = seconds_since(start);
  for (size_t i = 0; i < laps.size(); ++i) seconds[laps[i]] += lap_seconds[i], host -= lap_seconds[i];
  seconds["host"] += host;
}

}  // namespace

int lab_steps(const LabOptions& options) {
  const BenchOptions& bench = options.bench;
  const int64_t context = bench.contexts.empty() ? 16384 : bench.contexts.front();
  const int64_t n = bench.sequences.empty() ? 1 : bench.sequences.front();
  EngineOptions asked = options.engine;
  const int64_t n_steps = timed_tokens(bench.n_decode);
  asked.context = context + n_steps + 1;
  const MeasuredModel model(options);
  const std::unique_ptr<Engine> engine = model.open(options_for_batch(model.args(), asked, n));
  if (engine->forward().n_stages() != 1) fail(ErrorKind::usage, "several devices have no time in common");
  const auto sequences = fabricate_sequences(*engine, n, context);
  ForcedChoices forced(*engine, n, context, bench.locality);
  Laps laps;
  engine->forward().set_laps(&laps);
  std::map<std::string, double> seconds;
  for (int64_t i = 0; i < n_steps; ++i) {
    if (i == n_steps - bench.n_decode) seconds.clear();  // the first steps filled the buffers
    forced.next();
    make_step(*engine, sequences, laps, seconds);
  }
  engine->forward().set_laps(nullptr);
  for (const auto& [part, total] : seconds)
    write_out(format("%-14s %9.3f ms\n", part.c_str(), 1e3 * total / static_cast<double>(bench.n_decode)));
  return 0;
}

}  // namespace dsv32
