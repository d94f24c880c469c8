// How x and weights are loaded for decode_wide.cu: the layout of a step in shared memory, how the work is
// divided, and the loading warps. The two halves of a sum's units are two streams of steps, each with a ring
// of x and a ring of weights; loaders run ahead across items.
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

constexpr int kHalves = 2, kHalfWarps = kWarps / kHalves;
constexpr int kLoadThreads = 128, kAllThreads = kLoadThreads + kThreads;
constexpr int kLogBlockRows = 6, kBlockRows = 1 << kLogBlockRows, kMostXStages = 8;
static_assert(kBlockRows == kHalfWarps * kBandTile);
constexpr int kWeightStages = 3, kLoadWarps = 4;  // load warps: two per half

// x of a step and kN columns: the operands of its products in order, 16 columns each (plain_operand), then
// the operands of the products with the mins, then the columns' units. Of integers (decode_integers.cuh) an
// operand has 32 columns and is twice as large: each token has two columns, its high and its low bytes; Q3_K
// has what the sums of each begin with, behind the units. With kN > 32 it comes in two parts,
// each half of the pieces.
template <TensorType kType, int kN>
struct WideStep {
  using X = Record<kType>;
  static constexpr int kParts = kN > 32 ? 2 : 1, kPartPieces = X::kPieces / kParts;
  static constexpr int kMinOperands = X::kSumBytes / 32;
  static constexpr int kOperand = kN * 32, kFirst = kParts == 2 ? X::kPieces * kOperand : 0,
                       kSums = 2 * X::kPieces * kOperand, kUnits = kSums + kMinOperands * kOperand,
                       kBegins = kUnits + 4 * kN, kBytes = kBegins + (kType == TensorType::q3_k ? 8 * kN : 0),
                       kLast = kBytes - kFirst, kStage = (kLast + 127) / 128 * 128;
  static_assert(kFirst % 16 == 0 && kLast % 16 == 0);

  // Offset in an operand of a word (two values) of column c and lane i. second: the products' second word.
  static DSV32_DEVICE int word_at(int c, int i, int second) {
    return c / 8 * 256 + second * 128 + c % 8 * 16 + 4 * i;
  }
};

// x of all columns: [problems of x, chunks of tokens, steps] (WideStep).
struct WideX {
  uint8_t* steps;
  int n_columns, n_chunk, n_chunks, n_steps;  // n_chunk: tokens of a chunk
};

// How the work is divided. An item is a group of the rows that fit a block, and a chunk of a problem's
// tokens.
struct WideCut {
  bool is_gated;
  int n_groups, n_items;
  int n_x_stages;
};

// A stage of a half's weights: one step of the block's rows.
template <TensorType kType>
constexpr int kWarpStage = Steps<kType>::kSlot* kBandTile;
template <TensorType kType>
constexpr int kWeightStage = kWarpStage<kType>* kHalfWarps;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The units of a half, and its steps in one of the n_split parts of the steps.
struct Half {
  int first_unit, end_unit, begin, end;

  DSV32_DEVICE Half(const Layout& layout, const StepShare& share, int half) {
    first_unit = (half << layout.log_warps) / kHalves;
    end_unit = ((half + 1) << layout.log_warps) / kHalves;
    begin = share.begin_of(layout, first_unit), end = share.begin_of(layout, end_unit);
  }
};

struct BlockItem {
  int problem, chunk, group;

  DSV32_DEVICE BlockItem(const WideX& x, const WideCut& cut, int item) {
    chunk = item % x.n_chunks, item /= x.n_chunks;
    group = item % cut.n_groups, problem = item / cut.n_groups;
  }
};

// The barriers of a half's rings.
struct RingBarriers {
  Pipe<kMostXStages> x;
  Pipe<kWeightStages> weights;

  DSV32_DEVICE void init() {
    x.init(1, kHalfWarps), weights.init(32 * kLoadWarps / kHalves, kHalfWarps);
    publish_barriers();
  }
};

// The matrix and the first row of a block's group of rows.
DSV32_DEVICE const DecodeRows::Matrix& matrix_of_group(const DecodeRows& rows, const WideCut& cut, int group,
                                                       int* first_row) {
  int first_group;
  const DecodeRows::Matrix& matrix = matrix_of(rows, group, &first_group);
  *first_row = (group - first_group) * (cut.is_gated ? kBlockRows / 2 : kBlockRows);
  return matrix;
}

