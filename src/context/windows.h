// Two layers' rows on the device, for prefill steps of timelines whose rows are not resident: the next
// layer's rows are streamed from the host pool into one window while a step reads the other.
//
// In a window each timeline's pages follow one another, so that what it held before the step is a few long
// copies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/row_pool.h"
#include "context/timeline.h"

namespace dsv32 {

class Windows {
 public:
  Windows() = default;
  // For the rows of the layers [first_layer, end_layer); empty where none are needed. Throws Error{memory}.
  Windows(Backend& backend, const CachePlan& plan, const RowPool& rows, int64_t first_layer,
          int64_t end_layer);

  bool are_there() const { return windows_[0].n() > 0; }

  // The timelines of a step and how many tokens each holds already; their pages are at most window_pages()
  // together.
  // Gives each timeline's place: the number of its first page in a window. Begins to stream the first layer.
  std::vector<int32_t> begin(std::span<Timeline* const> timelines, std::span<const int64_t> n_held);
  // The layer's rows; what is enqueued from now on sees them. Begins to stream the next. In the order of the
  // layers.
  uint8_t* enter(int64_t layer);

 private:
  void stream(int64_t layer);

  // Pages of the pool that follow one another, and where their rows go.
  struct Run {
    int64_t from_row, to_row, n_rows;
  };
  Backend* backend_ = nullptr;
  const RowPool* rows_ = nullptr;
  int64_t first_layer_ = 0, end_layer_ = 0, row_bytes_ = 0;
  Buffer<uint8_t> windows_[2];
  std::vector<Run> runs_;  // the same in every layer
  std::vector<StreamRows::Copy> copies_;
};

}  // namespace dsv32
