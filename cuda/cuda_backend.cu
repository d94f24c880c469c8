// The GPU backend: memory, the order of operations, and recorded steps. The kernels' launchers are in
// kernels.h.
//
// One stream runs the operations in order; a second stream copies rows at the same time. A recorded step is a
// CUDA graph, which costs the host one call. Experts in host memory are copied through a ring (expert_ring.h)
// or computed by the host (host_experts.h). Driver calls go to the current device, so each operation selects
// its own first.
#include "cuda/cuda_backend.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "backend/expert_window.h"
#include "backend/pinned_memory.h"
#include "base/host_memory.h"
#include "cuda/expert_ring.h"
#include "cuda/gather.h"
#include "cuda/recording.h"
#include "cuda/stream.h"

namespace dsv32 {
namespace {

constexpr size_t kInboxBytes = cuda::Inbox::kBytes;
constexpr size_t kWorkspaceBytes = (size_t{256} << 20) + kInboxBytes;
constexpr size_t kLibraryBytes = size_t{5} << 20;  // cuBLASLt keeps these once it is loaded: 4.2 MB measured
constexpr size_t kStagingBytes = size_t{128} << 20;
constexpr size_t kLandingBytes = size_t{4} << 20;
constexpr size_t kPastWeights = 256, kWeightAlignment = 256;
// At the workspace's end: a team's inbox; Launch::n_done, a team's gathers, posts to the host.
constexpr size_t kStateBytes = 1024, kGatherState = 256, kPostState = 512;
constexpr size_t kLateBytes = 256;    // at the landing's end: who was late for a gather
constexpr unsigned kMostFetches = 4;  // under way at a time

// Raised when a change of these sources changes bits of rows or keys (tests/gpu/test_cuda_row_digests.cpp).
constexpr int kNumericsEpoch = 13;

// Left free for the driver, which takes it later for kernels' code and recorded steps.
constexpr uint64_t kDriverBytes = uint64_t{256} << 20;

PinningDriver pinning_driver(int device) {
  return {.pin =
              [device](void* memory, size_t n_bytes) {
                if (cudaSetDevice(device) == cudaSuccess &&
                    cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable) == cudaSuccess)
                  return true;
                cudaGetLastError();
                return false;
              },
          .unpin = [](void* memory) { cudaHostUnregister(memory); }};
}

class CudaBackend : public Backend {
 public:
  CudaBackend(int device, const MemoryLimits& limits, int n_threads, std::shared_ptr<HostLane> lane)
      : device_(selected(device)),
        n_threads_(n_threads),
        lane_(std::move(lane)),
        device_memory_(limits.device),
        host_memory_(limits.host),
        nodes_(NumaNodes::of_machine()),
        pinned_(pinning_driver(device), nodes_) {
    workspace_memory_ = alloc(Place::device, kWorkspaceBytes, "scratch memory");
    workspace_ = cuda::Workspace(workspace_memory_, kWorkspaceBytes - kStateBytes - kInboxBytes);
    n_done_ = static_cast<uint32_t*>(state_at(0));
    device_memory_.take(kLibraryBytes);
    landing_ = alloc_staging(kLandingBytes);
    void* late = static_cast<uint8_t*>(landing_) + kLandingBytes - kLateBytes;
    exchange_.emplace(device, static_cast<cuda::Exchange::State*>(state_at(kGatherState)),
                      static_cast<uint8_t*>(state_at(0)) - kInboxBytes, static_cast<uint32_t*>(late));
    exchange_->inbox().wipe(stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));  // from now on other devices may count in the state
    staging_ = alloc_staging(kStagingBytes);
  }

