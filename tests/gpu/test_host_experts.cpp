// Experts that decode leaves to the host (cuda/host_experts.cu, backend/host_lane.h): the bits of the CPU
// backend, recorded or not.
#include <chrono>

#include "backend/cpu_backend.h"
#include "backend/host_lane.h"
#include "backend/link_share.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "cuda/host_experts.h"
#include "tests/gpu/host_experts_scene.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_host_experts, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kExperts = 16, kActivated = 4, kDim = 256, kInter = 256;

CpuBackend& cpu() {
  static CpuBackend backend(0);
  return backend;
}

ExpertStep step_of(const HostExpertStacks& experts, int64_t n_tokens, uint64_t seed) {
  return {experts.stacks, n_tokens, kActivated, seed};
}

// A device with a layer in host memory.
struct Device {
  Device(int number, const HostExpertStacks& experts_, std::shared_ptr<HostLane> lane = nullptr)
      : backend(make_cuda_backend(number, {}, 0, std::move(lane))),
        experts(&experts_),
        stacks(placed(experts_, *backend, Place::host)) {}
  RunExperts operation(const PlacedStep& step) const {
    return step.operation(stacks, Place::host, Role::decode);
  }
  bool agrees(const ExpertStep& values) {
    PlacedStep step(*backend, values);
    backend->run_experts(operation(step));
    return step.take_sums() == run_on(cpu(), experts->stacks, values);
  }

  std::unique_ptr<Backend> backend;
  const HostExpertStacks* experts;
  ExpertStacks stacks;
};

std::vector<float> sum_of(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// h += experts(h) of one layer and then of another, recorded; something else is beside each.
struct RecordedStep {
  RecordedStep(Backend& backend, const ExpertStacks& first, const ExpertStacks& second,
               const ExpertStep& values)
      : step(backend, values), beside(backend, Place::device, step.x.n(), "beside") {
    recording = backend.record([&] {
      for (const ExpertStacks* stacks : {&first, &second}) {
        backend.run_experts(step.operation(*stacks, Place::host, Role::decode));
        backend.add({step.x.data(), beside.data(), step.x.n()});
        backend.add({step.y.data(), step.x.data(), step.x.n()});
      }
    });
  }
  std::vector<float> replay(const ExpertStep& values) {
    step.fill(values);
    recording->replay();
    return step.values(step.x);
  }

  PlacedStep step;
  Buffer<float> beside;
  std::unique_ptr<Recording> recording;
};

std::vector<float> expected_of(const HostExpertStacks& first, const HostExpertStacks& second,
                               ExpertStep values) {
  for (const HostExpertStacks* experts : {&first, &second})
    values.x = sum_of(values.x, run_on(cpu(), experts->stacks, values));
  return values.x;
}

}  // namespace

// Also more tokens than a post has.
BOOST_AUTO_TEST_CASE(the_host_computes_what_the_cpu_backend_does) {
  for (const TensorType type : {TensorType::q4_k, TensorType::q8_0, TensorType::f16}) {
    const HostExpertStacks experts(type, kExperts, kDim, kInter, 1);
    Device device(0, experts);
    for (const int64_t n_tokens : {1, 2, 17, 64, 512, 513, 1300})
      BOOST_TEST(device.agrees(step_of(experts, n_tokens, static_cast<uint64_t>(n_tokens))),
                 type_name(type) << ", " << n_tokens << " tokens");
  }
}

// x is used for something else while the host computes; the sums are one or the other part of the `add`.
BOOST_AUTO_TEST_CASE(add_waits_for_the_host) {
  const HostExpertStacks experts(TensorType::q4_k, kExperts, kDim, kInter, 1);
  Device device(0, experts);
  for (const bool is_sum : {true, false})
    for (const int64_t n_tokens : {1, 600}) {
      const ExpertStep values = step_of(experts, n_tokens, 3);
      PlacedStep step(*device.backend, values);
      Buffer<float> other(*device.backend, Place::device, step.x.n(), "other");
      device.backend->upload(other.data(), values.x.data(), other.n_bytes());
      device.backend->run_experts(device.operation(step));
      device.backend->add({other.data(), step.x.data(), step.x.n()});  // x has served its turn
      const Buffer<float>& target = is_sum ? step.y : other;
      device.backend->add({is_sum ? other.data() : step.y.data(), target.data(), target.n()});
      const std::vector<float> expected = sum_of(run_on(cpu(), experts.stacks, values), values.x);
      BOOST_TEST((step.values(target) == expected), n_tokens << " tokens");
      BOOST_TEST((step.values(step.x) == sum_of(values.x, values.x)));
    }
}

