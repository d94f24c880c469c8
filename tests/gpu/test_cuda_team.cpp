// Two GPUs that compute together: what they gather, and that shares of matrices give the bits of the whole
// ones.
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/team.h"
#include "base/error.h"
#include "tests/gpu/shares.h"
#include "tests/gpu/two_gpus.h"
#include "tests/support/same_bits.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_team)

namespace {

// Two backends as a team, and the memory of both.
struct Two {
  const std::unique_ptr<Backend> first = make_cuda_backend(0), second = make_cuda_backend(1);
  Team team{2};

  Backend& of(int64_t member) const { return member == 0 ? *first : *second; }
  Member member(int64_t number) { return {&team, number}; }
  // Calls work(member, backend) for both at the same time, when both have what they were given before.
  template <typename Work>
  void run(const Work& work) {
    for (const int64_t m : {0, 1}) of(m).download(nullptr, nullptr, 0);
    team.run([&](int64_t number) { work(member(number), of(number)); });
  }
};

// ---- gathers ----

Gather::Piece piece_of(const Shape& shape, const void* part, void* whole) {
  return {part, whole, shape.n_rows, shape.width, shape.is_by_rows};
}

RmsNorm norm_of(const Shape& shape, const float* x, const Buffer<float>& weight, const Buffer<float>& out) {
  return {x, shape.width, weight.data(), 1e-6f, out.data(), shape.n_rows, shape.width};
}

// One or two pieces, gathered once; with a sum of the first, and its norm.
void check_gather(Two& two, const std::vector<Shape>& shapes, bool has_sum) {
  std::vector<Floats> all;
  for (const Shape& shape : shapes) all.push_back(random_floats(static_cast<size_t>(shape.n()), all.size()));
  const Floats before = random_floats(all[0].size(), 7);
  const Shape& first = shapes[0];
  const Floats weight = random_floats(static_cast<size_t>(first.width), 8);
  std::vector<Buffer<float>> parts[2], wholes[2], sums, weights, normed;
  for (int64_t m = 0; m < 2; ++m) {
    weights.push_back(placed(two.of(m), weight)), normed.push_back(room(two.of(m), first.n()));
    for (size_t i = 0; i < shapes.size(); ++i) {
      parts[m].push_back(placed(two.of(m), part_of(all[i], shapes[i], two.member(m))));
      wholes[m].push_back(room(two.of(m), shapes[i].n()));
    }
    sums.push_back(placed(two.of(m), before));
  }
  two.run([&](const Member& member, Backend& backend) {
    const auto m = static_cast<size_t>(member.number);
    Gather op;
    op.member = member;
    for (size_t i = 0; i < shapes.size(); ++i)
      op.pieces[i] = piece_of(shapes[i], parts[m][i].data(), wholes[m][i].data());
    if (has_sum) op.sum = sums[m].data();
    if (has_sum) op.norm = norm_of(first, op.sum, weights[m], normed[m]);
    backend.gather(op);
  });
  Floats expected_sum = before;
  for (size_t i = 0; has_sum && i < expected_sum.size(); ++i) expected_sum[i] += all[0][i];
  const Buffer<float> x = placed(*two.first, expected_sum), out = room(*two.first, first.n());
  two.first->rms_norm(norm_of(first, x.data(), weights[0], out));
  const Floats expected_norm = read(*two.first, out);
  for (int64_t m = 0; m < 2; ++m) {
    for (size_t i = has_sum; i < shapes.size(); ++i)
      BOOST_TEST(same_bits(read(two.of(m), wholes[m][i]), all[i]),
                 "piece " << i << " of " << shapes[i].n_rows << " x " << shapes[i].width << ", member " << m);
    BOOST_TEST(same_bits(read(two.of(m), sums[static_cast<size_t>(m)]), expected_sum));
    if (has_sum) BOOST_TEST(same_bits(read(two.of(m), normed[static_cast<size_t>(m)]), expected_norm));
  }
}

// ---- experts ----

struct ExpertCase {
  TensorType type, shared_type;
  int64_t n_tokens;
  Role role;
};

constexpr int64_t kDim = 1024, kInter = 512, kExperts = 12, kActivated = 4;

// The experts of one device, or of a member; and its inputs.
struct Experts {
  RunExperts op;
  std::vector<Buffer<float>> floats;
  std::vector<Buffer<int32_t>> ints;
  std::vector<Buffer<uint8_t>> bytes;