  ~CudaBackend() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(side_stream_);
    cudaStreamSynchronize(stream_);
    ring_.reset();
    host_.reset();
    for (void* weights : placed_weights_) cudaFree(weights);
    cudaFreeHost(staging_);
    cudaFreeHost(landing_);
    cudaFree(workspace_memory_);
    for (cudaEvent_t event : marks_) cudaEventDestroy(event);
  }

  const char* name() const override { return "cuda"; }
  std::string device_name() const override {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    return properties.name;
  }
  // Tensor cores differ between architectures, exp and sin between toolkits, and grids depend on the number
  // of multiprocessors: bits may differ with each. The generic kernels also run on a Hopper.
  std::string numerics() const override {
    select();
    return format("cuda/%ssm_%d%d/%d-sms/toolkit-%d/epoch-%d",
                  cuda::card().family == KernelFamily::generic ? "generic/" : "",
                  cuda::device_attribute(cudaDevAttrComputeCapabilityMajor),
                  cuda::device_attribute(cudaDevAttrComputeCapabilityMinor), n_sms_, CUDART_VERSION,
                  kNumericsEpoch);
  }
  bool works_in_host_memory() const override { return false; }
  // With 16 processors decode of one sequence gains 12 to 16 %: 15 threads read 125 GB/s. With 32 they read
  // 160 GB/s, and the link only slows them (Q4_K, H100 and H200, 2026-11-23).
  bool link_adds() const override { return sysconf(_SC_NPROCESSORS_ONLN) <= kMostLinkProcessors; }
  bool roles_agree() const override { return false; }

  void* alloc(Place place, size_t n_bytes, const char* what) override {
    if (place == Place::host) return alloc_pinned(n_bytes, what);
    select();
    void* memory = alloc_device(
        n_bytes, what, "a smaller context (-c) or --topk-buffer needs less, a larger --gpu-mem allows more");
    CUDA_CHECK(cudaMemsetAsync(memory, 0, n_bytes, stream_));
    sizes_[memory] = n_bytes;
    return memory;
  }

  void free(Place place, void* memory) override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    // The ring may lie in this memory, or copy from it.
    if (ring_ && (place == Place::host || ring_->lies_in(memory))) ring_->forget();
    if (place == Place::host) {
      host_memory_.give(pinned_.free(memory));
      return;
    }
    const auto size = sizes_.find(memory);
    device_memory_.give(size->second);
    sizes_.erase(size);
    cudaFree(memory);
  }

  // Waits until the source is pinned, so that the driver does not pin it a second time.
  void upload(void* device, const void* host, size_t n_bytes) override {
    select();
    pinned_.wait(host);
    if (n_bytes) CUDA_CHECK(cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, stream_));
  }

  // Small results, such as a step's logits, pass through pinned memory, which is several times faster.
  void download(void* host, const void* device, size_t n_bytes) override {
    join();
    if (n_bytes == 0) return wait();
    void* target = n_bytes <= kLandingBytes - kLateBytes ? landing_ : host;
    CUDA_CHECK(cudaMemcpyAsync(target, device, n_bytes, cudaMemcpyDeviceToHost, stream_));
    wait();
    if (target != host) std::memcpy(host, target, n_bytes);
  }

  std::unique_ptr<Milestone> milestone() override {
    join();
    return std::make_unique<cuda::StreamMilestone>(stream_, [this] { check(); });
  }

  MemoryInfo memory_info(Place place) const override {
    if (place == Place::host)
      return {total_host_memory(), host_memory_.n_bytes_allowed(available_host_memory()),
              host_memory_.n_bytes_used()};
    select();
    size_t n_free = 0, n_total = 0;
    CUDA_CHECK(cudaMemGetInfo(&n_free, &n_total));
    return {n_total, device_memory_.n_bytes_free(n_free - std::min<uint64_t>(n_free, kDriverBytes)),
            device_memory_.n_bytes_used()};
  }

  uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) override {
    if (place == Place::host) return alloc_pinned(n_bytes, "experts in host memory", n_part_bytes);
    // Products may read up to one block past the end.
    const size_t n_taken = round_up(n_bytes + kPastWeights, kWeightAlignment);
    if (n_taken > expected_.size()) expect_weights(n_taken);
    uint8_t* memory = expected_.data();
    expected_ = expected_.subspan(n_taken);
    CUDA_CHECK(cudaMemsetAsync(memory + n_bytes, 0, n_taken - n_bytes, stream_));
    return memory;
  }
  void await_weights(const uint8_t* host) override {
    if (nodes_.n() > 1) pinned_.wait(host);
  }
  void expect_weights(size_t n_bytes) override {
    select();
    void* memory = alloc_device(n_bytes, "the weights", "--backend cpu runs without a GPU");
    placed_weights_.push_back(memory);
    expected_ = {static_cast<uint8_t*>(memory), n_bytes};
  }
  bool keeps_bands() const override { return true; }
  void put_in_bands(const WeightMatrix& weight) override { cuda::put_in_bands(weight, launch()); }
  void await_pinned(const uint8_t* host) override { pinned_.wait(host); }
  bool can_team_with(const Backend& other) const override {
    const auto* to = dynamic_cast<const CudaBackend*>(&other);
    return to && cuda::can_reach_each_other(device_, to->device_) && numerics() == to->numerics();
  }
  std::span<uint8_t> staging() override { return {static_cast<uint8_t*>(staging_), kStagingBytes}; }
  std::unique_ptr<UploadLane> upload_lane() override { return std::make_unique<cuda::StreamLane>(device_); }

  bool missed_gather() const override { return exchange_->is_late(); }
  void restart_gathers() override { exchange_->restart(stream_); }

  // What a failed step fetches, or has left to the host, uses its memory until it is done.
  void begin_step() override {
    const cuda::Launch here = launch();
    while (is_fetching()) fetched_[n_joined_++ % kMostFetches].hold(stream_);
    if (std::exchange(is_saving_, false)) saved_.hold(stream_);
    if (host_) host_->drop(here);
    forget_step();
  }

  std::unique_ptr<Recording> record(const std::function<void()>& body) override {
    join();
    is_recording_ = true;
    try {
      cuda::Capture capture(stream_);
      body();
      join();
      std::unique_ptr<Recording> recording = capture.finish(device_, host_.get());
      is_recording_ = false;
      return recording;
    } catch (...) {
      is_recording_ = false;
      if (host_) host_->abandon();
      forget_step();
      throw;
    }
  }

  // Waits for a fetch on the side stream, so that the fetch is measured alone.
  void mark() override {
    join();
    if (is_fetching()) fetched_[(n_fetches_ - 1) % kMostFetches].hold(stream_);
    if (n_marks_ == marks_.size()) CUDA_CHECK(cudaEventCreate(&marks_.emplace_back()));
    CUDA_CHECK(cudaEventRecord(marks_[n_marks_++], stream_));
  }
  std::vector<double> laps() override {
    join();
    wait();
    std::vector<double> seconds;
    for (size_t i = 1; i < n_marks_; ++i) {
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, marks_[i - 1], marks_[i]));
      seconds.push_back(static_cast<double>(milliseconds) / 1e3);
    }
    n_marks_ = 0;
    return seconds;
  }

  void embed(const Embed& op) override { cuda::embed(op, launch()); }
  void rms_norm(const RmsNorm& op) override { cuda::rms_norm(op, launch()); }
  void matmul(const Matmul& op) override {
    if (host_ && host_->makes(op.plus)) join();
    if (op.role == Role::decode) return cuda::matmul_decode(op, launch());
    cuda::matmul_prefill(op, launch());
    const int64_t n_values = op.n_tokens * op.weight.n_rows;
    if (op.plus) cuda::add({op.plus, op.y, n_values}, launch());
    if (op.sum) cuda::add({op.y, op.sum, n_values}, launch());
  }
  void matmuls(std::span<const Matmul> ops) override {
    ops.front().role == Role::decode ? cuda::matmuls_decode(ops, launch())
                                     : cuda::matmuls_prefill(ops, launch());
  }
  void matmul_gated(const GatedMatmul& op) override {
    op.role == Role::decode ? cuda::matmul_gated_decode(op, launch())
                            : cuda::matmul_gated_apart(op, launch());
  }
  void matmul_heads(const MatmulHeads& op) override {
    op.role == Role::decode ? cuda::matmul_heads_decode(op, launch())
                            : cuda::matmul_heads_prefill(op, launch(), op.x == rounded_);
  }
  void announce(const Gather& op) override { exchange_->announce(op); }
  void gather(const Gather& op) override {
    const cuda::Launch here = launch();
    if (std::exchange(is_saving_, false)) saved_.hold(stream_);
    cuda::gather(op, here);
  }
  void add(const Add& op) override {
    if (host_ && (host_->makes(op.x) || host_->makes(op.y))) join();
    cuda::add(op, launch());
  }
  void stream_rows(std::span<const RowCopy> copies) override {
    select();
    streamed_.hold(stream_);
    if (!copies.empty()) copy_beside(copies, cudaMemcpyHostToDevice, streamed_);
  }
  void save_rows(std::span<const RowCopy> copies) override {
    select();
    copy_beside(copies, cudaMemcpyDeviceToHost, saved_);
    is_saving_ = true;
  }
  // Kernels read the pool only after rows were stored here: it is enough to wait for its pinning here.
  void store_tokens(const StoreTokens& op) override {
    pinned_.wait(op.cache.rows);
    const bool is_decode = op.to_q.weight.data && op.to_q.role == Role::decode;
    is_decode ? cuda::store_tokens_decode(op, launch()) : cuda::store_tokens(op, launch());
    if (op.cache.layout.has_bounds) cuda::store_bounds(op.step, op.cache, launch());
    if (op.to_q.weight.data && !is_decode) matmuls(op.products());
  }
  void turn_queries(const TurnQueries& op) override {
    if (op.absorb.weight.data && op.absorb.role == Role::decode)
      return cuda::turn_queries_decode(op, launch());
    cuda::turn_queries(op, launch());
    if (op.absorb.weight.data) matmul_heads(op.absorb);
  }
  void indexer_scores(const IndexerScores& op) override { cuda::indexer_scores(op, launch()); }
  void quest_scores(const QuestScores& op) override { cuda::quest_scores(op, launch()); }
  void select_topk(const SelectTopk& op) override { cuda::select_topk(op, launch()); }
  void resolve(const Resolve& op) override { has_fetched_ = cuda::resolve(op, true, launch()); }
  // On the side stream, beside the main one. Each attend() waits for the oldest fetch not yet waited for.
  // Does nothing if resolve() has fetched.
  void fetch_latents(const FetchLatents& op) override {
    if (std::exchange(has_fetched_, false)) return;
    if (n_fetches_ - n_joined_ == kMostFetches)
      fail(ErrorKind::internal, "fetch_latents: too many that no attend has waited for");
    select();
    resolved_.order(stream_, side_stream_);
    cuda::Workspace none(nullptr, 0);
    cuda::fetch_latents(op, {side_stream_, &none, n_sms_});
    fetched_[n_fetches_++ % kMostFetches].record(side_stream_);
  }
  void attend(const Attend& op) override {
    const cuda::Launch joined = launch();
    if (is_fetching()) fetched_[n_joined_++ % kMostFetches].hold(stream_);
    rounded_ = cuda::attends_rounded(op) ? op.o_c : nullptr;
    cuda::attend(op, joined, rounded_ != nullptr);
  }
  void route_experts(const RouteExperts& op) override {
    if (op.gate.role == Role::decode) {
      is_x_older_ = cuda::route_experts_decode(op, launch());
      return;
    }
    if (op.gate.weight.data) matmul(op.gate);
    cuda::route_experts(op, launch());
    if (op.beside.w1.data) matmul_gated(op.beside);
  }
  void run_experts(const RunExperts& op) override {
    const bool is_decode = op.role == Role::decode;
    if (op.place == Place::host) return is_decode ? leave_to_host(op) : stream_experts(op);
    if (is_decode) return cuda::run_experts_decode(op, launch(), std::exchange(is_x_older_, false));
    cuda::Launch here = launch();  // uses the larger of two scratch memories
    cuda::Workspace window(op.window, op.n_window_bytes);
    if (window.n_bytes_left() > workspace_.n_bytes_left()) here.workspace = &window;
    cuda::run_experts_prefill(op, here);
  }
  void sample(const Sample& op) override {
    pinned_.wait(op.out), pinned_.wait(op.top);
    cuda::sample(op, launch());
  }
  // The receiver's stream copies, after its present work. The sender's stream waits for the copy before it
  // writes its states again.
  void hand_over(const HandOver& op) override {
    auto* to = dynamic_cast<CudaBackend*>(op.to);
    if (!to) return Backend::hand_over(op);
    join();
    cuda::let_reach(std::array{device_, to->device_});
    select();
    left_.record(stream_);
    to->select();
    left_.hold(to->stream_);
    CUDA_CHECK(cudaMemcpyPeerAsync(op.y, to->device_, op.x, device_,
                                   static_cast<size_t>(op.n_values) * sizeof(float), to->stream_));
    to->arrived_.record(to->stream_);
    select();
    to->arrived_.hold(stream_);
  }

 private:
  // Makes the device current and returns it; throws Error{device} if it cannot be used.
  static int selected(int device) {
    if (const DeviceProblem problem = find_problem(device); !problem.message.empty())
      fail(ErrorKind::device, problem.message, problem.hint);
    CUDA_CHECK(cudaSetDevice(device));
    return device;
  }

  // Directs the driver's calls of this thread to the device; costs next to nothing.
  void select() const { CUDA_CHECK(cudaSetDevice(device_)); }

  cuda::Launch launch() {
    select();
    workspace_.reset();
    return {stream_, &workspace_, n_sms_, is_fetching(), n_done_, &*exchange_};
  }
  void* state_at(size_t offset) const {
    return static_cast<uint8_t*>(workspace_memory_) + kWorkspaceBytes - kStateBytes + offset;
  }
  bool is_fetching() const { return n_joined_ != n_fetches_; }

  // Forgets what operations leave for later ones of their step.
  void forget_step() {
    n_joined_ = n_fetches_, has_fetched_ = is_x_older_ = false, rounded_ = nullptr;
    exchange_->inbox().forget();
  }

  // On the side stream, behind all work enqueued so far. `done` is recorded behind the copies.
  void copy_beside(std::span<const RowCopy> copies, cudaMemcpyKind kind, const cuda::Event& done) {
    enqueued_.order(stream_, side_stream_);
    for (const auto& [to, from, n_bytes] : copies) {
      pinned_.wait(kind == cudaMemcpyHostToDevice ? from : to);
      CUDA_CHECK(cudaMemcpyAsync(to, from, n_bytes, kind, side_stream_));
    }
    done.record(side_stream_);
  }

  void wait() {
    if (std::exchange(is_saving_, false)) saved_.hold(stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    check();
  }
  // Throws what went wrong beside the stream.
  void check() {
    exchange_->check();
    if (host_) host_->check();
  }

  void stream_experts(const RunExperts& op) {
    const cuda::Launch here = launch();
    if (!ring_) ring_ = std::make_unique<cuda::ExpertRing>(pinned_);
    cuda::run_experts_streamed(op, *ring_, here);
  }

  void leave_to_host(const RunExperts& op) {
    if (!host_) meet_host();
    if (op.n_link_bytes > 0)
      for (const WeightMatrix* w : {&op.w1, &op.w3, &op.w2}) pinned_.wait(w->data);
    host_->run(op, is_recording_, launch());
  }

  // Makes no driver calls: a recording may be under way.
  void meet_host() {
    if (!lane_) lane_ = std::make_shared<HostLane>(n_threads_, 1);
    uint8_t* mail = alloc_pinned(kMailboxBytes, "the mailbox of experts in host memory");
    pinned_.wait(mail);
    host_ = std::make_unique<cuda::HostExperts>(lane_, mail,
                                                static_cast<cuda::HostExperts::State*>(state_at(kPostState)));
  }

  // Later operations see the sums that the host computes. Also selects the device.
  void join() {
    const cuda::Launch here = launch();
    if (host_) host_->join(here);
  }

  // get()'s memory, counted against the limit; throws if the limit forbids it or get() returns null.
  template <typename Get>
  void* take(Place place, size_t n_bytes, const char* what, const char* hint, const Get& get) {
    MemoryBudget& budget = place == Place::host ? host_memory_ : device_memory_;
    void* memory = budget.holds(n_bytes) ? get() : nullptr;
    if (!memory) fail_memory(what, n_bytes, memory_info(place).n_bytes_free, hint);
    budget.take(n_bytes);
    return memory;
  }
  // The memory that a driver call allocated, or null if the call failed.
  static void* given(cudaError_t status, void* const& memory) {
    if (status == cudaSuccess) return memory;
    cudaGetLastError();
    return nullptr;
  }

  // Zeroed memory, freed with the backend; divided over the NUMA nodes if n_part_bytes is given.
  uint8_t* alloc_pinned(size_t n_bytes, const char* what, size_t n_part_bytes = 0) {
    return static_cast<uint8_t*>(take(Place::host, n_bytes, what,
                                      "a smaller context (-c) needs less, a larger --host-mem allows more",
                                      [&] { return pinned_.alloc(n_bytes, what, n_part_bytes); }));
  }
  void* alloc_device(size_t n_bytes, const char* what, const char* hint) {
    void* memory = nullptr;
    return take(Place::device, n_bytes, what, hint,
                [&] { return given(cudaMalloc(&memory, n_bytes), memory); });
  }
  void* alloc_staging(size_t n_bytes) {
    void* memory = nullptr;
    return take(Place::host, n_bytes, "staging memory", "a larger --host-mem allows more",
                [&] { return given(cudaHostAlloc(&memory, n_bytes, cudaHostAllocDefault), memory); });
  }

  const int device_, n_threads_;
  std::shared_ptr<HostLane> lane_;
  MemoryBudget device_memory_, host_memory_;
  const NumaNodes nodes_;
  PinnedMemory pinned_;
  const int n_sms_ = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const cuda::Stream stream_, side_stream_;             // the second copies rows beside the first
  const cuda::Event enqueued_, streamed_, saved_;       // of stream_rows and save_rows
  const cuda::Event resolved_, fetched_[kMostFetches];  // of fetch_latents
  const cuda::Event left_, arrived_;                    // of hand_over
  unsigned n_fetches_ = 0, n_joined_ = 0;               // fetch_latents; those that attend waited for
  bool is_saving_ = false;                              // nothing has waited for save_rows yet
  bool has_fetched_ = false;                            // resolve has fetched the rows that it found missing
  const float* rounded_ = nullptr;                      // the newest attend's o_c, if it has fp16 rows
  std::vector<cudaEvent_t> marks_;                      // reused by later marks
  size_t n_marks_ = 0;                                  // marks since laps() was called
  void* workspace_memory_ = nullptr;
  cuda::Workspace workspace_{nullptr, 0};
  uint32_t* n_done_ = nullptr;  // Launch::n_done
  bool is_x_older_ = false;     // the experts' x is older than their choice (run_experts_decode)
  void* landing_ = nullptr;     // pinned, [kLandingBytes]
  void* staging_ = nullptr;     // pinned, [kStagingBytes]
  std::vector<void*> placed_weights_;
  std::span<uint8_t> expected_;              // the unused rest of the last of placed_weights_
  std::unordered_map<void*, size_t> sizes_;  // of device allocations
  std::unique_ptr<cuda::ExpertRing> ring_;   // both only with experts in host memory
  std::unique_ptr<cuda::HostExperts> host_;
  bool is_recording_ = false;
  std::optional<cuda::Exchange> exchange_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, const MemoryLimits& limits, int n_threads,
                                           std::shared_ptr<HostLane> lane) {
  return std::make_unique<CudaBackend>(device, limits, n_threads, std::move(lane));
}

}  // namespace dsv32
