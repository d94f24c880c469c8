#include "cli/options/imagined_machine.h"

#include <algorithm>
#include <charconv>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/options/flag_values.h"
#include "engine/plan_speed.h"

namespace dsv32 {
namespace {

// What one H100 had taken before anything was placed: CUDA's own and the driver's reserve, the backend's
// scratch memory and its library, and of the host its staging; and what a system keeps of the host.
constexpr uint64_t kCudaBytes = uint64_t{1} << 30, kScratchBytes = uint64_t{261} << 20;
constexpr uint64_t kStagingBytes = uint64_t{132} << 20, kSystemBytes = uint64_t{2} << 30;
constexpr size_t kMostGpus = 1024;

[[noreturn]] void refuse(const std::string& flag, const std::string& text) {
  fail_value(flag, "GPUs and host memory, such as 2x141G+256G, 24G+256G or 0+768G", text);
}

std::optional<uint64_t> size_in(const std::string& text) {
  try {
    return parse_bytes(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// One GPU or more, "24G", "2x141G" or "2xH200"; nothing when it is none.
std::vector<uint64_t> parse_gpus(const std::string& term) {
  size_t n = 1;
  const char* end = term.data() + term.size();
  const std::from_chars_result count = std::from_chars(term.data(), end, n);
  const bool is_counted = count.ec == std::errc{} && count.ptr != end && *count.ptr == 'x';
  const std::string one = is_counted ? std::string(count.ptr + 1, end) : term;
  if (!is_counted) n = 1;
  if (n > kMostGpus) return {};
  const GpuKind* kind = find_gpu(one);
  const uint64_t n_bytes = kind ? kind->n_bytes : size_in(one).value_or(0);
  return std::vector(n_bytes > 0 ? n : 0, n_bytes);
}

}  // namespace

ImaginedMachine parse_machine(const std::string& flag, const std::string& text) {
  const std::string shown = visible(text, false, 80);
  std::vector<std::string> terms = split(text, '+');
  const std::optional<uint64_t> host = size_in(terms.back());
  if (!host || terms.size() == 1) {
    if (std::ranges::any_of(terms, [](const std::string& term) { return parse_gpus(term).empty(); }))
      refuse(flag, text);
    fail(ErrorKind::usage, format("%s %s says nothing of the host's memory", flag.c_str(), shown.c_str()),
         format("add it, such as %s %s+256G; 0+256G has no GPU", flag.c_str(), shown.c_str()));
  }
  ImaginedMachine machine{shown, {}, *host};
  terms.pop_back();
  if (terms == std::vector<std::string>{"0"}) return machine;
  for (const std::string& term : terms) {
    const std::vector<uint64_t> some = parse_gpus(term);
    if (some.empty() || machine.gpus.size() + some.size() > kMostGpus) refuse(flag, text);
    machine.gpus.insert(machine.gpus.end(), some.begin(), some.end());
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
