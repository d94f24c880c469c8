#include "context/slot_pool.h"

namespace dsv32 {

SlotPool::SlotPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : backend_(&backend), first_layer_(first_layer), n_slots_(plan.n_slots()) {
  for (int64_t i = 0; i < n_layers; ++i)
    slots_.emplace_back(backend, Place::device, plan.max_seqs * n_slots_ * plan.layout.row_bytes(),
                        "the top-k buffer");
  states_ = {backend, Place::device, plan.max_seqs * n_layers * n_slots_ * 2, "the top-k buffer"};
  for (int64_t share = 0; share < plan.max_seqs; ++share) reset(share);
}

int32_t* SlotPool::state(int64_t share, int64_t layer) const {
  return states_.data() + (share * std::ssize(slots_) + layer - first_layer_) * n_slots_ * 2;
}

TopkBuffer SlotPool::buffer(int64_t share, int64_t layer) const {
  int32_t* state = this->state(share, layer);
  return {static_cast<int32_t>(n_slots_), state, state + n_slots_};
}

void SlotPool::reset(int64_t share) {
  if (n_slots_ == 0) return;
  std::vector<int32_t> fresh(slots_.size() * static_cast<size_t>(n_slots_) * 2);
  for (size_t i = 0; i < slots_.size(); ++i) {
    int32_t* state = fresh.data() + i * static_cast<size_t>(n_slots_) * 2;
    dsv32::reset({static_cast<int32_t>(n_slots_), state, state + n_slots_});
  }
  backend_->upload(state(share, first_layer_), fresh.data(), fresh.size() * sizeof(int32_t));
}

}  // namespace dsv32
