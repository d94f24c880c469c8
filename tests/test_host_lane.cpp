// backend/host_lane.h: threads post as devices do, and get the sums that the CPU backend makes, to the bit.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>

#include "backend/cpu_backend.h"
#include "backend/host_lane.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "tests/support/failing_threads.h"
#include "tests/support/host_experts.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(host_lane)

namespace {

constexpr int64_t kDim = 64, kInter = 32, kExperts = 12, kActivated = 3;

// A device and its mailbox: it writes a post as a kernel would, and waits for the answer.
class FakeDevice {
 public:
  explicit FakeDevice(std::shared_ptr<HostLane> lane)
      : memory_(static_cast<uint8_t*>(std::aligned_alloc(4096, kMailboxBytes)), &std::free) {
    std::fill_n(memory_.get(), sizeof(MailWords), uint8_t{0});
    box = std::make_unique<Mailbox>(std::move(lane), memory_.get());
  }

  // The sums; nothing when no answer comes.
  std::vector<float> run(const ExpertStacks& stacks, const ExpertStep& step) {
    const RunExperts op = operation(stacks, step);
    const Mail mail = box->place(op);
    std::ranges::copy(step.x, mail.x);
    std::ranges::copy(step.weights, mail.weights);
    std::ranges::copy(step.experts, mail.experts);
    post(box->request(op));
    if (!is_answered(10)) return {};
    return {mail.y, mail.y + step.x.size()};
  }
  static RunExperts operation(const ExpertStacks& stacks, const ExpertStep& step) {
    RunExperts op{stacks};
    op.n_tokens = step.n_tokens, op.n_activated = step.n_activated;
    return op;
  }
  void post(uint32_t request) {
    std::atomic_ref(box->words().posted)
        .store(uint64_t{++sequence_} << 32 | request, std::memory_order_release);
  }
  bool is_answered(double seconds) {
    std::atomic_ref word(box->words().answered);
    for (const auto start = std::chrono::steady_clock::now(); seconds_since(start) < seconds;) {
      if (word.load(std::memory_order_acquire) == sequence_) return true;
      std::this_thread::yield();
    }
    return false;
  }

 private:
  const std::unique_ptr<uint8_t, void (*)(void*)> memory_;
  uint32_t sequence_ = 0;

