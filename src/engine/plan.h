// The memory plan: what a model with a given context needs, and where, before anything is allocated.
//
// make_plan() decides all that the options leave open: devices and how they share the model, the layers of
// each, the layers whose experts the host keeps, context, chunk, sequences, top-k buffer, drafts. One list of
// items serves `inspect plan` and the check that all of them fit. Allocations follow the plan to the byte; a
// test compares the backend's own count with it. plan.cpp chooses, plan_sequences.cpp how many sequences,
// plan_items.cpp counts bytes, plan_speed.cpp says how fast a plan is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "context/latent_cache.h"
#include "engine/gpu_kinds.h"
#include "prefix/prefix_cache_options.h"
#include "weights/config.h"
#include "weights/layer_bytes.h"
#include "weights/loader.h"

namespace dsv32 {

inline constexpr int64_t kEveryRow = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kAllContexts = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kAsManyAsSuit = 0;
inline constexpr int64_t kMostGuesses = kMostSequenceTokens - 1;

// Choices that fill the memory leave this much, for allocations of measurements and the ends of weights.
inline constexpr uint64_t kSlackBytes = uint64_t{8} << 20;
// A CUDA driver rounds allocations up: by 1 / kDriverShare of a plan (0.4 %, one H100).
inline constexpr uint64_t kDriverShare = 256;

using Backends = std::vector<std::shared_ptr<Backend>>;  // one a device; lives as long as buffers on it

// How decode chooses the rows that a token attends to. model: by the model's indexer, or every row where it
// has none. all: every row. quest: by Quest.
enum class SelectPolicy { model, all, quest };

inline constexpr int64_t kQuestRows = 2048;
inline constexpr int kServerThreads = 30;  // assumed of another machine than this one

// How several devices share a model: each has layers of its own, or they are a team (backend/team.h), which
// has the rows of every layer divided.
enum class Split { automatic, layers, rows };

struct EngineOptions {
  std::string model_path;
  std::vector<std::string> added_paths;  // files with what the model's lacks: indexer, block for drafts
  std::string backend = "auto";
  Backends backends;               // for tests: in place of those that `backend` names
  std::vector<int> gpus;           // all of them are used; empty: those that are worth it
  Split split = Split::automatic;  // automatic: the faster one
  bool is_for_all = false;         // what is to be fast: all answers together, instead of one alone
  int n_threads = 0;               // 0: all cores
  KvType kv_type = KvType::fp8;
  SelectPolicy select = SelectPolicy::model;
  std::optional<int64_t> quest_rows;  // that Quest selects for a token; nothing: kQuestRows
  // Guesses that a decode step verifies of a sequence, 0 to kMostGuesses; nothing: as many as pay. With 0 the
  // block for drafts is not loaded.
  std::optional<int64_t> n_guesses = 0;
  int64_t max_seqs = 1;            // sequences at a time; kAsManyAsSuit: see make_plan()
  std::optional<int64_t> context;  // most tokens of a sequence; nothing: the model's, or what fits
  // Tokens of all sequences together. kAllContexts: a full context for each, or what the memory holds;
  // nothing: as many as one context.
  std::optional<int64_t> pool;
  std::optional<int64_t> slots;  // of all top-k buffers together; nothing: whole buffers for max_seqs
  // Rows of a sequence and layer on the device, kEveryRow for all; nothing: all if they fit, else as many as
  // do.
  std::optional<int64_t> topk_buffer;
  std::optional<int64_t> chunk;             // most prefill tokens of a step; nothing: what suits the backend
  std::vector<uint64_t> gpu_mem;            // most bytes of each GPU: one for all, or one each
  std::optional<uint64_t> host_mem;         // most bytes of host memory
  std::optional<int64_t> n_cpu_experts;     // layers whose experts the host keeps; nothing: as few as may be
  std::optional<PrefixCacheOptions> cache;  // nothing: prefixes are not remembered
  LoadProgress on_loading;                  // of weights that do not stay where the file is mapped

  // Of the i-th GPU.
  MemoryLimits limits(size_t i) const;
};

// The machine that a plan is made for. By default: a host with room for everything.
struct Machine {
  static constexpr uint64_t kEndless = std::numeric_limits<uint64_t>::max() / 64;

