// Few tokens' gathers by inbox: two GPUs have the bits of one, whoever is behind, and again after a member
// did not come.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/team.h"
#include "base/error.h"
#include "tests/gpu/shares.h"
#include "tests/gpu/two_gpus.h"
#include "tests/support/same_bits.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_inbox, *boost::unit_test::precondition(needs_two_gpus))

namespace {

constexpr int64_t kDim = 1024, kHeads = 8, kRank = 128, kValue = 64, kInter = 8192, kExperts = 12,
                  kActivated = 4, kExpertInter = 512, kMost = 7;
constexpr float kEps = 1e-6f;

struct Types {
  TensorType uv, wo, w1, w3, w2, expert_w1, expert_w3, expert_w2, shared;
};

// All weights of three layers: dense, with experts and a shared one, with experts alone. The attention of
// each is W_UV's and wo's product alone.
struct HostLayers {
  HostStack uv, wo, w1, w3, w2, expert_w1, expert_w3, expert_w2, shared_w1, shared_w3, shared_w2, gate;

  explicit HostLayers(const Types& t)
      : uv(t.uv, kHeads, kValue, kRank, 1),
        wo(t.wo, 1, kDim, kHeads * kValue, 2),
        w1(t.w1, 1, kInter, kDim, 3),
        w3(t.w3, 1, kInter, kDim, 4),
        w2(t.w2, 1, kDim, kInter, 5),
        expert_w1(t.expert_w1, kExperts, kExpertInter, kDim, 6),
        expert_w3(t.expert_w3, kExperts, kExpertInter, kDim, 7),
        expert_w2(t.expert_w2, kExperts, kDim, kExpertInter, 8),
        shared_w1(t.shared, 1, kExpertInter, kDim, 9),
        shared_w3(t.shared, 1, kExpertInter, kDim, 10),
        shared_w2(t.shared, 1, kDim, kExpertInter, 11),
        gate(TensorType::f32, 1, kExperts, kDim, 12) {}
};

// Makes a device the current one before members that need it are made.
struct OnDevice {
  explicit OnDevice(int device) { CUDA_CHECK(cudaSetDevice(device)); }
};

// A device that computes the layers, alone or as a member.
class Side {
  using State = cuda::Exchange::State;
  const OnDevice on_;
  const int device_;
  const Member member_;
  const std::unique_ptr<Backend> memory_;
  WeightMatrix uv_, wo_, w1_, w3_, w2_, shared_w1_, shared_w3_, shared_w2_, gate_;
  ExpertStacks experts_;
  Buffer<float> weight_, h_, x_, out_, part_, o_, all_o_, up_, inner_, all_inner_, logits_, use_weights_;
  Buffer<int32_t> chosen_;
  Buffer<uint8_t> hidden_;
  DeviceArray<uint32_t> late_{1, true};
  TestLaunch test_{size_t{64} << 20};
  cudaGraphExec_t graph_ = nullptr;
  int64_t n_ = 0;  // tokens

 public:
  DeviceArray<uint32_t> state{std::vector<uint32_t>(sizeof(State) / sizeof(uint32_t))};
  DeviceArray<uint32_t> inbox{std::vector<uint32_t>(cuda::Inbox::kBytes / sizeof(uint32_t), UINT32_MAX)};
  cuda::Exchange exchange;

