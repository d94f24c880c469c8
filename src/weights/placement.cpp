#include "weights/placement.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <span>
#include <utility>

#include "backend/memory_budget.h"
#include "base/error.h"

namespace dsv32 {
namespace {

using HostLayers = std::vector<bool>;  // for each layer of a stage: whether its experts are on the host
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

int64_t n_with_experts(std::span<const LayerBytes> layers) {
  return std::ranges::count_if(layers, [](const LayerBytes& layer) { return layer.experts > 0; });
}

// Chooses n_host of the n layers that have experts, evenly: each of the n adds n_host to a sum; one that
// makes the sum reach n is chosen and takes n off.
HostLayers spread(std::span<const LayerBytes> layers, int64_t n_host) {
  const int64_t n = n_with_experts(layers);
  HostLayers on_host(layers.size());
  int64_t sum = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].experts == 0) continue;
    sum += n_host;
    on_host[i] = sum >= n;
    if (on_host[i]) sum -= n;
  }
  return on_host;
}

HostLayers part(const HostLayers& on_host, size_t first, size_t end) {
  return {on_host.begin() + static_cast<long>(first), on_host.begin() + static_cast<long>(end)};
}

bool ends_in_draft(const PlacementInput& input) { return input.model.layers.back().is_draft; }

// Layers on one device, and the bytes they take.
struct Stage {
  HostLayers on_host;
  uint64_t n_bytes = 0, n_read = 0;  // of the device
  uint64_t host_bytes = 0, host_read = 0;

  uint64_t n_read_of_layers() const { return n_read + host_read; }
};

Stage make_stage(const PlacementInput& input, int64_t n_rows, size_t first, HostLayers on_host) {
  const ModelBytes& model = input.model;
  const bool has_head = first + on_host.size() == model.layers.size();
  Stage stage;
  stage.n_bytes = input.device_bytes +
                  on_host.size() * (input.layer_bytes + static_cast<uint64_t>(n_rows) * input.row_bytes);
  if (first == 0) stage.n_bytes += model.embedding, stage.n_read += model.embedding_read;
  if (has_head) {
    stage.n_bytes += model.head + model.draft + (first == 0 ? 0 : model.draft_embedding);
    stage.n_bytes -= first == 0 ? model.tied : 0;
    stage.n_read += model.head;
  }
  for (size_t i = 0; i < on_host.size(); ++i) {
    const LayerBytes& layer = model.layers[first + i];
    stage.n_bytes += layer.core, stage.n_read += layer.core_read();
    (on_host[i] ? stage.host_bytes : stage.n_bytes) += layer.experts;
    (on_host[i] ? stage.host_read : stage.n_read) += layer.experts_read;
  }
  if (stage.host_bytes > 0) stage.n_bytes += input.stream_bytes;
  stage.on_host = std::move(on_host);
  return stage;
}

// The cost of stages; host_bytes is compared first.
struct Cost {
  uint64_t host_bytes = kNoLimit, most_read = 0;
  auto operator<=>(const Cost&) const = default;
};
constexpr Cost kImpossible;

Cost operator+(const Stage& stage, const Cost& rest) {
  if (rest == kImpossible) return kImpossible;
  return {stage.host_bytes + rest.host_bytes, std::max(stage.n_read_of_layers(), rest.most_read)};
}

// The best borders between devices, with n_rows in a buffer. on_host: the layers whose experts the host
// keeps; if absent, as few of each stage as possible. most_read: the most a stage may read for a token.
class Borders {
 public:
  // Goes from the last layer back, so that the cost of all later stages is known when a stage is weighed.
  Borders(const PlacementInput& input, int64_t n_rows, std::optional<HostLayers> on_host,
          uint64_t most_read = kNoLimit)
      : in_(input),
        n_rows_(n_rows),
        on_host_(std::move(on_host)),
        most_read_(most_read),
        best_(n_devices() + 1, std::vector<Cost>(n_layers() + 1)) {
    best_[n_devices()][n_layers()] = {0, 0};
    for (size_t first = n_layers() - ends_in_draft(in_); first-- > 0;)
      for (size_t end = first + 1; end <= n_layers(); ++end)
        if (!weigh(first, end)) break;
  }

  bool exist() const { return best_[0][0] != kImpossible; }
  uint64_t host_bytes() const { return best_[0][0].host_bytes; }

  // The stages of all devices; exist() must be true. Each stage is the shortest with which the fewest
  // possible bytes go to the host and no stage reads more than best_[0][0].most_read.
  std::vector<Stage> stages() const {
    std::vector<Stage> chosen;
    for (size_t device = 0, first = 0; device < n_devices(); ++device)
      for (size_t end = first + 1; chosen.size() == device; ++end) {
        const std::vector<Stage> stages = possible_stages(first, end);
        const Stage* stage = best_fitting(stages, device);
        if (!stage) continue;
        const Cost cost = *stage + best_[device + 1][end];
        if (cost.host_bytes != best_[device][first].host_bytes || cost.most_read > best_[0][0].most_read)
          continue;
        chosen.push_back(*stage);
        first = end;
      }
    return chosen;
  }

