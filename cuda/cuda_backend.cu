// The GPU backend: memory, the order of operations, and recorded steps. The work itself is in the launchers of kernels.h.
//
// One stream carries everything, so that each operation sees what came before it; a second one copies rows into windows.
// A recorded step is a CUDA graph: its launches cost the host one call.
#include "cuda/cuda_backend.h"

#include <cstring>
#include <unordered_map>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cuda/kernels.h"

namespace dsv32 {
namespace {

using cuda::check_cuda;

constexpr size_t kWorkspaceBytes = size_t{256} << 20;
constexpr size_t kStagingBytes = size_t{64} << 20;
constexpr size_t kLandingBytes = size_t{4} << 20;

[[noreturn]] void fail_memory(const char* what, size_t n_wanted, size_t n_free, const char* hint) {
  fail(ErrorKind::memory, format("not enough memory for %s: %s wanted, %s free", what, human_bytes(n_wanted).c_str(),
                                 human_bytes(n_free).c_str()),
       hint);
}

// Host memory that the device reads and writes at the link's full rate. Pages are touched by all threads first, which is
// several times faster than leaving that to the registration.
void* alloc_pinned(size_t n_bytes, const char* what) {
  void* mapped = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const size_t n_free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (mapped == MAP_FAILED) fail_memory(what, n_bytes, n_free, "a smaller context (-c) needs less");
  madvise(mapped, n_bytes, MADV_HUGEPAGE);
  auto* bytes = static_cast<volatile uint8_t*>(mapped);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < static_cast<int64_t>(n_bytes); i += 4096) bytes[i] = 0;
  const cudaError_t status = cudaHostRegister(mapped, n_bytes, cudaHostRegisterDefault);
  if (status == cudaSuccess) return mapped;
  cudaGetLastError();
  munmap(mapped, n_bytes);
  fail_memory(what, n_bytes, n_free, "a smaller context (-c) needs less; pinned memory may be limited (ulimit -l)");
}

int checked_device(int device) {
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status != cudaSuccess)
    fail(ErrorKind::device, format("no usable NVIDIA driver: %s", cudaGetErrorString(status)),
         "--backend cpu runs without one");
  if (device < 0 || device >= n_devices)
    fail(ErrorKind::usage, format("--device is %d, expected 0 to %d", device, n_devices - 1));
  return device;
}

