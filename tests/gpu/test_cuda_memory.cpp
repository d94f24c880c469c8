// The plan against what the GPU really holds, and runs within a limit that the user set.
#include <cstring>
#include <thread>

#include <cuda_runtime.h>

#include "cuda/cuda_backend.h"
#include "engine/sequence.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/contains.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_memory, *boost::unit_test::precondition(needs_gpu))

namespace {

uint64_t free_device_bytes() {
  size_t n_free = 0, n_total = 0;
  BOOST_REQUIRE(cudaMemGetInfo(&n_free, &n_total) == cudaSuccess);
  return n_free;
}

EngineOptions on_gpu(int64_t context) {
  EngineOptions options;
  options.backend = "cuda";
  options.context = context;
  return options;
}

// Logits of a prefill in steps of 64 tokens, then of single tokens.
std::vector<float> logits_of(Engine& engine, const std::vector<int32_t>& tokens) {
  ByHand sequence(engine);
  constexpr size_t kMadeByDecode = 40;
  const std::span<const int32_t> all(tokens);
  sequence.sync(all.first(all.size() - kMadeByDecode));
  std::vector<float> logits = sequence.logits();
  for (const int32_t token : all.last(kMadeByDecode)) {
    sequence.step(token);
    logits.insert(logits.end(), sequence.logits().begin(), sequence.logits().end());
  }
  return logits;
}

}  // namespace

// Both by the backend's own count and by what the driver says is gone.
BOOST_AUTO_TEST_CASE(the_plan_is_within_two_percent_of_what_is_taken) {
  const ModelArgs shape = full_size_args(2, 1);
  const SyntheticTypes types;
  for (const int64_t n_rows : {kEveryRow, int64_t{4096}}) {
    EngineOptions options = on_gpu(131072);
    options.topk_buffer = n_rows;
    options.gpus = {0};    // the one whose memory is looked at
    make_cuda_backend(0);  // what CUDA itself needs is there from now on
    const uint64_t n_free_before = free_device_bytes();
    Engine engine(ModelSource(shape, model_bytes(shape, types),
                              [&](const ModelArgs& args, const WeightPlaces& places) {
                                return synthetic_weights(args, types, places);
                              }),
                  options);
    ByHand sequence(engine);
    sequence.sync(std::vector<int32_t>(3000, 1));
    sequence.step(1);
    for (const Place place : {Place::device, Place::host}) {
      const double planned = static_cast<double>(engine.plan().n_bytes(place));
      const double used = static_cast<double>(engine.backend().memory_info(place).n_bytes_used);
      BOOST_TEST(used / planned > 0.98);
      BOOST_TEST(used / planned < 1.02);
    }
    const double gone = static_cast<double>(n_free_before - free_device_bytes());
    const double planned = static_cast<double>(engine.plan().n_bytes(Place::device));
    std::printf("buffer of %lld rows: %.0f MB planned, %.0f MB gone from the device\n",
                static_cast<long long>(engine.plan().cache.buffer_rows), planned / 1e6, gone / 1e6);
    BOOST_TEST(gone / planned > 0.98);
    BOOST_TEST(gone / planned < 1.02);
  }
}

// Less memory than all rows take: prefill goes through the two windows, decode through buffers that auto
// chose; the answer keeps its bits.
BOOST_AUTO_TEST_CASE(a_low_limit_changes_no_bit) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  Rng rng(3);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 3000; ++i) tokens.push_back(static_cast<int32_t>(rng.next() % 250));
  EngineOptions options = on_gpu(12000);
  options.chunk = 64;
  std::vector<float> all;
  uint64_t n_needed = 0;
  {
    Engine engine(file, options);
    BOOST_TEST(engine.plan().cache.buffer_rows == 0);
    n_needed = engine.plan().n_bytes(Place::device);
    all = logits_of(engine, tokens);
  }
  // Windows of two layers cost less than rows of five.
  options.gpu_mem = {n_needed - (12u << 20)};
  Engine engine(file, options);
  BOOST_TEST(engine.plan().cache.buffer_rows >= 64);
  BOOST_TEST(engine.plan().cache.buffer_rows < 3000);
  const std::vector<float> limited = logits_of(engine, tokens);
  BOOST_TEST(std::memcmp(all.data(), limited.data(), all.size() * sizeof(float)) == 0);
  BOOST_TEST(engine.forward().buffer_tally().n_misses > 0);
  BOOST_TEST(engine.backend().memory_info(Place::device).n_bytes_used <= options.gpu_mem.front());
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_named) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  EngineOptions options = on_gpu(12000);
  options.gpu_mem = {287u << 20};
  BOOST_CHECK_EXCEPTION(Engine(file, options), Error, [](const Error& error) {
    return error.kind() == ErrorKind::memory && !error.hint().empty() && contains(error.what(), "wanted");
  });
  const std::unique_ptr<Backend> backend = make_cuda_backend(0, {.device = 512u << 20});
  const Buffer<uint8_t> some(*backend, Place::device, 100 << 20, "some bytes");
  BOOST_CHECK_EXCEPTION(Buffer<uint8_t>(*backend, Place::device, 300 << 20, "more bytes"), Error,
                        [](const Error& error) {
                          return error.kind() == ErrorKind::memory &&
                                 contains(error.what(), "more bytes: 300.0 MiB wanted, 149.8 MiB free");
                        });
}