  Experts(Backend& backend, const Member& member, const ExpertCase& c) {
    const int64_t n = c.n_tokens, n_outputs = n * kDim / member.n();
    const HostStack w1(c.type, kExperts, kInter, kDim, 1), w3(c.type, kExperts, kInter, kDim, 2),
        w2(c.type, kExperts, kDim, kInter, 3), shared(c.shared_type, 1, kDim, kInter, 4);
    const auto take = [&](const Floats& values) {
      return floats.emplace_back(placed(backend, values)).data();
    };
    op.w1 = place(backend, w1, member), op.w3 = place(backend, w3, member);
    op.w2 = place(backend, w2, member);
    op.x = take(random_floats(static_cast<size_t>(n * kDim), 5));
    op.experts = ints.emplace_back(placed(backend, choose_experts(n, kExperts, kActivated))).data();
    op.weights = take(random_floats(static_cast<size_t>(n * kActivated), 6));
    op.n_tokens = n, op.n_activated = kActivated, op.role = c.role, op.member = member;
    op.y = take(Floats(static_cast<size_t>(n_outputs)));
    if (c.role == Role::decode) {
      const Floats hidden = random_floats(static_cast<size_t>(n * kInter), 7);
      op.shared.weight = place(backend, shared, member);
      op.shared.x = take(part_of(hidden, {n, kInter}, member));
      op.shared.x_stride = kInter, op.shared.n_tokens = n, op.shared.role = c.role, op.shared.plus = op.y;
      op.shared.y = take(Floats(static_cast<size_t>(n_outputs)));
      if (member.is_alone()) op.shared.sum = take(Floats(static_cast<size_t>(n_outputs)));
    }
    if (!member.is_alone())
      op.hidden = bytes
                      .emplace_back(backend, Place::device, static_cast<int64_t>(op.hidden_bytes()),
                                    "gathered values")
                      .data();
  }
  Floats result(Backend& backend) const {
    Floats y(static_cast<size_t>(op.n_tokens * op.w2.n_rows));
    backend.download(y.data(), op.shared.weight.data ? op.shared.y : op.y, y.size() * sizeof(float));
    return y;
  }
};

void check_experts(Two& two, const ExpertCase& c) {
  const Experts alone(*two.first, {}, c);
  two.first->run_experts(alone.op);
  const Floats expected = alone.result(*two.first);
  const Experts members[] = {Experts(*two.first, two.member(0), c), Experts(*two.second, two.member(1), c)};
  const Buffer<float> wholes[] = {room(*two.first, c.n_tokens * kDim), room(*two.second, c.n_tokens * kDim)};
  for (int again = 0; again < 2; ++again) {
    two.run([&](const Member& member, Backend& backend) {
      const RunExperts& op = members[member.number].op;
      backend.run_experts(op);
      const float* part = op.shared.weight.data ? op.shared.y : op.y;
      backend.gather({member, {{part, wholes[member.number].data(), c.n_tokens, kDim}, {}}});
      backend.milestone()->wait();
    });
    for (int64_t m = 0; m < 2; ++m)
      BOOST_TEST(
          same_bits(members[m].result(two.of(m)), part_of(expected, {c.n_tokens, kDim}, two.member(m))),
          type_name(c.type) << ", " << c.n_tokens << " tokens, member " << m);
    for (int64_t m = 0; m < 2; ++m) BOOST_TEST(same_bits(read(two.of(m), wholes[m]), expected));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_member_gathers_all_parts, *boost::unit_test::precondition(needs_two_gpus)) {
  Two two;
  BOOST_TEST(two.first->can_team_with(*two.second));
  BOOST_TEST(!two.first->can_team_with(*two.first));
  for (const bool has_sum : {false, true}) {
    for (const Shape& shape : {Shape{1, 7168}, Shape{3, 7168}, Shape{1, 2}, Shape{5, 10}, Shape{3, 24},
                               Shape{130, 2048}, Shape{700, 1022}, Shape{2048, 7168}, Shape{7, 33, true},
                               Shape{8, 64, true}, Shape{1, 5, true}, Shape{2001, 1024, true}})
      check_gather(two, {shape}, has_sum);
    check_gather(two, {{8, 2048}, {1, 2048}}, has_sum);
    check_gather(two, {{3, 14}, {20, 64, true}}, has_sum);
    check_gather(two, {{20, 576, true}, {20, 128, true}}, has_sum);
  }
}

BOOST_AUTO_TEST_CASE(a_part_may_lie_in_its_place, *boost::unit_test::precondition(needs_two_gpus)) {
  Two two;
  const Shape shape{9, 100, true};
  const Floats all = random_floats(static_cast<size_t>(shape.n()), 1);
  std::vector<Buffer<float>> wholes;
  for (int64_t m = 0; m < 2; ++m) {
    const Member member = two.member(m);
    Floats own(all.size(), NAN);
    std::copy(all.begin() + member.begin(9) * 100, all.begin() + member.end(9) * 100,
              own.begin() + member.begin(9) * 100);
    wholes.push_back(placed(two.of(m), own));
  }
  two.run([&](const Member& member, Backend& backend) {
    float* whole = wholes[static_cast<size_t>(member.number)].data();
    backend.gather({member, {piece_of(shape, whole + member.begin(9) * 100, whole), {}}});
  });
  for (int64_t m = 0; m < 2; ++m) BOOST_TEST(same_bits(read(two.of(m), wholes[static_cast<size_t>(m)]), all));
}

// The other member's rows, of `whole` and of the sum, stay as they were.
BOOST_AUTO_TEST_CASE(a_member_gets_its_own_rows, *boost::unit_test::precondition(needs_two_gpus)) {
  Two two;
  for (const Shape& shape : {Shape{16, 7168}, Shape{33, 10}, Shape{2048, 7168}, Shape{2, 6}, Shape{1, 8}})
    for (const bool has_sum : {false, true}) {
      const auto n = static_cast<size_t>(shape.n());
      const Floats all = random_floats(n, 1), before = random_floats(n, 2), old = random_floats(n, 3);
      std::vector<Buffer<float>> parts, wholes, sums;
      for (int64_t m = 0; m < 2; ++m) {
        parts.push_back(placed(two.of(m), part_of(all, shape, two.member(m))));
        wholes.push_back(placed(two.of(m), old)), sums.push_back(placed(two.of(m), before));
      }
      two.run([&](const Member& member, Backend& backend) {
        const auto m = static_cast<size_t>(member.number);
        Gather op{member, {piece_of(shape, parts[m].data(), wholes[m].data()), {}}};
        op.sum = has_sum ? sums[m].data() : nullptr, op.is_to_owners = true;
        backend.gather(op);
      });
      for (int64_t m = 0; m < 2; ++m) {
        const Member member = two.member(m);
        const int64_t first = member.begin(shape.n_rows) * shape.width,
                      end = member.end(shape.n_rows) * shape.width;
        Floats whole = old, sum = before;
        std::copy(all.begin() + first, all.begin() + end, whole.begin() + first);
        for (int64_t i = first; has_sum && i < end; ++i)
          sum[static_cast<size_t>(i)] += all[static_cast<size_t>(i)];
        if (!has_sum) BOOST_TEST(same_bits(read(two.of(m), wholes[static_cast<size_t>(m)]), whole));
        BOOST_TEST(same_bits(read(two.of(m), sums[static_cast<size_t>(m)]), sum),
                   shape.n_rows << " x " << shape.width << ", member " << m);
      }
    }
}

// Gathers take turns in two places, and a sum is made of each result before the next gather.
BOOST_AUTO_TEST_CASE(many_gathers_in_a_row, *boost::unit_test::precondition(needs_two_gpus)) {
  constexpr int64_t kGathers = 100, kReplays = 20;
  Two two;
  for (const Shape& shape : {Shape{2, 74}, Shape{1, 7168}, Shape{300, 4096}}) {
    std::vector<Buffer<float>> parts[2], wholes[2], sums;
    Floats expected(static_cast<size_t>(shape.n()));
    std::vector<Floats> all;
    for (int64_t i = 0; i < 10; ++i)
      all.push_back(random_floats(static_cast<size_t>(shape.n()), static_cast<uint64_t>(i)));
    for (int64_t m = 0; m < 2; ++m) {
      for (const Floats& values : all)
        parts[m].push_back(placed(two.of(m), part_of(values, shape, two.member(m))));
      for (int k = 0; k < 2; ++k) wholes[m].push_back(room(two.of(m), shape.n()));
      sums.push_back(placed(two.of(m), expected));
    }
    const auto gather = [&](const Member& member, Backend& backend, int64_t n) {
      const auto m = static_cast<size_t>(member.number);
      for (int64_t i = 0; i < n; ++i) {
        float* whole = wholes[m][static_cast<size_t>(i % 2)].data();
        backend.gather({member, {piece_of(shape, parts[m][static_cast<size_t>(i % 10)].data(), whole), {}}});
        backend.add({whole, sums[m].data(), shape.n()});
      }
    };
    const auto expect = [&](int64_t n, const char* what) {
      for (int64_t i = 0; i < n; ++i)
        for (size_t k = 0; k < expected.size(); ++k) expected[k] += all[static_cast<size_t>(i % 10)][k];
      for (int64_t m = 0; m < 2; ++m)
        BOOST_TEST(same_bits(read(two.of(m), sums[static_cast<size_t>(m)]), expected),
                   what << ", " << shape.n_rows << " x " << shape.width);
    };
    two.run([&](const Member& member, Backend& backend) { gather(member, backend, kGathers); });
    expect(kGathers, "in a row");
    std::unique_ptr<Recording> recordings[2];
    two.run([&](const Member& member, Backend& backend) {
      recordings[member.number] = backend.record([&] { gather(member, backend, 10); });
    });
    two.run([&](const Member& member, Backend&) {
      for (int64_t i = 0; i < kReplays; ++i) recordings[member.number]->replay();
    });
    expect(10 * kReplays, "replayed");
  }
}

// Two exchanges of one word a member, recorded.
struct TwoExchanges {
  using State = cuda::Exchange::State;
  struct Side {
    DeviceArray<uint32_t> state, late{1, true};
    DeviceArray<uint32_t> inbox{std::vector<uint32_t>(cuda::Inbox::kBytes / sizeof(uint32_t), UINT32_MAX)};
    DeviceArray<float> part{Floats(64, 1.0f)}, whole{128};
    TestLaunch test{1 << 20};
    int device;
    cuda::Exchange exchange;
    cudaGraphExec_t graph = nullptr;

    Side(int device_, const State& begin)
        : state(words_of(begin)),
          device(device_),
          exchange(device, reinterpret_cast<State*>(state.data()), inbox.data(), late.data(), 0.2) {}
    ~Side() { cudaGraphExecDestroy(graph); }
    static std::vector<uint32_t> words_of(const State& state) {
      std::vector<uint32_t> words(sizeof(State) / sizeof(uint32_t));
      std::memcpy(words.data(), &state, sizeof(State));
      return words;
    }
    void record(const Member& member) {
      cuda::Launch launch = test.launch();
      launch.exchange = &exchange;
      cudaGraph_t recorded = nullptr;
      CUDA_CHECK(cudaStreamBeginCapture(test.stream(), cudaStreamCaptureModeThreadLocal));
      cuda::gather({member, {{part.data(), whole.data(), 1, 128}, {}}}, launch);
      CUDA_CHECK(cudaStreamEndCapture(test.stream(), &recorded));
      CUDA_CHECK(cudaGraphInstantiate(&graph, recorded, 0));
      cudaGraphDestroy(recorded);
    }
    void clear() {
      CUDA_CHECK(cudaSetDevice(device));
      whole.fill(Floats(128));
      CUDA_CHECK(cudaDeviceSynchronize());  // before the other one writes there
    }
    void launch() {
      CUDA_CHECK(cudaSetDevice(device));
      CUDA_CHECK(cudaGraphLaunch(graph, test.stream()));
    }
    void wait() { CUDA_CHECK(cudaStreamSynchronize(test.stream())); }
  };
  std::unique_ptr<Side> sides[2];

  explicit TwoExchanges(const State& begin = {}) {
    for (int device = 1; device >= 0; --device) {
      CUDA_CHECK(cudaSetDevice(device));
      sides[device] = std::make_unique<Side>(device, begin);
    }
    Team team(2);
    team.run([&](int64_t number) {
      CUDA_CHECK(cudaSetDevice(static_cast<int>(number)));
      sides[number]->record({&team, number});
    });
  }
  // Whether both have all values after a gather.
  bool gathers() {
    for (const auto& side : sides) side->clear();
    for (const auto& side : sides) side->launch();
    for (const auto& side : sides) side->wait();
    for (const auto& side : sides) side->exchange.check();
    return sides[0]->whole.values() == Floats(128, 1.0f) && sides[1]->whole.values() == Floats(128, 1.0f);
  }
};

BOOST_AUTO_TEST_CASE(a_member_that_does_not_come_is_named, *boost::unit_test::precondition(needs_two_gpus)) {
  TwoExchanges two;
  auto& sides = two.sides;
  BOOST_TEST(two.gathers());
  const auto begin = std::chrono::steady_clock::now();
  for (int again = 0; again < 3; ++again) {
    sides[0]->launch(), sides[0]->wait();
    for (const auto& side : sides)  // all are told
      BOOST_CHECK_EXCEPTION(side->exchange.check(), Error, [](const Error& error) {
        return error.kind() == ErrorKind::device &&
               std::string(error.what()).find("GPU 0 waited 0.2 seconds for GPU 1") != std::string::npos;
      });
  }
  BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)));
  // The one that was behind has come once; it is not counted who missed what.
  sides[1]->launch();
  for (int i = 0; i < 2; ++i)
    for (const auto& side : sides) side->exchange.restart(side->test.stream());
  for (int i = 0; i < 3; ++i) BOOST_TEST(two.gathers());
}