BOOST_AUTO_TEST_CASE(marks_and_other_experts_wait_for_the_host) {
  const HostExpertStacks first(TensorType::q4_k, kExperts, kDim, kInter, 1),
      second(TensorType::q6_k, kExperts, kDim, kInter, 7);
  Device device(0, first);
  const ExpertStacks other = placed(second, *device.backend, Place::host);
  const ExpertStep values = step_of(first, 3, 1), more = step_of(first, 5, 2);
  PlacedStep step(*device.backend, values), next(*device.backend, more);
  device.backend->mark();
  device.backend->run_experts(device.operation(step));
  device.backend->mark();
  device.backend->run_experts(next.operation(other, Place::host, Role::decode));
  BOOST_TEST(device.backend->laps().size() == 1u);
  BOOST_TEST((step.take_sums() == run_on(cpu(), first.stacks, values)));
  BOOST_TEST((next.take_sums() == run_on(cpu(), second.stacks, more)));
}

BOOST_AUTO_TEST_CASE(replayed_steps_are_those_of_the_cpu) {
  const HostExpertStacks first(TensorType::q4_k, kExperts, kDim, kInter, 1),
      second(TensorType::q6_k, kExperts, kDim, kInter, 7);
  for (const int64_t n_tokens : {1, 8, 600}) {
    Device device(0, first);
    const ExpertStacks other = placed(second, *device.backend, Place::host);
    RecordedStep recorded(*device.backend, device.stacks, other, step_of(first, n_tokens, 0));
    int n_wrong = 0;
    for (uint64_t round = 1; round <= 50; ++round) {
      const ExpertStep values = step_of(first, n_tokens, round);
      n_wrong += recorded.replay(values) != expected_of(first, second, values);
    }
    BOOST_TEST(n_wrong == 0, n_tokens << " tokens");
  }
}

// Replays of different steps in turn, and steps that are not recorded between them; several replays are
// enqueued before any is waited for.
BOOST_AUTO_TEST_CASE(recordings_and_steps_in_turn) {
  const HostExpertStacks first(TensorType::q4_k, kExperts, kDim, kInter, 1),
      second(TensorType::q6_k, kExperts, kDim, kInter, 7);
  Device device(0, first);
  BOOST_TEST(device.agrees(step_of(first, 3, 1)));
  const ExpertStacks other = placed(second, *device.backend, Place::host);
  RecordedStep one(*device.backend, device.stacks, other, step_of(first, 1, 0));
  RecordedStep four(*device.backend, other, device.stacks, step_of(first, 4, 0));
  for (uint64_t round = 1; round <= 10; ++round) {
    const ExpertStep a = step_of(first, 1, round), b = step_of(first, 4, round);
    one.step.fill(a), four.step.fill(b);
    one.recording->replay(), four.recording->replay();
    BOOST_TEST((one.step.values(one.step.x) == expected_of(first, second, a)));
    BOOST_TEST((four.step.values(four.step.x) == expected_of(second, first, b)));
    BOOST_TEST(device.agrees(step_of(first, 2, round)));
  }
}

// Nobody adds: the sums are there when the recording ends.
BOOST_AUTO_TEST_CASE(a_recording_ends_with_the_sums) {
  const HostExpertStacks experts(TensorType::q4_k, kExperts, kDim, kInter, 1);
  Device device(0, experts);
  PlacedStep step(*device.backend, step_of(experts, 2, 0));
  const auto recording = device.backend->record([&] { device.backend->run_experts(device.operation(step)); });
  for (uint64_t round = 1; round <= 5; ++round) {
    const ExpertStep values = step_of(experts, 2, round);
    step.fill(values);
    recording->replay();
    BOOST_TEST((step.take_sums() == run_on(cpu(), experts.stacks, values)));
  }
}

