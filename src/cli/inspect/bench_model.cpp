// At each frontier the newest interval alone is timed: some prefill that begins there, then decode steps
// behind it.
//
// Speed is shown beside its ceiling: the bytes of weights that a decode step reads, as a share of what the
// device moves when it adds one large array to another, measured in the same run.
#include "cli/inspect/bench_model.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/inspect/forced_choices.h"
#include "cli/inspect/measured_model.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/by_hand.h"
#include "gguf/random_weights.h"

namespace dsv32 {
namespace {

constexpr int64_t kChunk = 2048;

struct Frontier {
  int64_t context = 0;
  double prefill_tps = 0, decode_tps = 0;
  double weight_gbps = 0;  // weights read in decode
  Forward::BufferTally tally = {};
};

// Bytes a second that the device moves at y += x over arrays that no cache holds: two reads and a write.
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

int32_t random_token(const Engine& engine, Rng& rng) {
  return static_cast<int32_t>(rng.next() % static_cast<uint64_t>(engine.args().vocab_size));
}

// What a process does once is done: memory is there and pinned, kernels are loaded.
void warm_up(Engine& engine, ByHand& session, int64_t n_prompt) {
  Rng rng(1);
  std::vector<int32_t> tokens(static_cast<size_t>(n_prompt));
  for (int32_t& token : tokens) token = random_token(engine, rng);
  session.sync(tokens);
}

// Runs the session up to the frontier, times n_prompt tokens, then decode steps.
Frontier measure(Engine& engine, ByHand& session, const BenchOptions& options, int64_t n_prompt,
                 int64_t context, uint64_t n_bytes) {
  Rng rng(static_cast<uint64_t>(context) + 2);
  Frontier at{.context = context};
  std::vector<int32_t> tokens = session.tokens();
  tokens.resize(std::min<size_t>(tokens.size(), static_cast<size_t>(context)));
  while (static_cast<int64_t>(tokens.size()) < context) tokens.push_back(random_token(engine, rng));
  if (!tokens.empty()) session.sync(tokens);
  for (int64_t i = 0; i < n_prompt; ++i) tokens.push_back(random_token(engine, rng));
  auto start = std::chrono::steady_clock::now();
  session.sync(tokens);
  at.prefill_tps = static_cast<double>(n_prompt) / seconds_since(start);

  ForcedChoices forced(engine, 1, context + n_prompt, options.locality);
  for (int i = 0; i < 3; ++i) {  // records the step and fills the buffer
    forced.next();
    session.step(random_token(engine, rng));
  }
  session.likeliest();
  const Forward::BufferTally before = engine.forward().buffer_tally();
  double seconds = 0;
  for (int64_t i = 0; i < options.n_decode; ++i) {
    forced.next();
    start = std::chrono::steady_clock::now();
    session.step(random_token(engine, rng));
    session.likeliest();
    seconds += seconds_since(start);
  }
  const Forward::BufferTally after = engine.forward().buffer_tally();
  at.tally = {after.n_rows - before.n_rows, after.n_misses - before.n_misses};
  at.decode_tps = static_cast<double>(options.n_decode) / seconds;
  at.weight_gbps = static_cast<double>(n_bytes) * at.decode_tps / 1e9;
  return at;
}

void print_table(const std::vector<Frontier>& frontiers, const Engine& engine, uint64_t n_bytes,
                 double ceiling, int64_t n_decode) {
  std::string text = format("%s, %.2f GB of weights a token, memory moves %.0f GB/s\n", engine.backend_name(),
                            static_cast<double>(n_bytes) / 1e9, ceiling);
  text += format("%8s %14s %12s %12s %8s %10s %12s\n", "context", "prefill t/s", "decode t/s", "weights GB/s",
                 "of it", "hit rate", "fetched MB/t");
  for (const Frontier& at : frontiers) {
    const double row_bytes = static_cast<double>(engine.plan().cache.layout.row_bytes());
    text += format("%8lld %14.1f %12.1f %12.1f %7.1f%%", static_cast<long long>(at.context), at.prefill_tps,
                   at.decode_tps, at.weight_gbps, 100 * at.weight_gbps / ceiling);
    if (at.tally.n_rows > 0)
      text +=
          format(" %9.1f%% %12.2f\n",
                 100 - 100.0 * static_cast<double>(at.tally.n_misses) / static_cast<double>(at.tally.n_rows),
                 static_cast<double>(at.tally.n_misses) * row_bytes / static_cast<double>(n_decode) / 1e6);
    else
      text += format(" %10s %12s\n", "resident", "0");
  }
  write_out(text);
}

Json to_json(const std::vector<Frontier>& frontiers, const Engine& engine, uint64_t n_bytes, double ceiling) {
  Json list = Json::array();
  for (const Frontier& at : frontiers)
    list.push_back({{"context", at.context},
                    {"prefill_tokens_per_second", at.prefill_tps},
                    {"decode_tokens_per_second", at.decode_tps},
                    {"weights_gbps", at.weight_gbps},
                    {"share_of_memory", at.weight_gbps / ceiling},
                    {"buffer_rows", at.tally.n_rows},
                    {"buffer_misses", at.tally.n_misses}});
  return {{"backend", engine.backend_name()},
          {"weight_bytes_per_token", n_bytes},
          {"memory_gbps", ceiling},
          {"frontiers", list}};
}

}  // namespace

int bench_model_command(const Options& options) {
  const BenchOptions& bench = options.bench;
  const std::vector<int64_t> contexts =
      bench.contexts.empty() ? std::vector<int64_t>{0, 4096, 32768, 131072} : bench.contexts;
  EngineOptions asked = options.engine;
  asked.chunk = asked.chunk.value_or(kChunk);
  const int64_t n_prompt = bench.n_prompt.value_or(*asked.chunk);
  asked.context = contexts.back() + n_prompt + bench.n_decode + 8;
  const MeasuredModel model(options);
  const double ceiling = memory_gbps(*make_backends(asked, [](const Backends&) {
                                        return true;
                                      }).front());  // before the model takes the memory
  const std::unique_ptr<Engine> opened = model.open(asked);
  Engine& engine = *opened;
  const uint64_t n_bytes = engine.plan().n_bytes_read();
  ByHand session(engine);
  std::vector<Frontier> frontiers;
  warm_up(engine, session, n_prompt);
  for (const int64_t context : contexts)
    frontiers.push_back(measure(engine, session, bench, n_prompt, context, n_bytes));
  if (options.json)
    write_out(to_json(frontiers, engine, n_bytes, ceiling).dump() + "\n");
  else
    print_table(frontiers, engine, n_bytes, ceiling, bench.n_decode);
  return 0;
}

}  // namespace dsv32
