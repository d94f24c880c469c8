// The routed experts of a prompt from host memory: they come through a ring in the window, and each group is
// added to all tokens. A step of many tokens chooses nearly every expert, so all are sent, and those of the
// next layer follow. Of a small step the choices are read first, which waits for the device.

#include "backend/expert_window.h"
#include "cuda/expert_ring.h"
#include "cuda/experts_prefill.h"

namespace dsv32::cuda {
namespace {

constexpr size_t kFewestPlaces = 2;

bool is_same(const ExpertRing::Group& a, const ExpertRing::Group& b) {
  return a.stacks.w1.data == b.stacks.w1.data && a.stacks.w3.data == b.stacks.w3.data &&
         a.stacks.w2.data == b.stacks.w2.data && a.first == b.first;
}

}  // namespace

// When the division changes, neither stream goes on before the other has done what was for the old one.
void ExpertRing::lie_in(uint8_t* memory, size_t n_bytes, const ExpertStacks& like, cudaStream_t stream) {
  const size_t n_places = std::min(n_bytes / expert_ring_bytes(like), kMostPlaces);
  if (n_places < kFewestPlaces)
    fail(ErrorKind::internal, format("a ring of %zu bytes for experts of %llu bytes", n_bytes,
                                     static_cast<unsigned long long>(expert_ring_bytes(like))));
  if (memory == memory_ && n_bytes == n_bytes_ && n_places == n_places_) return;
  memory_ = memory, n_bytes_ = n_bytes, n_places_ = n_places;
  n_place_bytes_ = n_bytes / n_places / kRingAlignment * kRingAlignment;
  clear();
  places_[0].left.order(stream, stream_);
  places_[0].arrived.order(stream_, stream);
}

int64_t ExpertRing::n_together(const ExpertStacks& stacks) const {
  return static_cast<int64_t>(n_place_bytes_ / expert_ring_bytes(stacks));
}

void ExpertRing::clear() {
  wanted_.clear(), arrivals_.clear(), free_.clear();
  for (size_t place = 0; place < n_places_; ++place) free_.push_back(place);
}

void ExpertRing::forget() {
  cudaStreamSynchronize(stream_);
  memory_ = nullptr;
  n_bytes_ = n_places_ = n_place_bytes_ = 0;
  clear();
}

// What was announced has arrived in the order in which it is wanted now; choices leave gaps in that.
void ExpertRing::want(const std::vector<Group>& groups) {
  std::deque<Arrival> there;
  for (Arrival& arrival : arrivals_) {
    if (there.size() < groups.size() && is_same(arrival.group, groups[there.size()]))
      there.push_back(std::move(arrival));
    else
      free_.push_back(arrival.place);
  }
  arrivals_ = std::move(there);
  wanted_.assign(groups.begin() + static_cast<std::ptrdiff_t>(arrivals_.size()), groups.end());
  copy_on();
}

void ExpertRing::copy_on() {
  for (; !wanted_.empty() && !free_.empty(); wanted_.pop_front(), free_.pop_front()) {
    copy(wanted_.front(), free_.front());
    arrivals_.push_back({std::move(wanted_.front()), free_.front()});
  }
}

// Neighbours go in one copy: a driver takes a thousand copies ahead. Fused gate and up are rows of a wider
// matrix in host memory. A place whose group was dropped during its copy is free all the same: copies follow
// one another.
void ExpertRing::copy(const Group& group, size_t place) {
  places_[place].left.hold(stream_);
  const ExpertStacks to = in_place(group, place);
  const auto copy_matrices = [&](const WeightMatrix& from, const WeightMatrix& there, int32_t expert,
                                 size_t n) {
    pinned_.wait(from.row(expert, 0));
    auto* target = const_cast<uint8_t*>(there.row(expert, 0));
    CUDA_CHECK(from.mat_bytes == there.mat_bytes
                   ? cudaMemcpyAsync(target, from.row(expert, 0), n * from.mat_bytes, cudaMemcpyHostToDevice,
                                     stream_)
                   : cudaMemcpy2DAsync(target, there.mat_bytes, from.row(expert, 0), from.mat_bytes,
                                       there.mat_bytes, n, cudaMemcpyHostToDevice, stream_));
  };
  const std::vector<int32_t>& experts = group.experts;
  for (size_t begin = 0, end = 0; begin < experts.size(); begin = end) {
    for (end = begin + 1; end < experts.size() && experts[end] == experts[end - 1] + 1;) ++end;
    copy_matrices(group.stacks.w1, to.w1, experts[begin], end - begin);
    copy_matrices(group.stacks.w3, to.w3, experts[begin], end - begin);
    copy_matrices(group.stacks.w2, to.w2, experts[begin], end - begin);
  }
  places_[place].arrived.record(stream_);
}

// The matrices of a stack follow one another, and the views begin so far before them that the
// group's first expert is where its stack begins in the place.
ExpertStacks ExpertRing::in_place(const Group& group, size_t place) const {
  ExpertStacks there = group.stacks;
  auto at = reinterpret_cast<uintptr_t>(memory_) + place * n_place_bytes_;
  const auto n = static_cast<size_t>(n_together(group.stacks)), first = static_cast<size_t>(group.first);
  for (WeightMatrix* w : {&there.w1, &there.w3, &there.w2}) {
    w->mat_bytes = static_cast<size_t>(w->n_rows) * w->row_bytes;
    w->data = reinterpret_cast<const uint8_t*>(at - first * w->mat_bytes);
    at += round_up(n * w->mat_bytes, kRingAlignment);
  }
  return there;
}

ExpertStacks ExpertRing::take(cudaStream_t stream) {
  if (arrivals_.empty()) fail(ErrorKind::internal, "no experts are on their way");
  const Arrival& next = arrivals_.front();
  places_[next.place].arrived.hold(stream);
  return in_place(next.group, next.place);
}

void ExpertRing::give_back(cudaStream_t stream) {
  const size_t place = arrivals_.front().place;
  places_[place].left.record(stream);
  arrivals_.pop_front();
  free_.push_back(place);
  copy_on();
}

namespace {

bool chooses_all(const RunExperts& op) {
  return chooses_all_experts(op.n_tokens * op.n_activated, op.w1.n_mats);
}

// By expert. Waits for the device when it is not all of them.
std::vector<bool> chosen_experts(const RunExperts& op, cudaStream_t stream) {
  std::vector<bool> is_chosen(static_cast<size_t>(op.w1.n_mats), chooses_all(op));
  if (chooses_all(op)) return is_chosen;
  std::vector<int32_t> ids(static_cast<size_t>(op.n_tokens * op.n_activated));
  CUDA_CHECK(
      cudaMemcpyAsync(ids.data(), op.experts, ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (const int32_t id : ids) is_chosen.at(static_cast<size_t>(id)) = true;
  return is_chosen;
}

void append_groups(const ExpertStacks& stacks, const std::vector<bool>& is_chosen, int64_t n_together,
                   std::vector<ExpertRing::Group>& groups) {
  for (int64_t first = 0; first < stacks.w1.n_mats; first += n_together) {
    ExpertRing::Group group{stacks, first, {}};
    for (int64_t e = first; e < std::min(first + n_together, stacks.w1.n_mats); ++e)
      if (is_chosen[static_cast<size_t>(e)]) group.experts.push_back(static_cast<int32_t>(e));
    if (!group.experts.empty()) groups.push_back(std::move(group));
  }
}

// Before the first step nobody knows how large the ring will be: then it is none.
void announce(const ExpertStacks* next, const ExpertRing& ring, std::vector<ExpertRing::Group>& groups) {
  if (!next || ring.n_together(*next) == 0) return;
  const std::vector<bool> all(static_cast<size_t>(next->w1.n_mats), true);
  append_groups(*next, all, ring.n_together(*next), groups);
}

// What the scratch memory of the largest step so far leaves, and the link's share in decode, beside which the
// announced experts stay; two experts at least: then tokens are computed in several runs.
size_t ring_bytes(const RunExperts& op, size_t n_bytes_before) {
  const size_t n_least = kFewestPlaces * expert_ring_bytes(op);
  const ExpertScratch few(shape_of(op), ExpertScratch::kFewestColumns), all(shape_of(op));
  if (op.n_window_bytes < n_least + std::max<size_t>(few.n_bytes(1), op.n_link_bytes))
    fail(ErrorKind::internal, format("a window of %zu bytes for experts of %zu bytes", op.n_window_bytes,
                                     n_least / kFewestPlaces));
  size_t n_bytes = op.n_window_bytes - std::min(all.n_bytes(op.n_tokens), op.n_window_bytes - n_least);
  n_bytes = std::min(n_bytes, op.n_window_bytes - op.n_link_bytes);
  if (n_bytes_before > 0) n_bytes = std::min(n_bytes, n_bytes_before);
  return std::max(n_bytes / kRingAlignment * kRingAlignment, n_least);
}

}  // namespace

void run_experts_streamed(const RunExperts& op, ExpertRing& ring, const Launch& launch) {
  std::vector<ExpertRing::Group> once, groups;
  if (op.n_tokens == 0) {
    announce(op.next, ring, groups);
    if (!groups.empty()) ring.want(groups);
    return;
  }
  const size_t n_ring_bytes = ring_bytes(op, ring.lies_in(op.window) ? ring.n_bytes() : 0);
  ring.lie_in(op.window, n_ring_bytes, op, launch.stream);
  PromptExperts::check(op);
  const Workspace rest(op.window + n_ring_bytes, op.n_window_bytes - n_ring_bytes);
  const int64_t run = PromptExperts::tokens_together(op, rest.n_bytes_left());
  const int64_t n_experts = op.w1.n_mats, n_together = ring.n_together(op);
  append_groups(op, chosen_experts(op, launch.stream), n_together, once);
  for (int64_t token = 0; token < op.n_tokens; token += run)
    groups.insert(groups.end(), once.begin(), once.end());
  if (chooses_all(op)) announce(op.next, ring, groups);
  ring.want(groups);
  for (int64_t token = 0; token < op.n_tokens; token += run) {
    Workspace scratch = rest;
    PromptExperts experts(tokens_of(op, token, std::min(run, op.n_tokens - token)), launch.with(scratch));
    for (const ExpertRing::Group& group : once) {
      const ExpertStacks there = ring.take(launch.stream);
      experts.add(there, group.first, std::min(group.first + n_together, n_experts));
      ring.give_back(launch.stream);
    }
  }
}

}  // namespace dsv32::cuda