  Side(int device, const Member& member, const HostLayers& w)
      : on_(device),
        device_(device),
        member_(member),
        memory_(make_cuda_backend(device)),
        exchange(device, reinterpret_cast<State*>(state.data()), inbox.data(), late_.data(), 0.2) {
    Backend& b = *memory_;
    const int64_t first_head = member.begin(kHeads);
    uv_ = place(b, w.uv, 0, kValue, first_head, member.end(kHeads) - first_head);
    wo_ = place(b, w.wo, member);
    w1_ = place(b, w.w1, member), w3_ = place(b, w.w3, member), w2_ = place(b, w.w2, member);
    experts_.w1 = place(b, w.expert_w1, member), experts_.w3 = place(b, w.expert_w3, member);
    experts_.w2 = place(b, w.expert_w2, member);
    shared_w1_ = place(b, w.shared_w1, member), shared_w3_ = place(b, w.shared_w3, member);
    shared_w2_ = place(b, w.shared_w2, member), gate_ = place(b, w.gate);
    weight_ = placed(b, random_floats(kDim, 13));
    for (Buffer<float>* buffer : {&h_, &x_, &out_, &part_}) *buffer = room(b, kMost * kDim);
    for (Buffer<float>* buffer : {&o_, &all_o_}) *buffer = room(b, kMost * kHeads * kValue);
    for (Buffer<float>* buffer : {&up_, &inner_, &all_inner_}) *buffer = room(b, kMost * kInter);
    logits_ = room(b, kMost * kExperts), use_weights_ = room(b, kMost * kActivated);
    chosen_ = Buffer<int32_t>(b, Place::device, kMost * kActivated, "a test");
    hidden_ = Buffer<uint8_t>(b, Place::device, kMost * (kActivated + 1) * kExpertInter * 4, "a test");
  }
  ~Side() {
    cudaSetDevice(device_);
    cudaDeviceSynchronize();
    forget();
  }