BOOST_AUTO_TEST_CASE(what_the_host_cannot_compute_is_an_error_of_the_device) {
  const HostExpertStacks experts(TensorType::q4_k, kExperts, kDim, kInter, 1);
  Device device(0, experts);
  ExpertStep bad = step_of(experts, 2, 1);
  bad.experts[1] = 1000;
  PlacedStep step(*device.backend, bad);
  device.backend->run_experts(device.operation(step));
  BOOST_CHECK_EXCEPTION(device.backend->download(nullptr, nullptr, 0), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::device; });
  BOOST_TEST(device.agrees(step_of(experts, 2, 1)));
}

// A recording that fails leaves nothing behind that somebody waits for.
BOOST_AUTO_TEST_CASE(a_recording_that_fails_posts_nothing) {
  const HostExpertStacks experts(TensorType::q4_k, kExperts, kDim, kInter, 1);
  Device device(0, experts);
  PlacedStep step(*device.backend, step_of(experts, 2, 1));
  BOOST_CHECK_THROW(device.backend->record([&] {
    device.backend->run_experts(device.operation(step));
    fail(ErrorKind::internal, "a test");
  }),
                    Error);
  BOOST_TEST(device.agrees(step_of(experts, 2, 1)));
}

// On two GPUs where there are two.
BOOST_AUTO_TEST_CASE(two_devices_share_a_lane) {
  int n_devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&n_devices));
  const HostExpertStacks first(TensorType::q4_k, kExperts, kDim, kInter, 1),
      second(TensorType::q6_k, kExperts, kDim, kInter, 7);
  const auto lane = std::make_shared<HostLane>(0, 2);
  Device one(0, first, lane), two(std::min(1, n_devices - 1), second, lane);
  const ExpertStacks one_more = placed(second, *one.backend, Place::host),
                     two_more = placed(first, *two.backend, Place::host);
  RecordedStep at_one(*one.backend, one.stacks, one_more, step_of(first, 2, 0));
  RecordedStep at_two(*two.backend, two.stacks, two_more, step_of(first, 3, 0));
  for (uint64_t round = 1; round <= 20; ++round) {
    const ExpertStep a = step_of(first, 2, round), b = step_of(first, 3, round);
    at_one.step.fill(a), at_two.step.fill(b);
    at_one.recording->replay(), at_two.recording->replay();
    BOOST_TEST((at_two.step.values(at_two.step.x) == expected_of(second, first, b)));
    BOOST_TEST((at_one.step.values(at_one.step.x) == expected_of(first, second, a)));
  }
}

// Layers of which the link has a share, in a window that has room for it, or for it and a small ring alone.
struct SharedLayers {
  static constexpr int64_t kHidden = 768, kMany = 80;  // three rounds when all are chosen
  explicit SharedLayers(const std::vector<TensorType>& types) : backend(make_cuda_backend(0)) {
    uint64_t n_ring = 0, n_prompt = 0;
    for (const TensorType type : types) {
      layers.emplace_back(type, kMany, kDim, kHidden, 10 * layers.size() + 1);
      stacks.push_back(placed(layers.back(), *backend, Place::host));
      n_link = std::max(n_link, link_window_bytes(stacks.back()));
      n_ring = std::max(n_ring, 3 * expert_ring_bytes(stacks.back()));
      n_prompt = std::max(n_prompt, expert_window_bytes({kMany, kActivated, kDim, kHidden}, 64, n_ring));
    }
    window = Buffer<uint8_t>(*backend, Place::device,
                             static_cast<int64_t>(std::max(n_prompt, n_ring + n_link)), "a window");
  }
  RunExperts operation(const PlacedStep& step, size_t layer, Role role = Role::decode) const {
    RunExperts op = step.operation(stacks[layer], Place::host, role);
    op.window = window.data(), op.n_window_bytes = window.n_bytes(), op.n_link_bytes = n_link;
    return op;
  }
  std::vector<float> run(const ExpertStep& values, size_t layer = 0, Role role = Role::decode,
                         const ExpertStacks* next = nullptr) const {
    PlacedStep step(*backend, values);
    RunExperts op = operation(step, layer, role);
    op.next = next;
    backend->run_experts(op);
    return step.take_sums();
  }

