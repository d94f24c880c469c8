// What is left open is decided in this order, each for what is decided before it:
//   1. whether there are drafts (make_plan), devices and split (fastest_plan), sequences
//      (plan_sequences.cpp);
//   2. chunk (MemoryPlanner::plan), context, tokens of all sequences (plan_with_chunk);
//   3. what fills the devices (place_apart): every row if no expert must leave, else the rest of the weights
//      first, the smallest buffers, experts, and slots with what is left.
#include "engine/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/expert_window.h"
#include "backend/host_lane.h"
#include "engine/sampler.h"
#include "model/stage.h"
#include "weights/placement.h"
#include "weights/shares.h"

namespace dsv32 {
namespace {

constexpr int64_t kHostChunk = 512, kDeviceChunk = 2048, kLeastChunk = 64;
constexpr int64_t kTeamChunk = 4096;  // its members' tiles of experts have half as many rows
// For experts that come from the host: each step transfers all of a layer's, so many tokens should share it.
constexpr int64_t kStreamedChunk = 8192;
// A chunk is not made smaller than this only to keep a layer's experts on the device.
constexpr int64_t kLeastBesideExperts = 512;
// 1 / kRingShare of a device's memory is for experts in transfer: about as many come during attention.
constexpr uint64_t kRingShare = 32;
// Weights must leave 1 / kLeastRest of the devices' memory for a step and a context.
constexpr uint64_t kLeastRest = 16;
// More devices are used where they make what is wanted so many times as fast.
constexpr double kWorthADevice = 1.05;
constexpr int64_t kMostMembers = 8;  // of a team
// A member of a team computes a multiple of so many hidden values of each expert.
constexpr int64_t kHiddenUnit = 64;

void check_flags(const ModelArgs& args, const EngineOptions& options) {
  if (options.context && (*options.context < 1 || *options.context > args.max_seq_len))
    fail(ErrorKind::usage, format("--ctx is %lld, expected 1 to %lld, the model's context",
                                  as_ll(*options.context), as_ll(args.max_seq_len)));
  if (options.chunk && (*options.chunk < 1 || *options.chunk > 1 << 16))
    fail(ErrorKind::usage, format("--chunk is %lld, expected 1 to 65536", as_ll(*options.chunk)));
  if (options.n_guesses.value_or(0) > 0 && args.n_draft_layers == 0)
    fail(ErrorKind::usage,
         format("--draft is %lld, but the model has no block for drafts (MTP)", as_ll(*options.n_guesses)),
         "--draft auto drafts where it can");
}

// Chooses what the options leave open, on all devices of the machine.
class MemoryPlanner {
 public:
  MemoryPlanner(const ModelArgs& args, const EngineOptions& options, const Machine& machine)
      : args_(args),
        options_(options),
        machine_(machine),
        n_weights_(total_bytes(machine.weights)),
        n_core_(core_bytes(machine.weights)),
        n_free_(machine.free_device_bytes()) {}

  // Tries chunks from the longest on. One that leaves all experts on the devices is the first choice. Else a
  // prompt's speed grows with the chunk, as the link is the bound: the largest up to kStreamedChunk, whose
  // steps take at most a half of what weights leave, and beside which half of the model's context has room.
  MemoryPlan plan() {
    const int64_t n_suitable = machine_.n_members > 1 ? kTeamChunk
                               : machine_.is_apart    ? kDeviceChunk
                                                      : kHostChunk;
    const int64_t first = choose_chunk(n_suitable, held_bytes());
    const int64_t last = options_.chunk ? first : std::min(first, kLeastChunk);
    const auto with = [&](int64_t chunk) { return if_it_fits([&] { return plan_with_chunk(chunk); }); };
    const bool must_leave = options_.n_cpu_experts.value_or(0) > 0 || n_weights_ > n_free_;
    std::optional<MemoryPlan> found;
    for (int64_t chunk = first; chunk >= last; chunk /= 2) {
      if (found && (must_leave || chunk < kLeastBesideExperts)) break;
      std::optional<MemoryPlan> plan = with(chunk);
      if (plan && plan->n_host_expert_bytes == 0) return *plan;
      if (!found) found = std::move(plan);
    }
    if (!found) return plan_with_chunk(last);  // throws, and says what is lacking
    if (options_.chunk) return *found;
    const int64_t n_enough = std::min(found->cache.max_context, args_.max_seq_len / 2);
    for (int64_t chunk = choose_chunk(kStreamedChunk, n_core_, 2); chunk > found->chunk; chunk /= 2)
      if (auto longer = with(chunk); longer && longer->cache.max_context >= n_enough) return *longer;
    return *found;
  }