  // Begins anew with so many tokens.
  void reset(int64_t n_tokens) {
    forget();
    n_ = n_tokens;
    for (const auto& [buffer, seed] : {std::pair{&h_, 14}, {&x_, 15}}) {
      const Floats values = random_floats(kMost * kDim, static_cast<uint64_t>(seed));
      memory_->upload(buffer->data(), values.data(), buffer->n_bytes());
    }
    memory_->download(nullptr, nullptr, 0);
  }
  // Enqueues the layers.
  void step() {
    CUDA_CHECK(cudaSetDevice(device_));
    exchange.inbox().forget();
    attention(), dense();
    attention(), experts(true);
    attention(), experts(false);
  }
  void record() {
    CUDA_CHECK(cudaSetDevice(device_));
    cudaGraph_t recorded = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(test_.stream(), cudaStreamCaptureModeThreadLocal));
    step();
    CUDA_CHECK(cudaStreamEndCapture(test_.stream(), &recorded));
    CUDA_CHECK(cudaGraphInstantiate(&graph_, recorded, 0));
    cudaGraphDestroy(recorded);
  }
  void replay() {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaGraphLaunch(graph_, test_.stream()));
  }
  void wait() { CUDA_CHECK(cudaStreamSynchronize(test_.stream())); }
  void restart() { exchange.restart(test_.stream()); }
  // What the steps have made: h, then x.
  Floats result() {
    wait();
    Floats all = read(*memory_, h_);
    all.resize(static_cast<size_t>(n_ * kDim));
    const Floats x = read(*memory_, x_);
    all.insert(all.end(), x.begin(), x.begin() + n_ * kDim);
    return all;
  }

 private:
  static constexpr Role kRole = Role::decode;

  void forget() {
    if (graph_) cudaGraphExecDestroy(std::exchange(graph_, nullptr));
  }
  cuda::Launch launch() {
    cuda::Launch launch = test_.launch();
    launch.exchange = &exchange;
    return launch;
  }
  RmsNorm norm() const { return {h_.data(), kDim, weight_.data(), kEps, x_.data(), n_, kDim}; }
  Gather columns(const void* part, float* whole, int64_t n_rows, int64_t width) const {
    return {member_, {{part, whole, n_rows, width}, {}}};
  }
  Gather sum() const {
    Gather gather = columns(part_.data(), out_.data(), n_, kDim);
    gather.sum = h_.data(), gather.norm = norm();
    return gather;
  }
  void announce(const Gather& gather) {
    if (!member_.is_alone()) exchange.announce(gather), exchange.announce(sum());
  }
  // h += weight @ (the gathered vector, or the part, which alone is all); x = the norm of h
  void add_product(const Gather& gather, const WeightMatrix& weight) {
    const Gather::Piece& piece = gather.pieces[0];
    const bool is_alone = member_.is_alone();
    if (!is_alone) exchange.gather(gather, launch());
    Matmul op{weight,
              static_cast<const float*>(is_alone ? piece.part : piece.whole),
              weight.n_cols,
              is_alone ? out_.data() : part_.data(),
              n_,
              kRole};
    if (is_alone) op.sum = h_.data();
    cuda::matmul_decode(op, launch());
    is_alone ? cuda::rms_norm(norm(), launch()) : exchange.gather(sum(), launch());
  }
  void attention() {
    const Gather all_o = columns(o_.data(), all_o_.data(), n_, kHeads * kValue);
    announce(all_o);
    cuda::matmul_heads_decode(
        {uv_, x_.data() + member_.begin(kHeads) * kRank, kDim, kRank, o_.data(), n_, kRole}, launch());
    add_product(all_o, wo_);
  }
  void dense() {
    const Gather all_inner = columns(inner_.data(), all_inner_.data(), n_, kInter);
    announce(all_inner);
    cuda::matmul_gated_decode({w1_, w3_, x_.data(), up_.data(), inner_.data(), n_, kRole}, launch());
    add_product(all_inner, w2_);
  }
  void experts(bool has_shared) {
    auto* hidden = reinterpret_cast<float*>(hidden_.data());
    const int64_t n_uses = n_ * kActivated;
    Gather gather = columns(nullptr, hidden, n_uses, kExpertInter);
    if (has_shared) gather.pieces[1] = {inner_.data(), hidden + n_uses * kExpertInter, n_, kExpertInter};
    announce(gather);
    RouteExperts route;
    route.logits = logits_.data(), route.n_tokens = n_, route.n_experts = kExperts;
    route.n_activated = kActivated, route.experts = chosen_.data(), route.weights = use_weights_.data();
    route.gate = {gate_, x_.data(), kDim, logits_.data(), n_, kRole};
    if (has_shared) route.beside = {shared_w1_, shared_w3_, x_.data(), up_.data(), inner_.data(), n_, kRole};
    const bool is_x_older = cuda::route_experts_decode(route, launch());
    run_experts(has_shared, is_x_older);
    if (!member_.is_alone()) return exchange.gather(sum(), launch());
    if (!has_shared) cuda::add({out_.data(), h_.data(), n_ * kDim}, launch());
    cuda::rms_norm(norm(), launch());
  }
  void run_experts(bool has_shared, bool is_x_older) {
    const bool is_alone = member_.is_alone();
    RunExperts op{experts_};
    op.x = x_.data(), op.experts = chosen_.data(), op.weights = use_weights_.data(), op.n_tokens = n_;
    op.n_activated = kActivated, op.role = kRole, op.member = member_, op.hidden = hidden_.data();
    op.y = is_alone ? out_.data() : has_shared ? all_inner_.data() : part_.data();
    if (has_shared) {
      op.shared = {shared_w2_, inner_.data(), kExpertInter, is_alone ? all_inner_.data() : part_.data(),
                   n_,         kRole,         op.y};
      if (is_alone) op.shared.sum = h_.data();
    }
    cuda::run_experts_decode(op, launch(), is_x_older);
  }
};

// Two members, and a device that computes the same alone.
struct Scene {
  Team team{2};
  Side one;
  std::optional<Side> sides[2];

  explicit Scene(const Types& types) : Scene(HostLayers(types)) {}
  explicit Scene(const HostLayers& layers) : one(0, {}, layers) {
    for (int m = 0; m < 2; ++m) sides[m].emplace(m, Member{&team, m}, layers);
  }
  void reset(int64_t n_tokens) {
    one.reset(n_tokens);
    for (auto& side : sides) side->reset(n_tokens);
  }
  template <typename Work>
  void run(const Work& work) {
    team.run([&](int64_t m) { work(*sides[m], m); });
  }
  void record() {
    run([](Side& side, int64_t) { side.record(); });
  }
  // What one has made after n steps is what both have made. Inboxes are empty, and nothing went another way.
  void check(int n_steps, const std::string& what) {
    for (int i = 0; i < n_steps; ++i) one.step();
    const Floats expected = one.result();
    for (auto& side : sides) {
      side->exchange.check();
      BOOST_TEST(same_bits(side->result(), expected), what);
      BOOST_TEST(std::ranges::all_of(side->inbox.values(), [](uint32_t word) { return word == UINT32_MAX; }));
      BOOST_TEST(std::ranges::all_of(side->state.values(), [](uint32_t word) { return word == 0; }));
    }
  }
};

