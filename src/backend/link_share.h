// The link's share of experts in host memory: the part that a device uploads and computes itself in decode,
// while the host computes the rest.
//
// An expert is divided by its hidden width: the link's part is the last columns of w2 and the rows of w1 and
// w3 that make the same hidden values. So each side has a narrower expert, and the two sums are added. The
// number of columns (choose.h), and so the bits, depend only on the matrices and Backend::link_adds.
//
// The chosen experts are uploaded in rounds, ascending, to the end of the window (RunExperts::n_link_bytes);
// each is uploaded once, however many tokens chose it. A token's sum runs over its experts in ascending
// order, in whatever rounds they come.
#pragma once

#include "backend/choose.h"
#include "backend/expert_window.h"
#include "base/error.h"

namespace dsv32 {

// 0 for weights without codes, which are rare.
inline int64_t link_share(const ExpertStacks& stacks) {
  for (const WeightMatrix* w : {&stacks.w1, &stacks.w3, &stacks.w2})
    if (traits(w->type).block_values == 1) return 0;
  return choose_link_share(stacks.w1.n_rows);
}

// A view of the host's part of experts whose last n_share hidden columns are the link's.
inline ExpertStacks host_part(ExpertStacks stacks, int64_t n_share) {
  stacks.w1.n_rows -= n_share, stacks.w3.n_rows -= n_share, stacks.w2.n_cols -= n_share;
  return stacks;
}

// A view of the link's part in host memory.
inline ExpertStacks link_part(ExpertStacks stacks, int64_t n_share) {
  for (WeightMatrix* w : {&stacks.w1, &stacks.w3})
    w->data = w->row(0, w->n_rows - n_share), w->n_rows = n_share;
  stacks.w2.data += row_bytes(stacks.w2.type, stacks.w2.n_cols - n_share);
  stacks.w2.n_cols = n_share;
  return stacks;
}

// The bytes of one expert's link part.
inline uint64_t link_bytes(const ExpertStacks& stacks) {
  const int64_t n_share = link_share(stacks);
  return static_cast<uint64_t>(n_share) * (stacks.w1.row_bytes + stacks.w3.row_bytes) +
         static_cast<uint64_t>(stacks.w2.n_rows) * row_bytes(stacks.w2.type, n_share);
}

// A view of a round's experts, at most kLinkExperts: the link's `part`, packed at `at`, aligned to
// kRingAlignment.
inline ExpertStacks in_link_window(ExpertStacks part, const uint8_t* at) {
  for (WeightMatrix* w : {&part.w1, &part.w3, &part.w2}) {
    w->n_mats = std::min(w->n_mats, kLinkExperts);
    w->row_bytes = row_bytes(w->type, w->n_cols);
    w->mat_bytes = static_cast<size_t>(w->n_rows) * w->row_bytes;
    w->data = at;
    at += round_up(static_cast<uint64_t>(w->n_mats) * w->mat_bytes, kRingAlignment);
  }
  return part;
}

// The bytes of a window that a round of these experts takes; 0: the link has no share.
inline uint64_t link_window_bytes(const ExpertStacks& stacks) {
  constexpr uint64_t kPast = 256;  // products may read past the end
  if (link_share(stacks) == 0) return 0;
  const auto n = static_cast<uint64_t>(std::min(stacks.w1.n_mats, kLinkExperts));
  return n * link_bytes(stacks) + 3 * kRingAlignment + kPast;
}

// Where a round's experts lie in an operation's window. Throws Error{internal} when they do not fit.
inline uint8_t* link_window(const RunExperts& op) {
  const uint64_t n = link_window_bytes(op);
  if (n > op.n_link_bytes || op.n_link_bytes > op.n_window_bytes)
    fail(ErrorKind::internal, "the link's share of experts has no room in their window");
  const auto begin = reinterpret_cast<uintptr_t>(op.window) + op.n_window_bytes - op.n_link_bytes;
  return reinterpret_cast<uint8_t*>(round_up(begin, kRingAlignment));
}

}  // namespace dsv32