// Where a step of one of the block's tiles of 16 rows lies for a lane.
template <TensorType kType>
DSV32_DEVICE StepPlace place_tile(const DecodeRows& rows, const WideCut& cut, const BlockItem& item, int tile,
                                  int step) {
  int first_row;
  const DecodeRows::Matrix& matrix = matrix_of_group(rows, cut, item.group, &first_row);
  const int n_tiles = cut.is_gated ? kHalfWarps / 2 : kHalfWarps;
  StepPlace at = place_step<kType>(rows, matrix, item.problem * rows.mat_bytes,
                                   first_row + tile % n_tiles * kBandTile, step);
  if (tile >= n_tiles) at.row += rows.gate_offset;
  return at;
}

// What a loading warp does: it loads two tiles of a half's weights; the first warp also loads x. Weights do
// not wait for the kernel before.
template <TensorType kType, int kN>
struct Loader {
  using Step = WideStep<kType, kN>;
  const DecodeRows& rows;
  const Layout& layout;
  const WideX& x;
  const WideCut& cut;
  uint8_t* x_ring;
  uint32_t weight_ring;
  RingBarriers* barriers;
  int first_tile;
  RingWalk x_walk, weight_walk;
  StepPlace at[2];

  DSV32_DEVICE void load_weights() {
    barriers->weights.wait_empty(weight_walk);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    DSV32_UNROLL for (int t = 0; t < 2; ++t) {
      copy_step<kType, 1>(rows, layout, at[t], lane,
                          weight_ring + weight_walk.stage * kWeightStage<kType> + t * kWarpStage<kType>);
      ++at[t].step, at[t].row += step_apart<kType>(rows);
    }
    arrive_when_copied(&barriers->weights.full[weight_walk.stage]);
    weight_walk.advance(kWeightStages);
  }
  DSV32_DEVICE void load_x(const uint8_t* from) {
    DSV32_UNROLL for (int k = 0; k < Step::kParts; ++k, x_walk.advance(cut.n_x_stages)) {
      const bool is_last = k + 1 == Step::kParts;
      const uint32_t n_bytes = is_last ? Step::kLast : Step::kFirst;
      uint64_t* full = &barriers->x.full[x_walk.stage];
      barriers->x.wait_empty(x_walk);
      arrive_expecting(full, n_bytes);
      copy_in(x_ring + x_walk.stage * Step::kStage, from + (is_last ? Step::kFirst : 0), n_bytes, full);
    }
  }
  DSV32_DEVICE void run(int half) {
    const bool loads_x = first_tile == 0 && threadIdx.x % 32 == 0;
    bool has_inputs = false;
    int n_ahead = 0;  // steps whose weights were loaded before their x
    for (int item_at = blockIdx.x; item_at < cut.n_items; item_at += gridDim.x) {
      const BlockItem item(x, cut, item_at);
      const int64_t chunk = int64_t{item.problem / rows.x_sharing} * x.n_chunks + item.chunk;
      for (int part = 0; part < layout.n_split; ++part) {
        const Half own(layout, StepShare(layout, part), half);
        DSV32_UNROLL for (int t = 0; t < 2; ++t) at[t] =
            place_tile<kType>(rows, cut, item, first_tile + t, own.begin);
        if (!has_inputs) {
          for (; n_ahead < min(kWeightStages, own.end - own.begin); ++n_ahead) load_weights();
          wait_for_inputs();
          has_inputs = true;
        }
        const uint8_t* from = x.steps + (chunk * x.n_steps + own.begin) * Step::kBytes;
        for (int step = own.begin; step < own.end; ++step, from += Step::kBytes) {
          if (n_ahead > 0)
            --n_ahead;
          else
            load_weights();
          if (loads_x) load_x(from);
          __syncwarp();
        }
      }
    }
    if (!has_inputs) wait_for_inputs();
    wait_all_copies();
  }
};

// The stages of x as a multiplying warp sees them.
template <TensorType kType, int kN>
struct XStages {
  using Step = WideStep<kType, kN>;
  uint32_t ring;
  RingBarriers* barriers;
  int n_stages;
  RingWalk walk;

  DSV32_DEVICE uint32_t wait() {
    barriers->x.wait_full(walk);
    return ring + walk.stage * Step::kStage;
  }
  DSV32_DEVICE void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&barriers->x.empty[walk.stage]);
    walk.advance(n_stages);
  }
};

#endif

}  // namespace dsv32::cuda::decode
