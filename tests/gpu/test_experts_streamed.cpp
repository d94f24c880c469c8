// Experts of prompts that come from host memory (cuda/experts_prefill.cu): the bits of the same experts on
// the device, whatever the size of the window and whatever was announced.
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "tests/gpu/host_experts_scene.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_experts_streamed, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kExperts = 12, kActivated = 3, kDim = 512, kInter = 256;

// Layers in both memories, and steps through a window of the size asked for.
class Scene {
 public:
  explicit Scene(const std::vector<TensorType>& types) : backend_(make_cuda_backend(0)) {
    uint64_t seed = 1;
    for (const TensorType type : types) {
      layers_.emplace_back(type, kExperts, kDim, kInter, seed += 10);
      host_.push_back(placed(layers_.back(), *backend_, Place::host));
      device_.push_back(placed(layers_.back(), *backend_, Place::device));
    }
  }
  Backend& backend() { return *backend_; }
  const ExpertStacks& host(size_t i) const { return host_[i]; }

  void set_window(int64_t n_tokens, uint64_t n_ring_bytes) {
    window_ = {};
    const auto n = expert_window_bytes({kExperts, kActivated, kDim, kInter}, n_tokens, n_ring_bytes);
    window_ = Buffer<uint8_t>(*backend_, Place::device, static_cast<int64_t>(n), "the window");
  }
  uint64_t largest_expert() const {
    uint64_t n = 0;
    for (const ExpertStacks& stacks : host_) n = std::max(n, expert_ring_bytes(stacks));
    return n;
  }
  void announce(size_t next) {
    RunExperts op;
    op.place = Place::host, op.next = &host_[next], op.n_activated = kActivated;
    op.window = window_.data(), op.n_window_bytes = window_.n_bytes();
    backend_->run_experts(op);
  }
  // Whether the bits are those of the experts on the device. next: a layer, or none.
  bool agrees(size_t layer, PlacedStep& step, std::optional<size_t> next = {}) {
    RunExperts op = step.operation(host_[layer], Place::host, Role::prefill);
    op.window = window_.data(), op.n_window_bytes = window_.n_bytes();
    if (next) op.next = &host_[*next];
    backend_->run_experts(op);
    const std::vector<float> streamed = step.take_sums();
    backend_->run_experts(step.operation(device_[layer], Place::device, Role::prefill));
    return streamed == step.take_sums();
  }
  PlacedStep step(int64_t n_tokens, uint64_t seed) {
    return {*backend_, ExpertStep(host_[0], n_tokens, kActivated, seed)};
  }

 private:
  const std::unique_ptr<Backend> backend_;
  std::vector<HostExpertStacks> layers_;
  std::vector<ExpertStacks> host_, device_;
  Buffer<uint8_t> window_;
};

}  // namespace

// Rings of two experts, of numbers that divide nothing, of all; few tokens, whose experts are looked up, and
// many.
BOOST_AUTO_TEST_CASE(streamed_experts_are_those_of_the_device) {
  int n_cases = 0;
  for (const TensorType type :
       {TensorType::q4_k, TensorType::f16, TensorType::q8_0, TensorType::iq2_xxs, TensorType::q6_k}) {
    Scene scene({type});
    const uint64_t n_expert = scene.largest_expert();
    for (const uint64_t n_ring : {2 * n_expert, 3 * n_expert + 1000, 7 * n_expert, kExperts * n_expert})
      for (const int64_t n_tokens : {1, 7, 64, 600, 3000}) {
        if (is_left_out(n_cases, 7)) continue;
        scene.set_window(n_tokens, n_ring);
        PlacedStep step = scene.step(n_tokens, static_cast<uint64_t>(n_tokens));
        BOOST_TEST(scene.agrees(0, step), type_name(type)
                                              << ", ring of " << n_ring << ", " << n_tokens << " tokens");
      }
  }
}

// Layer after layer, each announced by the one before it, in steps of changing size, of which the largest
// makes the ring smaller; and types whose experts are of different size share the ring.
BOOST_AUTO_TEST_CASE(announced_experts_are_those_of_the_device) {
  Scene scene({TensorType::q4_k, TensorType::q6_k, TensorType::q2_k});
  for (const uint64_t n_ring_experts : {2, 5, 9, 24}) {
    scene.set_window(600, n_ring_experts * scene.largest_expert());
    for (const int64_t n_tokens : {64, 600, 1, 64, 7, 600}) {
      PlacedStep step = scene.step(n_tokens, static_cast<uint64_t>(n_tokens) + n_ring_experts);
      scene.announce(0);
      for (size_t layer = 0; layer < 3; ++layer)
        BOOST_TEST(scene.agrees(layer, step, (layer + 1) % 3),
                   "layer " << layer << ", " << n_tokens << " tokens, ring of " << n_ring_experts);
    }
  }
}