  bool is_apart = false;  // device and host memory are separate
  ModelBytes weights = {};
  std::vector<MemoryInfo> devices = {{0, kEndless, 0}};  // if is_apart; "used": a backend's scratch
  MemoryInfo host = {0, kEndless, 0};
  bool link_adds = true;  // Backend::link_adds
  bool can_team = false;  // any two devices: Backend::can_team_with
  int64_t n_members = 1;  // of the team for which `weights` are each device's
  // For the speed to expect alone.
  std::vector<const GpuKind*> gpus = {};  // of each device; empty: known by their memory alone
  std::optional<double> host_rate = {};   // bytes a second that threads read; nothing: by their number
  int n_threads = kServerThreads;

  uint64_t free_device_bytes(size_t n = SIZE_MAX) const {  // of the first n devices
    uint64_t n_bytes = 0;
    for (const MemoryInfo& device : std::span(devices).first(std::min(n, devices.size())))
      n_bytes += device.n_bytes_free;
    return n_bytes;
  }
  // Leaves n_bytes of each memory out of the plan.
  void leave(uint64_t n_bytes) {
    for (MemoryInfo& device : devices) device.n_bytes_free = less_bytes(device.n_bytes_free, n_bytes);
    host.n_bytes_free = less_bytes(host.n_bytes_free, n_bytes);
  }
};

// What a device holds. The members of a team have the same layers.
struct StagePlan {
  int64_t first_layer = 0, end_layer = 0;
  uint64_t n_weight_bytes = 0;         // without the experts that the host keeps
  uint64_t n_bytes_read = 0;           // of these, what a decode token reads
  uint64_t n_expert_bytes_read = 0;    // of these, of the experts that it chooses
  uint64_t n_logit_bytes = 0;          // with what is drawn from them; last device only, or every member
  uint64_t n_scratch_bytes = 0;        // the backend's own
  uint64_t n_expert_window_bytes = 0;  // through which the host's experts come in prompts
};

struct MemoryPlan {
  CachePlan cache;
  int64_t chunk = 0;                   // most tokens of a step
  std::vector<StagePlan> stages;       // in the order of their layers
  bool is_team = false;                // the devices are the members of a team
  std::vector<bool> has_host_experts;  // [n_all_layers]
  uint64_t n_weight_bytes = 0;         // of the layers that run, wherever they lie
  uint64_t n_host_expert_bytes = 0;
  uint64_t n_mailbox_bytes = 0;     // of host memory, if the host keeps experts
  uint64_t n_mask_bytes = 0;        // of host memory, if the machine is apart; else they are with the logits
  uint64_t n_activation_bytes = 0;  // of each device
  uint64_t n_host_scratch_bytes = 0;
  uint64_t expert_window_bytes = 0;  // of each device with experts on the host
  uint64_t n_host_bytes_read = 0;    // of the host's experts, what a decode token reads
  uint64_t n_link_bytes_read = 0;    // of these, what the link carries

  std::shared_ptr<const MemoryPlan> runner_up;  // the best of the other ways to share the model that fit

  int64_t n_members() const { return is_team ? std::ssize(stages) : 1; }
  // Of a team, for a decode token: in every layer heads, their outputs, hidden values, outputs; the logits.
  int64_t n_exchanges() const { return is_team ? 4 * (cache.n_layers - cache.n_draft_layers) + 1 : 0; }
  // Devices that work on different layers.
  int64_t n_stages() const { return is_team ? 1 : std::ssize(stages); }
  uint64_t n_device_bytes_read() const;  // of the other weights
  uint64_t n_bytes_read() const { return n_device_bytes_read() + n_host_bytes_read; }
  int64_t n_host_expert_layers() const { return std::ranges::count(has_host_experts, true); }
  // The layers of a stage without the block for drafts.
  int64_t n_model_layers(const StagePlan& stage) const {
    return std::min(stage.end_layer, cache.n_layers - cache.n_draft_layers) - stage.first_layer;
  }
  // Whether all experts lie on the devices, no more devices are used than in the other plan, and sequences
  // have at least as much room; of rows in a buffer, n_enough suffice.
  bool offers_no_less(const MemoryPlan& other, int64_t n_enough) const;