  std::unique_ptr<Backend> backend;
  std::vector<HostExpertStacks> layers;
  std::vector<ExpertStacks> stacks;
  uint64_t n_link = 0;
  Buffer<uint8_t> window;
};

// Whose posts nobody expects: it ends, tells, and goes on when the host has caught up.
BOOST_AUTO_TEST_CASE(a_device_waits_for_the_host_only_so_long) {
  const HostExpertStacks experts(TensorType::q8_0, kExperts, kDim, kInter, 21);
  Device device(0, experts);
  const ExpertStep values = step_of(experts, 2, 22);
  PlacedStep step(*device.backend, values);
  DeviceArray<uint8_t> mail(std::vector<uint8_t>(kMailboxBytes), true);
  DeviceArray<uint32_t> state(std::vector<uint32_t>(64));
  TestLaunch test(1 << 20);
  cuda::HostExperts host(std::make_shared<HostLane>(1, 1), mail.data(),
                         reinterpret_cast<cuda::HostExperts::State*>(state.data()), 0.05);
  const auto run = [&](bool is_recorded) {
    host.run(device.operation(step), is_recorded, test.launch());
    host.join(test.launch());
    CUDA_CHECK(cudaStreamSynchronize(test.stream()));
  };
  device.backend->download(nullptr, nullptr, 0);
  run(true);
  BOOST_CHECK_THROW(host.check(), Error);
  host.expect(host.take_posts());
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_told = true; is_told && seconds_since(begin) < 10;) try {
      host.check();
      is_told = false;
    } catch (const Error&) {
    }
  run(false);
  host.check();
  BOOST_TEST((step.take_sums() == run_on(cpu(), experts.stacks, values)));
}

// Where it fails after its post, nobody waits for ever, and what follows is right.
BOOST_AUTO_TEST_CASE(an_operation_that_fails_between_post_and_sums) {
  const SharedLayers shared({TensorType::q4_k});
  const ExpertStep values = step_of(shared.layers[0], 3, 1);
  const std::vector<float> expected = shared.run(values);
  const PlacedStep step(*shared.backend, values);
  RunExperts op = shared.operation(step, 0);
  op.n_link_bytes = 1;  // too few for the link's share, which the device computes after it has posted
  for (int i = 0; i < 3; ++i) {
    BOOST_CHECK_THROW(shared.backend->run_experts(op), Error);
    if (i == 1) shared.backend->download(nullptr, nullptr, 0);
    if (i == 2) shared.backend->begin_step();
    BOOST_TEST((shared.run(values) == expected));
  }
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::pow(b[i], 2), difference += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(difference / sum);
}

// Blocks that are aligned to 16, 8, 4 and 2 bytes; one round of experts and three; more tokens than a post
// has.
BOOST_AUTO_TEST_CASE(the_link_and_the_host_compute_what_the_host_does_alone) {
  for (const TensorType type : {TensorType::q4_k, TensorType::q2_k, TensorType::q3_k, TensorType::q6_k,
                                TensorType::q8_0, TensorType::iq2_xxs}) {
    const SharedLayers shared({type});
    for (const int64_t n_tokens : {1, 2, 17, 350, 600}) {
      const ExpertStep values = step_of(shared.layers[0], n_tokens, static_cast<uint64_t>(n_tokens));
      const double difference =
          relative_difference(shared.run(values), run_on(cpu(), shared.layers[0].stacks, values));
      BOOST_TEST(difference < 1e-3, type_name(type) << ", " << n_tokens << " tokens: " << difference);
      BOOST_TEST(difference > 0);
    }
  }
}

