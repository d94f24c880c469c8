// Which kernels a GPU runs: the one place that chooses, by role, format, tokens, shape and device.
//
// Every function is pure. cuda/ asks it before a launch, and tests/test_choose.cpp holds its answers as a
// table. How a sum is cut is no choice of speed: it decides bits and stands beside the kernels. What is
// chosen here never changes a bit within a role.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

// hopper: code for sm_90a on a Hopper (wgmma). generic: every other GPU of compute capability 8.0 and later.
enum class KernelFamily { generic, hopper };

constexpr bool has_codes(TensorType type) {
  return type != TensorType::f32 && type != TensorType::f16 && type != TensorType::bf16;
}

// ---- products of decode, bound by reading the weights ----

// Each is a file cuda/decode_NAME; those of floats are in cuda/float_rows.cuh.
enum class DecodeKernel {
  float_rows,   // F32, few tokens, one after the other
  float_tiles,  // F32
  rows,         // a warp reads rows for up to 8 tokens, 16 of F16 and BF16
  columns,      // up to 16 tokens of a matrix, or uses of an expert, share its weights
  wide,         // up to 80 tokens share the weights; Hopper's
};

struct DecodeChoice {
  DecodeKernel kernel;
  int n_together;  // tokens that share one reading of the weights
  int width;       // that the kernel has room for: n_together rounded up
};

constexpr int kRowsTokens = 8, kColumnsTokens = 16;

// The widths of decode_wide.cu: the formats that most files have get all of them.
constexpr bool has_all_widths(TensorType type) {
  using enum TensorType;
  return type == q8_0 || (type >= q2_k && type <= q6_k) || type == iq4_nl || type == iq4_xs;
}
constexpr int wide_width(TensorType type, int n_together) {
  for (const int width : {32, 40, 48, 64, 80})
    if (n_together <= width && (width == 32 || width == 64 || has_all_widths(type))) return width;
  return 0;
}

// n_tokens in equal shares of at most n_most.
constexpr int equal_share(int n_tokens, int n_most) {
  const int n_shares = (n_tokens + n_most - 1) / n_most;
  return (n_tokens + n_shares - 1) / n_shares;
}

// Of 1 or more tokens. n_uses: where uses of experts are sorted into runs, the most uses of a run; else 0.
constexpr DecodeChoice choose_decode(TensorType type, int n_tokens, int n_uses, KernelFamily family) {
  if (type == TensorType::f32)
    return n_tokens <= 8 ? DecodeChoice{DecodeKernel::float_rows, 1, 1}
                         : DecodeChoice{DecodeKernel::float_tiles, n_tokens, n_tokens};
  if (!has_codes(type)) {
    const int width = n_tokens > kRowsTokens ? 2 * kRowsTokens : kRowsTokens;
    return {DecodeKernel::rows, std::min(n_tokens, width), width};
  }
  if (n_uses == 0 && n_tokens <= kRowsTokens) return {DecodeKernel::rows, n_tokens, kRowsTokens};
  if (n_uses == 0 && n_tokens > kColumnsTokens && family == KernelFamily::hopper) {
    const int n_together = equal_share(n_tokens, has_all_widths(type) ? 80 : 64);
    return {DecodeKernel::wide, n_together, wide_width(type, n_together)};
  }
  const int n_together = n_uses > 0 ? n_uses : equal_share(n_tokens, kColumnsTokens);
  return {DecodeKernel::columns, n_together, (n_together + 7) / 8 * 8};
}

constexpr int64_t kMostSorted = 4096;  // experts by which uses can be sorted

// The most uses of an expert that share its weights in decode; 0: each use reads them by itself, since hardly
// two of so few tokens choose the same expert.
constexpr int choose_run(int64_t n_tokens, int64_t n_experts, bool have_codes) {
  if (n_tokens <= 4 || n_experts > kMostSorted || !have_codes) return 0;
  return static_cast<int>(std::min<int64_t>(n_tokens, kColumnsTokens));
}

// ---- products of prompts, bound by the tensor cores ----

// Whether all rows become fp16 in scratch memory before the product, instead of on their way into its tiles:
// where tiles would do so more than twice, and for matrices of few rows, which have few tiles.
constexpr bool expands_rows(int64_t n_rows, int64_t n_mats, int64_t n_tokens) {
  return n_tokens > 256 || (n_mats == 1 && n_rows <= 2048);
}

// Whether cuBLASLt may make a product of fp16: with fewer tokens it gains little, and its loading takes a
// moment.
constexpr bool uses_library(int64_t n_tokens, KernelFamily family) {
  return n_tokens >= 512 && family == KernelFamily::hopper;
}

// Whether tiles have 256 uses of an expert instead of 128.
constexpr bool has_double_tiles(int64_t n_uses, int64_t n_experts) { return n_uses >= 160 * n_experts; }

// Whether so many uses choose every expert as a rule: experts in host memory are sent without asking which.
constexpr bool chooses_all_experts(int64_t n_uses, int64_t n_experts) { return n_uses >= 2 * n_experts; }

// ---- attention ----

enum class AttentionKernel {
  plain,          // any sizes and rows of f32
  generic,        // mla.cu: mma.sync
  hopper_prompt,  // mla_hopper.cu
  hopper_decode,  // mla_decode.cu
};

// has_fast_shape: latents of 512 + 64 in fp8 or bf16, aligned. In decode few heads have blocks for all
// multiprocessors in the generic kernel alone.
constexpr AttentionKernel choose_attention(bool is_decode, int64_t n_heads, bool has_fast_shape,
                                           KernelFamily family) {
  if (!has_fast_shape) return AttentionKernel::plain;
  if (family != KernelFamily::hopper || (is_decode && n_heads <= 32)) return AttentionKernel::generic;
  return is_decode ? AttentionKernel::hopper_decode : AttentionKernel::hopper_prompt;
}

// Whether so few tokens of decode go to mla_few.cu, whose blocks of 32 heads and 32 columns each have a
// multiprocessor and hold all of a token's rows.
constexpr bool attends_few(int64_t n_tokens, int64_t n_heads, int64_t n_rows, int n_sms) {
  return n_rows <= 2048 && n_tokens * ((n_heads + 31) / 32) * 16 <= n_sms;
}

// Whether the rows of a prompt's step become fp16 ahead: each is chosen by several tokens as a rule.
constexpr bool pays_to_widen(int64_t n_rows, int64_t n_tokens) { return n_rows <= 256 * n_tokens; }

enum class ScoreKernel { plain, generic, hopper };

// has_fast_shape: keys of 128 values in fp8.
constexpr ScoreKernel choose_scores(int64_t n_heads, bool has_fast_shape, KernelFamily family) {
  if (!has_fast_shape) return ScoreKernel::plain;
  return n_heads <= 64 && family == KernelFamily::hopper ? ScoreKernel::hopper : ScoreKernel::generic;
}

// Threads of a block of the top-k of long rows; of very long ones, whose samples must be large, as many as of
// short ones.
constexpr int topk_threads(bool is_long, int64_t n_visible) {
  return is_long && n_visible <= int64_t{1} << 18 ? 512 : 1024;
}

// Of so few tokens resolve() may bring the missing rows too: nothing need be left to do beside the fetch.
constexpr int64_t kFewFetchTokens = 4;

// Parts of a decode step whose missing rows are fetched while the part before is attended to.
constexpr int64_t fetch_parts(int64_t n_tokens) { return std::clamp<int64_t>(n_tokens / 24, 1, 2); }

}  // namespace dsv32