 private:
  // --- Sizes

  // Whether the host may have to keep experts.
  bool may_leave() const {
    if (!has_experts(machine_.weights)) return false;
    return n_weights_ > n_free_ - n_free_ / kLeastRest || options_.n_cpu_experts.value_or(0) > 0;
  }
  // Bytes of weights that the devices hold in any case: the host need not keep them.
  uint64_t held_bytes() const { return may_leave() ? n_core_ : n_weights_; }
  uint64_t step_bytes(int64_t n_tokens, int64_t context) const {
    return Activations(nullptr, args_, n_tokens, context, options_.max_seqs, machine_.n_members).n_bytes;
  }

  // The chunk: `n_suitable` or what the options give, bounded because a dense model lists every position for
  // every token of a step. If it is not given, its step takes at most 1 / n_share of what n_held
  // bytes of weights leave on the devices.
  int64_t choose_chunk(int64_t n_suitable, uint64_t n_held, uint64_t n_share = 4) const {
    const int64_t context = options_.context.value_or(args_.max_seq_len);
    int64_t chunk = options_.chunk.value_or(n_suitable);
    const uint64_t n_rest = less_bytes(n_free_, n_held) / machine_.devices.size();
    while (!options_.chunk && machine_.is_apart && chunk > kLeastChunk &&
           step_bytes(chunk, context) > n_rest / n_share)
      chunk /= 2;
    constexpr int64_t kMostListed = int64_t{1} << 25;
    const int64_t n_attended = args_.has_indexer() ? std::min(args_.index_topk, context) : context;
    return std::max<int64_t>(1, std::min({chunk, context, kMostListed / n_attended}));
  }

  // How many tokens both memories hold beside n_step bytes of activations and n_more: rows in half of the
  // free host memory (in all of it if a limit was set); keys, and windows for prefill, in half of what
  // weights and a step leave on the devices.
  int64_t fitting_context(uint64_t n_step, uint64_t n_more) const {
    const CacheLayout& layout = plan_.cache.layout;
    const auto row_bytes = static_cast<uint64_t>(args_.n_all_layers() * layout.row_bytes());
    const auto key_bytes =
        static_cast<uint64_t>(args_.n_all_layers() * layout.key_page_bytes() / kPageTokens);
    const uint64_t n_host =
        less_bytes(machine_.host.n_bytes_free, plan_.n_mask_bytes) / (options_.host_mem ? 1 : 2);
    const uint64_t n_devices = machine_.devices.size();
    uint64_t n_taken = plan_.stages.back().n_logit_bytes + n_more;
    if (!machine_.is_apart) {
      n_taken = options_.host_mem ? n_taken + n_step + kSlackBytes : 0;
      return static_cast<int64_t>(less_bytes(n_host, n_taken) / (row_bytes + key_bytes));
    }
    n_taken += held_bytes() + n_devices * n_step;
    const uint64_t window_bytes = static_cast<uint64_t>(2 * layout.row_bytes()) * n_devices;
    const uint64_t n_device = less_bytes(n_free_, n_taken) / 2;
    return static_cast<int64_t>(std::min(n_host / row_bytes, n_device / (key_bytes + window_bytes)));
  }

  int64_t choose_context(int64_t chunk) const {
    if (options_.context) return *options_.context;
    const uint64_t n_step = step_bytes(std::max(chunk, plan_.cache.max_step_tokens()), args_.max_seq_len);
    const int64_t n_fitting = fitting_context(n_step, 0) / kPageTokens * kPageTokens;
    return std::clamp(n_fitting, std::min<int64_t>(kPageTokens, args_.max_seq_len), args_.max_seq_len);
  }

  int64_t choose_pool() const {
    const CachePlan& cache = plan_.cache;
    if (options_.pool != kAllContexts) return std::max(options_.pool.value_or(0), cache.max_context);
    const int64_t n_rounding = cache.max_seqs * kPageTokens;  // of CachePlan::n_pages
    return std::clamp(fitting_context(plan_.n_activation_bytes, cache.table_bytes()) - n_rounding,
                      cache.max_context, cache.max_seqs * cache.max_context);
  }