// What was announced does not come, comes later, or is announced twice; a small step finds a part of what it
// chose.
BOOST_AUTO_TEST_CASE(announcements_bind_nobody) {
  Scene scene({TensorType::q4_k, TensorType::q4_k, TensorType::q4_k});
  scene.set_window(600, 8 * scene.largest_expert());
  Rng rng(1);
  for (int round = 0; round < (has_argument("brief") ? 10 : 60); ++round) {
    PlacedStep step = scene.step(rng.next() % 2 ? 300 : 1 + static_cast<int64_t>(rng.next() % 5), rng.next());
    if (rng.next() % 2) scene.announce(rng.next() % 3);
    if (rng.next() % 4 == 0) scene.announce(rng.next() % 3);
    const size_t layer = rng.next() % 3;
    BOOST_TEST(
        scene.agrees(layer, step, rng.next() % 2 ? std::optional<size_t>(rng.next() % 3) : std::nullopt),
        "round " << round);
  }
}

// Too little scratch memory for all tokens: all experts come again.
BOOST_AUTO_TEST_CASE(tokens_are_computed_in_runs_where_the_window_is_small) {
  Scene scene({TensorType::q4_k, TensorType::q6_k});
  for (const int64_t n_together : {1, 50, 129}) {
    scene.set_window(n_together, 2 * scene.largest_expert());
    PlacedStep step = scene.step(n_together == 1 ? 9 : 600, 5);
    BOOST_TEST(scene.agrees(0, step, 1), "windows for " << n_together);
    BOOST_TEST(scene.agrees(1, step), "windows for " << n_together);
  }
  scene.set_window(1, scene.largest_expert() / 2);
  PlacedStep step = scene.step(5, 5);
  BOOST_CHECK_EXCEPTION(scene.agrees(0, step), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::internal; });
}

// Gate and up in one tensor.
BOOST_AUTO_TEST_CASE(fused_matrices_are_streamed_by_their_rows) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const HostExpertStacks fused(TensorType::q4_k, kExperts, kDim, 2 * kInter, 1),
      down(TensorType::q4_k, kExperts, kDim, kInter, 7);
  const ExpertStep chosen(down.stacks, 100, kActivated, 3);
  PlacedStep step(*backend, chosen);
  const auto n_window = expert_window_bytes(shape_of(step.operation(down.stacks, Place::host, Role::prefill)),
                                            100, 5 * expert_ring_bytes(down.stacks));
  const Buffer<uint8_t> window(*backend, Place::device, static_cast<int64_t>(n_window), "the window");
  std::vector<float> sums[2];
  for (const Place place : {Place::device, Place::host}) {
    const ExpertStacks gate_up = placed(fused, *backend, place);
    ExpertStacks stacks = placed(down, *backend, place);
    stacks.w1 = stacks.w3 = gate_up.w1;
    stacks.w1.n_rows = stacks.w3.n_rows = kInter;
    stacks.w3.data = gate_up.w1.row(0, kInter);
    RunExperts op = step.operation(stacks, place, Role::prefill);
    op.window = window.data(), op.n_window_bytes = window.n_bytes();
    backend->run_experts(op);
    sums[place == Place::host] = step.take_sums();
  }
  BOOST_TEST((sums[0] == sums[1]));
}

BOOST_AUTO_TEST_CASE(large_experts_are_those_of_the_device, *boost::unit_test::label("large")) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const HostExpertStacks experts(TensorType::q4_k, 16, 7168, 2048, 1);
  const ExpertStacks host = placed(experts, *backend, Place::host),
                     device = placed(experts, *backend, Place::device);
  PlacedStep step(*backend, ExpertStep(host, 1000, 8, 1));
  RunExperts op = step.operation(host, Place::host, Role::prefill);
  const Buffer<uint8_t> window(
      *backend, Place::device,
      static_cast<int64_t>(expert_window_bytes(shape_of(op), 1000, 6 * expert_ring_bytes(host))), "a window");
  op.window = window.data(), op.n_window_bytes = window.n_bytes();
  backend->run_experts(op);
  const std::vector<float> streamed = step.take_sums();
  backend->run_experts(step.operation(device, Place::device, Role::prefill));
  BOOST_TEST((streamed == step.take_sums()));
}

