// How a warp's weights come in, step after step, into its ring in shared memory.
//
// Copies run ahead by all stages but one; what is known beforehand is not computed again at each step. Rows
// in bands are one piece of memory a step, rows that lie whole sixteen.
#pragma once

#include <utility>

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

// Of bands.
template <TensorType kType, int kMats>
struct BandWay {
  static constexpr int kBytes = Steps<kType>::kBytes, kTile = kTileRows * kBytes, kStage = kMats * kTile;

  static constexpr int kMiddle = kTile / 32 * 16;  // near which places are parts of the copies' instructions

  const uint8_t* middle;  // of the lane's pieces of the step that is copied next
  int n_left;             // steps of its tile from there on; 0 or less: there is none
  int group;              // of tiles
  int least_left;         // with more steps left than that it has one of the last few pieces
  // The lane's pieces of the stage taken last, of the first one and past the last one, and from there to its
  // first row.
  uint32_t taken, first, end, to_row;

  __device__ __forceinline__ BandWay(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                     int64_t mat_offset, int first_group, int lane, uint8_t* ring)
      : group(first_group),
        least_left(static_cast<int>(opaque(lane < kBytes % 32 ? 0 : INT_MAX))),
        first(opaque(shared_address(ring) + 16 * lane)),
        to_row(opaque(lane / 4 * kBytes - 16 * lane)) {
    end = opaque(first + layout.n_stages * kStage);
    taken = end - kStage;
    start(rows, layout, share, mat_offset, lane);
  }
  __device__ __forceinline__ void start(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                        int64_t mat_offset, int lane) {
    n_left = 0;
    if (group >= layout.n_groups) return;
    n_left = share.end - share.first;
    middle = band_step<kType>(rows, layout, share.first, mat_offset, group) + kMiddle + 16 * lane;
  }
  // Starts the copies of the next step.
  __device__ __forceinline__ void put(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                      int64_t mat_offset, int lane, uint32_t to) {
    constexpr std::make_integer_sequence<int, kBytes / 32> kPieces;
    copy(middle, to, kPieces);
    if constexpr (kMats == 2) copy(middle + rows.gate_offset, to + kTile, kPieces);
    commit_copies();
    middle += kTile;
    if (--n_left == 0) {
      group += share.n_groups_apart;
      start(rows, layout, share, mat_offset, lane);
    }
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
  __device__ __forceinline__ void take(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                       int64_t mat_offset, int lane, const uint8_t* (&step)[kMats][2]) {
    put(rows, layout, share, mat_offset, lane, taken);
    taken += kStage;
    taken = taken == end ? first : taken;
    const auto* own = static_cast<const uint8_t*>(__cvta_shared_to_generic(taken + to_row));
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int k = 0; k < 2; ++k) step[m][k] = own + m * kTile + k * kTile / 2;
  }
};

// The same of rows that lie whole.
template <TensorType kType, int kMats>
struct RowsWay {
  static constexpr int kTile = kTileRows * slot_bytes<kType>(false), kStage = kMats * kTile;

  Walk<kType> copied, taken;
  uint8_t* ring;
  uint32_t first;
  int at, before, end;

  __device__ __forceinline__ RowsWay(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                     int64_t mat_offset, int first_group, int, uint8_t* its_ring)
      : copied{first_group},
        ring(its_ring),
        first(opaque(shared_address(its_ring))),
        at(0),
        before((layout.n_stages - 1) * kStage),
        end(layout.n_stages * kStage) {
    copied.start(rows, layout, share, mat_offset);
    taken = copied;
  }
  __device__ __forceinline__ void put(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                      int64_t mat_offset, int lane, uint32_t to) {
    const bool is_there = copied.group < layout.n_groups;
    if (is_there) copy_step<kType, kMats, true>(rows, layout, copied.at, lane, to);
    commit_copies();
    if (is_there) copied.advance(rows, layout, share, mat_offset);
  }
  __device__ __forceinline__ void take(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                       int64_t mat_offset, int lane, const uint8_t* (&step)[kMats][2]) {
    put(rows, layout, share, mat_offset, lane, first + before);
    before = at;
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      StepPlace place = taken.at;
      place.row += m ? rows.gate_offset : 0;
      find_step<kType>(rows, place, lane, ring + at + m * kTile, step[m]);
    }
    at += kStage;
    if (at == end) at = 0;
    taken.advance(rows, layout, share, mat_offset);
  }
};

}  // namespace dsv32::cuda::decode