  MemoryPlan plan_with_chunk(int64_t chunk) {
    plan_ = {};
    CachePlan& cache = plan_.cache;
    plan_.n_weight_bytes = n_weights_;
    plan_.n_host_scratch_bytes = machine_.host.n_bytes_used;
    cache = {.layout = {options_.kv_type, args_.kv_lora_rank, args_.qk_rope_head_dim,
                        args_.has_indexer() ? args_.index_head_dim : 0, args_.selector() == Selector::quest},
             .is_apart = machine_.is_apart,
             .n_layers = args_.n_all_layers(),
             .n_draft_layers = args_.n_draft_layers,
             .max_seqs = options_.max_seqs};
    if (args_.n_draft_layers > 0) cache.n_guesses = options_.n_guesses.value_or(kMostGuesses);
    const int64_t n_most = cache.max_step_tokens();
    plan_.stages = {{.n_logit_bytes = Stage::logit_bytes(args_, n_most, machine_.n_members) +
                                      RowSampler::n_bytes(n_most, args_.vocab_size)}};
    if (machine_.is_apart) plan_.n_mask_bytes = RowSampler::n_mask_bytes(n_most, args_.vocab_size);
    cache.max_context = choose_context(chunk);
    plan_.chunk = std::max(std::min(chunk, cache.max_context), n_most);
    plan_.n_activation_bytes = step_bytes(plan_.chunk, cache.max_context);
    cache.pool_tokens = choose_pool();
    plan_.expert_window_bytes = expert_window();
    const std::optional<int64_t> rows = wanted_rows();
    if (machine_.is_apart) {
      place_apart(rows);
    } else {
      take(on_one_device(false));
      set_buffers(rows.value_or(0));
    }
    plan_.check_room(machine_);
    return std::move(plan_);
  }

  // --- Places

  // Rows of a buffer that the options ask for; 0: every row is resident; nothing: left open.
  std::optional<int64_t> wanted_rows() const {
    if (!options_.topk_buffer) return std::nullopt;
    const int64_t n_rows = *options_.topk_buffer;
    if (n_rows >= plan_.cache.max_context) return 0;
    if (args_.topk() == 0)
      fail(ErrorKind::usage,
           format("--topk-buffer is %lld, but this model has no indexer and attends to every row",
                  as_ll(n_rows)),
           "leave the flag out, or say --topk-buffer full; --select quest estimates which rows matter");
    if (n_rows < args_.topk())
      fail(ErrorKind::usage,
           format("--topk-buffer is %lld, expected at least %lld, the rows that one step selects",
                  as_ll(n_rows), as_ll(args_.topk())));
    return n_rows;
  }

  // Sets buffers of n_rows, and the slots for all of them that the options ask for.
  void set_buffers(int64_t n_rows) {
    plan_.cache.buffer_rows = n_rows;
    if (n_rows > 0 && options_.slots)
      plan_.cache.slot_tokens = std::max(*options_.slots, plan_.cache.buffer_pages() * kPageTokens);
  }

  // Bytes of a device's window: experts in transfer, at most a layer's, and beside them what a prompt's
  // products take, or the link's share in decode.
  uint64_t expert_window() const {
    uint64_t n_layer = 0, n_link = 0, n_room = Machine::kEndless;
    for (const LayerBytes& layer : machine_.weights.layers)
      n_layer = std::max(n_layer, layer.experts), n_link = std::max(n_link, layer.link_window);
    if (!machine_.link_adds) n_link = 0;
    for (const MemoryInfo& device : machine_.devices) n_room = std::min(n_room, device.n_bytes_free);
    if (n_layer == 0) return 0;
    const uint64_t n_expert = n_layer / static_cast<uint64_t>(args_.n_routed_experts);
    const uint64_t n_least = std::min(4 * (n_expert + 3 * kRingAlignment), n_layer);
    const uint64_t n_ring = std::clamp(n_room / kRingShare, n_least, n_layer);
    const ExpertShape shape{args_.n_routed_experts, args_.n_activated_experts, args_.dim,
                            args_.moe_inter_dim};
    return std::max(expert_window_bytes(shape, plan_.chunk, n_ring),
                    round_up(n_ring, kRingAlignment) + round_up(n_link, kRingAlignment));
  }

