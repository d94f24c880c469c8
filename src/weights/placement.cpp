#include "weights/placement.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <limits>
#include <ranges>
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

bool ends_in_draft(const PlacementInput& input) { return input.model.layers.back().is_draft; }

// Layers on one device, and the bytes they take.
struct Stage {
  size_t first = 0;  // layer
  HostLayers on_host;
  uint64_t n_bytes = 0;  // of the device
  uint64_t n_read = 0;   // for a decode token, wherever the experts lie
  uint64_t host_bytes = 0;
};

Stage make_stage(const PlacementInput& input, int64_t n_rows, size_t first, HostLayers on_host) {
  const ModelBytes& model = input.model;
  Stage stage;
  stage.n_bytes = input.device_bytes +
                  on_host.size() * (input.layer_bytes + static_cast<uint64_t>(n_rows) * input.row_bytes);
  if (first == 0) stage.n_bytes += model.embedding, stage.n_read += model.embedding_read;
  if (first + on_host.size() == model.layers.size()) {
    stage.n_bytes += model.head + model.draft + (first == 0 ? 0 : model.draft_embedding);
    stage.n_bytes -= first == 0 ? model.tied : 0;
    stage.n_read += model.head;
  }
  for (size_t i = 0; i < on_host.size(); ++i) {
    const LayerBytes& layer = model.layers[first + i];
    stage.n_bytes += layer.core, stage.n_read += layer.core_read() + layer.experts_read;
    (on_host[i] ? stage.host_bytes : stage.n_bytes) += layer.experts;
  }
  if (stage.host_bytes > 0) stage.n_bytes += input.stream_bytes;
  stage.first = first, stage.on_host = std::move(on_host);
  return stage;
}

// The stages of devices that were filled, in their order. If a device lacks room, its stage is the first, and
// those of the devices before it are missing.
struct Filling {
  std::deque<Stage> stages;
  bool lacks_room = false;

  uint64_t host_bytes() const {
    uint64_t n_bytes = 0;
    for (const Stage& stage : stages) n_bytes += stage.host_bytes;
    return n_bytes;
  }
};

// Fills the devices from the last one back, and leaves a layer for each before it. on_host: the layers whose
// experts the host keeps; most_read: what a token may read of one device.
Filling fill(const PlacementInput& input, int64_t n_rows, const HostLayers& on_host,
             uint64_t most_read = kNoLimit) {
  Filling filling;
  size_t end = on_host.size();
  for (size_t device = input.device_room.size(); device-- > 0 && !filling.lacks_room;) {
    const auto stage_from = [&](size_t first) {
      const auto begin = on_host.begin();
      return make_stage(input, n_rows, first,
                        {begin + static_cast<long>(first), begin + static_cast<long>(end)});
    };
    const auto fits = [&](const Stage& stage) {
      return stage.n_bytes <= input.device_room[device] && stage.n_read <= most_read;
    };
    const bool has_draft = ends_in_draft(input) && end == on_host.size();
    size_t first = device == 0 ? 0 : end - (has_draft ? 2 : 1);
    while (first > device && fits(stage_from(first - 1))) --first;
    filling.stages.push_front(stage_from(first));
    filling.lacks_room = !fits(filling.stages.front());
    end = first;
  }
  return filling;
}

// With the lowest limit of what a token may read of one device.
Filling fill_evenly(const PlacementInput& input, int64_t n_rows, const HostLayers& on_host) {
  if (Filling any = fill(input, n_rows, on_host); any.lacks_room) return any;
  const auto limits = std::views::iota(uint64_t{0}, make_stage(input, n_rows, 0, on_host).n_read + 1);
  const auto lacks_room = [&](uint64_t limit) { return fill(input, n_rows, on_host, limit).lacks_room; };
  return fill(input, n_rows, on_host, *std::ranges::partition_point(limits, lacks_room));
}

// Lets each device have the experts of as many of its layers as have room there.
void take_back_experts(const PlacementInput& input, Filling& filling) {
  for (size_t device = 0; device < filling.stages.size(); ++device) {
    Stage& stage = filling.stages[device];
    const auto layers = std::span(input.model.layers).subspan(stage.first, stage.on_host.size());
    const auto with = [&](int64_t n_host) {
      return make_stage(input, input.least_rows, stage.first, spread(layers, n_host));
    };
    int64_t n_host = 0;
    while (with(n_host).n_bytes > input.device_room[device]) ++n_host;
    stage = with(n_host);
  }
}

