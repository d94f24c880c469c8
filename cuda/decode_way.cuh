// How a warp's weights come in, step after step, into its ring in shared memory: copies run ahead by all
// stages but one. Rows in bands are one piece of memory a step, rows that lie whole sixteen.
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

// What a warp walks through: its steps of the tiles of each group, of the matrix that lies mat_offset from
// the first.
struct WarpSteps {
  const DecodeRows& rows;
  const Layout& layout;
  const WarpShare& share;
  const int64_t mat_offset;
  const int lane;
};

// Of bands.
template <TensorType kType, int kMats>
struct BandWay {
  static constexpr int kBytes = Steps<kType>::kBytes, kTile = kBandTile * kBytes, kStage = kMats * kTile;
  static constexpr int kMiddle = kTile / 32 * 16;  // near which places are parts of the copies' instructions

  const WarpSteps of;
  const uint8_t* middle;  // of the lane's pieces of the step that is copied next
  int n_left;             // steps of its tile from there on; 0 or less: there is none
  int group;              // of tiles
  int least_left;         // with more steps left than that it has one of the last few pieces
  // The lane's pieces of the stage taken last, of the first one and past the last one, and from there to its
  // first row.
  uint32_t taken, first, end, to_row;

  __device__ __forceinline__ BandWay(const WarpSteps& steps, int first_group, uint8_t* ring)
      : of(steps),
        group(first_group),
        least_left(static_cast<int>(opaque(of.lane < kBytes % 32 ? 0 : INT_MAX))),
        first(opaque(shared_address(ring) + 16 * of.lane)),
        to_row(opaque(of.lane / 4 * kBytes - 16 * of.lane)) {
    end = opaque(first + of.layout.n_stages * kStage);
    taken = end - kStage;
    start();
  }
  __device__ __forceinline__ void start() {
    n_left = 0;
    if (group >= of.layout.n_groups) return;
    n_left = of.share.end - of.share.first;
    middle =
        band_step<kType>(of.rows, of.layout, of.share.first, of.mat_offset, group) + kMiddle + 16 * of.lane;
  }
  // Starts the copies of the next step.
  __device__ __forceinline__ void put(uint32_t to) {
    constexpr std::make_integer_sequence<int, kBytes / 32> kPieces;
    copy(middle, to, kPieces);
    if constexpr (kMats == 2) copy(middle + of.rows.gate_offset, to + kTile, kPieces);
    commit_copies();
    middle += kTile;
    if (--n_left == 0) group += of.share.n_groups_apart, start();
  }
  template <int... kPieces>
  __device__ __forceinline__ void copy(const uint8_t* from, uint32_t to,
                                       std::integer_sequence<int, kPieces...>) {
    (copy_passing_async_if<512 * kPieces, 512 * kPieces - kMiddle>(to, from, n_left > 0), ...);
    constexpr int kWhole = kBytes / 32 * 512;
    if constexpr (kWhole < kTile)
      copy_passing_async_if<kWhole, kWhole - kMiddle>(to, from, n_left > least_left);
  }
  // Where the lane reads its rows of the next step, which has come; copies another over the step before.
  __device__ __forceinline__ void take(const uint8_t* (&step)[kMats][2]) {
    put(taken);
    taken += kStage;
    taken = taken == end ? first : taken;
    const auto* own = static_cast<const uint8_t*>(__cvta_shared_to_generic(taken + to_row));
    DSV32_UNROLLED (int m = 0; m < kMats; ++m)
      DSV32_UNROLLED (int k = 0; k < 2; ++k) step[m][k] = own + m * kTile + k * kTile / 2;
  }
};

// The same of rows that lie whole.
template <TensorType kType, int kMats>
struct RowsWay {
  static constexpr int kTile = kBandTile * slot_bytes<kType>(false), kStage = kMats * kTile;

  // A place on the way: the group of tiles, and where its step lies for this lane.
  struct Walk {
    int group;
    StepPlace at;
  };
  const WarpSteps of;
  Walk copied, taken;
  uint8_t* ring;
  uint32_t first;
  int at, before, end;

  __device__ __forceinline__ RowsWay(const WarpSteps& steps, int first_group, uint8_t* its_ring)
      : of(steps),
        copied{first_group},
        ring(its_ring),
        first(opaque(shared_address(its_ring))),
        at(0),
        before((of.layout.n_stages - 1) * kStage),
        end(of.layout.n_stages * kStage) {
    start(copied);
    taken = copied;
  }
  // A warp without any step is past the last group at once.
  __device__ __forceinline__ void start(Walk& walk) const {
    if (of.share.first >= of.share.end) walk.group = of.layout.n_groups;
    if (walk.group >= of.layout.n_groups) return;
    int first_row;
    const DecodeRows::Matrix& matrix = find_tile(of.rows, of.layout, walk.group, &first_row);
    walk.at = place_step<kType>(of.rows, matrix, of.mat_offset, first_row, of.share.first);
  }
  __device__ __forceinline__ void advance(Walk& walk) const {
    const int n_apart = kIsFloat<kType> ? of.share.n_apart : 1;
    walk.at.step += n_apart;
    walk.at.row += n_apart * step_apart<kType>(of.rows);
    if (walk.at.step < of.share.end) return;
    walk.group += of.share.n_groups_apart;
    start(walk);
  }
  __device__ __forceinline__ void put(uint32_t to) {
    const bool is_there = copied.group < of.layout.n_groups;
    if (is_there) copy_step<kType, kMats, true>(of.rows, of.layout, copied.at, of.lane, to);
    commit_copies();
    if (is_there) advance(copied);
  }
  __device__ __forceinline__ void take(const uint8_t* (&step)[kMats][2]) {
    put(first + before);
    before = at;
    DSV32_UNROLLED (int m = 0; m < kMats; ++m) {
      StepPlace place = taken.at;
      place.row += m ? of.rows.gate_offset : 0;
      find_step<kType>(of.rows, place, of.lane, ring + at + m * kTile, step[m]);
    }
    at += kStage;
    if (at == end) at = 0;
    advance(taken);
  }
};

}  // namespace dsv32::cuda::decode