// Alone, among others whose experts come in other rounds, and after a prompt whose experts came through the
// same window.
BOOST_AUTO_TEST_CASE(the_links_share_of_a_token_is_its_own) {
  constexpr int64_t kTokens = 60;
  for (const TensorType type : {TensorType::q4_k, TensorType::q6_k}) {
    const SharedLayers shared({type});
    const ExpertStep all = step_of(shared.layers[0], kTokens, 1), prompt = step_of(shared.layers[0], 64, 9);
    const std::vector<float> sums = shared.run(all);
    for (int64_t t = 0; t < kTokens; t += 3) {
      ExpertStep one = step_of(shared.layers[0], 1, 1);
      std::copy_n(all.x.data() + t * kDim, kDim, one.x.data());
      std::copy_n(all.weights.data() + t * kActivated, kActivated, one.weights.data());
      std::copy_n(all.experts.data() + t * kActivated, kActivated, one.experts.data());
      shared.run(prompt, 0, Role::prefill);
      BOOST_TEST(
          (shared.run(one) == std::vector<float>(sums.data() + t * kDim, sums.data() + (t + 1) * kDim)),
          type_name(type) << ", token " << t);
    }
  }
}

// A decode step between two chunks of prompts: the experts that were announced stay where they are, also
// those of a layer whose own share is smaller.
BOOST_AUTO_TEST_CASE(announced_experts_outlast_the_links_share) {
  const SharedLayers shared({TensorType::q4_k, TensorType::q8_0});
  const ExpertStep prompt = step_of(shared.layers[0], 64, 9), step = step_of(shared.layers[0], 30, 3);
  const std::vector<float> expected = shared.run(prompt, 1, Role::prefill),
                           expected_step = shared.run(step, 1);
  for (int i = 0; i < 5; ++i) {
    shared.run(prompt, 0, Role::prefill, &shared.stacks[1]);
    BOOST_TEST((shared.run(step, 1) == expected_step));
    BOOST_TEST((shared.run(prompt, 1, Role::prefill, &shared.stacks[0]) == expected));
  }
}

BOOST_AUTO_TEST_CASE(the_links_share_is_recorded) {
  const SharedLayers shared({TensorType::q4_k});
  Backend& backend = *shared.backend;
  for (const int64_t n_tokens : {2, 40}) {
    PlacedStep step(backend, step_of(shared.layers[0], n_tokens, 0));
    const auto recording = backend.record([&] {
      backend.run_experts(shared.operation(step, 0));
      backend.add({step.x.data(), step.y.data(), step.x.n()});
    });
    for (uint64_t round = 1; round <= 10; ++round) {
      const ExpertStep values = step_of(shared.layers[0], n_tokens, round);
      step.fill(values);
      recording->replay();
      const std::vector<float> found = step.values(step.y);
      BOOST_TEST((found == sum_of(shared.run(values), values.x)), n_tokens << " tokens");
    }
  }
}

// The matrices of V3.2's experts in a backend's host memory, all alike.
ExpertStacks wide_experts(Backend& backend, TensorType type, int64_t n_experts) {
  constexpr int64_t kWide = 7168, kNarrow = 2048;
  ExpertStacks stacks;
  const auto make = [&](WeightMatrix& w, int64_t n_rows, int64_t n_cols) {
    w.type = type, w.n_rows = n_rows, w.n_cols = n_cols, w.n_mats = n_experts;
    w.row_bytes = row_bytes(type, n_cols), w.mat_bytes = w.row_bytes * static_cast<size_t>(n_rows);
    Rng rng(1);
    const std::vector<uint8_t> some =
        random_weights(type, static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_cols), rng, 0.01f);
    uint8_t* to =
        backend.alloc_weights(Place::host, w.mat_bytes * static_cast<size_t>(n_experts), w.mat_bytes);
    for (int64_t e = 0; e < n_experts; ++e)
      std::ranges::copy(some, to + static_cast<size_t>(e) * w.mat_bytes);
    w.data = to;
  };
  make(stacks.w1, kNarrow, kWide), make(stacks.w3, kNarrow, kWide), make(stacks.w2, kWide, kNarrow);
  return stacks;
}