BOOST_AUTO_TEST_CASE(numbers_of_gathers_wrap, *boost::unit_test::precondition(needs_two_gpus)) {
  for (const uint32_t n_before : {UINT32_MAX, UINT32_MAX - 1, UINT32_MAX - 2}) {
    TwoExchanges::State state{};
    state.n_gathers = n_before;
    state.arrived[0] = state.arrived[1] = n_before * cuda::kArrivals;
    TwoExchanges two(state);
    for (int i = 0; i < 6; ++i) BOOST_TEST(two.gathers());
  }
}

// A pair whose first try failed is tried again.
BOOST_AUTO_TEST_CASE(devices_that_cannot_be_reached_are_told_each_time,
                     *boost::unit_test::precondition(needs_gpu)) {
  for (int i = 0; i < 2; ++i) BOOST_CHECK_THROW(cuda::let_reach(std::array{0, 1000}), Error);
}

BOOST_AUTO_TEST_CASE(experts_of_two_equal_those_of_one, *boost::unit_test::precondition(needs_two_gpus)) {
  for (const TensorType type : {TensorType::q4_k, TensorType::q2_k}) {
    Two two;
    for (const int64_t n_tokens : {1, 3, 20, 130})
      for (const TensorType shared_type : {type, TensorType::q6_k})
        check_experts(two, {type, shared_type, n_tokens, Role::decode});
    for (const int64_t n_tokens : {5, 700}) check_experts(two, {type, type, n_tokens, Role::prefill});
  }
  Two two;  // not by pairs of tiles
  for (const int64_t n_tokens : {5, 700})
    check_experts(two, {TensorType::f32, TensorType::f32, n_tokens, Role::prefill});
}

