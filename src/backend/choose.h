// Chooses the kernels that a GPU runs and how their work is cut, by role, format, tokens, shape and device.
// No other file chooses.
//
// Every function is pure. cuda/ calls them before a launch; tests/test_choose.cpp has their results as a
// table. Choices never change a bit within a role, but for those under "how sums are cut".
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

constexpr auto ceil_div(std::integral auto a, std::integral auto b) { return (a + b - 1) / b; }

// hopper: code for sm_90a on a Hopper (wgmma). generic: every other GPU of compute capability 8.0 and later.
enum class KernelFamily { generic, hopper };

constexpr bool has_codes(TensorType type) {
  return type != TensorType::f32 && type != TensorType::f16 && type != TensorType::bf16;
}

// ---- products of decode, bound by reading the weights ----

// Each has a file cuda/decode_NAME; the float kernels are in cuda/float_rows.cuh.
enum class DecodeKernel {
  float_rows,   // F32, few tokens, one at a time
  float_tiles,  // F32
  rows,         // a warp reads rows for up to 8 tokens, 16 of F16 and BF16
  columns,      // up to 16 tokens of a matrix, or uses of an expert, share its weights
  wide,         // up to 80 tokens share the weights; only on Hopper
};

struct DecodeChoice {
  DecodeKernel kernel;
  int n_together;  // tokens that share one reading of the weights
  int width;       // tokens that the kernel has room for: n_together rounded up
};

constexpr int kRowsTokens = 8, kColumnsTokens = 16;
constexpr int kRowsWarps = 8;  // of a team of the rows kernel, of a block of the others

// The largest width of decode_wide.cu. Decoding of IQ2 and IQ3 leaves no registers for more than 32; types
// multiplied as integers have two sums where others have one.
constexpr int widest(TensorType type) {
  using enum TensorType;
  if (type == q8_0 || (type >= q4_k && type <= q6_k)) return 80;
  const bool is_iq2_or_iq3 =
      type == iq2_xxs || type == iq2_xs || type == iq2_s || type == iq3_xxs || type == iq3_s;
  return is_iq2_or_iq3 ? 32 : 64;
}
// Formats that most files use get all widths, others only 32 and 64.
constexpr bool has_width(TensorType type, int width) {
  using enum TensorType;
  const bool has_all = widest(type) == 80 || type == q2_k || type == q3_k || type == iq4_nl || type == iq4_xs;
  return width <= widest(type) && (width == 32 || width == 64 || has_all);
}
constexpr int wide_width(TensorType type, int n_together) {
  for (const int width : {32, 40, 48, 64, 80})
    if (n_together <= width && has_width(type, width)) return width;
  return 0;
}

// The size of equal shares of n_tokens, at most n_most each.
constexpr int equal_share(int n_tokens, int n_most) { return ceil_div(n_tokens, ceil_div(n_tokens, n_most)); }

// For 1 or more tokens. n_uses: the most uses of a run, if uses of experts are sorted into runs; else 0.
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
    const int n_together = equal_share(n_tokens, widest(type));
    return {DecodeKernel::wide, n_together, wide_width(type, n_together)};
  }
  const int n_together = n_uses > 0 ? n_uses : equal_share(n_tokens, kColumnsTokens);
  return {DecodeKernel::columns, n_together, ceil_div(n_together, 8) * 8};
}

// The dynamic shared memory of a block of decode_rows.cuh: x, and for each of its teams the sums of a group
// of tiles and a ring of stages.
struct RowsBytes {
  int x, sums, stage;

  constexpr int of_block(int n_stages, int n_teams) const { return x + n_teams * (sums + n_stages * stage); }
  constexpr int stages_in(int room, int n_teams) const {
    return std::max(0, room - of_block(0, n_teams)) / (n_teams * stage);
  }
};
struct RowsBlocks {
  int n_stages;    // for which a team has room; less than 2: none for the product
  int n_together;  // blocks that run on a multiprocessor
  int n_teams;     // of a block
};