  // The input of place_layers(). `is_open`: it chooses how many pages of slots a buffer has, and the plan's
  // slots (one page) are the cost of each; otherwise the plan's slots are part of a layer's bytes.
  PlacementInput placement_input(std::span<const uint64_t> device_room, bool is_open) const {
    const CachePlan none = plan_.cache.of_layers(0), one = plan_.cache.of_layers(1);
    PlacementInput input;
    input.model = machine_.weights;
    input.model.head += plan_.stages.back().n_logit_bytes;
    input.device_room.assign(device_room.begin(), device_room.end());
    input.host_room = machine_.host.n_bytes_free;
    input.device_bytes = plan_.n_activation_bytes + none.table_bytes() + none.window_bytes();
    input.layer_bytes = one.key_pool_bytes() + one.table_bytes() - none.table_bytes();
    (is_open ? input.row_bytes : input.layer_bytes) += one.slot_bytes();
    input.stream_bytes = plan_.expert_window_bytes;
    input.host_bytes =
        plan_.cache.row_pool_bytes() + plan_.n_mask_bytes + machine_.devices.size() * kMailboxBytes;
    input.n_host_layers = options_.n_cpu_experts;
    return input;
  }

  // Makes every row resident if that needs no expert on the host; otherwise chooses buffers, of at least
  // twice top-k rows if these fit, else of top-k. What it chooses fills the memory.
  void place_apart(const std::optional<int64_t>& wanted) {
    std::vector<uint64_t> room;
    for (const MemoryInfo& device : machine_.devices) {
      const uint64_t n_left = may_leave()            ? device.n_bytes_free / kDriverShare
                              : options_.topk_buffer ? 0
                                                     : kSlackBytes;
      room.push_back(less_bytes(device.n_bytes_free, n_left));
    }
    CachePlan& cache = plan_.cache;
    // Lets place_layers() choose how many pages of slots a buffer has.
    const auto place_open = [&](int64_t n_least_rows) {
      cache.buffer_rows = 1;  // a page
      PlacementInput input = placement_input(room, true);
      input.most_rows = pages_for(cache.max_context + 1);
      input.least_rows = std::min(pages_for(n_least_rows + 1), input.most_rows);
      const Placement placement = place_layers(input);
      cache.buffer_rows =
          std::clamp(placement.buffer_rows * kPageTokens - 1, args_.topk(), cache.max_context);
      return placement;
    };
    set_buffers(wanted.value_or(0));
    const auto resident = if_it_fits([&] { return place_layers(placement_input(room, false)); });
    const bool is_open = args_.topk() > 0 && !wanted;
    if (resident && !(is_open && std::ranges::count(resident->has_host_experts, true) > 0))
      return take(*resident);
    for (const int64_t n_least_rows : {2 * args_.topk(), args_.topk()}) {
      const auto found = is_open ? if_it_fits([&] { return place_open(n_least_rows); }) : std::nullopt;
      if (!found) continue;
      if (!resident || cache.buffer_rows < cache.max_context) return take(*found);
      set_buffers(0);
      return take(*resident);
    }
    if (is_open) cache.buffer_rows = args_.topk();
    // On a single device, names the first item that does not fit.
    if (machine_.devices.size() == 1) {
      take(on_one_device(options_.n_cpu_experts != 0));
      plan_.check_devices(machine_);
    }
    place_layers(placement_input(room, false));
  }

  // Everything on one device, except perhaps the experts.
  Placement on_one_device(bool host_has_experts) const {
    Placement placement;
    placement.devices = {{0, args_.n_all_layers(), 0}};
    for (const LayerBytes& layer : machine_.weights.layers)
      placement.has_host_experts.push_back(host_has_experts && layer.experts > 0);
    return placement;
  }