// By themselves the shares would divide some of these sums in other ways.
BOOST_AUTO_TEST_CASE(rows_of_a_share_equal_those_of_the_whole, *boost::unit_test::precondition(needs_gpu)) {
  struct Case {
    TensorType type;
    int64_t n_rows, n_cols, first, n;
  };
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  for (const Case& c :
       {Case{TensorType::q4_k, 2048, 7168, 1024, 1024}, Case{TensorType::q4_k, 7168, 2048, 1792, 896},
        Case{TensorType::q2_k, 2048, 7168, 0, 512}, Case{TensorType::q8_0, 7168, 1536, 6272, 896},
        Case{TensorType::bf16, 2048, 2048, 1024, 1024}, Case{TensorType::f32, 512, 7168, 128, 128}}) {
    const HostStack stack(c.type, 1, c.n_rows, c.n_cols, 1);
    const WeightMatrix whole = place(*backend, stack), share = place(*backend, stack, c.first, c.n, 0, 1);
    for (const auto& [role, n] : {std::pair<Role, int64_t>{Role::decode, 1},
                                  {Role::decode, 3},
                                  {Role::decode, 12},
                                  {Role::decode, 40},
                                  {Role::decode, 130},
                                  {Role::prefill, 5},
                                  {Role::prefill, 300},
                                  {Role::prefill, 700}}) {
      const Buffer<float> x = placed(*backend, random_floats(static_cast<size_t>(n * c.n_cols), 2)),
                          all = room(*backend, n * c.n_rows), some = room(*backend, n * c.n);
      backend->matmul({whole, x.data(), c.n_cols, all.data(), n, role});
      backend->matmul({share, x.data(), c.n_cols, some.data(), n, role});
      const Floats values = read(*backend, all);
      Floats expected;
      for (int64_t t = 0; t < n; ++t)
        expected.insert(expected.end(), values.begin() + t * c.n_rows + c.first,
                        values.begin() + t * c.n_rows + c.first + c.n);
      BOOST_TEST(same_bits(read(*backend, some), expected),
                 describe(share, n) << " of " << c.n_rows << (role == Role::decode ? ", decode" : ""));
    }
  }
}