 private:
  size_t n_layers() const { return in_.model.layers.size(); }
  size_t n_devices() const { return in_.device_room.size(); }

  // Returns false if the stage fits on no device; then no longer stage fits either.
  bool weigh(size_t first, size_t end) {
    const std::vector<Stage> stages = possible_stages(first, end);
    bool fits = false;
    for (size_t device = 0; device < n_devices(); ++device)
      if (const Stage* stage = best_fitting(stages, device)) {
        fits = true;
        best_[device][first] = std::min(best_[device][first], *stage + best_[device + 1][end]);
      }
    return fits;
  }

  std::vector<Stage> possible_stages(size_t first, size_t end) const {
    if (on_host_) return {make_stage(in_, n_rows_, first, part(*on_host_, first, end))};
    const auto layers = std::span(in_.model.layers).subspan(first, end - first);
    const int64_t n_most = n_with_experts(layers);
    std::vector<Stage> stages;
    for (int64_t n_host = 0; n_host <= n_most; ++n_host)
      stages.push_back(make_stage(in_, n_rows_, first, spread(layers, n_host)));
    return stages;
  }

  // The cheapest stage that fits, which is the best whatever follows it; nullptr if none fits.
  const Stage* best_fitting(const std::vector<Stage>& stages, size_t device) const {
    const auto cost = [](const Stage& stage) { return Cost{stage.host_bytes, stage.n_read_of_layers()}; };
    const Stage* best = nullptr;
    for (const Stage& stage : stages)
      if (stage.n_bytes <= in_.device_room[device] && stage.n_read_of_layers() <= most_read_ &&
          (!best || cost(stage) < cost(*best)))
        best = &stage;
    return best;
  }

  const PlacementInput& in_;
  const int64_t n_rows_;
  const std::optional<HostLayers> on_host_;
  const uint64_t most_read_;
  std::vector<std::vector<Cost>> best_;  // [n_devices + 1][n_layers + 1]: the cost from there on
};

// Sends some more experts than needed to the host, so that the stage that reads most reads as little as
// possible, within 1/16.
Borders more_even(const PlacementInput& input, int64_t n_rows, const Borders& fewest) {
  const std::vector<LayerBytes>& layers = input.model.layers;
  const uint64_t n_largest = std::ranges::max_element(layers, {}, &LayerBytes::experts)->experts;
  const uint64_t n_more = kLayersForEvenness * (input.device_room.size() - 1) * n_largest;
  const uint64_t n_room = less_bytes(input.host_room, input.host_bytes);
  const uint64_t n_most = std::max(fewest.host_bytes(), std::min(n_room, fewest.host_bytes() + n_more));
  const auto with = [&](uint64_t most_read) { return Borders(input, n_rows, std::nullopt, most_read); };
  std::vector<uint64_t> reads;  // of all possible stages
  for (size_t first = 0; first < layers.size(); ++first)
    for (size_t end = first + 1; end <= layers.size(); ++end)
      reads.push_back(make_stage(input, 0, first, HostLayers(end - first)).n_read);
  std::ranges::sort(reads);
  const auto least = std::ranges::partition_point(reads, [&](uint64_t most_read) {
    const Borders borders = with(most_read);
    return !borders.exist() || borders.host_bytes() > n_most;
  });
  return with(*least + *least / 16);
}

// The most buffer rows that fit with the experts of these layers on the host; nothing: not even least_rows.
std::optional<int64_t> most_rows(const PlacementInput& input, const HostLayers& on_host) {
  const auto fit = [&](int64_t n_rows) { return Borders(input, n_rows, on_host).exist(); };
  if (!fit(input.least_rows)) return std::nullopt;
  int64_t least = input.least_rows, most = input.most_rows;
  while (least < most) {
    const int64_t middle = most - (most - least) / 2;
    if (fit(middle))
      least = middle;
    else
      most = middle - 1;
  }
  return least;
}

HostLayers wished_host_layers(const PlacementInput& input) {
  const int64_t n_wished = input.n_host_layers.value_or(0), n_most = n_with_experts(input.model.layers);
  if (n_wished < 0 || n_wished > n_most)
    fail(ErrorKind::usage, format("--cpu-experts is %lld, expected 0 to %lld, the layers that have experts",
                                  as_ll(n_wished), as_ll(n_most)));
  return spread(input.model.layers, n_wished);
}