  struct Item {
    const char* key;   // in JSON
    const char* name;  // for people
    Place place;
    uint64_t n_bytes;
    const char* hint;  // what helps when it does not fit
  };
  // Everything that is allocated. If the machine is not apart, everything is in host memory, without the
  // weights, which stay in the mapped file.
  std::vector<Item> items() const;
  uint64_t n_bytes(Place place) const;
  std::vector<Item> device_items(size_t stage) const;
  uint64_t n_device_bytes(size_t stage) const;
  // Throw Error{memory} naming the first item that does not fit.
  void check_devices(const Machine& machine) const;
  void check_room(const Machine& machine) const;
};

// `args` with the selector that the options ask for. Throws Error{usage} when flags do not fit each other.
ModelArgs with_selector(const ModelArgs& args, const EngineOptions& options);

// Pages of the smallest top-k buffer: the rows that a step selects, and the newest.
inline int64_t least_buffer_pages(const ModelArgs& args) { return pages_for(args.topk() + 1); }

// Whether so many devices can be a team for the model.
bool can_divide(const ModelArgs& args, int64_t n_members);

// The plan that is fastest (EngineOptions::is_for_all) of those with the wanted context, or else with the
// longest; more devices only where they bring 5 %. The ways that are weighed: layers on the fewest devices
// that hold all experts, then on one more after the other until the context fits, for many answers on all;
// and teams.
// - An open chunk is halved until the rest fits beside it, and is larger where experts come from the host.
// - An open number of sequences becomes the most that fit with the smallest buffers, up to where more hardly
//   gain speed, without moving experts off a device. They have rows and keys for a usual length; the memory
//   that is left goes to slots, up to twice top-k rows for each, or to every row where that fits. The context
//   is as long as for one sequence.
// - The block for drafts is left out with n_guesses 0; and where n_guesses is open, unless the plan with it
//   offers no less.
// Throws Error{usage} when a flag does not fit the model (a context beyond the model's, a buffer smaller than
// top-k, guesses without a block for drafts), Error{memory} when the machine has no room, naming the first
// thing that does not fit.
MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine);

// What `make` returns; nothing when it throws Error{memory}.
template <typename Make>
auto if_it_fits(const Make& make) -> std::optional<decltype(make())> try {
  return make();
} catch (const Error& error) {
  if (error.kind() != ErrorKind::memory) throw;
  return std::nullopt;
}

// --- plan_sequences.cpp: numbers of sequences.

// The usual length of a sequence, for which room is planned.
inline constexpr int64_t kUsualTokens = 16384;

// Parts of make_plan(): the plan with all devices of the machine, which share the model as options.split
// says, for a number of sequences that is decided; and what decides an open number.
MemoryPlan plan_on_all(const ModelArgs& args, const EngineOptions& options, const Machine& machine);
EngineOptions with_sequences(const ModelArgs& args, EngineOptions options, Machine machine);
// The options for n sequences, each as long as a context, with the rows and keys of all of them.
EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n);
// The most sequences whose plan fits the machine with no more experts on the host than one sequence's, with
// the block for drafts only if guesses are asked for; 0: not even one. Throws Error{usage} as make_plan()
// does.
int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, Machine machine);

// --- plan_speed.cpp: the speed to expect of the 671B model's shape: the bytes read from each memory, divided
// by the rates of such memories, plus the layers' other time. It is within 15 % of the speeds measured on
// four machines with H100 and H200 (tests/test_plan_speed.cpp). Of other GPUs nothing was measured.

// Tokens of context, and of the prompt, for which a speed is computed.
inline constexpr int64_t kSpeedContext = 4096, kSpeedPrompt = 32768;
// Bytes a second that CPU threads read of a server's memory: each, and all together at most.
inline constexpr double kThreadRate = 8e9, kHostRate = 120e9;

// What a plan expects of a GPU.
struct GpuRates {
  double bytes = 0;          // of weights in one format, a second
  double many_bytes = 0;     // the same in steps of several sequences
  double layer_seconds = 0;  // of a token and layer, without its weights: attention, index, launches
  double link = 0;           // of weights in host memory, bytes a second
  double prompt = 0;         // tokens a second with all 61 layers on it
};

struct PlanSpeed {
  double decode_rate = 0;        // tokens a second, of all sequences
  double prompt_rate = 0;        // 0: unknown, without a GPU
  const GpuKind* gpu = nullptr;  // the first one, and its rates
  GpuRates rates;
  double gpu_seconds = 0, host_seconds = 0;  // of a decode token
  double host_bytes_rate = 0;                // of weights in this format, bytes a second
};

// Whether speeds are known of models of this shape: only layers of theirs were timed.
bool has_known_speed(const ModelArgs& args);

// Of n_seqs sequences at a time, and of a prompt of n_prompt tokens. Of other shapes good for comparing
// plans.
PlanSpeed expected_speed(const ModelArgs& args, const MemoryPlan& plan, const Machine& machine,
                         int64_t n_seqs = 1, int64_t n_prompt = kSpeedPrompt);

}  // namespace dsv32