  // Fills the stages with layers and experts as placed.
  void take(const Placement& placement) {
    const ModelBytes& model = machine_.weights;
    const uint64_t n_logit_bytes = plan_.stages.back().n_logit_bytes;
    plan_.stages.clear();
    plan_.has_host_experts = placement.has_host_experts;
    for (size_t i = 0; i < placement.devices.size(); ++i) {
      StagePlan stage{.first_layer = placement.devices[i].first_layer,
                      .end_layer = placement.devices[i].end_layer,
                      .n_scratch_bytes = machine_.is_apart ? machine_.devices[i].n_bytes_used : 0};
      for (auto l = static_cast<size_t>(stage.first_layer); l < static_cast<size_t>(stage.end_layer); ++l) {
        const LayerBytes& layer = model.layers[l];
        const bool is_host = plan_.has_host_experts[l];
        stage.n_weight_bytes += layer.core + (is_host ? 0 : layer.experts);
        stage.n_bytes_read += layer.core_read() + (is_host ? 0 : layer.experts_read);
        stage.n_expert_bytes_read += is_host ? 0 : layer.experts_read;
        if (!is_host) continue;
        stage.n_expert_window_bytes = plan_.expert_window_bytes;
        plan_.n_host_expert_bytes += layer.experts, plan_.n_host_bytes_read += layer.experts_read;
        if (machine_.link_adds) plan_.n_link_bytes_read += layer.link_read;
      }
      if (i == 0) stage.n_weight_bytes += model.embedding, stage.n_bytes_read += model.embedding_read;
      if (stage.end_layer == args_.n_all_layers()) {
        stage.n_weight_bytes += model.head - (i == 0 ? model.tied : 0), stage.n_bytes_read += model.head;
        stage.n_weight_bytes += model.draft + (i == 0 ? 0 : model.draft_embedding);
        stage.n_logit_bytes = n_logit_bytes;
      }
      if (stage.n_expert_window_bytes > 0) plan_.n_mailbox_bytes += kMailboxBytes;
      plan_.stages.push_back(stage);
    }
  }

  const ModelArgs& args_;
  const EngineOptions& options_;
  const Machine& machine_;
  const uint64_t n_weights_, n_core_, n_free_;
  MemoryPlan plan_;
};

// What keeps these devices from being a team; empty: nothing.
std::string why_no_team(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  if (!machine.can_team) return "the devices cannot reach each other's memory, or are of different kinds";
  if (args.selector() == Selector::quest) return "Quest scores all heads together";
  return options.n_cpu_experts.value_or(0) > 0 ? "the host keeps experts" : "";
}

// All devices of the machine as a team. They are planned as one of them, the one with the least room.
MemoryPlan plan_of_team(const ModelArgs& args, EngineOptions options, const Machine& machine) {
  if (const std::string why = why_no_team(args, options, machine); !why.empty())
    fail(ErrorKind::usage, "--split rows: " + why, "--split layers gives each device layers of its own");
  if (!can_divide(args, std::ssize(machine.devices)))  // more devices may suit it
    fail(ErrorKind::memory,
         format("--split rows: the model's rows cannot be divided by %zu", machine.devices.size()),
         "--gpus names fewer or more");
  Machine one = machine;
  one.n_members = std::ssize(machine.devices);
  one.devices = {*std::ranges::min_element(machine.devices, {}, &MemoryInfo::n_bytes_free)};
  one.weights = share_of(machine.weights, one.n_members);
  options.n_cpu_experts = 0;
  MemoryPlan plan = MemoryPlanner(args, options, one).plan();
  plan.is_team = true;
  plan.n_weight_bytes = total_bytes(machine.weights);
  StagePlan other = plan.stages.front();  // the first one draws tokens
  other.n_logit_bytes -= RowSampler::n_bytes(plan.cache.max_step_tokens(), args.vocab_size);
  plan.stages.resize(machine.devices.size(), other);
  for (size_t i = 0; i < plan.stages.size(); ++i)
    plan.stages[i].n_scratch_bytes = machine.devices[i].n_bytes_used;
  return plan;
}

// A plan, and the tokens a second that count.
struct Weighed {
  std::shared_ptr<MemoryPlan> plan;
  double rate = 0;
};

double rate_of(const ModelArgs& args, const EngineOptions& options, const MemoryPlan& plan,
               const Machine& machine) {
  const CachePlan& cache = plan.cache;
  const int64_t n_each = std::min(cache.max_context, kUsualTokens);
  const int64_t n_seqs =
      options.is_for_all ? std::clamp<int64_t>(cache.pool_tokens / n_each, 1, cache.max_seqs) : 1;
  return expected_speed(args, plan, machine, n_seqs).decode_rate;
}

bool is_better(const Weighed& one, const Weighed& other) {
  if (!other.plan || one.plan->cache.max_context != other.plan->cache.max_context)
    return !other.plan || one.plan->cache.max_context > other.plan->cache.max_context;
  const bool has_more = one.plan->stages.size() > other.plan->stages.size();
  return one.rate > (has_more ? kWorthADevice : 1) * other.rate;
}

// The ways that make_plan() weighs, in their order.
MemoryPlan fastest_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  const auto plan_of = [&](size_t n, Split split) {  // with the first n devices
    Machine some = machine;
    some.devices.resize(n);
    EngineOptions decided = options;
    decided.split = split;
    return plan_on_all(args, with_sequences(args, decided, some), some);
  };
  const auto fit = [&](size_t n, Split split) { return if_it_fits([&] { return plan_of(n, split); }); };
  Weighed best, second;
  const auto weigh = [&](const MemoryPlan& plan) {
    Weighed one{std::make_shared<MemoryPlan>(plan), rate_of(args, options, plan, machine)};
    if (is_better(one, best)) std::swap(best, one);
    if (one.plan && is_better(one, second)) second = one;
  };
  const size_t n_most = std::min(machine.devices.size(), static_cast<size_t>(args.n_layers));
  const size_t n_least = machine.is_apart && options.gpus.empty() ? 1 : n_most;
  const bool is_team = options.split == Split::rows && n_most > 1;
  const int64_t n_wanted = options.context.value_or(args.max_seq_len);
  if (n_most == 1) return plan_of(1, Split::layers);
  for (size_t n = is_team ? n_most + 1 : n_least; n <= n_most; ++n) {
    const bool is_last = n == n_most, may_keep = is_last || options.n_cpu_experts;  // experts on the host
    if (!may_keep && total_bytes(machine.weights) > machine.free_device_bytes(n)) continue;
    const auto plan = fit(n, Split::layers);
    if (!plan || (!may_keep && plan->n_host_expert_bytes > 0)) continue;
    weigh(*plan);
    if (plan->cache.max_context >= n_wanted && !is_last) n = options.is_for_all ? n_most - 1 : n_most;
  }
  if (is_team || (options.split != Split::layers && why_no_team(args, options, machine).empty()))
    for (size_t n = std::max<size_t>(n_least, 2); n <= n_most; ++n)
      if (can_divide(args, static_cast<int64_t>(n)))
        if (const auto plan = fit(n, Split::rows)) weigh(*plan);
  if (!best.plan) return plan_of(n_most, is_team ? Split::rows : Split::layers);  // throws, and says why
  best.plan->runner_up = second.plan;
  return *best.plan;
}

}  // namespace

