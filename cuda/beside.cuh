// Work done beside a product, by blocks of the same launch: small jobs that would otherwise be launches of
// their own.
#pragma once

#include "cuda/float_rows.cuh"
#include "cuda/token_work.cuh"

namespace dsv32::cuda {

// Work that blocks of another product's launch do: F32 rows of the same x, of one problem, and then the
// router; or turning queries; or storing a token's rows and keys.
struct Beside {
  int n_jobs = 0;  // blocks of this work
  DecodeRows rows;
  bool is_aligned = false;
  RouteExperts route;          // of one token, by the last block of this work; without experts: none
  uint32_t* n_done = nullptr;  // blocks of this work that are done; zero before and after
  TurnQueries turn;            // without q: not this
  TurnBlocks turn_blocks;
  StoreTokens store;  // of one token: the latent, then the key; without kv: not this
  StoreRoom store_room = {};
};

namespace decode {

constexpr size_t kMostBesideBytes = size_t{16} << 10;  // shared memory for this work in a product's blocks

// One block's part of the work. room: kMostBesideBytes of shared memory.
DSV32_DEVICE void work_beside(const Beside& beside, int job, bool lets_next_late, float* room) {
  __shared__ bool is_last;
  if (!lets_next_late) let_next_start();
  if (job >= beside.n_jobs) return wait_for_inputs();
  if (beside.turn.q) {
    const int n = beside.turn_blocks.n();
    return turn_block(beside.turn, beside.turn_blocks, job / n, job % n, room);
  }
  if (beside.store.kv)
    return store_part(beside.store, beside.store_room, 0, job ? StorePart::key : StorePart::latent,
                      reinterpret_cast<uint8_t*>(room));
  float_rows<1>(beside.rows, job, 0, beside.is_aligned, room);
  if (lets_next_late) let_next_start();
  if (!beside.route.experts) return;
  if (threadIdx.x < kFloatRows) __threadfence();  // the threads that wrote
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(beside.n_done, 1) == static_cast<uint32_t>(beside.n_jobs - 1);
    if (is_last) *beside.n_done = 0;
    __threadfence();
  }
  __syncthreads();
  if (is_last) choose_experts(beside.route, 0, room);
}

}  // namespace decode
}  // namespace dsv32::cuda