// A member's products of the same low rank: rows of one matrix, tokens of the other.
BOOST_AUTO_TEST_CASE(products_of_a_share_equal_those_of_all, *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kRows = 24576, kShare = 3072, kOtherRows = 512, kCols = 1536, kTokens = 20, kFirst = 7;
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const HostStack stack(TensorType::q4_k, 1, kRows, kCols, 1),
      other_stack(TensorType::q4_k, 1, kOtherRows, kCols, 2);
  const WeightMatrix whole = place(*backend, stack), other = place(*backend, other_stack),
                     share = place(*backend, stack, kShare, kShare, 0, 1);
  const Buffer<float> x = placed(*backend, random_floats(kTokens * kCols, 3));
  for (const Role role : {Role::decode, Role::prefill}) {
    const Buffer<float> all = room(*backend, kTokens * kRows), others = room(*backend, kTokens * kOtherRows),
                        some = room(*backend, kTokens * kShare),
                        last = room(*backend, (kTokens - kFirst) * kOtherRows);
    const Matmul alone[] = {{whole, x.data(), kCols, all.data(), kTokens, role},
                            {other, x.data(), kCols, others.data(), kTokens, role}};
    backend->matmuls(alone);
    const Matmul of_member[] = {
        {share, x.data(), kCols, some.data(), kTokens, role},
        {other, x.data() + kFirst * kCols, kCols, last.data(), kTokens - kFirst, role}};
    backend->matmuls(of_member);
    const Floats values = read(*backend, all), other_values = read(*backend, others);
    Floats expected;
    for (int64_t t = 0; t < kTokens; ++t)
      expected.insert(expected.end(), values.begin() + t * kRows + kShare,
                      values.begin() + t * kRows + 2 * kShare);
    BOOST_TEST(same_bits(read(*backend, some), expected));
    BOOST_TEST(same_bits(read(*backend, last),
                         Floats(other_values.begin() + kFirst * kOtherRows, other_values.end())));
  }
}