// room, half_room: shared memory of a block, if it has its multiprocessor alone and if two share it. Two
// blocks hide each other's barriers, as two teams of one do, unless each multiprocessor gets one block only.
constexpr RowsBlocks choose_rows_blocks(const RowsBytes& bytes, int room, int half_room,
                                        bool has_own_multiprocessor, bool may_have_two_teams) {
  constexpr int kFewStages = 3;
  const int n_half = bytes.stages_in(half_room, 1), n_of_two_teams = bytes.stages_in(room, 2);
  if (!has_own_multiprocessor && n_half <= kFewStages && may_have_two_teams && n_of_two_teams >= 2)
    return {n_of_two_teams, 1, 2};
  if (has_own_multiprocessor || n_half < 2) return {bytes.stages_in(room, 1), 1, 1};
  return {n_half, 2, 1};
}

constexpr int64_t kMostSorted = 4096;  // the most experts by which uses can be sorted

// So few tokens rarely choose the same expert, and small work of theirs fits beside products.
constexpr int64_t kFewTokens = 4;

// The most uses of a run. In 99 KB a block for 16 uses has room for one stage of weights fewer than one for
// 8; with so few tokens an expert rarely has more than 8.
constexpr int longest_run(int64_t n_tokens, int64_t n_experts, KernelFamily family) {
  const bool are_few = family == KernelFamily::generic && 2 * n_tokens <= n_experts;
  return static_cast<int>(std::min<int64_t>(n_tokens, are_few ? kColumnsTokens / 2 : kColumnsTokens));
}

// The most uses of an expert that share its weights in decode; 0: each use reads them separately.
constexpr int choose_run(int64_t n_tokens, int64_t n_experts, bool have_codes, KernelFamily family) {
  if (n_tokens <= kFewTokens || n_experts > kMostSorted || !have_codes) return 0;
  return longest_run(n_tokens, n_experts, family);
}

// Whether the router of so few tokens runs beside the shared expert. All tokens but the first have a block
// that waits for the others' rows. In whatever order blocks start, one that does not wait always has a place.
constexpr bool routes_beside(int64_t n_tokens, int n_sms) {
  return n_tokens <= kFewTokens && n_tokens <= n_sms;
}

// Into how many parts the columns kernel divides a tile's units: with which the busiest block is done first.
// A block's beginning and end are counted as kStepsBeside steps. fits(n): whether n parts are possible.
template <typename Fits>
constexpr int choose_parts(int n_steps, int log_warps, int64_t n_blocks, int n_places, const Fits& fits) {
  constexpr int kStepsBeside = 4;
  int best = 1;
  int64_t least = INT64_MAX;
  for (int n = 1; n <= 1 << log_warps; n *= 2) {
    const int64_t time = ceil_div(n_blocks * n, n_places) * (ceil_div(n_steps, n) + kStepsBeside);
    if (time < least && (n == 1 || fits(n))) least = time, best = n;
  }
  return best;
}

// The tiles of F32 products, in sides of 8 rows and of 8 tokens: the largest with which each multiprocessor
// gets a block. n_rows: of all matrices.
struct FloatSides {
  int n_rows, n_tokens;
};
constexpr FloatSides choose_float_sides(int n_rows, int n_tokens, int64_t n_problems, int n_sms) {
  constexpr int kSide = 8, kMostSides = 4;
  const int n_sides = ceil_div(n_tokens, kSide);
  FloatSides sides{kMostSides, ceil_div(n_sides, ceil_div(n_sides, kMostSides))};
  const int64_t n_columns = kRowsWarps * n_problems * ceil_div(n_tokens, kSide * sides.n_tokens);
  while (sides.n_rows > 1 && n_columns * ceil_div(n_rows, kSide * sides.n_rows / 2) <= n_sms)
    sides.n_rows /= 2;
  return sides;
}

// ---- how sums are cut: by a matrix's shape alone, because the bits depend on it ----

// For this many multiprocessors (H100, H200): the cut must not depend on the device, nor on the step's
// tokens.
constexpr int kPlannedSms = 132;

// log2 of the warps that share a tile of a band. Takes the number whose busiest warp has the fewest steps,
// with two blocks per multiprocessor; the larger of equals. Units shorter than three steps do not pay: w2 of
// 8 experts took 27.5 us in units of one step, 22.8 in units of four (H200, 2026-11-24).
constexpr int choose_log_warps(int64_t n_bands, int64_t n_problems, int n_steps) {
  constexpr int64_t kLeastUnitSteps = 3;
  int best = 0;
  int64_t least = INT64_MAX;
  for (int log = 3; log >= 0; --log) {
    const int64_t w = int64_t{1} << log;
    if ((w > 1 && w > n_steps) || (w > 2 && w * kLeastUnitSteps > n_steps)) continue;
    const int64_t n_groups = ceil_div(n_bands, kRowsWarps >> log) * n_problems;
    const int64_t most = ceil_div(n_groups, 2 * kPlannedSms) * ceil_div(n_steps, w);
    if (most < least) least = most, best = log;
  }
  return best;
}

