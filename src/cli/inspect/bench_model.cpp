// `dsv32 bench`: at each frontier the newest interval alone is timed: some prefill that begins there, then
// decode steps behind it.
//
// Speed is shown beside its ceiling: the bytes of weights that a decode step reads, as a share of what the
// device moves when it adds one large array to another, measured in the same run.
#include <algorithm>
#include <chrono>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/inspect/measured.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

constexpr int64_t kChunk = 2048;

struct Frontier {
  int64_t context = 0;
  double prefill_tps = 0, decode_tps = 0;
  double n_rows = 0, n_misses = 0;  // looked up in buffers; 0: none were
};

struct Measured {
  const char* backend;
  uint64_t n_weight_bytes;  // of a token
  double memory_gbps;
  double row_bytes;
  int64_t n_decode;
  std::vector<Frontier> frontiers = {};

  double weight_gbps(const Frontier& at) const {
    return static_cast<double>(n_weight_bytes) * at.decode_tps / 1e9;
  }
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

// Runs the session up to the frontier, times n_prompt tokens, then decode steps.
Frontier measure(Engine& engine, ByHand& session, const BenchOptions& options, int64_t n_prompt,
                 int64_t context) {
  Rng rng(static_cast<uint64_t>(context) + 2);
  std::vector<int32_t> tokens = session.tokens();
  const auto append_random = [&](int64_t n) {
    const std::vector<int32_t> more = random_tokens(n, engine.args().vocab_size, rng);
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  const auto step = [&] { session.step(random_tokens(1, engine.args().vocab_size, rng).front()); };
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(context)));
  append_random(context - std::ssize(tokens));
  if (!tokens.empty()) session.sync(tokens);
  append_random(n_prompt);
  Frontier at{.context = context};
  auto start = std::chrono::steady_clock::now();
  session.sync(tokens);
  at.prefill_tps = static_cast<double>(n_prompt) / seconds_since(start);

  ForcedChoices forced(engine, 1, context + n_prompt, options.locality);
  for (int i = 0; i < 3; ++i) {  // records the step and fills the buffer
    forced.next();
    step();
  }
  session.likeliest();
  const Forward::BufferTally before = engine.forward().buffer_tally();
  double seconds = 0;
  for (int64_t i = 0; i < options.n_decode; ++i) {
    forced.next();
    start = std::chrono::steady_clock::now();
    step();
    session.likeliest();
    seconds += seconds_since(start);
  }
  const Forward::BufferTally after = engine.forward().buffer_tally();
  at.n_rows = static_cast<double>(after.n_rows - before.n_rows);
  at.n_misses = static_cast<double>(after.n_misses - before.n_misses);
  at.decode_tps = static_cast<double>(options.n_decode) / seconds;
  return at;
}

std::string table(const Measured& measured) {
  std::string text = format("%s, %.2f GB of weights a token, memory moves %.0f GB/s\n", measured.backend,
                            static_cast<double>(measured.n_weight_bytes) / 1e9, measured.memory_gbps);
  text += format("%8s %14s %12s %12s %8s %10s %12s\n", "context", "prefill t/s", "decode t/s", "weights GB/s",
                 "of it", "hit rate", "fetched MB/t");
  for (const Frontier& at : measured.frontiers) {
    const double gbps = measured.weight_gbps(at);
    text += format("%8lld %14.1f %12.1f %12.1f %7.1f%%", as_ll(at.context), at.prefill_tps, at.decode_tps,
                   gbps, 100 * gbps / measured.memory_gbps);
    if (at.n_rows > 0)
      text += format(" %9.1f%% %12.2f\n", 100 - 100 * at.n_misses / at.n_rows,
                     at.n_misses * measured.row_bytes / static_cast<double>(measured.n_decode) / 1e6);
    else
      text += format(" %10s %12s\n", "resident", "0");
  }
  return text;
}

Json to_json(const Measured& measured) {
  Json list = Json::array();
  for (const Frontier& at : measured.frontiers)
    list.push_back({{"context", at.context},
                    {"prefill_tokens_per_second", at.prefill_tps},
                    {"decode_tokens_per_second", at.decode_tps},
                    {"weights_gbps", measured.weight_gbps(at)},
                    {"share_of_memory", measured.weight_gbps(at) / measured.memory_gbps},
                    {"buffer_rows", static_cast<int64_t>(at.n_rows)},
                    {"buffer_misses", static_cast<int64_t>(at.n_misses)}});
  return {{"backend", measured.backend},
          {"weight_bytes_per_token", measured.n_weight_bytes},
          {"memory_gbps", measured.memory_gbps},
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
  const std::unique_ptr<Engine> engine = model.open(asked);
  Measured measured{engine->backend_name(), engine->plan().n_bytes_read(), ceiling,
                    static_cast<double>(engine->plan().cache.layout.row_bytes()), bench.n_decode};
  ByHand session(*engine);
  Rng rng(1);  // what a process does once is done first: memory is there and pinned, kernels are loaded
  session.sync(random_tokens(n_prompt, engine->args().vocab_size, rng));
  for (const int64_t context : contexts)
    measured.frontiers.push_back(measure(*engine, session, bench, n_prompt, context));
  write_out(options.json ? to_json(measured).dump() + "\n" : table(measured));
  return 0;
}

}  // namespace dsv32
