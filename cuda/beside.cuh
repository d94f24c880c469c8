// Work done beside a product, by blocks of the same launch: small jobs that would otherwise be launches of
// their own.
#pragma once

#include "cuda/float_rows.cuh"
#include "cuda/token_work.cuh"

namespace dsv32::cuda {

// F32 rows of the same x, of one problem, and then the router; or turning queries; or storing tokens' rows
// and keys.
struct Beside {
  int n_jobs = 0;  // blocks of this work
  DecodeRows rows;
  bool is_aligned = false;
  // The router of few tokens; without experts: none. The last row job to be done routes the first token. Each
  // further one has a block behind the rows' that waits for them (routes_beside()).
  RouteExperts route;
  int n_row_jobs = 0;          // of n_jobs
  uint32_t* n_done = nullptr;  // [2] row jobs and routed tokens that are done; zero before and after
  TurnQueries turn;            // without q: not this
  TurnBlocks turn_blocks;
  StoreTokens store;  // of each token the latent, then the key; without kv: not this
  StoreRoom store_room = {};
};

namespace decode {

constexpr size_t kMostBesideBytes = size_t{16} << 10;  // shared memory for this work in a product's blocks

// Chooses a token's experts; all row jobs are done.
DSV32_DEVICE void route_token(const Beside& beside, int token, float* room) {
  choose_experts(beside.route, token, room);
  if (threadIdx.x == 0 && atomicAdd(beside.n_done + 1, 1) == static_cast<uint32_t>(beside.route.n_tokens - 1))
    beside.n_done[0] = beside.n_done[1] = 0;
}

// One block's part of the work. room: kMostBesideBytes of shared memory.
DSV32_DEVICE void work_beside(const Beside& beside, int job, bool lets_next_late, float* room) {
  __shared__ bool is_last;
  if (!lets_next_late) let_next_start();
  if (job >= beside.n_jobs) return wait_for_inputs();
  if (beside.turn.q) {
    const int n = beside.turn_blocks.n();
    return turn_block(beside.turn, beside.turn_blocks, job / n, job % n, room);
  }
  if (beside.store.kv) {
    const int n_tokens = static_cast<int>(beside.store.step.n_tokens);
    return store_part(beside.store, beside.store_room, job % n_tokens,
                      job < n_tokens ? StorePart::latent : StorePart::key, reinterpret_cast<uint8_t*>(room));
  }
  const bool routes = beside.route.experts;
  if (routes && job >= beside.n_row_jobs) {
    wait_for_inputs();
    if (lets_next_late) let_next_start();
    if (threadIdx.x == 0) {
      while (load_acquire(beside.n_done) < static_cast<uint32_t>(beside.n_row_jobs)) continue;
    }
    __syncthreads();
    return route_token(beside, 1 + job - beside.n_row_jobs, room);
  }
  float_rows<1>(beside.rows, job, 0, beside.is_aligned, room);
  if (lets_next_late) let_next_start();
  if (!routes) return;
  if (threadIdx.x < kFloatTokens * kFloatRows) __threadfence();  // the threads that wrote
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(beside.n_done, 1) == static_cast<uint32_t>(beside.n_row_jobs - 1);
    __threadfence();
  }
  __syncthreads();
  if (is_last) route_token(beside, 0, room);
}

}  // namespace decode
}  // namespace dsv32::cuda
