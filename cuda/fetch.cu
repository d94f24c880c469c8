// Copies the rows that a top-k buffer lacks from the pinned host pool into their slots. On Hopper by bulk
// copies through shared memory: a few warps fill the link. On other devices, and for rows that are not whole
// 16-byte words, warps load and store them.

#include "cuda/common.cuh"

namespace dsv32::cuda {
namespace {

struct RowCopy {
  const uint8_t* from = nullptr;  // in the host pool; null: no such row
  uint8_t* to = nullptr;          // a slot
};

DSV32_DEVICE RowCopy missing_row(const FetchLatents& op, int64_t t, int64_t m) {
  const CacheView& cache = op.cache;
  const int64_t i = t * op.topk + op.misses[t * op.topk + m], row_bytes = cache.layout.row_bytes();
  return {cache.rows + paged_row(cache.pages, cache, op.step.seq[t], op.selected[i]) * row_bytes,
          cache.slots + op.row_ids[i] * row_bytes};
}

constexpr int kCarriers = 32;       // warps; more would slow the kernel beside, and fill the link no better
constexpr int kBlockCarriers = 4;   // so that few multiprocessors lose room
constexpr int kStages = 3;          // two arrive over the link while one leaves for the slots
constexpr int kMostStageRows = 16;  // lanes with a row
// 32 warps with two such stages under way: several times what the link carries in its latency.
constexpr int kStageBytes = 10240;

// slot = host row, for every missing row
// kCarriers warps; lane l has row l of each of the warp's stages.
// Host row -> shared memory -> slot, both by bulk copies. Warp n modulo kCarriers copies row n: a few rows
// are spread over all warps, and at any time all read one narrow range of ascending host addresses (beyond a
// gigabyte, each row out of order costs an address translation).
// Bound by the link; with few rows by its latency.
// Measured (H200, 2026-11-24): 4096 rows of 640 bytes in 56 us, 84 % of memcpy's 55.5 GB/s; 8192: 87 %.
__global__ void __launch_bounds__(32 * kBlockCarriers) fetch_bulk_kernel(FetchLatents op, int n_stage_rows) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128)
      uint8_t all_staged[];  // [kBlockCarriers, kStages, n_stage_rows, row_bytes]
  __shared__ uint64_t all_arrived[kBlockCarriers][kStages];
  __shared__ uint8_t* all_targets[kBlockCarriers][kStages][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t n_carriers = int64_t{gridDim.x} * kBlockCarriers,
                carrier = int64_t{warp} * gridDim.x + blockIdx.x;
  auto& arrived = all_arrived[warp];
  auto& targets = all_targets[warp];
  const auto row_bytes = static_cast<uint32_t>(op.cache.layout.row_bytes());
  uint8_t* staged = all_staged + warp * kStages * n_stage_rows * row_bytes;
  const auto place = [&](int stage) { return staged + (stage * n_stage_rows + lane) * row_bytes; };
  if (lane == 0) {
    for (uint64_t& barrier : arrived) init_barrier(&barrier, 32);
    publish_barriers();
  }
  __syncwarp();

  // Missing rows are numbered over all tokens, by token and then by position. A lane asks for ascending
  // numbers.
  int64_t t = 0, n_before = 0;  // the lane's current token, and the rows of those before
  const auto row_of = [&](int64_t number) -> RowCopy {
    for (; t < op.step.n_tokens; ++t) {
      const int64_t n = op.n_misses[t];
      if (number - n_before < n) return missing_row(op, t, number - n_before);
      n_before += n;
    }
    return {};
  };
  const auto request = [&](int round) {
    const int stage = round % kStages;
    RowCopy row;
    if (lane < n_stage_rows)
      row = row_of((static_cast<int64_t>(round) * n_stage_rows + lane) * n_carriers + carrier);
    targets[stage][lane] = row.to;
    if (row.from) {
      arrive_expecting(&arrived[stage], row_bytes);
      copy_in(place(stage), row.from, row_bytes, &arrived[stage]);
    } else {
      arrive(&arrived[stage]);
    }
  };

  for (int round = 0; round < kStages - 1; ++round) request(round);
  for (int round = 0;; ++round) {
    const int stage = round % kStages;
    uint8_t* to = targets[stage][lane];
    if (!__any_sync(0xffffffffu, to != nullptr)) break;  // numbers ascend: later rounds have no rows either
    wait_for_phase(&arrived[stage], round / kStages & 1);
    fence_async_proxy();
    if (to) copy_out(to, place(stage), row_bytes);
    commit_copies_out();
    wait_until_read<1>();  // the previous round's stage is read out: the next request fills it
    request(round + kStages - 1);
  }
  wait_until_written();
#else
  __trap();
#endif
}

// slot = host row, for every missing row
// Grid (blocks, tokens): the warps of all blocks of a token copy its rows in turn, 16 bytes a lane.
// Loads bypass L1 (the host's rows are read once); a 640-byte row is five whole 128-byte lines of the link.
// Bound by the link; with few rows by its latency.
constexpr int kPlainThreads = 1024;
__global__ void __launch_bounds__(kPlainThreads) fetch_plain_kernel(FetchLatents op) {
  const int64_t row_bytes = op.cache.layout.row_bytes(), t = blockIdx.y;
  const int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int n_warps = static_cast<int>(gridDim.x * blockDim.x / 32), lane = threadIdx.x % 32;
  const int n_misses = op.n_misses[t];
  for (int m = warp; m < n_misses; m += n_warps) {
    const RowCopy row = missing_row(op, t, m);
    const bool is_words =
        (reinterpret_cast<uintptr_t>(row.from) | reinterpret_cast<uintptr_t>(row.to) | row_bytes) % 16 == 0;
    if (is_words)
      for (int64_t b = lane * 16; b < row_bytes; b += 32 * 16)
        *reinterpret_cast<uint4*>(row.to + b) = load_streaming(row.from + b);
    else
      for (int64_t b = lane; b < row_bytes; b += 32) row.to[b] = row.from[b];
  }
}

// Rows of a stage of fetch_bulk_kernel; 0 where it cannot be used. The generic family's stages have 8 KB.
int stage_rows(const CacheView& cache) {
  if (!has_whole_words(cache) || !card().has_clusters) return 0;
  const int n_bytes =
      std::min(kStageBytes, most_shared_bytes(fetch_bulk_kernel) / (kBlockCarriers * kStages));
  return static_cast<int>(std::min<int64_t>(n_bytes / cache.layout.row_bytes(), kMostStageRows));
}

}  // namespace

void fetch_latents(const FetchLatents& op, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens, row_bytes = op.cache.layout.row_bytes();
  if (n_tokens == 0 || op.topk == 0) return;
  if (row_bytes <= 0 || op.topk < 0)
    fail(ErrorKind::internal, format("fetch_latents: top-k %ld, rows of %ld bytes", op.topk, row_bytes));
  if (const int n_stage_rows = stage_rows(op.cache); n_stage_rows > 0) {
    const int64_t n_bytes = kBlockCarriers * kStages * n_stage_rows * row_bytes;
    return launch_plain(fetch_bulk_kernel, {kCarriers / kBlockCarriers, 32 * kBlockCarriers, n_bytes}, launch,
                        op, n_stage_rows);
  }
  launch_plain(fetch_plain_kernel, {{ceil_div(64, n_tokens), n_tokens}, kPlainThreads}, launch, op);
}

}  // namespace dsv32::cuda