// How many blocks of a cluster share a tile: enough for two blocks per multiprocessor, as long as each block
// has steps for most of its warps. The generic family never shares: some of its cards have no clusters.
constexpr int choose_split(int n_bands, int n_steps, int log_warps, KernelFamily family) {
  if (log_warps < 3 || family != KernelFamily::hopper) return 1;
  constexpr int kLeastSteps = kRowsWarps - 2, kMostBlocks = 8;
  int n = 1;
  for (int m = 2; m <= kMostBlocks && n_bands * m <= 2 * kPlannedSms; m *= 2) {
    const int n_steps_block = ceil_div(n_steps, m);
    if (n_steps_block < kLeastSteps) break;
    if ((m - 1) * n_steps_block < n_steps) n = m;  // so that the last block has steps too
  }
  return n;
}

// Into how many parts the columns of a matrix are divided in prompts. Matrices of few rows get more tiles
// this way.
constexpr int64_t kPromptTileRows = 128, kPromptStep = 64, kPromptSplitSteps = 4;
constexpr int64_t choose_splits(int64_t n_rows, int64_t n_cols) {
  constexpr int64_t kPlannedTiles = 16;  // tiles of 128 tokens and 256 rows: 2048 tokens fill the device
  constexpr int64_t kMostSplits = 8, kLeastSteps = 2 * kPromptSplitSteps;
  const int64_t n_tiles = kPlannedTiles * ceil_div(n_rows, 2 * kPromptTileRows),
                n_steps = ceil_div(n_cols, kPromptStep);
  return std::max<int64_t>(1, std::min({kPlannedSms / n_tiles, n_steps / kLeastSteps, kMostSplits}));
}

// ---- experts in host memory in decode (link_share.h): how each is cut, because the bits depend on it ----

// On hosts of more processors their threads read host memory faster without the link's part.
constexpr long kMostLinkProcessors = 24;

// Experts of a round: enough that a round's fixed cost is small.
constexpr int64_t kLinkExperts = 32;

// The hidden columns of the link that make the slower side finish earliest, with the link at 51 GB/s and the
// host at some 130; 0 if the host alone is fastest. A multiple of every format's block.
constexpr int64_t choose_link_share(int64_t inter_dim) {
  constexpr int64_t kLink = 51, kHost = 130, kUnit = 256;
  if (inter_dim % kUnit != 0) return 0;
  const int64_t n_units = inter_dim / kUnit;
  const auto time = [&](int64_t n) { return std::max(n * kHost, (n_units - n) * kLink); };
  int64_t best = 0;
  for (int64_t n = 1; n < n_units; ++n)
    if (time(n) < time(best)) best = n;
  return best * kUnit;
}

// ---- products of prompts, bound by the tensor cores ----

// Whether all rows are converted to fp16 in scratch memory before the product, instead of when its tiles load
// them: if tiles would convert each row more than twice, and for matrices of few rows, which have few tiles.
constexpr bool expands_rows(int64_t n_rows, int64_t n_mats, int64_t n_tokens) {
  return n_tokens > 256 || (n_mats == 1 && n_rows <= 2048);
}

// Whether cuBLASLt may compute a product of fp16: fewer tokens gain little, and loading it takes time.
constexpr bool uses_library(int64_t n_tokens) { return n_tokens >= 512; }

// Whether tiles have 256 uses of an expert instead of 128.
constexpr bool has_double_tiles(int64_t n_uses, int64_t n_experts) { return n_uses >= 160 * n_experts; }

// Whether so many uses usually choose every expert: then all experts in host memory are uploaded.
constexpr bool chooses_all_experts(int64_t n_uses, int64_t n_experts) { return n_uses >= 2 * n_experts; }

// ---- attention ----

// How the members of a team divide the attention of a piece of a step.
enum class Division {
  none,    // each computes all
  heads,   // of all tokens
  tokens,  // with all heads; of the hidden states each member has those of its tokens
};

