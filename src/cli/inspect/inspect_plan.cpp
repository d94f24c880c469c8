// `dsv32 inspect plan`: the placement in bytes, on this machine or on that of --on, the bytes that a decode
// token would read from each memory, and the speed to expect.

#include <algorithm>
#include <cmath>

#include "backend/choose.h"
#include "backend/link_share.h"
#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "engine/plan.h"
#include "weights/quant_mix.h"
#include "weights/synthetic.h"

namespace dsv32 {
namespace {

// Memory taken before anything is placed, measured with one H100: by CUDA and the driver's reserve; by the
// backend's scratch memory and its library; on the host by staging; and on the host by the system.
constexpr uint64_t kCudaBytes = uint64_t{1} << 30, kScratchBytes = uint64_t{273} << 20;
constexpr uint64_t kStagingBytes = uint64_t{132} << 20, kSystemBytes = uint64_t{2} << 30;

// Bytes a second of a common NVMe disk, and of weights from the page cache to a GPU.
constexpr double kDiskRate = 3e9, kCachedRate = 25e9;

// Of a machine that is not there.
int threads_of(const EngineOptions& options) {
  return options.n_threads > 0 ? options.n_threads : kServerThreads;
}

// The memory that would be free on the described machine once backends with these limits exist. Without GPUs
// the file of weights would be mapped in host memory, so the weights are subtracted from it here. Throws
// Error{memory} when they do not fit.
Machine machine_of(const ImaginedMachine& imagined, const ModelBytes& bytes, const EngineOptions& options) {
  Machine machine{
      !imagined.gpus.empty(), bytes, {}, {imagined.host, less_bytes(imagined.host, kSystemBytes), 0}};
  machine.link_adds = threads_of(options) <= kMostLinkProcessors;
  machine.gpus = imagined.kinds;
  machine.can_team = std::ranges::all_of(
      imagined.kinds, [&](const GpuKind* kind) { return kind == imagined.kinds.front() && kind->can_team; });
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

struct Planned {
  Machine machine;
  MemoryPlan plan;
  bool is_mapped = false;  // the weights are a mapped file, which need not fit in free host memory
  std::string machine_name = "this one";
  const char* backend = "";
  int n_threads = kServerThreads;
  // Set by conclude(). On a machine without GPUs the device's items count as the host's.
  std::vector<int64_t> host_expert_layers = {};  // whose experts lie in host memory
  uint64_t n_host_bytes = 0, n_host_free = 0;
  bool is_beyond_memory = false;  // weights are read from the disk for each token
  std::optional<PlanSpeed> speed = {};

  uint64_t n_free(size_t stage) const {
    const MemoryInfo& device = machine.devices[stage];
    return device.n_bytes_free + device.n_bytes_used - plan.n_device_bytes(stage);
  }
};

// "3-5, 9, 11-60"
std::string ranges_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += format("%s%lld", text.empty() ? "" : ", ", as_ll(numbers[i]));
    if (end > i) text += format("-%lld", as_ll(numbers[end]));
    i = end;
  }
  return text.empty() ? "none" : text;
}

// In decimal units, as sizes of files are advertised.
std::string decimal_size(uint64_t n_bytes) {
  const auto n = static_cast<double>(n_bytes);
  return n < 1e9 ? format("%.1f MB", n / 1e6) : format("%.1f GB", n / 1e9);
}

std::string item_line(const char* name, uint64_t n_bytes) {
  return format("    %-32s %12s  (%s bytes)\n", name, human_bytes(n_bytes).c_str(),
                with_thousands(static_cast<int64_t>(n_bytes)).c_str());
}

std::string items_text(const std::vector<MemoryPlan::Item>& items, Place place) {
  std::string text;
  for (const MemoryPlan::Item& item : items)
    if (item.place == place && item.n_bytes > 0) text += item_line(item.name, item.n_bytes);
  return text;
}

std::string device_text(const Planned& planned, size_t i) {
  const MemoryPlan& plan = planned.plan;
  const StagePlan& stage = plan.stages[i];
  int64_t n_experts = 0;
  for (int64_t l = stage.first_layer; l < stage.first_layer + plan.n_model_layers(stage); ++l)
    n_experts += planned.machine.weights.layers[static_cast<size_t>(l)].experts > 0 &&
                 !plan.has_host_experts[static_cast<size_t>(l)];
  const int64_t end = stage.first_layer + plan.n_model_layers(stage);
  return format("GPU %zu: layers %lld-%lld%s, experts of %lld, %s taken, %s free\n", i,
                as_ll(stage.first_layer), as_ll(end - 1),
                end < stage.end_layer ? " and the block for drafts" : "", as_ll(n_experts),
                human_bytes(plan.n_device_bytes(i)).c_str(), human_bytes(planned.n_free(i)).c_str()) +
         items_text(plan.device_items(i), Place::device);
}

std::string host_text(const Planned& planned) {
  const MemoryPlan& plan = planned.plan;
  const std::string n_free = human_bytes(planned.n_host_free);
  std::string text = format("host: experts of layers %s, %s taken, %s free\n",
                            ranges_text(planned.host_expert_layers).c_str(),
                            human_bytes(planned.n_host_bytes).c_str(), n_free.c_str());
  if (!planned.machine.is_apart) {
    text += item_line("the weights, where they lie", plan.n_weight_bytes);
    if (planned.is_beyond_memory)
      text += "    only " + n_free + " of them fit in memory; the rest is read from disk for every token\n";
    text += items_text(plan.items(), Place::device);
  }
  return text + items_text(plan.items(), Place::host);
}

// The bytes that steps read: over the link decode reads at most the selected rows, prefill all host experts.
std::string traffic_text(const Planned& planned, const ModelArgs& args) {
  const MemoryPlan& plan = planned.plan;
  std::string text = "a decode token reads";
  for (size_t i = 0; planned.machine.is_apart && i < plan.stages.size(); ++i)
    text += format(" %s on GPU %zu,", human_bytes(plan.stages[i].n_bytes_read).c_str(), i);
  const uint64_t n_host = planned.machine.is_apart ? plan.n_host_bytes_read : plan.n_bytes_read();
  text += format(" %s of weights in host memory", human_bytes(n_host).c_str());
  if (plan.n_link_bytes_read > 0)
    text += format(", of which %s go over the link", human_bytes(plan.n_link_bytes_read).c_str());
  if (plan.cache.has_buffers() && planned.machine.is_apart)
    text +=
        format(", at most %s of rows over the link",
               human_bytes(static_cast<uint64_t>(args.n_layers * args.topk() * plan.cache.layout.row_bytes()))
                   .c_str());
  text += "\n";
  if (plan.n_host_expert_bytes > 0)
    text += format("a prompt's step of %s tokens reads %s of experts over the link\n",
                   with_thousands(plan.chunk).c_str(), human_bytes(plan.n_host_expert_bytes).c_str());
  const auto n_bytes = static_cast<double>(plan.n_weight_bytes);
  return text + format("loading %s: about %.0f s from a disk of %.0f GB/s, %.0f s from the page cache\n",
                       human_bytes(plan.n_weight_bytes).c_str(), n_bytes / kDiskRate, kDiskRate / 1e9,
                       n_bytes / kCachedRate);
}

std::string rates_text(const PlanSpeed& speed, const Planned& planned) {
  const auto gb = [](double rate) { return with_thousands(std::llround(rate / 1e9)) + " GB/s"; };
  std::string text = "    at these rates:";
  if (const GpuKind* gpu = speed.gpu)
    text += format(
        " %s on %s%s and %.0f us a layer besides, %s over a link, prompts %s t/s where it has all layers;",
        gb(speed.rates.bytes).c_str(), gpu->name, gpu->prompt_rate > 0 ? "" : " (never run)",
        speed.rates.layer_seconds * 1e6, gb(speed.rates.link).c_str(),
        with_thousands(std::llround(speed.rates.prompt)).c_str());
  const std::string by =
      planned.machine.host_rate ? "by --host-rate" : format("assumed of %d threads", planned.n_threads);
  return text + format(" %s in host memory, %s; most weights are %s\n", gb(speed.host_bytes_rate).c_str(),
                       by.c_str(), type_name(planned.machine.weights.format));
}

// The last lines: the expected speed, which is no promise, and the rates behind it.
std::string speed_text(const Planned& planned) {
  const std::optional<PlanSpeed>& speed = planned.speed;
  if (planned.is_beyond_memory) return "expected speed: limited by the disk\n";
  if (!speed) return "expected speed: not known, since no model of this shape was timed\n";
  const int64_t context = planned.plan.cache.max_context;
  std::string text = format("expected, not measured: %.*f t/s of an answer at %s tokens of context",
                            speed->decode_rate < 9.5 ? 1 : 0, speed->decode_rate,
                            with_thousands(std::min(kSpeedContext, context)).c_str());
  if (speed->prompt_rate > 0)
    text += format(", %s t/s of a prompt of %s",
                   with_thousands(std::llround(speed->prompt_rate / 10) * 10).c_str(),
                   with_thousands(std::min(kSpeedPrompt, context)).c_str());
  text += "\n    a token takes";
  if (speed->gpu) text += format(" %.1f ms on GPUs,", speed->gpu_seconds * 1e3);
  text += format(" %.1f ms for weights in host memory\n", speed->host_seconds * 1e3);
  return text + rates_text(*speed, planned);
}

// "wide 40": the kernel of products in decode, and its width.
std::string decode_cell(TensorType type, int n_tokens, KernelFamily family) {
  constexpr const char* kKernels[] = {"float_rows", "float_tiles", "rows", "columns", "wide"};
  const DecodeChoice choice = choose_decode(type, n_tokens, 0, family);
  return format("%s %d", kKernels[static_cast<size_t>(choice.kernel)], choice.width);
}

// The choices of choose.h for both kernel families, since a machine may have both.
std::string kernels_text(const Planned& planned, const MeasuredModel& model) {
  constexpr int kSteps[] = {1, 8, 33};
  const ModelArgs& args = model.args();
  const int64_t n_prompt = planned.plan.chunk;
  std::string text = "kernels of products, and tokens that share their reading of the weights\n";
  text += format("    %-8s %-8s", "format", "family");
  for (const int n : kSteps) text += format(" %-16s", format("%d at a time", n).c_str());
  text += "prompt\n";
  for (const KernelFamily family : {KernelFamily::hopper, KernelFamily::generic}) {
    const char* name = family == KernelFamily::hopper ? "hopper" : "generic";
    for (const TensorType type : model.formats()) {
      text += format("    %-8s %-8s", type_name(type), name);
      for (const int n : kSteps) text += format(" %-16s", decode_cell(type, n, family).c_str());
      text += uses_library(n_prompt) && type != TensorType::f32 ? "cuBLASLt\n" : "tiles\n";
    }
  }
  if (args.n_routed_experts == 0) return text;
  const int64_t n_experts = args.n_routed_experts, n_uses = n_prompt * args.n_activated_experts;
  for (const KernelFamily family : {KernelFamily::hopper, KernelFamily::generic}) {
    const bool is_hopper = family == KernelFamily::hopper;
    text += format("    %-8s %-8s", "uses", is_hopper ? "hopper" : "generic");
    for (const int n : kSteps) {
      const int n_run = choose_run(n, n_experts, has_codes(model.bytes().format), family);
      text += format(" %-16d", std::max(1, n_run));
    }
    text += is_hopper && has_double_tiles(n_uses, n_experts) ? "256\n" : "128\n";
  }
  return text;
}

// Whether there are drafts, and why not.
std::string drafts_text(const Planned& planned, const MeasuredModel& model) {
  const CachePlan& cache = planned.plan.cache;
  if (model.args().n_draft_layers == 0) return {};
  if (cache.n_draft_layers == 0)
    return "no drafts: with the block for them less else would fit, or experts lie in host memory\n";
  const ModelBytes& bytes = planned.machine.weights;
  return format("drafts: up to %lld guesses a step by layer %lld, the block for drafts, %s\n",
                as_ll(cache.n_guesses), as_ll(cache.n_layers - 1),
                decimal_size(bytes.layers.back().core + bytes.draft).c_str());
}

std::string plan_text(const Planned& planned, const MeasuredModel& model) {
  const MemoryPlan& plan = planned.plan;
  std::string text = format(
      "model: %s, %s; machine: %s\ncontext %s tokens, prefill in steps of %s tokens, backend %s\n",
      model.name().c_str(), decimal_size(plan.n_weight_bytes).c_str(), planned.machine_name.c_str(),
      with_thousands(plan.cache.max_context).c_str(), with_thousands(plan.chunk).c_str(), planned.backend);
  text += plan.cache.has_buffers()
              ? format("top-k buffers of %s rows\n", with_thousands(plan.cache.buffer_rows).c_str())
              : "every latent row is resident, no top-k buffers\n";
  text += drafts_text(planned, model);
  if (plan.is_team)
    text += format(
        "a team of %lld GPUs: each has its share of the rows of experts, MLPs and head, and the "
        "rest whole; for a token they exchange %lld times\n",
        as_ll(plan.n_members()), as_ll(plan.n_exchanges()));
  for (size_t i = 0; planned.machine.is_apart && i < plan.stages.size(); ++i) text += device_text(planned, i);
  text += host_text(planned) + traffic_text(planned, model.args());
  if (const uint64_t n_unused = model.n_bytes_unused(planned.machine.weights); n_unused > 0)
    text += format("in the file and not used: %s\n", human_bytes(n_unused).c_str());
  return text + speed_text(planned);
}

Json to_json(const std::optional<PlanSpeed>& speed) {
  if (!speed) return nullptr;
  return {{"decode_tokens_per_second", speed->decode_rate},
          {"prefill_tokens_per_second", speed->prompt_rate > 0 ? Json(speed->prompt_rate) : Json(nullptr)},
          {"gpu_seconds", speed->gpu_seconds},
          {"host_seconds", speed->host_seconds}};
}

Json to_json(const Planned& planned, const MeasuredModel& model) {
  const MemoryPlan& plan = planned.plan;
  const bool is_apart = planned.machine.is_apart;
  Json devices = Json::array();
  for (size_t i = 0; is_apart && i < plan.stages.size(); ++i)
    devices.push_back({{"first_layer", plan.stages[i].first_layer},
                       {"last_layer", plan.stages[i].end_layer - 1},
                       {"n_bytes", plan.n_device_bytes(i)},
                       {"n_bytes_free", planned.n_free(i)},
                       {"n_bytes_read", plan.stages[i].n_bytes_read}});
  Json json{{"fits", true},
            {"model", sanitize_utf8(model.name())},
            {"machine", planned.machine_name},
            {"expected", to_json(planned.speed)},
            {"devices", devices},
            {"split", plan.is_team ? "rows" : "layers"},
            {"exchanges", plan.n_exchanges()},
            {"host",
             {{"expert_layers", planned.host_expert_layers},
              {"n_bytes", planned.n_host_bytes},
              {"n_bytes_free", planned.n_host_free}}},
            {"decode_bytes",
             {{"devices", is_apart ? plan.n_device_bytes_read() : 0},
              {"host", is_apart ? plan.n_host_bytes_read : plan.n_bytes_read()},
              {"link", plan.n_link_bytes_read}}},
            {"backend", planned.backend},
            {"context", plan.cache.max_context},
            {"chunk", plan.chunk},
            {"layers", plan.cache.n_layers},
            {"draft_layers", plan.cache.n_draft_layers},
            {"guesses", plan.cache.n_guesses},
            {"topk_buffer_rows", plan.cache.buffer_rows},
            {"skipped_bytes", model.n_bytes_unused(planned.machine.weights)}};
  for (const MemoryPlan::Item& item : plan.items()) json[item.key] = item.n_bytes;
  json["weight_bytes"] = plan.n_weight_bytes;
  json["device_bytes"] = plan.n_bytes(Place::device);
  json["host_bytes"] = plan.n_bytes(Place::host);
  return json;
}

// Sets the fields that follow from plan and machine.
void conclude(Planned& planned, const ModelArgs& args) {
  const MemoryPlan& plan = planned.plan;
  const Machine& machine = planned.machine;
  for (size_t l = 0; l < plan.has_host_experts.size(); ++l)
    if (plan.has_host_experts[l] || (!machine.is_apart && machine.weights.layers[l].experts > 0))
      planned.host_expert_layers.push_back(static_cast<int64_t>(l));
  planned.n_host_bytes = plan.n_bytes(Place::host);
  if (!machine.is_apart) planned.n_host_bytes += plan.n_bytes(Place::device);
  const uint64_t n_taken = planned.n_host_bytes - plan.n_host_scratch_bytes;
  planned.n_host_free = machine.host.n_bytes_free - std::min(machine.host.n_bytes_free, n_taken);
  planned.is_beyond_memory =
      !machine.is_apart && planned.is_mapped && plan.n_weight_bytes > planned.n_host_free;
  if (!machine.is_apart) planned.n_host_bytes += plan.n_weight_bytes;
  if (!planned.is_beyond_memory)
    planned.speed = expected_speed(args, plan, machine, planned.n_threads,
                                   std::min(kSpeedPrompt, plan.cache.max_context));
}

Planned plan_for(const MeasuredModel& model, const Options& options) {
  Planned planned;
  if (options.imagined) {
    planned.machine = machine_of(*options.imagined, model.bytes(), options.engine);
    planned.machine_name = options.imagined->name;
    planned.backend = options.imagined->gpus.empty() ? "cpu" : "cuda";
    planned.n_threads = threads_of(options.engine);
  } else {
    const Backends backends =
        make_backends(options.engine, suffice_for(model.args(), model.bytes(), options.engine));
    planned.machine = machine_of(backends, model.bytes());
    for (size_t i = 0; i < backends.size(); ++i)
      planned.machine.gpus.push_back(
          &gpu_like(backends[i]->device_name(), planned.machine.devices[i].n_bytes_total));
    planned.is_mapped = true;
    planned.backend = backends.front()->works_in_host_memory() ? "cpu" : "cuda";
    planned.n_threads = WorkerPool(options.engine.n_threads).n_threads();
  }
  if (options.host_rate) planned.machine.host_rate = *options.host_rate * 1e9;
  const ModelArgs args = with_suitable_draft(model.args(), options.engine, planned.machine);
  if (args.n_draft_layers == 0) planned.machine.weights = without_draft(planned.machine.weights);
  planned.plan = make_plan(args, options.engine, planned.machine);
  conclude(planned, args);
  return planned;
}

// For a model that the described machine cannot hold: the largest mix of the same model that it can. Empty:
// none, or the model is another.
std::string fitting_mix(const MeasuredModel& model, const Options& options) {
  const ModelArgs& args = model.args();
  if (!options.imagined || !has_known_speed(args)) return {};
  uint64_t n_room = options.imagined->host;
  for (const uint64_t n_bytes : options.imagined->gpus) n_room += n_bytes;
  std::vector<std::pair<uint64_t, std::string>> smaller;
  for (const std::string& name : mix_names()) {
    const uint64_t n_bytes = total_bytes(model_bytes(args, {.mix = find_mix(name)}));
    if (n_bytes < std::min(n_room, total_bytes(model.bytes()))) smaller.emplace_back(n_bytes, name);
  }
  std::ranges::sort(smaller, std::greater());
  for (const auto& [n_bytes, name] : smaller) {
    const ModelBytes bytes = model_bytes(args, {.mix = find_mix(name)});
    const auto plan = if_it_fits([&] {
      return make_plan(args, options.engine, machine_of(*options.imagined, bytes, options.engine));
    });
    if (plan)
      return format("the largest type that fits is %s, %s (--type %s)", name.c_str(),
                    decimal_size(n_bytes).c_str(), name.c_str());
  }
  return {};
}

}  // namespace

int inspect_plan(const Options& options) {
  const MeasuredModel model(options);
  try {
    const Planned planned = plan_for(model, options);
    const bool wants_kernels = options.verbose && planned.machine.is_apart;
    const std::string kernels = wants_kernels ? kernels_text(planned, model) : "";
    write_out(options.json ? to_json(planned, model).dump() + "\n" : plan_text(planned, model) + kernels);
    return 0;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::memory) throw;
    const std::string mix = fitting_mix(model, options), hint = mix.empty() ? error.hint() : mix;
    if (!options.json) throw Error(error.kind(), error.what(), hint);
    write_out(Json{{"fits", false}, {"reason", error.what()}, {"hint", hint}}.dump() + "\n");
    return exit_code(error.kind());
  }
}

}  // namespace dsv32