constexpr auto kQ2 = TensorType::q2_k, kQ4 = TensorType::q4_k, kQ6 = TensorType::q6_k, kQ8 = TensorType::q8_0,
               kBf16 = TensorType::bf16, kF32 = TensorType::f32;
constexpr Types kUsual = {kQ8, kQ4, kQ4, kQ4, kQ6, kQ4, kQ4, kQ6, kQ6};

}  // namespace

// Also where a product does not send itself (w1 and w3 of two types), or does not wait itself (x of BF16 and
// F32 rows).
BOOST_AUTO_TEST_CASE(two_have_the_bits_of_one) {
  for (const Types& types : {kUsual, Types{kQ8, kQ8, kQ2, kQ2, kQ2, kQ2, kQ2, kQ2, kQ2},
                             Types{kQ8, kBf16, kQ4, kQ6, kQ4, kQ4, kQ6, kQ4, kQ4},
                             Types{kF32, kF32, kF32, kF32, kF32, kF32, kF32, kF32, kF32}}) {
    Scene scene(types);
    for (int64_t n = 1; n <= kMost; ++n) {
      scene.reset(n);
      scene.run([](Side& side, int64_t) { side.step(), side.step(), side.wait(); });
      scene.check(2, format("%s, %ld tokens", type_name(types.wo), n));
    }
  }
}

BOOST_AUTO_TEST_CASE(whoever_is_behind) {
  constexpr int kReplays = 100;
  Scene scene(kUsual);
  for (const int64_t n : {1, 3}) {
    scene.reset(n);
    scene.record();
    scene.run([](Side& side, int64_t member) {
      Rng rng(static_cast<uint64_t>(member));
      for (int i = 0; i < kReplays; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(rng.next() % 4 == 0 ? rng.next() % 1000 : 0));
        side.replay();
      }
    });
    scene.check(kReplays, format("%ld tokens", n));
  }
}

// Recordings of different numbers of tokens follow each other.
BOOST_AUTO_TEST_CASE(steps_of_any_order) {
  Scene scene(kUsual);
  for (const int64_t n : {4, 1, 2, 2, 3, 1}) {
    scene.reset(n);
    scene.record();
    for (int i = 0; i < 3; ++i) scene.run([](Side& side, int64_t) { side.replay(); });
    scene.check(3, format("%ld tokens", n));
  }
}

BOOST_AUTO_TEST_CASE(after_a_member_did_not_come_all_begin_anew) {
  Scene scene(kUsual);
  auto& sides = scene.sides;
  scene.reset(2);
  scene.record();
  const auto begin = std::chrono::steady_clock::now();
  for (int again = 0; again < 3; ++again) {
    sides[0]->replay(), sides[0]->wait();
    for (auto& side : sides)  // all are told
      BOOST_CHECK_EXCEPTION(side->exchange.check(), Error, [](const Error& error) {
        return error.kind() == ErrorKind::device &&
               std::string(error.what()).find("GPU 0 waited 0.2 seconds for GPU 1") != std::string::npos;
      });
  }
  BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)));
  sides[1]->replay();  // comes once, too late
  for (int i = 0; i < 2; ++i)
    for (auto& side : sides) side->restart();
  scene.reset(2);
  scene.record();
  for (int i = 0; i < 3; ++i) scene.run([](Side& side, int64_t) { side.replay(); });
  scene.check(3, "begun anew");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