// Few tokens of answers read the attention's matrices once for all members' heads. So few tokens of a prompt
// are not worth a division.
constexpr Division choose_division(bool is_decode, int64_t n_tokens, int64_t n_members) {
  constexpr int64_t kTogether = 8, kLeastOfMember = 8;
  if (is_decode) return n_tokens < kTogether ? Division::heads : Division::tokens;
  return n_tokens < kLeastOfMember * n_members ? Division::none : Division::tokens;
}

enum class AttentionKernel {
  plain,          // generic/mla_plain.cu: any sizes, and f32 rows
  generic,        // generic/mla.cu: mma.sync
  hopper_prompt,  // mla_hopper.cu
  hopper_decode,  // mla_decode.cu
};

// has_fast_shape: latents of 512 + 64 in fp8 or bf16, aligned.
constexpr AttentionKernel choose_attention(bool is_decode, bool has_fast_shape, KernelFamily family) {
  if (!has_fast_shape) return AttentionKernel::plain;
  if (family != KernelFamily::hopper) return AttentionKernel::generic;
  return is_decode ? AttentionKernel::hopper_decode : AttentionKernel::hopper_prompt;
}

// Tiles of 16 heads that a block of the generic kernel takes: 4, or fewer where all heads fit fewer or where
// multiprocessors would have no block. n_shares: tokens times the blocks that share a token's rows.
constexpr int choose_head_tiles(int64_t n_shares, int64_t n_heads, int n_sms) {
  int n = 4;
  while (n > 1 && (n_heads <= 8 * n || n_shares * ceil_div(n_heads, 16 * n) < n_sms)) n /= 2;
  return n;
}

// The heads of a block of mla_few.cu in decode of so few tokens; 0: mla_decode.cu. A block has 32 columns,
// holds all rows of a token and needs its own multiprocessor. With 32 heads the second kernel's blocks begin
// beside the first's, if both have room.
constexpr int64_t choose_few_heads(int64_t n_tokens, int64_t n_heads, int64_t n_rows, int n_sms) {
  const auto n_blocks = [&](int64_t n) { return n_tokens * ceil_div(n_heads, n) * 16; };
  if (n_rows > 2048) return 0;
  return 2 * n_blocks(32) <= n_sms ? 32 : n_blocks(64) <= n_sms ? 64 : 0;
}

// The blocks of mla_decode.cu's first kernel that share a token's blocks of rows: with as many it is fastest.
// A block's start takes as long as two blocks of rows.
constexpr int choose_shares_of_rows(int64_t n_double, int64_t n_row_blocks, int n_sms) {
  int best = 1;
  int64_t least = INT64_MAX;
  for (int n = 1; n <= n_row_blocks; ++n) {
    const int64_t time = ceil_div(n * n_double, n_sms) * (ceil_div(n_row_blocks, n) + 2);
    if (time < least) least = time, best = n;
  }
  return best;
}

// The columns of a block of its second kernel. 64: it has 64 heads (n_single tiles), where each gets its own
// multiprocessor. Else 128 heads (n_double tiles); one of 128 columns takes two thirds of the time of one of
// 256.
constexpr int choose_add_columns(int64_t n_single, int64_t n_double, int n_sms) {
  constexpr int64_t kRank = 512;
  const auto rounds = [&](int64_t n_columns) { return ceil_div(n_double * (kRank / n_columns), n_sms); };
  if (n_single * (kRank / 64) <= n_sms) return 64;
  return 2 * rounds(128) <= 3 * rounds(256) ? 128 : 256;
}

// The most rows that have room as fp16 in a Hopper's scratch memory: more than V3.2's 163 840 positions.
constexpr int64_t kMostWideRows = 233'000;

// Whether prefill converts all rows to fp16 in advance: when several tokens usually select each row, and all
// have room. In longer prompts each token converts the rows that it selects, to the same bits.
constexpr bool widens_rows(int64_t n_rows, int64_t n_tokens) {
  return n_rows <= std::min(kMostWideRows, 256 * n_tokens);
}

enum class ScoreKernel { plain, generic, hopper };
constexpr int64_t kMostScoreHeads = 256;  // of the generic kernel: their queries lie in shared memory

// has_fast_shape: keys of 128 values in fp8.
constexpr ScoreKernel choose_scores(int64_t n_heads, bool has_fast_shape, KernelFamily family) {
  if (!has_fast_shape || n_heads > kMostScoreHeads) return ScoreKernel::plain;
  return n_heads <= 64 && family == KernelFamily::hopper ? ScoreKernel::hopper : ScoreKernel::generic;
}

