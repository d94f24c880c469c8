// Which GPUs there are, and why one of them cannot be used.
#include <map>
#include <mutex>

#include "cuda/cuda_backend.h"
#include "cuda/launch.h"

namespace dsv32 {
namespace {

// A kernel that shows whether the device can run this build. Its shared memory shows whether the code was
// built for sm_90a: the versions in its attributes are the same for sm_90 and sm_90a.
__global__ void probe_kernel([[maybe_unused]] int* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ int mark[32];
  mark[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  *out = mark[31 - threadIdx.x];
#endif
}

std::string version_text(int version) { return format("%d.%d", version / 1000, version % 1000 / 10); }

// status: of the first call that needs a driver. It is the same without a driver and with one that is too
// old.
DeviceProblem driver_problem(cudaError_t status) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  if (status == cudaErrorNoDevice) return {"no NVIDIA GPU is visible", "--backend cpu runs without one"};
  if (driver == 0) return {"no NVIDIA driver is installed", "--backend cpu runs without one"};
  if (driver < runtime)
    return {format("the NVIDIA driver is too old: it knows CUDA %s, this build needs %s",
                   version_text(driver).c_str(), version_text(runtime).c_str()),
            "update the driver, or build with an older CUDA toolkit"};
  return {format("the NVIDIA driver does not answer: %s", cudaGetErrorString(status)),
          "nvidia-smi may say more"};
}

}  // namespace

DeviceProblem find_problem(int device) {
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return driver_problem(status);
  }
  if (device < 0 || device >= n_devices)
    return {format("there is no GPU %d, expected 0 to %d", device, n_devices - 1), "--gpus names others"};
  cudaFuncAttributes attributes;
  const bool is_built_for =
      cudaSetDevice(device) == cudaSuccess && cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess;
  cudaGetLastError();
  if (is_built_for) return {};
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return {format("GPU %d does not answer", device), "nvidia-smi may say more"};
  }
  return {format("this build has no code for %s (compute capability %d.%d)", properties.name,
                 properties.major, properties.minor),
          "build with CUDA_ARCHS for it, or run with --backend cpu"};
}

int n_cuda_devices() {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) == cudaSuccess) return n_devices;
  cudaGetLastError();
  return 0;
}

const cuda::Card& cuda::card() {
  static std::mutex mutex;
  static std::map<int, Card> cards;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto known = cards.find(device); known != cards.end()) return known->second;
  const cudaFuncAttributes code = attributes_of(probe_kernel);
  if (code.sharedSizeBytes == 0)
    return cards[device] = {KernelFamily::generic, code.ptxVersion >= 90, kGenericSharedBytes,
                            kGenericSharedBytes + 1024};
  return cards[device] = {KernelFamily::hopper, true,
                          device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                          device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
}

}  // namespace dsv32