// One kernel of this build, to ask whether the device can run it.
__global__ void probe_kernel() {}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int device) {
    CUDA_CHECK(cudaSetDevice(checked_device(device)));
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
      cudaDeviceProp properties;
      CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
      fail(ErrorKind::device, format("this build has no code for %s (compute capability %d.%d)", properties.name,
                                     properties.major, properties.minor),
           "build with CUDA_ARCHS for it, or run with --backend cpu");
    }
    CUDA_CHECK(cudaDeviceGetAttribute(&n_sms_, cudaDevAttrMultiProcessorCount, device));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&enqueued_, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&streamed_, cudaEventDisableTiming));
    workspace_memory_ = alloc(Place::device, kWorkspaceBytes, "scratch memory");
    workspace_ = cuda::Workspace(workspace_memory_, kWorkspaceBytes);
  }

  ~CudaBackend() override {
    cudaStreamSynchronize(side_stream_);
    cudaStreamSynchronize(stream_);
    for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
    for (void* weights : placed_weights_) cudaFree(weights);
    if (staging_) cudaFreeHost(staging_);
    if (landing_) cudaFreeHost(landing_);
    cudaFree(workspace_memory_);
    cudaEventDestroy(enqueued_);
    cudaEventDestroy(streamed_);
    cudaStreamDestroy(side_stream_);
    cudaStreamDestroy(stream_);
  }

  const char* name() const override { return "cuda"; }
  bool works_in_host_memory() const override { return false; }

  void* alloc(Place place, size_t n_bytes, const char* what) override {
    if (place == Place::host) {
      void* pinned = alloc_pinned(n_bytes, what);
      pinned_bytes_[pinned] = n_bytes;
      return pinned;
    }
    void* memory = nullptr;
    if (cudaMalloc(&memory, n_bytes) != cudaSuccess) {
      cudaGetLastError();
      fail_memory(what, n_bytes, memory_info(place).n_bytes_free,
                  "a smaller context (-c) or --topk-buffer needs less on the device");
    }
    CUDA_CHECK(cudaMemsetAsync(memory, 0, n_bytes, stream_));
    return memory;
  }

  void free(Place place, void* memory) override {
    cudaStreamSynchronize(stream_);
    if (place == Place::device) {
      cudaFree(memory);
      return;
    }
    const size_t n_bytes = pinned_bytes_[memory];
    pinned_bytes_.erase(memory);
    cudaHostUnregister(memory);
    munmap(memory, n_bytes);
  }

  void upload(void* device, const void* host, size_t n_bytes) override {
    if (n_bytes) CUDA_CHECK(cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, stream_));
  }

  // Small results, such as a step's logits, come through pinned memory, which is several times faster.
  void download(void* host, const void* device, size_t n_bytes) override {
    if (n_bytes == 0) return wait();
    if (!landing_) CUDA_CHECK(cudaHostAlloc(&landing_, kLandingBytes, cudaHostAllocDefault));
    void* target = n_bytes <= kLandingBytes ? landing_ : host;
    CUDA_CHECK(cudaMemcpyAsync(target, device, n_bytes, cudaMemcpyDeviceToHost, stream_));
    wait();
    if (target != host) std::memcpy(host, target, n_bytes);
  }

  MemoryInfo memory_info(Place place) const override {
    size_t n_free = 0, n_total = 0;
    if (place == Place::device) {
      CUDA_CHECK(cudaMemGetInfo(&n_free, &n_total));
    } else {
      const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      n_free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page_bytes;
      n_total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
    }
    return {n_total, n_free};
  }

  // Copied through a pinned buffer in two halves: one is filled from the file while the other is on its way.
  const uint8_t* place_weights(const uint8_t* mapped, size_t n_bytes) override {
    void* memory = nullptr;
    // The products may read up to a block past the end.
    if (cudaMalloc(&memory, n_bytes + 256) != cudaSuccess) {
      cudaGetLastError();
      fail_memory("the weights", n_bytes, memory_info(Place::device).n_bytes_free, "--backend cpu runs without a GPU");
    }
    placed_weights_.push_back(memory);
    if (!staging_) CUDA_CHECK(cudaHostAlloc(&staging_, kStagingBytes, cudaHostAllocDefault));
    constexpr size_t kHalf = kStagingBytes / 2;
    cudaEvent_t sent[2];
    for (cudaEvent_t& event : sent) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (size_t at = 0, i = 0; at < n_bytes; at += kHalf, i ^= 1) {
      const size_t n = std::min(kHalf, n_bytes - at);
      uint8_t* half = static_cast<uint8_t*>(staging_) + i * kHalf;
      CUDA_CHECK(cudaEventSynchronize(sent[i]));
      copy_with_all_threads(half, mapped + at, n);
      CUDA_CHECK(cudaMemcpyAsync(static_cast<uint8_t*>(memory) + at, half, n, cudaMemcpyHostToDevice, stream_));
      CUDA_CHECK(cudaEventRecord(sent[i], stream_));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    for (cudaEvent_t event : sent) cudaEventDestroy(event);
    return static_cast<const uint8_t*>(memory);
  }

  void run_recorded(uint64_t key, const std::function<void()>& body) override {
    if (key == 0) return body();
    auto& graph = graphs_[key];
    if (!graph) graph = record(body);
    CUDA_CHECK(cudaGraphLaunch(graph, stream_));
  }

  void embed(const Embed& op) override { cuda::embed(op, launch()); }
  void rms_norm(const RmsNorm& op) override { cuda::rms_norm(op, launch()); }
  void layer_norm(const LayerNorm& op) override { cuda::layer_norm(op, launch()); }
  void rope(const Rope& op) override { cuda::rope(op, launch()); }
  void hadamard(const Hadamard& op) override { cuda::hadamard(op, launch()); }
  void quantize_fp8(const QuantizeFp8& op) override { cuda::quantize_fp8(op, launch()); }
  void matmul(const Matmul& op) override {
    op.n_tokens <= cuda::kFewTokens ? cuda::matmul_few(op, launch()) : cuda::matmul_many(op, launch());
  }
  void matmul_heads(const MatmulHeads& op) override {
    op.n_tokens <= cuda::kFewTokens ? cuda::matmul_heads_few(op, launch()) : cuda::matmul_heads_many(op, launch());
  }
  void add(const Add& op) override { cuda::add(op, launch()); }
  void silu_mul(const SiluMul& op) override { cuda::silu_mul(op, launch()); }
  void stream_rows(const StreamRows& op) override {
    CUDA_CHECK(cudaStreamWaitEvent(stream_, streamed_));
    if (op.n_copies == 0) return;
    CUDA_CHECK(cudaEventRecord(enqueued_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(side_stream_, enqueued_));
    for (int64_t i = 0; i < op.n_copies; ++i)
      CUDA_CHECK(cudaMemcpyAsync(op.copies[i].to, op.copies[i].from, op.copies[i].n_bytes, cudaMemcpyHostToDevice, side_stream_));
    CUDA_CHECK(cudaEventRecord(streamed_, side_stream_));
  }
  void store_latents(const StoreLatents& op) override { cuda::store_latents(op, launch()); }
  void store_index_keys(const StoreIndexKeys& op) override { cuda::store_index_keys(op, launch()); }
  void indexer_scores(const IndexerScores& op) override { cuda::indexer_scores(op, launch()); }
  void select_topk(const SelectTopk& op) override { cuda::select_topk(op, launch()); }
  void resolve(const Resolve& op) override { cuda::resolve(op, launch()); }
  void fetch_latents(const FetchLatents& op) override { cuda::fetch_latents(op, launch()); }
  void attend(const Attend& op) override { cuda::attend(op, launch()); }
  void route_experts(const RouteExperts& op) override { cuda::route_experts(op, launch()); }
  void run_experts(const RunExperts& op) override {
    op.n_tokens <= cuda::kFewTokens ? cuda::run_experts_few(op, launch()) : cuda::run_experts_many(op, launch());
  }
  void sample(const Sample& op) override { cuda::sample(op, launch()); }

 private:
  cuda::Launch launch() {
    workspace_.reset();
    return {stream_, &workspace_, n_sms_};
  }

  cudaGraphExec_t record(const std::function<void()>& body) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      cudaGetLastError();
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return executable;
  }

  static void copy_with_all_threads(uint8_t* to, const uint8_t* from, size_t n_bytes) {
    constexpr int64_t kPiece = 1 << 20;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < static_cast<int64_t>(n_bytes); at += kPiece)
      std::memcpy(to + at, from + at, std::min<size_t>(kPiece, n_bytes - static_cast<size_t>(at)));
  }

  void wait() { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

  cudaStream_t stream_ = nullptr, side_stream_ = nullptr;  // the second copies rows beside the work
  cudaEvent_t enqueued_ = nullptr, streamed_ = nullptr;
  int n_sms_ = 0;
  void* workspace_memory_ = nullptr;
  cuda::Workspace workspace_{nullptr, 0};
  void* landing_ = nullptr;  // pinned, [kLandingBytes]
  void* staging_ = nullptr;  // pinned, [2, kStagingBytes / 2]
  std::vector<void*> placed_weights_;
  std::unordered_map<void*, size_t> pinned_bytes_;
  std::unordered_map<uint64_t, cudaGraphExec_t> graphs_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device) { return std::make_unique<CudaBackend>(device); }

bool has_cuda_device() {
  int n_devices = 0;
  const bool has = cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0;
  cudaGetLastError();
  return has;
}

}  // namespace dsv32