 public:
  std::unique_ptr<Mailbox> box;  // goes before its memory
};

// Seconds of all of this process's threads while this one sleeps.
double busy_seconds_in(std::chrono::milliseconds time) {
  const auto begin = std::clock();
  std::this_thread::sleep_for(time);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

const HostExpertStacks& layer(size_t i) {
  static const HostExpertStacks layers[] = {{TensorType::q8_0, kExperts, kDim, kInter, 1},
                                            {TensorType::f32, kExperts, kDim, kInter, 4},
                                            {TensorType::q4_0, kExperts, kDim, kInter, 7}};
  return layers[i % std::size(layers)];
}

}  // namespace

// Three devices at once, hundreds of posts of different layers and numbers of tokens; what comes is
// announced before or after, one by one or ten at a time.
BOOST_AUTO_TEST_CASE(answers_are_what_the_cpu_backend_computes) {
  for (const int n_threads : {1, 3}) {
    const auto lane = std::make_shared<HostLane>(n_threads, 1);
    std::atomic<int> n_wrong = 0;
    std::vector<std::thread> devices;
    for (uint64_t d = 0; d < 3; ++d)
      devices.emplace_back([&, d] {
        CpuBackend cpu(1);
        FakeDevice device(lane);
        for (uint64_t round = 0; round < 200; ++round) {
          if (d != 1 && round % 10 == 0) device.box->expect(10);
          if (d == 1) device.box->expect(1);
          const ExpertStacks& stacks = layer(round + d).stacks;
          const ExpertStep step(stacks, 1 + static_cast<int64_t>(round % 5), kActivated, 1000 * d + round);
          n_wrong += device.run(stacks, step) != run_on(cpu, stacks, step);
        }
        device.box->check();
      });
    for (std::thread& device : devices) device.join();
    BOOST_TEST(n_wrong == 0);
  }
}

BOOST_AUTO_TEST_CASE(the_lane_sleeps_while_nothing_is_expected) {
  const auto lane = std::make_shared<HostLane>(2, 1);
  FakeDevice device(lane);
  const ExpertStep step(layer(0).stacks, 2, kActivated, 1);
  for (int round = 0; round < 3; ++round) {
    device.box->expect(1);
    BOOST_TEST(busy_seconds_in(std::chrono::milliseconds(100)) > 0.01);  // it looks for the post
    device.run(layer(0).stacks, step);
    BOOST_TEST(busy_seconds_in(std::chrono::milliseconds(200)) < 0.05);
  }
}

BOOST_AUTO_TEST_CASE(a_post_is_left_alone_until_it_is_expected) {
  const auto lane = std::make_shared<HostLane>(1, 1);
  FakeDevice device(lane);
  const ExpertStep step(layer(0).stacks, 1, kActivated, 1);
  const RunExperts op = FakeDevice::operation(layer(0).stacks, step);
  std::ranges::copy(step.experts, device.box->place(op).experts);
  device.post(device.box->request(op));
  BOOST_TEST(!device.is_answered(0.05));
  device.box->expect(1);
  BOOST_TEST(device.is_answered(10));
}

// A device that has given up is told of until the lane has caught up, and then forgotten.
BOOST_AUTO_TEST_CASE(a_device_that_waited_in_vain_is_told) {
  const auto lane = std::make_shared<HostLane>(1, 1);
  FakeDevice device(lane);
  CpuBackend cpu(1);
  const ExpertStep step(layer(0).stacks, 1, kActivated, 1);
  const RunExperts op = FakeDevice::operation(layer(0).stacks, step);
  std::ranges::copy(step.experts, device.box->place(op).experts);
  device.post(device.box->request(op));
  device.box->words().is_late = 1;
  for (int i = 0; i < 2; ++i)
    BOOST_CHECK_EXCEPTION(device.box->check(), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::device; });
  device.box->expect(2);  // one comes no more
  BOOST_TEST(device.is_answered(10));
  BOOST_CHECK_THROW(device.box->check(), Error);
  device.box->check();
  BOOST_TEST(busy_seconds_in(std::chrono::milliseconds(100)) < 0.05);
  device.box->expect(1);
  BOOST_TEST((device.run(layer(0).stacks, step) == run_on(cpu, layer(0).stacks, step)));
  device.box->check();
}

BOOST_AUTO_TEST_CASE(what_cannot_be_computed_is_answered_and_told) {
  const auto lane = std::make_shared<HostLane>(2, 1);
  FakeDevice device(lane), other(lane);
  CpuBackend cpu(1);
  const ExpertStep good(layer(0).stacks, 2, kActivated, 1);
  for (const int32_t id : {-1, static_cast<int32_t>(kExperts)}) {
    ExpertStep bad = good;
    bad.experts.back() = id;
    device.box->expect(2);
    device.run(layer(0).stacks, bad);
    other.box->check();
    BOOST_CHECK_EXCEPTION(device.box->check(), Error, [&](const Error& error) {
      return error.kind() == ErrorKind::device &&
             std::string(error.what()).find("expert " + std::to_string(id)) != std::string::npos;
    });
    BOOST_TEST((device.run(layer(0).stacks, good) == run_on(cpu, layer(0).stacks, good)));
    device.box->check();
  }
  device.box->expect(1);
  device.post(7u << 16 | 1);  // no such job
  BOOST_TEST(device.is_answered(10));
  BOOST_CHECK_THROW(device.box->check(), Error);
}