BOOST_AUTO_TEST_CASE(some_heads_equal_those_of_all, *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kHeads = 128, kRows = 128, kCols = 512;
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const HostStack stack(TensorType::q8_0, kHeads, kRows, kCols, 1);
  const WeightMatrix all_heads = place(*backend, stack);
  for (const auto& [first, n_heads] : {std::pair<int64_t, int64_t>{64, 64}, {48, 16}, {5, 1}}) {
    const WeightMatrix some_heads = place(*backend, stack, 0, kRows, first, n_heads);
    for (const auto& [role, n] : {std::pair<Role, int64_t>{Role::decode, 1},
                                  {Role::decode, 3},
                                  {Role::decode, 20},
                                  {Role::prefill, 70},
                                  {Role::prefill, 600}}) {
      const Buffer<float> x = placed(*backend, random_floats(static_cast<size_t>(n * kHeads * kCols), 2)),
                          all = room(*backend, n * kHeads * kRows),
                          some = room(*backend, n * n_heads * kRows);
      backend->matmul_heads({all_heads, x.data(), kHeads * kCols, kCols, all.data(), n, role});
      backend->matmul_heads(
          {some_heads, x.data() + first * kCols, kHeads * kCols, kCols, some.data(), n, role});
      const Floats values = read(*backend, all);
      Floats expected;
      for (int64_t t = 0; t < n; ++t)
        expected.insert(expected.end(), values.begin() + (t * kHeads + first) * kRows,
                        values.begin() + (t * kHeads + first + n_heads) * kRows);
      BOOST_TEST(same_bits(read(*backend, some), expected), n_heads << " heads, " << n << " tokens");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
