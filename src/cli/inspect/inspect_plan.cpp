// `dsv32 inspect plan`: the placement in bytes, on this machine or on that of --on, the bytes that a decode
// token would read from each memory, and the speed to expect.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/link_share.h"
#include "backend/memory_budget.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/terminal/streams.h"
#include "engine/plan.h"
#include "weights/quant_mix.h"

namespace dsv32 {
namespace {

// Memory taken before anything is placed, measured with one H100: by CUDA and the driver's reserve; by the
// backend's scratch memory and its library; on the host by staging; and on the host by the system.
constexpr uint64_t kCudaBytes = uint64_t{1} << 30, kScratchBytes = uint64_t{263} << 20;
constexpr uint64_t kStagingBytes = uint64_t{132} << 20, kSystemBytes = uint64_t{2} << 30;

// Bytes a second of a common NVMe disk, and of weights from the page cache to a GPU.
constexpr double kDiskRate = 3e9, kCachedRate = 25e9;

// Flags that bound what a plan takes of the machine, or how it is taken.
constexpr const char* kBounds[] = {"ctx",     "chunk",    "topk-buffer", "kv-type", "select", "cpu-experts",
                                   "gpu-mem", "host-mem", "split",       "gpus",    "draft"};

// The memory that would be free on the described machine once backends with these limits exist. Without GPUs
// the file of weights would be mapped in host memory, so the weights are subtracted from it here. Throws
// Error{memory} when they do not fit.
Machine machine_of(const ImaginedMachine& imagined, const ModelBytes& bytes, const EngineOptions& options) {
  check_gpu_flags(options, imagined.gpus.size(), "and --on has none");
  Machine machine{
      !imagined.gpus.empty(), bytes, {}, {imagined.host, less_bytes(imagined.host, kSystemBytes), 0}};
  machine.n_threads = options.n_threads > 0 ? options.n_threads : kServerThreads;
  machine.link_adds = machine.n_threads <= kMostLinkProcessors;
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

std::string decode_text(double rate) { return format("%.*f t/s of an answer", rate < 9.5 ? 1 : 0, rate); }
std::string prompt_text(double rate) {
  return with_thousands(std::llround(rate / 10) * 10) + " t/s of a prompt";
}

// The plan as lines for people and fields for programs, which are made together.
class PlanReport {
 public:
  PlanReport(const MeasuredModel& model, const Options& options)
      : model_(model),
        options_(options),
        machine_(options.imagined ? machine_of(*options.imagined, model.bytes(), options.engine)
                                  : model.machine(options.engine)) {
    if (options.host_rate) machine_.host_rate = *options.host_rate * 1e9;
    plan_ = make_plan(model.args(), options.engine, machine_);
    if (plan_.cache.n_draft_layers == 0) machine_.weights = without_draft(machine_.weights);
    add_head();
    for (size_t i = 0; machine_.is_apart && i < plan_.stages.size(); ++i) add_device(i);
    add_host();
    add_traffic();
    add_speed();
  }

  const std::string& text() const { return text_; }
  const Json& json() const { return json_; }

 private:
  void add(const std::string& line, const Json& fields = Json::object()) {
    text_ += line;
    json_.update(fields);
  }

  void add_head() {
    const CachePlan& cache = plan_.cache;
    const char* backend = machine_.is_apart ? "cuda" : "cpu";
    const std::string machine = options_.imagined ? options_.imagined->name : "this one";
    add(format("model: %s, %s; machine: %s\ncontext %s tokens, prefill in steps of %s tokens, backend %s\n",
               model_.name().c_str(), decimal_size(plan_.n_weight_bytes).c_str(), machine.c_str(),
               with_thousands(cache.max_context).c_str(), with_thousands(plan_.chunk).c_str(), backend),
        {{"model", sanitize_utf8(model_.name())},
         {"machine", machine},
         {"backend", backend},
         {"context", cache.max_context},
         {"chunk", plan_.chunk}});
    add(cache.has_buffers() ? format("top-k buffers of %s rows\n", with_thousands(cache.buffer_rows).c_str())
                            : "every latent row is resident, no top-k buffers\n",
        {{"topk_buffer_rows", cache.buffer_rows}});
    add(drafts_line(),
        {{"layers", cache.n_layers}, {"draft_layers", cache.n_draft_layers}, {"guesses", cache.n_guesses}});
    add(plan_.is_team
            ? format("a team of %lld GPUs: each has its share of the rows of experts, MLPs and head, and "
                     "the rest whole; for a token they exchange %lld times\n",
                     as_ll(plan_.n_members()), as_ll(plan_.n_exchanges()))
            : "",
        {{"split", plan_.is_team ? "rows" : "layers"},
         {"exchanges", plan_.n_exchanges()},
         {"devices", Json::array()}});
    for (const MemoryPlan::Item& item : plan_.items()) json_[item.key] = item.n_bytes;
    json_["weight_bytes"] = plan_.n_weight_bytes;
    json_["device_bytes"] = plan_.n_bytes(Place::device);
    json_["host_bytes"] = plan_.n_bytes(Place::host);
  }

  // Whether there are drafts, and why not.
  std::string drafts_line() const {
    const CachePlan& cache = plan_.cache;
    if (model_.args().n_draft_layers == 0) return {};
    if (cache.n_draft_layers == 0)
      return "no drafts: with the block for them less else would fit, or experts lie in host memory\n";
    const ModelBytes& bytes = machine_.weights;
    return format("drafts: up to %lld guesses a step by layer %lld, the block for drafts, %s\n",
                  as_ll(cache.n_guesses), as_ll(cache.n_layers - 1),
                  decimal_size(bytes.layers.back().core + bytes.draft).c_str());
  }

  void add_device(size_t i) {
    const StagePlan& stage = plan_.stages[i];
    const MemoryInfo& device = machine_.devices[i];
    const uint64_t n_bytes = plan_.n_device_bytes(i),
                   n_free = device.n_bytes_free + device.n_bytes_used - n_bytes;
    const int64_t end = stage.first_layer + plan_.n_model_layers(stage);
    int64_t n_experts = 0;
    for (auto l = static_cast<size_t>(stage.first_layer); l < static_cast<size_t>(end); ++l)
      n_experts += machine_.weights.layers[l].experts > 0 && !plan_.has_host_experts[l];
    add(format("GPU %zu: layers %lld-%lld%s, experts of %lld, %s taken, %s free\n", i,
               as_ll(stage.first_layer), as_ll(end - 1),
               end < stage.end_layer ? " and the block for drafts" : "", as_ll(n_experts),
               human_bytes(n_bytes).c_str(), human_bytes(n_free).c_str()) +
        items_text(plan_.device_items(i), Place::device));
    json_["devices"].push_back({{"first_layer", stage.first_layer},
                                {"last_layer", stage.end_layer - 1},
                                {"n_bytes", n_bytes},
                                {"n_bytes_free", n_free},
                                {"n_bytes_read", stage.n_bytes_read}});
  }

  // On a machine without GPUs the device's items count as the host's. Of this machine the weights are a
  // mapped file, and what free memory cannot hold of it is read from the disk for each token.
  void add_host() {
    const bool is_apart = machine_.is_apart;
    std::vector<int64_t> layers;  // whose experts lie in host memory
    for (size_t l = 0; l < plan_.has_host_experts.size(); ++l)
      if (plan_.has_host_experts[l] || (!is_apart && machine_.weights.layers[l].experts > 0))
        layers.push_back(static_cast<int64_t>(l));
    uint64_t n_bytes = plan_.n_bytes(Place::host) + (is_apart ? 0 : plan_.n_bytes(Place::device));
    const uint64_t n_free = less_bytes(machine_.host.n_bytes_free, n_bytes - plan_.n_host_scratch_bytes);
    is_beyond_memory_ = !is_apart && !options_.imagined && plan_.n_weight_bytes > n_free;
    if (!is_apart) n_bytes += plan_.n_weight_bytes;
    std::string text = format("host: experts of layers %s, %s taken, %s free\n", ranges_text(layers).c_str(),
                              human_bytes(n_bytes).c_str(), human_bytes(n_free).c_str());
    if (!is_apart) text += item_line("the weights, where they lie", plan_.n_weight_bytes);
    if (is_beyond_memory_)
      text += "    only " + human_bytes(n_free) +
              " of them fit in memory; the rest is read from disk for every token\n";
    if (!is_apart) text += items_text(plan_.items(), Place::device);
    add(text + items_text(plan_.items(), Place::host),
        {{"host", {{"expert_layers", layers}, {"n_bytes", n_bytes}, {"n_bytes_free", n_free}}}});
  }

  // The bytes that steps read: over the link decode reads at most the selected rows, prefill all host
  // experts.
  void add_traffic() {
    const bool is_apart = machine_.is_apart;
    const uint64_t n_host = is_apart ? plan_.n_host_bytes_read : plan_.n_bytes_read();
    std::string text = "a decode token reads";
    for (size_t i = 0; is_apart && i < plan_.stages.size(); ++i)
      text += format(" %s on GPU %zu,", human_bytes(plan_.stages[i].n_bytes_read).c_str(), i);
    text += format(" %s of weights in host memory", human_bytes(n_host).c_str());
    if (plan_.n_link_bytes_read > 0)
      text += format(", of which %s go over the link", human_bytes(plan_.n_link_bytes_read).c_str());
    const int64_t n_rows = model_.args().n_layers * model_.args().topk();
    if (plan_.cache.has_buffers() && is_apart)
      text += format(", at most %s of rows over the link",
                     human_bytes(static_cast<uint64_t>(n_rows * plan_.cache.layout.row_bytes())).c_str());
    add(text + "\n", {{"decode_bytes",
                       {{"devices", is_apart ? plan_.n_device_bytes_read() : 0},
                        {"host", n_host},
                        {"link", plan_.n_link_bytes_read}}}});
    if (plan_.n_host_expert_bytes > 0)
      add(format("a prompt's step of %s tokens reads %s of experts over the link\n",
                 with_thousands(plan_.chunk).c_str(), human_bytes(plan_.n_host_expert_bytes).c_str()));
    const auto n_bytes = static_cast<double>(plan_.n_weight_bytes);
    add(format("loading %s: about %.0f s from a disk of %.0f GB/s, %.0f s from the page cache\n",
               human_bytes(plan_.n_weight_bytes).c_str(), n_bytes / kDiskRate, kDiskRate / 1e9,
               n_bytes / kCachedRate));
    const uint64_t n_unused = model_.n_bytes_unused(machine_.weights);
    add(n_unused > 0 ? format("in the file and not used: %s\n", human_bytes(n_unused).c_str()) : "",
        {{"skipped_bytes", n_unused}});
  }

  // The last lines: the expected speed, which is no promise, and the rates that give it; and what else there
  // was to choose.
  void add_speed() {
    json_["expected"] = json_["runner_up"] = nullptr;
    if (is_beyond_memory_) return add("expected speed: limited by the disk\n");
    const int64_t context = plan_.cache.max_context, n_prompt = std::min(kSpeedPrompt, context);
    if (!has_known_speed(model_.args()))
      return add("expected speed: not known, since no model of this shape was timed\n");
    const PlanSpeed speed = expected_speed(model_.args(), plan_, machine_, 1, n_prompt);
    std::string text =
        format("expected, not measured: %s at %s tokens of context", decode_text(speed.decode_rate).c_str(),
               with_thousands(std::min(kSpeedContext, context)).c_str());
    if (speed.prompt_rate > 0)
      text += ", " + prompt_text(speed.prompt_rate) + " of " + with_thousands(n_prompt);
    text += "\n    a token takes";
    if (speed.gpu) text += format(" %.1f ms on GPUs,", speed.gpu_seconds * 1e3);
    text += format(" %.1f ms for weights in host memory\n", speed.host_seconds * 1e3);
    add(text + rates_text(speed),
        {{"expected",
          {{"decode_tokens_per_second", speed.decode_rate},
           {"prefill_tokens_per_second", speed.prompt_rate > 0 ? Json(speed.prompt_rate) : Json(nullptr)},
           {"gpu_seconds", speed.gpu_seconds},
           {"host_seconds", speed.host_seconds}}}});
    if (plan_.runner_up) add_runner_up(*plan_.runner_up, n_prompt);
  }

  std::string rates_text(const PlanSpeed& speed) const {
    const auto gb = [](double rate) { return with_thousands(std::llround(rate / 1e9)) + " GB/s"; };
    std::string text = "    at these rates:";
    if (const GpuKind* gpu = speed.gpu)
      text += format(
          " %s on %s%s and %.0f us a layer besides, %s over a link, prompts %s t/s where it has all layers;",
          gb(speed.rates.bytes).c_str(), gpu->name, gpu->prompt_rate > 0 ? "" : " (never run)",
          speed.rates.layer_seconds * 1e6, gb(speed.rates.link).c_str(),
          with_thousands(std::llround(speed.rates.prompt)).c_str());
    const std::string by =
        machine_.host_rate ? "by --host-rate" : format("assumed of %d threads", machine_.n_threads);
    return text + format(" %s in host memory, %s; most weights are %s\n", gb(speed.host_bytes_rate).c_str(),
                         by.c_str(), type_name(machine_.weights.format));
  }

  void add_runner_up(const MemoryPlan& other, int64_t n_prompt) {
    const char* split = other.is_team ? "rows" : "layers";
    const PlanSpeed speed = expected_speed(model_.args(), other, machine_, 1, n_prompt);
    add(format("    next best: %s on %zu of the GPUs, %s, %s, context %s tokens\n", split,
               other.stages.size(), decode_text(speed.decode_rate).c_str(),
               prompt_text(speed.prompt_rate).c_str(), with_thousands(other.cache.max_context).c_str()),
        {{"runner_up",
          {{"gpus", other.stages.size()},
           {"split", split},
           {"context", other.cache.max_context},
           {"decode_tokens_per_second", speed.decode_rate},
           {"prefill_tokens_per_second", speed.prompt_rate}}}});
  }

  const MeasuredModel& model_;
  const Options& options_;
  Machine machine_;
  MemoryPlan plan_;
  bool is_beyond_memory_ = false;  // the weights are, so they are read from the disk for each token
  std::string text_;
  Json json_{{"fits", true}};
};

// What helps a model that the described machine cannot hold: the largest mix of the same model that it can.
std::string hint_for(const MeasuredModel& model, const Options& options, const Error& error) {
  const ModelArgs& args = model.args();
  if (!has_known_speed(args)) return error.hint();
  std::vector<std::pair<uint64_t, std::string>> mixes;
  for (const std::string& name : mix_names())
    mixes.emplace_back(total_bytes(model_bytes(args, {.mix = find_mix(name)})), name);
  std::ranges::sort(mixes, std::greater());
  const uint64_t n_room =
      std::reduce(options.imagined->gpus.begin(), options.imagined->gpus.end(), options.imagined->host);
  for (const auto& [n_bytes, name] : mixes) {
    if (n_bytes >= std::min(n_room, total_bytes(model.bytes()))) continue;
    const ModelBytes bytes = model_bytes(args, {.mix = find_mix(name)});
    if (if_it_fits([&] {
          return make_plan(args, options.engine, machine_of(*options.imagined, bytes, options.engine));
        }))
      return format("the largest type that fits is %s, %s (--type %s)", name.c_str(),
                    decimal_size(n_bytes).c_str(), name.c_str());
  }
  const std::string none = format("no type fits: the smallest, %s, has %s", mixes.back().second.c_str(),
                                  decimal_size(mixes.back().first).c_str());
  const bool is_bound =
      std::ranges::any_of(kBounds, [&](const char* flag) { return options.given.contains(flag); });
  return none + (is_bound && !error.hint().empty() ? "; " + error.hint() : "");
}

}  // namespace

int inspect_plan(const Options& options) {
  const MeasuredModel model(options);
  try {
    const PlanReport report(model, options);
    write_result(options, report.text(), report.json());
    return 0;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::memory) throw;
    const std::string hint = options.imagined ? hint_for(model, options, error) : error.hint();
    if (!options.json) throw Error(error.kind(), error.what(), hint);
    write_result(options, "", {{"fits", false}, {"reason", error.what()}, {"hint", hint}});
    return exit_code(error.kind());
  }
}

}  // namespace dsv32
