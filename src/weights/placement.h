// Decides which layers lie on which device, and which layers' experts in host memory: a pure function of
// sizes.
//
// Each device gets a stage of at least one layer; the block for drafts lies on the last device, after a
// layer of the model. Devices are filled from the last one back: each takes as many layers as have room and
// as a decode token may read of one device. That limit is as low as it can be, because a prompt passes
// through the devices at the pace of the slowest. So borders are as early as the limit and the room allow.
// (Where layers differ much in size, a device may be refused that has room for another layer than its own.)
//
// The top-k buffers shrink before any experts go to the host, and at the end grow into the memory that is
// left. Where experts must go, devices are filled as if all of them had gone; then each takes back the
// experts of as many layers as have room. If that leaves the experts of kLayersForEvenness * (devices - 1)
// layers more on the host than devices without a limit would, these are taken.
//
// In a stage, the layers with host experts are spread evenly over the layers that have experts. No memory is
// filled beyond its room. The same input gives the same placement.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weights/layer_bytes.h"

namespace dsv32 {

// All in bytes, except rows, whose unit is the caller's. No sum may overflow.
struct PlacementInput {
  ModelBytes model;
  std::vector<uint64_t> device_room;  // at least one device, and no more than layers
  uint64_t host_room = 0;
  // What a device takes beside its weights: in any case, for each layer, for each layer and row of a top-k
  // buffer, and when experts of its layers are streamed to it.
  uint64_t device_bytes = 0, layer_bytes = 0, row_bytes = 0, stream_bytes = 0;
  int64_t least_rows = 0, most_rows = 0;  // of a layer's buffers together; least <= most
  uint64_t host_bytes = 0;                // what the host takes beside experts: latent rows, staging
  std::optional<int64_t> n_host_layers;   // layers whose experts the host keeps; nothing: as few as possible
};

// For evenness, the experts of so many layers more for each border may go to the host.
constexpr uint64_t kLayersForEvenness = 2;

struct Placement {
  struct Device {
    int64_t first_layer = 0, end_layer = 0;
    uint64_t n_bytes = 0;  // weights and all else
  };
  std::vector<Device> devices;         // as many as the input has
  std::vector<bool> has_host_experts;  // [n_layers]
  int64_t buffer_rows = 0;
  uint64_t host_bytes = 0;  // experts and all else
};

// If n_host_layers is given, these are spread evenly over all layers that have experts. Throws Error{memory}
// naming the first thing that does not fit, devices before the host; Error{usage} when n_host_layers is more
// than the layers that have experts.
Placement place_layers(const PlacementInput& input);

}  // namespace dsv32