// A step's experts, chosen at random: by the host alone, and with the link's share.
BOOST_AUTO_TEST_CASE(timing_of_the_links_share, *boost::unit_test::label("timing")) {
  constexpr int64_t kAll = 128, kUsed = 8;
  for (const TensorType type : {TensorType::q4_k, TensorType::q2_k}) {
    const std::unique_ptr<Backend> backend = make_cuda_backend(0);
    const ExpertStacks stacks = wide_experts(*backend, type, kAll);
    const Buffer<uint8_t> window(
        *backend, Place::device,
        static_cast<int64_t>(2 * expert_ring_bytes(stacks) + link_window_bytes(stacks)), "a window");
    for (const int64_t n_tokens : {1, 2, 4, 8, 16, 32, 64, 128, 350}) {
      const size_t n_steps = n_tokens < 8 ? 10 : n_tokens < 64 ? 4 : 2;
      std::vector<std::unique_ptr<PlacedStep>> steps;
      for (uint64_t i = 0; i < n_steps; ++i)
        steps.push_back(std::make_unique<PlacedStep>(*backend, ExpertStep(stacks, n_tokens, kUsed, i)));
      const auto time = [&](uint64_t n_link) {
        const auto run = [&](size_t i) {
          RunExperts op = steps[i]->operation(stacks, Place::host, Role::decode);
          op.window = window.data(), op.n_window_bytes = window.n_bytes(), op.n_link_bytes = n_link;
          backend->run_experts(op);
        };
        run(0);
        backend->mark();
        for (size_t i = 0; i < n_steps; ++i) run(i);
        backend->mark();
        return 1e3 * backend->laps().at(0) / static_cast<double>(n_steps);
      };
      const double host = time(0), both = time(link_window_bytes(stacks)), again = time(0);
      std::printf(
          "%s experts of %lld tokens, %lld to choose from: host alone %.2f and %.2f ms, with the link %.2f\n",
          type_name(type), static_cast<long long>(n_tokens), static_cast<long long>(kAll), host, again, both);
    }
  }
}

// One token's experts: by the host, by the device over the link, and by both at once, each its own.
BOOST_AUTO_TEST_CASE(timing_of_host_experts, *boost::unit_test::label("timing")) {
  constexpr int64_t kAll = 64, kUsed = 8;
  constexpr int kSteps = 40;
  for (const TensorType type : {TensorType::q4_k, TensorType::q2_k}) {
    const std::unique_ptr<Backend> backend = make_cuda_backend(0);
    const ExpertStacks mine = wide_experts(*backend, type, kAll), theirs = wide_experts(*backend, type, kAll);
    std::vector<std::unique_ptr<PlacedStep>> steps, others;
    for (uint64_t i = 0; i < kSteps; ++i) {
      steps.push_back(std::make_unique<PlacedStep>(*backend, ExpertStep(mine, 1, kUsed, i)));
      others.push_back(std::make_unique<PlacedStep>(*backend, ExpertStep(mine, 1, kUsed, i + 100)));
    }
    const double n_bytes = 3.0 * kUsed * static_cast<double>(mine.w1.mat_bytes);
    const auto time = [&](bool by_host, bool by_link) {
      const auto run = [&](size_t i) {
        if (by_host) backend->run_experts(steps[i]->operation(mine, Place::host, Role::decode));
        if (by_link) backend->run_experts(others[i]->operation(theirs, Place::device, Role::decode));
      };
      run(0);
      backend->mark();
      for (size_t i = 0; i < kSteps; ++i) run(i);
      backend->mark();
      return backend->laps().at(0) / kSteps;
    };
    const double host = time(true, false), link = time(false, true), both = time(true, true);
    std::printf(
        "%s experts of a token: host %.2f ms = %.1f GB/s, link %.2f ms = %.1f GB/s, both %.2f ms = %.1f "
        "GB/s\n",
        type_name(type), 1e3 * host, n_bytes / host / 1e9, 1e3 * link, n_bytes / link / 1e9, 1e3 * both,
        2 * n_bytes / both / 1e9);
  }
}

BOOST_AUTO_TEST_SUITE_END()