// Memory that is given back before, while and after it is pinned, and more of it than threads can touch at
// once.
BOOST_AUTO_TEST_CASE(host_memory_comes_and_goes) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const Buffer<float> on_device(*backend, Place::device, 1 << 20, "a test");
  const uint64_t n_used_before = backend->memory_info(Place::host).n_bytes_used;
  for (int round = 0; round < 3; ++round) {
    std::vector<Buffer<float>> pieces;
    for (int i = 0; i < 20; ++i) pieces.emplace_back(*backend, Place::host, 1 << 22, "a test");
    if (round == 1) pieces.erase(pieces.begin() + 3, pieces.begin() + 15);
    for (const Buffer<float>& piece : pieces) BOOST_TEST(piece.data()[piece.n() - 1] == 0);
  }
  BOOST_TEST(backend->memory_info(Place::host).n_bytes_used == n_used_before);
}

// A pool of several GB which is written from its first moment on, while its pieces are pinned one after
// another, and then streamed and uploaded: what the host and the device see is what was written.
BOOST_AUTO_TEST_CASE(a_large_pool_is_used_while_it_is_pinned, *boost::unit_test::label("large")) {
  constexpr int64_t kPieceWords = int64_t{96} << 17, kPieces = 40, kWriters = 8;  // pieces of 96 MiB
  const auto word_of = [](int64_t piece, int64_t i) {
    return static_cast<uint64_t>(piece * kPieceWords + i + 1);
  };
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  std::vector<Buffer<uint64_t>> pool;
  for (int64_t i = 0; i < kPieces; ++i) pool.emplace_back(*backend, Place::host, kPieceWords, "a pool");
  const auto write = [&](int64_t piece, int64_t part) {
    uint64_t* words = pool[static_cast<size_t>(piece)].data();
    for (int64_t i = part * kPieceWords / kWriters; i < (part + 1) * kPieceWords / kWriters; ++i)
      words[i] = word_of(piece, i);
  };
  const auto n_wrong = [&](const uint64_t* words, int64_t piece) {
    int64_t n = 0;
    for (int64_t i = 0; i < kPieceWords; ++i) n += words[i] != word_of(piece, i);
    return n;
  };
  // From the last piece on, whose turn comes last.
  for (int64_t piece = kPieces; piece-- > 0;) {
    std::vector<std::thread> writers;
    for (int64_t part = 0; part < kWriters; ++part)
      writers.emplace_back([&, piece, part] { write(piece, part); });
    for (std::thread& writer : writers) writer.join();
  }
  const Buffer<uint64_t> streamed(*backend, Place::device, kPieces * kPieceWords, "what was streamed");
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const Buffer<uint64_t>& rows = pool[static_cast<size_t>(piece)];
    uint64_t* const to = streamed.data() + piece * kPieceWords;
    const RowCopy copy{reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(rows.data()),
                       rows.n_bytes()};
    piece % 2 ? backend->stream_rows({&copy, 1}) : backend->upload(to, rows.data(), rows.n_bytes());
  }
  backend->stream_rows({});
  std::vector<uint64_t> seen(static_cast<size_t>(kPieceWords));
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    BOOST_TEST(n_wrong(pool[static_cast<size_t>(piece)].data(), piece) == 0, "piece " << piece);
    backend->download(seen.data(), streamed.data() + piece * kPieceWords, seen.size() * sizeof(uint64_t));
    BOOST_TEST(n_wrong(seen.data(), piece) == 0, "piece " << piece << " on the device");
  }
}

BOOST_AUTO_TEST_SUITE_END()