// Gives each device as many layers as it holds and names the first thing that does not fit. Call it only when
// no borders exist for these experts on the host.
[[noreturn]] void fail_on_devices(const PlacementInput& input, const HostLayers& on_host, const char* hint) {
  size_t first = 0;
  for (size_t device = 0;; ++device) {
    const size_t n_later = input.device_room.size() - device - 1;
    const uint64_t n_room = input.device_room[device];
    const auto taken = [&](size_t end) {
      return make_stage(input, input.least_rows, first, part(on_host, first, end)).n_bytes;
    };
    if (taken(first) > n_room)
      fail_memory(format("what device %zu needs beside layers", device).c_str(), taken(first), n_room,
                  "a smaller context (-c) or --chunk needs less, a larger --gpu-mem allows more");
    size_t end = first;
    const size_t n_kept = n_later == 0 ? 0 : n_later + ends_in_draft(input);
    while (end + n_kept < on_host.size() && taken(end + 1) <= n_room) ++end;
    if (end == first || n_later == 0) {
      const char* experts = on_host[end] ? " without its experts" : " with its experts";
      if (input.model.layers[end].experts == 0) experts = "";
      fail_memory(format("layer %zu%s on device %zu", end, experts, device).c_str(),
                  taken(end + 1) - taken(end), n_room - taken(end), hint);
    }
    first = end;
  }
}

[[noreturn]] void fail_on_devices(const PlacementInput& input, const HostLayers& wished) {
  const auto& layers = input.model.layers;
  if (input.n_host_layers && Borders(input, input.least_rows, std::nullopt).exist())
    fail_on_devices(input, wished, "a larger --cpu-experts, or auto, leaves less on the devices");
  fail_on_devices(
      input, spread(layers, n_with_experts(layers)),
      "a smaller context (-c) or --chunk needs less, more GPUs (--gpus) or a larger --gpu-mem allow more");
}

void check_host(const PlacementInput& input, const Placement& placement) {
  if (input.host_bytes > input.host_room)
    fail_memory("the latent rows and staging memory", input.host_bytes, input.host_room,
                "a smaller context (-c) needs less, a larger --host-mem allows more");
  const uint64_t n_wanted = placement.host_bytes - input.host_bytes;
  const uint64_t n_free = input.host_room - input.host_bytes;
  if (n_wanted > n_free)
    fail_memory(format("the experts of %td layers in host memory",
                       std::ranges::count(placement.has_host_experts, true))
                    .c_str(),
                n_wanted, n_free,
                input.n_host_layers
                    ? "a larger --host-mem allows more; a smaller --cpu-experts, or auto, leaves less to it"
                    : "a larger --host-mem allows more; more GPUs (--gpus) or more of each (--gpu-mem) leave "
                      "less to it");
}

// Adds as many rows as the fullest device still has room for.
void grow_buffers(const PlacementInput& input, Placement& placement) {
  int64_t n_more = input.most_rows - placement.buffer_rows;
  const auto bytes_per_row = [&](const Placement::Device& device) {
    return static_cast<uint64_t>(device.end_layer - device.first_layer) * input.row_bytes;
  };
  for (size_t i = 0; i < placement.devices.size() && input.row_bytes > 0; ++i) {
    const uint64_t n_left = input.device_room[i] - placement.devices[i].n_bytes;
    n_more = std::min(n_more, static_cast<int64_t>(n_left / bytes_per_row(placement.devices[i])));
  }
  placement.buffer_rows += n_more;
  for (Placement::Device& device : placement.devices)
    device.n_bytes += static_cast<uint64_t>(n_more) * bytes_per_row(device);
}

Placement placement_of(const PlacementInput& input, const Borders& borders, int64_t n_rows) {
  Placement placement;
  placement.buffer_rows = n_rows;
  placement.host_bytes = input.host_bytes;
  for (const Stage& stage : borders.stages()) {
    const int64_t first = std::ssize(placement.has_host_experts);
    placement.devices.push_back({first, first + std::ssize(stage.on_host), stage.n_bytes, stage.n_read});
    placement.has_host_experts.insert(placement.has_host_experts.end(), stage.on_host.begin(),
                                      stage.on_host.end());
    placement.host_bytes += stage.host_bytes, placement.host_read += stage.host_read;
  }
  return placement;
}

}  // namespace

Placement place_layers(const PlacementInput& input) {
  assert(!input.device_room.empty() &&
         input.device_room.size() + ends_in_draft(input) <= input.model.layers.size());
  assert(0 <= input.least_rows && input.least_rows <= input.most_rows);
  const HostLayers wished = wished_host_layers(input);
  const std::optional<int64_t> n_rows = most_rows(input, wished);
  const bool is_open = !n_rows && !input.n_host_layers;
  const int64_t n_placed_rows = n_rows.value_or(input.least_rows);
  const Borders fewest(input, n_placed_rows, is_open ? std::nullopt : std::optional(wished));
  if (!fewest.exist()) fail_on_devices(input, wished);
  const bool is_alone = input.device_room.size() == 1;
  Placement placement = placement_of(
      input, is_open && !is_alone ? more_even(input, n_placed_rows, fewest) : fewest, n_placed_rows);
  grow_buffers(input, placement);
  check_host(input, placement);
  return placement;
}

}  // namespace dsv32