constexpr int kMostTeamBlocks = 8;  // the largest cluster that every device with clusters accepts

// Threads of a top-k block. Long rows take fewer, but very long ones as many as short ones, as they need
// large samples.
constexpr int topk_threads(bool is_long, int64_t n_visible) {
  return is_long && n_visible <= int64_t{1} << 18 ? 512 : 1024;
}
// The blocks that share a long row: as many as there are multiprocessors for; by eight only half of these,
// since a cluster cannot span the device's parts.
constexpr int topk_blocks(int64_t n_tokens, int n_sms) {
  int n = 1;
  while (n < kMostTeamBlocks && 2 * n * n_tokens <= (2 * n < kMostTeamBlocks ? n_sms : n_sms / 2)) n *= 2;
  return n;
}
// The keys for which each of their lists has room: many more than its share, as the best often lie together.
constexpr int topk_list_keys(int n_blocks) {
  return n_blocks == 8 ? 3072 : n_blocks == 4 ? 4096 : n_blocks == 2 ? 6144 : 8192;
}

// With so few tokens resolve() may fetch the missing rows itself: no other work is kept to overlap it.
constexpr int64_t kFewFetchTokens = 4;
// n_rows: for how many resolve() has room; with fewer a separate fetch is as fast.
constexpr bool fetches_in_resolve(int64_t n_tokens, int64_t n_rows) {
  return n_tokens <= kFewFetchTokens && n_rows >= 16;
}

// Into how many parts a decode step is cut: a part's missing rows are fetched while the part before attends.
constexpr int64_t fetch_parts(int64_t n_tokens) { return n_tokens < 32 ? 1 : 2; }

// ---- sampling, and what a team gathers ----

// The blocks of a row of logits with which all rows are done soonest, in turns of one block per
// multiprocessor (two blocks on one take two turns); a turn takes as long as a block's ids and its barriers.
constexpr int sample_blocks(int64_t n_tokens, int64_t vocab_size, int n_sms) {
  constexpr int64_t kMeetings = 14000;  // a block's barriers take as long as this many ids
  int fewest = 2;
  int64_t least = INT64_MAX;
  for (int n = 2; n <= kMostTeamBlocks; n *= 2) {
    const int64_t cost = ceil_div(n_tokens * n, n_sms) * (vocab_size / n + kMeetings);
    if (cost < least) fewest = n, least = cost;
  }
  return fewest;
}

// An inbox of a device has two regions for what a product reads, and one for what a sum reads (cuda/inbox.h).
constexpr int64_t kInboxProductWords = int64_t{128} << 10, kInboxSumWords = int64_t{56} << 10;

// The vectors [n_tokens, width] that a team gathers within its layers: those that products read (the heads'
// outputs and the hidden values), the widest of them; and a layer's outputs.
struct InboxWidths {
  int64_t widest = 0, dim = 0;
  bool are_even = false;  // the first ones have equal shares, and are whole words of 16 bytes
};
// Whether the gathers within the layers of a step go by the members' inboxes, all of them or none: where
// attention is divided by heads.
constexpr bool goes_by_inbox(bool is_decode, int64_t n_tokens, int64_t n_members, const InboxWidths& widths) {
  return is_decode && n_members > 1 && widths.are_even &&
         choose_division(is_decode, n_tokens, n_members) == Division::heads &&
         widths.dim % (4 * n_members) == 0 && n_tokens * widths.widest <= kInboxProductWords &&
         n_tokens * widths.dim <= kInboxSumWords;
}

// The blocks of a gather in place of n_words. The next kernel needs room to start beside a few words'.
constexpr int kGatherBlocksPerSm = 2, kMostGatherBlocks = 1024;
constexpr int64_t gather_blocks(int64_t n_words, int n_threads, int n_sms) {
  constexpr int64_t kFewBlocks = 16, kTogether = 4;
  if (n_words <= kFewBlocks * n_threads) return std::max<int64_t>(1, ceil_div(n_words, n_threads));
  return std::clamp<int64_t>(ceil_div(n_words, kTogether * n_threads), kFewBlocks,
                             std::min<int64_t>(kGatherBlocksPerSm * n_sms, kMostGatherBlocks));
}

}  // namespace dsv32
