// What resolve() fetches itself: a block's share of the rows that a top-k buffer lacks.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/slot_table.cuh"

namespace dsv32::cuda {

// A row of a pool from a sequence's line of pages.
__device__ __forceinline__ int64_t row_of(const int32_t* pages, int i) {
  return static_cast<int64_t>(pages[i / kPageTokens]) * kPageTokens + i % kPageTokens;
}

// Rows on their way from the host pool through shared memory to their slots: those of a warp's entries, as
// many rounds as the block's room asks for.
struct RowFetch {
  const Resolve& op;
  const SlotTable& table;
  const Room& room;
  const int32_t *selected, *row_pages, *slot_pages;
  uint64_t* arrived;  // the warp's
  int n;              // entries
  uint32_t parity = 0;
  bool is_under_way = false;

#if __CUDA_ARCH__ >= 900
  __device__ static void prepare(uint64_t* arrived) {
    if (threadIdx.x % 32 == 0) init_barrier(arrived, 1), publish_barriers();
  }
  __device__ bool is_of(int round, int e) const {
    return e < n && table.places[e] < 0 && ~table.places[e] / room.n_rows == round;
  }
  __device__ uint8_t* stage(int round, int e) const {
    return table.rows + (~table.places[e] - round * room.n_rows) * room.row_bytes;
  }
  __device__ void start(int round) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    int n_own = 0;
    for (int e = thread; e - lane < n; e += kResolveThreads)
      n_own += __popc(__ballot_sync(0xffffffffu, is_of(round, e)));
    is_under_way = n_own > 0;
    if (!is_under_way) return;
    if (lane == 0) arrive_expecting(arrived, static_cast<uint32_t>(n_own * room.row_bytes));
    __syncwarp();
    for (int e = thread; e < n; e += kResolveThreads) {
      if (!is_of(round, e)) continue;
      const int pos = round == 0 ? table.positions[e] : __ldcg(selected + e);
      copy_in(stage(round, e), op.cache.rows + row_of(row_pages, pos) * room.row_bytes, room.row_bytes,
              arrived);
    }
  }
  // Until they are there; then they leave for their slots, which `positions` holds by now.
  __device__ void finish(int round) {
    if (!is_under_way) return;
    wait_for_phase(arrived, parity);
    parity ^= 1;
    fence_async_proxy();
    for (int e = threadIdx.x; e < n; e += kResolveThreads)
      if (is_of(round, e))
        copy_out(op.cache.slots + row_of(slot_pages, table.positions[e]) * room.row_bytes, stage(round, e),
                 room.row_bytes);
    commit_copies_out();
  }
  __device__ void finish_all(int n_fetched) {
    for (int round = 0; round * room.n_rows < n_fetched; ++round) {
      if (round > 0) {
        wait_until_read<0>();
        __syncthreads();
        start(round);
      }
      finish(round);
    }
    wait_until_written();
  }
#else
  __device__ static void prepare(uint64_t*) {}
  __device__ void start(int) {}
  __device__ void finish_all(int) {}
#endif
};

}  // namespace dsv32::cuda