bool can_divide(const ModelArgs& args, int64_t n_members) {
  return n_members >= 2 && n_members <= kMostMembers && args.n_heads % n_members == 0 &&
         divides_rows(args.dim, n_members) && divides_rows(args.inter_dim, n_members) &&
         args.moe_inter_dim % (n_members * kHiddenUnit) == 0;
}

MemoryPlan plan_on_all(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  return options.split == Split::rows ? plan_of_team(args, options, machine)
                                      : MemoryPlanner(args, options, machine).plan();
}

MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  check_flags(args, options);
  const auto plan_of = [&](const ModelArgs& some) {
    Machine its = machine;
    if (some.n_draft_layers == 0) its.weights = without_draft(std::move(its.weights));
    its.weights.layers.resize(static_cast<size_t>(some.n_all_layers()));
    return fastest_plan(some, options, its);
  };
  if (args.n_draft_layers == 0 || options.n_guesses == 0) return plan_of(args.without_draft());
  if (options.n_guesses) return plan_of(args);
  const auto drafting = if_it_fits([&] { return plan_of(args); });
  const MemoryPlan plain = plan_of(args.without_draft());
  const int64_t n_rows = (1 + kMostGuesses) * (args.topk() + 1);  // for every step that verifies guesses
  return drafting && drafting->offers_no_less(plain, n_rows) ? *drafting : plain;
}

ModelArgs with_selector(const ModelArgs& args, const EngineOptions& options) {
  const bool is_quest = options.select == SelectPolicy::quest;
  if (options.quest_rows && !is_quest)
    fail(ErrorKind::usage, "--topk is the number of rows that Quest selects", "--select quest uses Quest");
  if (options.select == SelectPolicy::model) return args;
  const int64_t n_rows = options.quest_rows.value_or(kQuestRows);
  if (is_quest && (n_rows < 2 * kSpanTokens || n_rows % kSpanTokens != 0))
    fail(ErrorKind::usage, format("--topk is %lld, expected a multiple of %lld, at least %lld", as_ll(n_rows),
                                  as_ll(kSpanTokens), as_ll(2 * kSpanTokens)));
  if (options.n_guesses.value_or(0) > 0)
    fail(ErrorKind::usage, "drafts need the selector that the model was trained with",
         "leave --select or --draft out");
  return args.with_quest(is_quest ? n_rows : 0);
}

}  // namespace dsv32
