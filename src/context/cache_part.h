// A stage's part of the cache: what is remembered of a run of layers on one device, and how a step sees it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/key_pool.h"
#include "context/row_pool.h"
#include "context/slot_pool.h"
#include "context/step_view.h"
#include "context/windows.h"

namespace dsv32 {

class CachePart {
 public:
  // Of the layers [first_layer, end_layer). Throws Error{memory}.
  CachePart(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t end_layer);
  CachePart(const CachePart&) = delete;
  CachePart& operator=(const CachePart&) = delete;

  int64_t first_layer() const { return first_layer_; }
  int64_t end_layer() const { return end_layer_; }
  int64_t max_seqs() const { return plan_.max_seqs; }
  RowPool& rows() { return rows_; }
  KeyPool& keys() { return keys_; }
  SlotPool& slots() { return slots_; }

  // The timelines of a step, in the order of its `seq` numbers, and how many tokens each held before it. In a
  // decode step each has one token.
  void begin_step(std::span<Timeline* const> timelines, std::span<const int64_t> n_held, Role role);
  // The step that runs looks rows up in top-k buffers.
  bool has_buffers() const { return has_buffers_; }
  // One layer as the operations of that step see it; valid until the next begin_step(). Layers are entered in
  // order.
  CacheView enter(int64_t layer);
  // The layers of that step have been enqueued.
  void end_step();

 private:
  CachePlan plan_;
  int64_t first_layer_, end_layer_;
  RowPool rows_;
  KeyPool keys_;
  SlotPool slots_;
  Windows windows_;
  StepView view_;
  // Where the rows of the step that runs are read.
  enum class Source { rows, slots, windows } source_ = Source::rows;
  bool has_buffers_ = false;
  std::vector<const Timeline*> passed_by_;  // of that step: resident, and their slots did not get its rows
};

}  // namespace dsv32