// Posts that were expected and never come keep the lane awake, as long as their mailbox is there.
BOOST_AUTO_TEST_CASE(a_mailbox_goes_with_what_it_expected) {
  const auto lane = std::make_shared<HostLane>(2, 1);
  CpuBackend cpu(1);
  FakeDevice stays(lane);
  const ExpertStep step(layer(1).stacks, 3, kActivated, 1);
  for (int round = 0; round < 20; ++round) {
    FakeDevice goes(lane);
    goes.box->expect(3);
    goes.run(layer(round).stacks, step);
    stays.box->expect(1);
    BOOST_TEST((stays.run(layer(1).stacks, step) == run_on(cpu, layer(1).stacks, step)));
  }
  BOOST_TEST(busy_seconds_in(std::chrono::milliseconds(200)) < 0.05);
}

BOOST_AUTO_TEST_CASE(a_mailbox_that_goes_waits_for_the_post_under_way) {
  const HostExpertStacks large(TensorType::q8_0, 4, 1024, 1024, 1);
  const ExpertStep step(large.stacks, 64, 2, 1);
  const auto lane = std::make_shared<HostLane>(1, 1);
  for (int round = 0; round < 5; ++round) {
    FakeDevice device(lane);
    const RunExperts op = FakeDevice::operation(large.stacks, step);
    std::ranges::copy(step.experts, device.box->place(op).experts);
    device.box->expect(1);
    device.post(device.box->request(op));
    std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
    device.box.reset();  // and then its memory
  }
}

// Of a layer one job, however many tokens; of other matrices another, also where others were.
BOOST_AUTO_TEST_CASE(requests_name_a_job_and_a_number_of_tokens) {
  const auto lane = std::make_shared<HostLane>(1, 1);
  FakeDevice device(lane);
  const auto request = [&](size_t i, int64_t n_tokens) {
    return device.box->request(
        FakeDevice::operation(layer(i).stacks, ExpertStep(layer(i).stacks, n_tokens, kActivated, 1)));
  };
  const uint32_t first = request(0, 1);
  BOOST_TEST(request(0, 1) == first);
  BOOST_TEST(request(0, 5) == first + 4);
  BOOST_TEST(request(1, 1) != first);
  BOOST_TEST((request(1, 1) >> 16) != (first >> 16));
}

// The largest post of any widths lies within the mailbox, and its parts do not overlap.
BOOST_AUTO_TEST_CASE(posts_lie_within_the_mailbox) {
  const auto lane = std::make_shared<HostLane>(1, 1);
  FakeDevice device(lane);
  for (const auto& [dim, n_activated] : {std::pair{7168, 8}, {7168, 256}, {32, 1}, {1 << 20, 8}}) {
    RunExperts op;
    op.w2.n_rows = dim, op.n_activated = n_activated;
    op.n_tokens = device.box->most_tokens(op);
    BOOST_TEST(op.n_tokens >= 1);
    BOOST_TEST(op.n_tokens <= kMostPostTokens);
    const Mail mail = device.box->place(op);
    const auto at = [&](const void* p) {
      return static_cast<const uint8_t*>(p) - reinterpret_cast<uint8_t*>(&device.box->words());
    };
    const int64_t row_bytes = 4 * dim * op.n_tokens, choice_bytes = 4 * n_activated * op.n_tokens;
    BOOST_TEST(at(mail.x) >= static_cast<int64_t>(sizeof(MailWords)));
    BOOST_TEST(at(mail.y) >= at(mail.x) + row_bytes);
    BOOST_TEST(at(mail.weights) >= at(mail.y) + row_bytes);
    BOOST_TEST(at(mail.experts) >= at(mail.weights) + choice_bytes);
    BOOST_TEST(at(mail.experts) + choice_bytes <= static_cast<int64_t>(kMailboxBytes));
  }
  RunExperts op;
  op.w2.n_rows = 7168, op.n_activated = 8;
  BOOST_TEST(device.box->most_tokens(op) == kMostPostTokens);
  op.w2.n_rows = 1 << 23;
  BOOST_CHECK_THROW(device.box->most_tokens(op), Error);
}

BOOST_AUTO_TEST_CASE(a_thread_that_cannot_be_started_is_told) {
  FailingThreads threads(0);
  BOOST_CHECK_EXCEPTION(HostLane(2, 1), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::memory; });
  BOOST_TEST(threads.stop());
}

BOOST_AUTO_TEST_SUITE_END()
