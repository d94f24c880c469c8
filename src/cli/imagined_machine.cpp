#include "cli/imagined_machine.h"

#include <algorithm>
#include <charconv>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// What one H100 had taken before anything was placed: CUDA's own and the driver's reserve, the backend's
// scratch memory and its library, and of the host its staging; and what a system keeps of the host.
constexpr uint64_t kCudaBytes = uint64_t{1} << 30, kScratchBytes = uint64_t{261} << 20;
constexpr uint64_t kStagingBytes = uint64_t{132} << 20, kSystemBytes = uint64_t{2} << 30;
constexpr size_t kMostGpus = 1024;

[[noreturn]] void refuse(const std::string& flag, const std::string& text) {
  fail(ErrorKind::usage, format("%s takes GPUs and host memory, such as 2x141G+256G or 0+768G, not '%s'",
                                flag.c_str(), visible(text, false, 80).c_str()));
}

}  // namespace

ImaginedMachine parse_machine(const std::string& flag, const std::string& text) {
  ImaginedMachine machine;
  const size_t last = text.rfind('+');
  if (last == std::string::npos) refuse(flag, text);
  machine.host = parse_bytes(text.substr(last + 1), flag.c_str());
  for (size_t at = 0; at <= last;) {
    const size_t end = std::min(text.find('+', at), last);
    const std::string term = text.substr(at, end - at);
    at = end + 1;
    if (term == "0" && end == last && machine.gpus.empty()) break;
    size_t n = 0;
    const std::from_chars_result count = std::from_chars(term.data(), term.data() + term.size(), n);
    if (count.ec != std::errc{} || *count.ptr != 'x' || n < 1 || machine.gpus.size() + n > kMostGpus)
      refuse(flag, text);
    machine.gpus.insert(machine.gpus.end(), n, parse_bytes(count.ptr + 1, flag.c_str()));
    if (end == last) break;
  }
  return machine;
}

Machine machine_of(const ImaginedMachine& imagined, const ModelBytes& bytes, const EngineOptions& options) {
  Machine machine{
      !imagined.gpus.empty(), bytes, {}, {imagined.host, less_bytes(imagined.host, kSystemBytes), 0}};
  for (size_t i = 0; i < imagined.gpus.size(); ++i) {
    const uint64_t n_most = options.limits(i).device.value_or(imagined.gpus[i]);
    const uint64_t n_free = std::min(n_most, less_bytes(imagined.gpus[i], kCudaBytes));
    machine.devices.push_back({imagined.gpus[i], less_bytes(n_free, kScratchBytes), kScratchBytes});
  }
  machine.host.n_bytes_free = options.host_mem.value_or(machine.host.n_bytes_free);
  machine.host.n_bytes_used = imagined.gpus.size() * kStagingBytes;
  machine.host.n_bytes_free = less_bytes(machine.host.n_bytes_free, machine.host.n_bytes_used);
  if (machine.is_apart) return machine;
  machine.devices = {machine.host};
  const uint64_t n_weights = total_bytes(bytes);
  if (n_weights > machine.host.n_bytes_free)
    fail_memory("the weights", n_weights, machine.host.n_bytes_free, "");
  machine.host.n_bytes_free -= n_weights;
  return machine;
}

}  // namespace dsv32