// Rows that a window asks for while experts are on their way, also where these are no whole words.
BOOST_AUTO_TEST_CASE(rows_are_streamed_beside_experts) {
  Scene scene({TensorType::q4_k, TensorType::q8_0});
  scene.set_window(64, 4 * scene.largest_expert());
  PlacedStep step = scene.step(64, 1);
  BOOST_TEST(scene.agrees(0, step, 1));
  for (const int64_t n_bytes : {int64_t{640}, int64_t{64 * 640}, int64_t{3} << 20, int64_t{100'003}}) {
    const Buffer<uint8_t> rows(scene.backend(), Place::host, n_bytes, "rows"),
        window(scene.backend(), Place::device, n_bytes, "a window of rows");
    for (int64_t i = 0; i < n_bytes; ++i) rows.data()[i] = static_cast<uint8_t>(i * 7 + i / 251);
    const RowCopy copy{window.data(), rows.data(), static_cast<size_t>(n_bytes)};
    scene.announce(0);
    scene.backend().stream_rows({&copy, 1});
    scene.backend().stream_rows({});
    std::vector<uint8_t> seen(static_cast<size_t>(n_bytes));
    scene.backend().download(seen.data(), window.data(), seen.size());
    BOOST_TEST(std::equal(seen.begin(), seen.end(), rows.data()), n_bytes << " bytes");
  }
}

// Two layers in turn, each announcing the other, beside what a plain copy over the link reaches.
BOOST_AUTO_TEST_CASE(timing_of_streamed_experts, *boost::unit_test::label("timing")) {
  constexpr int64_t kAll = 256, kWide = 7168, kNarrow = 2048;
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  for (const TensorType type : {TensorType::q4_k, TensorType::q2_k}) {
    std::vector<Buffer<uint8_t>> memory;
    const auto matrix = [&](int64_t n_rows, int64_t n_cols) {
      WeightMatrix w;
      w.type = type, w.n_rows = n_rows, w.n_cols = n_cols, w.n_mats = kAll;
      w.row_bytes = row_bytes(type, n_cols), w.mat_bytes = w.row_bytes * static_cast<size_t>(n_rows);
      memory.emplace_back(*backend, Place::host, static_cast<int64_t>(w.mat_bytes) * kAll, "experts");
      w.data = memory.back().data();
      return w;
    };
    ExpertStacks layers[2];
    for (ExpertStacks& layer : layers)
      layer.w1 = matrix(kNarrow, kWide), layer.w3 = matrix(kNarrow, kWide), layer.w2 = matrix(kWide, kNarrow);
    const auto n_layer_bytes = static_cast<double>(expert_ring_bytes(layers[0]) * kAll);
    for (const int64_t n_tokens : {512, 2048, 8192}) {
      PlacedStep step(*backend, ExpertStep(layers[0], n_tokens, 8, 1));
      RunExperts op = step.operation(layers[0], Place::host, Role::prefill);
      const uint64_t n_ring = 64 * expert_ring_bytes(layers[0]);
      const Buffer<uint8_t> window(*backend, Place::device,
                                   static_cast<int64_t>(expert_window_bytes(shape_of(op), n_tokens, n_ring)),
                                   "a window");
      op.window = window.data(), op.n_window_bytes = window.n_bytes();
      const auto run = [&](size_t layer) {
        static_cast<ExpertStacks&>(op) = layers[layer];
        op.next = &layers[1 - layer];
        backend->run_experts(op);
      };
      backend->mark();
      backend->upload(window.data(), layers[0].w1.data, n_ring / 4);  // before the ring takes the link
      backend->mark();
      const double link = static_cast<double>(n_ring / 4) / backend->laps().at(0);
      run(0), run(1);
      backend->mark();
      for (int i = 0; i < 6; ++i) run(static_cast<size_t>(i % 2));
      backend->mark();
      const double seconds = backend->laps().at(0) / 6;
      std::printf("%s experts of %lld tokens streamed: %.1f ms a layer, %.1f GB/s = %.0f %% of memcpy\n",
                  type_name(type), static_cast<long long>(n_tokens), seconds * 1e3,
                  n_layer_bytes / seconds / 1e9, 100 * n_layer_bytes / seconds / link);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
