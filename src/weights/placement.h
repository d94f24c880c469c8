// Which layers live on which device, and whose experts in host memory: pure, from sizes to places.
//
// Each device gets a stage of layers, at least one; all borders between stages are tried. As few bytes of
// experts as possible leave the devices. With several devices the experts of a few layers more may leave
// (kLayersForEvenness) where that lets the stage that reads most for a decode token read less: a prompt flows
// through the devices at the pace of the slowest. Then the borders are as early as possible. The top-k
// buffers shrink before any experts leave, and grow into what is left at the end.
//
// The layers of a stage whose experts are on the host lie evenly among those that have experts; no memory is
// over its room; the same input gives the same placement.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weights/layer_bytes.h"

namespace dsv32 {

// All in bytes, but for the rows, whose unit is the caller's. No sum of them overflows.
struct PlacementInput {
  ModelBytes model;
  std::vector<uint64_t> device_room;  // at least one device, and no more than layers
  uint64_t host_room = 0;
  // What a device takes beside its weights: for itself, for each layer, for each layer and row of a top-k
  // buffer; and what it takes more when experts of its layers are streamed to it.
  uint64_t device_bytes = 0, layer_bytes = 0, row_bytes = 0, stream_bytes = 0;
  int64_t least_rows = 0, most_rows = 0;  // of a layer's buffers together; least <= most
  uint64_t host_bytes = 0;                // what the host takes beside experts: latent rows, staging
  std::optional<int64_t> n_host_layers;   // layers whose experts the host keeps; nothing: as few as may be
};

// For each device but one, so many layers' experts may leave that would not have to.
constexpr uint64_t kLayersForEvenness = 2;

struct Placement {
  struct Device {
    int64_t first_layer = 0, end_layer = 0;
    uint64_t n_bytes = 0;  // with everything beside the weights
    uint64_t n_read = 0;   // of weights, by a decode token
  };
  std::vector<Device> devices;         // all of the input's
  std::vector<bool> has_host_experts;  // [n_layers]
  int64_t buffer_rows = 0;
  uint64_t host_bytes = 0;  // with what the host takes beside experts
  uint64_t host_read = 0;   // of experts, by a decode token
};

// With n_host_layers these lie evenly among all layers that have experts. Throws Error{memory} naming the
// first thing that does not fit, devices before the host; Error{usage} when n_host_layers is more than there
// are.
Placement place_layers(const PlacementInput& input);

}  // namespace dsv32