// Some experts must go to the host: as few as may be, and some more for evenness.
Filling fill_with_host(const PlacementInput& input) {
  const std::vector<LayerBytes>& layers = input.model.layers;
  const int64_t n_rows = input.least_rows;
  Filling even = fill_evenly(input, n_rows, spread(layers, n_with_experts(layers)));
  if (even.lacks_room) return even;
  int64_t n_host = 0;
  while (fill(input, n_rows, spread(layers, n_host)).lacks_room) ++n_host;
  Filling fewest = fill_evenly(input, n_rows, spread(layers, n_host));
  take_back_experts(input, even);
  take_back_experts(input, fewest);
  const uint64_t n_largest = std::ranges::max_element(layers, {}, &LayerBytes::experts)->experts;
  const uint64_t n_more = kLayersForEvenness * (input.device_room.size() - 1) * n_largest;
  const uint64_t n_room = less_bytes(input.host_room, input.host_bytes);
  return even.host_bytes() <= std::min(n_room, fewest.host_bytes() + n_more) ? even : fewest;
}

// The most buffer rows that fit with the experts of these layers on the host; nothing: not even least_rows.
std::optional<int64_t> most_rows(const PlacementInput& input, const HostLayers& on_host) {
  const auto numbers = std::views::iota(input.least_rows, input.most_rows + 1);
  const auto fit = [&](int64_t n_rows) { return !fill(input, n_rows, on_host).lacks_room; };
  const auto too_many = std::ranges::partition_point(numbers, fit);
  return too_many == numbers.begin() ? std::nullopt : std::optional<int64_t>(*(too_many - 1));
}

HostLayers wished_host_layers(const PlacementInput& input) {
  const int64_t n_wished = input.n_host_layers.value_or(0), n_most = n_with_experts(input.model.layers);
  if (n_wished < 0 || n_wished > n_most)
    fail(ErrorKind::usage, format("--cpu-experts is %lld, expected 0 to %lld, the layers that have experts",
                                  as_ll(n_wished), as_ll(n_most)));
  return spread(input.model.layers, n_wished);
}

[[noreturn]] void fail_on_device(const PlacementInput& input, const Filling& filling) {
  const Stage& stage = filling.stages.front();
  const size_t device = input.device_room.size() - filling.stages.size();
  const HostLayers all = spread(input.model.layers, n_with_experts(input.model.layers));
  const bool may_leave = input.n_host_layers && !fill(input, input.least_rows, all).lacks_room;
  fail_memory(format("layers %zu to %zu on device %zu, without the experts of %td", stage.first,
                     stage.first + stage.on_host.size() - 1, device, std::ranges::count(stage.on_host, true))
                  .c_str(),
              stage.n_bytes, input.device_room[device],
              may_leave ? "a larger --cpu-experts, or auto, leaves less on the devices"
                        : "a smaller context (-c) or --chunk needs less, more GPUs (--gpus) or a larger "
                          "--gpu-mem allow more");
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

Placement placement_of(const PlacementInput& input, const Filling& filling, int64_t n_rows) {
  Placement placement;
  placement.buffer_rows = n_rows;
  placement.host_bytes = input.host_bytes + filling.host_bytes();
  for (const Stage& stage : filling.stages) {
    const auto first = static_cast<int64_t>(stage.first);
    placement.devices.push_back({first, first + std::ssize(stage.on_host), stage.n_bytes});
    placement.has_host_experts.insert(placement.has_host_experts.end(), stage.on_host.begin(),
                                      stage.on_host.end());
  }
  return placement;
}

}  // namespace

Placement place_layers(const PlacementInput& input) {
  assert(!input.device_room.empty() &&
         input.device_room.size() + ends_in_draft(input) <= input.model.layers.size());
  assert(0 <= input.least_rows && input.least_rows <= input.most_rows);
  const HostLayers wished = wished_host_layers(input);
  const std::optional<int64_t> n_fitting = most_rows(input, wished);
  const int64_t n_rows = n_fitting.value_or(input.least_rows);
  const Filling filling =
      n_fitting || input.n_host_layers ? fill_evenly(input, n_rows, wished) : fill_with_host(input);
  if (filling.lacks_room) fail_on_device(input, filling);
  Placement placement = placement_of(input, filling, n_rows);
  grow_buffers(input, placement);
  check_host(input, placement);
  return placement;
}

}  // namespace dsv32
