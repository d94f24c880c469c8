// The operations of a layer with experts: the router, and the routed experts. As in ops.h pointers are to the
// backend's memory, f32 unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ops.h"

namespace dsv32 {

// logits = gate x, if there is a gate; p = sigmoid(logits); s = p + bias; the best groups by the sum of their
// two largest s; the best experts of these groups by s, ties to the lower index; weights p[chosen] / sum *
// route_scale (model.py, Gate) * scales[chosen].
struct RouteExperts {
  const float* logits = nullptr;  // [n_tokens, n_experts]: gate.y where there is a gate
  const float* bias = nullptr;    // [n_experts] or null
  int64_t n_tokens = 0, n_experts = 0, n_activated = 0, n_groups = 1, n_limited_groups = 1;
  bool normalize = true;
  float route_scale = 1;
  int32_t* experts = nullptr;     // [n_tokens, n_activated] ascending
  float* weights = nullptr;       // [n_tokens, n_activated]
  Matmul gate = {};               // without weights: `logits` are given
  GatedMatmul beside = {};        // an independent product that may run beside; without weights: none
  const float* scales = nullptr;  // [n_experts]; null: 1
};

// The routed experts of a layer.
struct ExpertStacks {
  WeightMatrix w1, w3;  // [n_experts, moe_inter_dim, dim]
  WeightMatrix w2;      // [n_experts, dim, moe_inter_dim]
  // [n_experts, 2]: factors of each expert's W1 x and W3 x; null: 1. host_scales: the same in host memory.
  const float *scales = nullptr, *host_scales = nullptr;
};

// y[t] = sum over chosen e of weights[t, e] * w2[e] @ (silu(w1[e] @ x[t]) * (w3[e] @ x[t])), added in
// ascending e; w1[e] and w3[e] times their scales, if there are any.
//
// Experts in host memory (Backend::alloc_weights). Decode: the host computes them in place, beside the
// operations enqueued after this one, up to the `add` with this y; a fixed part of each expert is uploaded to
// the end of `window` and computed by the device, and the two sums are added (backend/link_share.h). Prefill:
// the chosen experts are uploaded through `window`, in ascending order. The upload of `next`, the experts
// that follow in this step or in the prompt's next step, may begin as soon as the window has room. An op
// without tokens computes nothing and only announces `next`.
struct RunExperts : ExpertStacks {
  const float* x = nullptr;          // [n_tokens, dim]
  const int32_t* experts = nullptr;  // [n_tokens, n_activated]
  const float* weights = nullptr;    // [n_tokens, n_activated]
  int64_t n_tokens = 0, n_activated = 0;
  float* y = nullptr;  // [n_tokens, dim]
  Role role = Role::prefill;
  Place place = Place::device;  // of the matrices
  // Device memory. For experts in host memory: the same for all ops of a device, used by nothing else, and at
  // least expert_window_bytes() (backend/expert_window.h). For others: scratch memory, used if it is larger
  // than the backend's own.
  uint8_t* window = nullptr;
  size_t n_window_bytes = 0;
  size_t n_link_bytes = 0;             // window bytes of the link, same for all ops; 0: the host computes all
  const ExpertStacks* next = nullptr;  // in host memory too; null: not known
  // In decode, with experts in device memory: the product that follows, the shared expert's w2, with `plus` =
  // y and a `sum`. Without weights: none. With it, y itself need not be written.
  Matmul shared = {};
  // In a team w1 and w3 are the member's share of the rows of larger matrices, and so is w2: y has that share
  // of dim, and shared.y too, without a sum. Between the products the members gather all hidden values, and
  // the shared expert's, of which each has its share in shared.x. Not with experts in host memory.
  Member member = {};
  uint8_t* hidden = nullptr;  // for the gathered values: hidden_bytes(); used by nothing else

  // For every use and, behind the uses, every token's shared expert: at most a word for each value.
  size_t hidden_bytes() const {
    return static_cast<size_t>(n_tokens * (n_activated * w1.whole_rows() + shared.weight.n_cols)) * 4;
  }
};

}  // namespace dsv32
