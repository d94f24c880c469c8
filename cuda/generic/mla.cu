// Sparse MLA by mma.sync, for every card: V3.2's sizes (rank 512, rope 64), rows in fp8 or bf16.
//
// A block takes one token and 16, 32 or 64 of its heads, and goes through the selected rows 32 at a time with
// a running softmax. The queries lie in registers, because with 64 heads they would fill the shared memory of
// a small card. In decode kSplits blocks share a token's rows, and mla_combine_kernel merges their parts; in
// prefill one block has all rows. A head's sums have one order, however many heads a block takes: so the
// number of heads may follow the number of blocks that are needed.
#include "cuda/mla.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kRows = 32;                               // selected rows that are processed at once
constexpr int kSplits = 8;                              // blocks that share a token's rows in decode
constexpr int kWarpRows = kRows / kWarps;               // rows that one warp copies
constexpr int kRowTiles = kRows / 8;                    // eight rows are the columns of one product
constexpr int kStageBytes = kRowLines * kRows * kLine;  // rows as bf16
constexpr int kHalfSteps = (kRank + kRope) / 16 / 2;    // products of 16 values over half of a row
constexpr int kLookups = 2048;                          // rows whose places are looked up at once
constexpr int kWeightBytes = kRows * 2;                 // weights of a head as bf16

// How a launch is cut, and where the parts of decode meet.
struct Parts {
  int64_t page_bytes;  // of a key page
  int n_head_tiles;    // blocks side by side for one token and split
  int n_splits;        // split s takes lots of 32 rows s, s + n_splits, ...
  // [n_tokens, n_splits, n_heads, kRank] each part's weighted average of its rows; null: one split. Averages
  // are no larger than latents, so they fit fp16.
  __half* averages = nullptr;
  float2* max_sum = nullptr;  // [n_tokens, n_splits, n_heads] the largest score (base 2) and the weights' sum
};

// The warps of a block. For scores a warp has 16 heads, half of the columns of a row and 8 kTiles rows; the
// two warps of both halves are a pair. For values it has all heads and 64 columns.
template <int kTiles>
struct Division {
  static constexpr int kKept = (kTiles + 1) / 2;  // row tiles that the first half of a pair finishes
  int warp, lane, tile, half, group;
  DSV32_DEVICE Division()
      : warp(uniform_warp()),
        lane(threadIdx.x % 32),
        tile(warp % kTiles),
        half(warp / kTiles % 2),
        group(warp / (2 * kTiles)) {}
  DSV32_DEVICE int head(int h) const { return 16 * tile + lane / 4 + 8 * h; }  // of the thread's two
  // The row tiles of a group from 0 on belong to the first half, those from kKept on to the second.
  DSV32_DEVICE int n_finished() const { return kTiles % 2 == 0 || half == 0 ? kKept : 0; }
  DSV32_DEVICE int finished(int j) const { return group * kTiles + half * kKept + j; }
  DSV32_DEVICE void sync_pair() const { sync_at<64>(1 + tile + kTiles * group); }
  DSV32_DEVICE void sync_tile() const { sync_at<kThreads / kTiles>(1 + kRowTiles + tile); }
};

// Shared memory of a block.
template <KvType kKv, int kTiles>
struct Room {
  static constexpr int kHeads = 16 * kTiles, kKept = Division<kTiles>::kKept;
  static constexpr int kStages = kKv == KvType::fp8 ? 1 : 2;
  uint8_t rows[kStages][kStageBytes];                                  // [kRows, kRank + kRope] bf16
  uint8_t landing[kKv == KvType::fp8 ? kRows * kRowBytes<kKv> : 128];  // fp8 rows as copied
  uint8_t weights[kHeads * kWeightBytes];                              // [kHeads, kRows] bf16
  float4 halves[kWarps][kKept][32];                                    // scores of the pair's other half
  float largest[kRowTiles][kHeads], sums[kRowTiles][kHeads];           // of eight rows
  float shrink[kHeads];
  int32_t ids[kLookups];                               // of the rows of the next lots; -1: past the end
  uint32_t scales[kKv == KvType::fp8 ? kLookups : 1];  // of the same rows
};

DSV32_DEVICE uint32_t pack_bf16(float low, float high) { return as_word(__floats2bfloat162_rn(low, high)); }

// Loads operand A of the warp's 16 heads and half of their columns. Heads past the last are copies of it,
// whose outputs are not stored: so no load waits for a branch.
DSV32_DEVICE void load_queries(const Attend& op, int64_t t, int first_head, int half, int lane,
                               uint32_t (&q)[kHalfSteps][4]) {
  constexpr int kBothLatent = (kRank - (kRank + kRope) / 2) / 16;  // steps in which both halves read q_c
  const int column = lane % 4 * 2;
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int64_t head = min(static_cast<int64_t>(first_head + lane / 4 + 8 * h), op.n_heads - 1);
    const float* latent = op.q_c + (t * op.n_heads + head) * kRank + half * kHalfSteps * 16 + column;
    const float* rope = op.q_pe + t * op.q_pe_token_stride + head * op.q_pe_head_stride + column;
    const float* last = half == 0 ? latent + kBothLatent * 16 : rope;  // q_pe is aligned to 4 bytes alone
    DSV32_UNROLL for (int step = 0; step < kHalfSteps; ++step) {
      DSV32_UNROLL for (int i = 0; i < 2; ++i) {
        if (step < kBothLatent) {
          const float2 pair = *reinterpret_cast<const float2*>(latent + step * 16 + i * 8);
          q[step][2 * i + h] = pack_bf16(pair.x, pair.y);
        } else {
          const float* from = last + (step - kBothLatent) * 16 + i * 8;
          q[step][2 * i + h] = pack_bf16(from[0], from[1]);
        }
      }
    }
  }
}

// s[i] += 16 heads x 8 rows (from first_row + 8 i) of half of Q K^T.
template <int kTiles>
DSV32_DEVICE void multiply_queries(float (&s)[kTiles][4], const uint32_t (&q)[kHalfSteps][4],
                                   const uint8_t* rows, int first_row, int half, int lane) {
  const int matrix = lane / 8, r = lane % 8;
  const uint32_t at = shared_address(rows) + (first_row + r) * kLine;
  DSV32_UNROLL for (int g = 0; g < kHalfSteps / 2; ++g) {  // 32 values are half a line
    const int half_line = half * (kHalfSteps / 2) + g;
    const uint32_t line = at + half_line / 2 * kRows * kLine + (matrix ^ r ^ half_line % 2 * 4) * 16;
    uint32_t b[kTiles][4];
    DSV32_UNROLL for (int i = 0; i < kTiles; ++i) load_matrices(b[i], line + i * 8 * kLine);
    DSV32_UNROLL for (int i = 0; i < kTiles; ++i) multiply_bf16(s[i], q[2 * g], b[i][0], b[i][1]);
    DSV32_UNROLL for (int i = 0; i < kTiles; ++i) multiply_bf16(s[i], q[2 * g + 1], b[i][2], b[i][3]);
  }
}

// The scores of the row tiles that this warp finishes: the sum of both halves' products.
template <int kTiles, typename Shared>
DSV32_DEVICE void add_halves(const float (&s)[kTiles][4], Shared& shared, const Division<kTiles>& own,
                             float (&scores)[Division<kTiles>::kKept][4]) {
  constexpr int kKept = Division<kTiles>::kKept;
  DSV32_UNROLL for (int j = 0; j < kKept; ++j) {
    constexpr bool kHasSecond = kTiles > 1;
    float given[4];
    DSV32_UNROLL for (int e = 0; e < 4; ++e) {
      const float low = s[j][e], high = s[kHasSecond ? kKept + j : 0][e];
      scores[j][e] = own.half == 0 ? low : high, given[e] = own.half == 0 ? high : low;
    }
    if (kHasSecond || own.half == 1)
      shared.halves[own.warp][j][own.lane] = {given[0], given[1], given[2], given[3]};
  }
  own.sync_pair();
  DSV32_UNROLL for (int j = 0; j < kKept; ++j) {
    if (j >= own.n_finished()) continue;
    const float4 other = shared.halves[own.warp ^ kTiles][j][own.lane];
    scores[j][0] += other.x, scores[j][1] += other.y, scores[j][2] += other.z, scores[j][3] += other.w;
  }
}

// Converts scores to base 2, those of rows past the end to -infinity, and notes the largest of each tile.
template <int kTiles, typename Shared>
DSV32_DEVICE void note_largest(float (&scores)[Division<kTiles>::kKept][4], Shared& shared,
                               const Division<kTiles>& own, float scale, int n_left) {
  DSV32_UNROLL for (int j = 0; j < Division<kTiles>::kKept; ++j) {
    if (j >= own.n_finished()) continue;
    const int tile = own.finished(j), row = 8 * tile + own.lane % 4 * 2;
    DSV32_UNROLL for (int e = 0; e < 4; ++e) scores[j][e] =
        row + e % 2 < n_left ? scores[j][e] * scale : -INFINITY;
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const float largest = quad_max(fmaxf(scores[j][2 * h], scores[j][2 * h + 1]));
      if (own.lane % 4 == 0) shared.largest[tile][own.head(h)] = largest;
    }
  }
}

// Stores weights 2^(score - largest) as bf16, and each tile's sums of them as rounded, so that normalised
// they add up to one.
template <int kTiles, typename Shared>
DSV32_DEVICE void put_weights(const float (&scores)[Division<kTiles>::kKept][4], const Running& running,
                              Shared& shared, const Division<kTiles>& own) {
  DSV32_UNROLL for (int j = 0; j < Division<kTiles>::kKept; ++j) {
    if (j >= own.n_finished()) continue;
    const int tile = own.finished(j);
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const int head = own.head(h);
      const uint32_t pair = pack_bf16(exp2_fast(scores[j][2 * h] - running.largest[h]),
                                      exp2_fast(scores[j][2 * h + 1] - running.largest[h]));
      const float sum = quad_sum(__uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u));
      if (own.lane % 4 == 0) shared.sums[tile][head] = sum;
      *reinterpret_cast<uint32_t*>(shared.weights + head * kWeightBytes + (tile ^ head / 2 % 4) * 16 +
                                   own.lane % 4 * 4) = pair;
    }
  }
}

// o[i][c] += 16 heads (from 16 i) x 8 columns (from 64 warp + 8 c) of P V; V: the rows' first kRank values.
template <int kTiles>
DSV32_DEVICE void add_values(float (&o)[kTiles][8][4], const uint8_t* weights, const uint8_t* rows, int warp,
                             int lane) {
  const int matrix = lane / 8, r = lane % 8;
  const uint32_t a_at = shared_address(weights) + (matrix % 2 * 8 + r) * kWeightBytes;
  const uint32_t b_at = shared_address(rows) + (warp * kRows + matrix % 2 * 8 + r) * kLine;
  DSV32_UNROLL for (int step = 0; step < kRows / 16; ++step) {
    uint32_t a[kTiles][4];
    DSV32_UNROLL for (int i = 0; i < kTiles; ++i)
        load_matrices(a[i], a_at + i * 16 * kWeightBytes + ((2 * step + matrix / 2) ^ r / 2) * 16);
    DSV32_UNROLL for (int c = 0; c < 8; c += 2) {
      uint32_t b[4];
      load_transposed(b, b_at + step * 16 * kLine + (matrix / 2 ^ r ^ c) * 16);
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
        multiply_bf16(o[i][c], a[i], b[0], b[1]);
        multiply_bf16(o[i][c + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// Looks up n_rows rows, those of lots first, first + n_splits, ...
template <KvType kKv, typename Shared>
DSV32_DEVICE void look_up(const Attend& op, const Parts& parts, int64_t t, int first, int n, int n_rows,
                          Shared& shared) {
  const int64_t seq = op.step.seq[t];
  for (int i = threadIdx.x; i < n_rows; i += kThreads) {
    const int j = (first + i / kRows * parts.n_splits) * kRows + i % kRows;
    const RowPlace place = find_row(op, t, j, n);
    shared.ids[i] = static_cast<int32_t>(place.id);
    if constexpr (kKv == KvType::fp8)
      shared.scales[i] = load_scales(op, parts.page_bytes, find_page(op, seq, place), place);
  }
}

// Starts the warp's copies of its rows of the lot that is number i of those looked up.
template <KvType kKv, typename Shared>
DSV32_DEVICE void start_lot(const Attend& op, Shared& shared, int i, int stage, int warp, int lane) {
  static_assert(kWarpRows == 4);
  const int row = warp * kWarpRows + lane / 8;
  uint8_t* to = kKv == KvType::fp8 ? shared.landing : shared.rows[stage];
  start_row<kKv>(op.cache.slots, shared.ids[i * kRows + row], to, row, kRows, lane);
}

// Two e4m3 values, each in the upper byte of a half, times scale / 2^120, as bf16: exact. The seven bits of
// exponent and fraction, shifted to bf16's place, are the value times 2^-120 (also for denormals).
DSV32_DEVICE uint32_t expand_pair(uint32_t halves, __nv_bfloat162 scale) {
  return as_word(__hmul2(as_bfloat2((halves & 0x80008000u) | ((halves >> 4) & 0x07f007f0u)), scale));
}

// Sixteen e4m3 values, chunk `lane` of a row, to two bf16 chunks; `scales` are the row's four. Scales are at
// most 2^7, as on Hopper: normalised latents have no larger ones.
DSV32_DEVICE void expand_chunk(const uint4& codes, uint32_t scales, uint8_t* rows, int row, int lane) {
  const uint32_t power = min(scales >> (lane / 8 * 8) & 0xffu, 127u + 7u) + 120;  // of two, plus 127
  const __nv_bfloat162 scale =
      __bfloat162bfloat162(__ushort_as_bfloat16(static_cast<unsigned short>(power << 7)));
  const uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    out[2 * i] = expand_pair(__byte_perm(in[i], 0, 0x1404), scale);
    out[2 * i + 1] = expand_pair(__byte_perm(in[i], 0, 0x3424), scale);
  }
  store_chunks({out[0], out[1], out[2], out[3]}, {out[4], out[5], out[6], out[7]}, rows, kRows, row, lane);
}

// Widens the warp's fp8 rows of lot i from the landing place to bf16.
template <typename Shared>
DSV32_DEVICE void expand_rows(Shared& shared, int i, int warp, int lane) {
  constexpr int kBytes = kRowBytes<KvType::fp8>;
  DSV32_UNROLL for (int r = 0; r < kWarpRows; ++r) {
    const int row = warp * kWarpRows + r;
    const uint4 codes = *reinterpret_cast<const uint4*>(shared.landing + row * kBytes + lane * 16);
    expand_chunk(codes, shared.scales[i * kRows + row], shared.rows[0], row, lane);
  }
  const int row = warp * kWarpRows + lane / 8, chunk = lane % 8;  // k_pe is bf16 already: a chunk a lane
  *reinterpret_cast<uint4*>(shared.rows[0] + chunk_place(kRank / 8 + chunk, row, kRows)) =
      *reinterpret_cast<const uint4*>(shared.landing + row * kBytes + kRank + chunk * 16);
}

// o_c = sum_j softmax(scale (q_c . c_j + q_pe . k_pe_j)) c_j over the selected rows j of one token.
// CTA: one token, 16 kTiles heads, every n_splits-th lot of 32 rows; 8 warps (Division). Queries and sums lie
// in registers, rows and weights in shared memory. cp.async gathers the next lot's rows during the present
// lot's work; rows are widened once for all heads. Sums are rescaled only when a maximum grows by 2^kSlack.
// Bound by latency: a scheduler has two warps, which wait for ldmatrix and for each other; a quarter of the
// issue slots is busy. Measured (H100, 2026-11-26): 2 048 tokens of a prompt, 128 heads, 2 048 fp8 rows each:
// 5.7 ms, 204 TFLOP/s; in decode with the merge 1, 8, 64 tokens in 33, 61, 315 us.
template <KvType kKv, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) mla_kernel(const Attend op, const Parts parts) {
  constexpr int kHeads = 16 * kTiles;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Room<kKv, kTiles>*>(shared_bytes);
  let_next_start();
  wait_for_inputs();
  const Division<kTiles> own;
  const int lane = own.lane, warp = own.warp;
  const int first_head = static_cast<int>(blockIdx.x) % parts.n_head_tiles * kHeads;
  const int split = static_cast<int>(blockIdx.x) / parts.n_head_tiles % parts.n_splits;
  const int64_t t = blockIdx.x / parts.n_head_tiles / parts.n_splits;
  const int n = op.n_selected[t], n_lots = (n + kRows - 1) / kRows;
  if (parts.averages && split >= n_lots) return;  // the merge skips this part
  const int n_own = (n_lots - split + parts.n_splits - 1) / parts.n_splits;
  const float scale = op.scale * 1.44269504f;
  constexpr int kLots = kLookups / kRows;  // that are looked up at once
  // Looks up the lots from own_lot on, and starts the copies of the first.
  const auto look_up_from = [&](int own_lot, int stage) {
    look_up<kKv>(op, parts, t, split + own_lot * parts.n_splits, n, min(n_own - own_lot, kLots) * kRows,
                 shared);
    __syncthreads();
    start_lot<kKv>(op, shared, 0, stage, warp, lane);
  };
  if (n_own > 0) look_up_from(0, 0);
  uint32_t q[kHalfSteps][4];
  load_queries(op, t, first_head + 16 * own.tile, own.half, lane, q);

  Running running;
  float sum = 0;  // of the weights of head threadIdx.x
  float o[kTiles][8][4] = {};
  for (int own_lot = 0, stage = 0; own_lot < n_own; ++own_lot) {
    const int lot = split + own_lot * parts.n_splits, i = own_lot % kLots;
    if (i == 0 && own_lot > 0) {
      __syncthreads();  // all warps are done with the lookups before
      look_up_from(own_lot, stage);
    }
    uint8_t* rows = shared.rows[stage];
    wait_all_copies();
    __syncthreads();  // the rows are there, and all warps are done with the lot before
    if constexpr (kKv == KvType::fp8) {
      expand_rows(shared, i, warp, lane);
      __syncthreads();
    } else {
      stage ^= 1;
    }
    if (own_lot + 1 < n_own && i + 1 < kLots) start_lot<kKv>(op, shared, i + 1, stage, warp, lane);

    float s[kTiles][4] = {}, scores[Division<kTiles>::kKept][4], largest_here[2], factors[2];
    multiply_queries<kTiles>(s, q, rows, own.group * 8 * kTiles, own.half, lane);
    add_halves<kTiles>(s, shared, own, scores);
    note_largest<kTiles>(scores, shared, own, scale, n - lot * kRows);
    own.sync_tile();
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      largest_here[h] = shared.largest[0][own.head(h)];
      DSV32_UNROLL for (int i = 1; i < kRowTiles; ++i) largest_here[h] =
          fmaxf(largest_here[h], shared.largest[i][own.head(h)]);
    }
    const bool is_grown = grow(running, largest_here, factors);
    if (own.half == 0 && own.group == 0 && lane % 4 == 0)
      shared.shrink[own.head(0)] = factors[0], shared.shrink[own.head(1)] = factors[1];
    put_weights<kTiles>(scores, running, shared, own);
    if (__syncthreads_or(is_grown)) {
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
        DSV32_UNROLL for (int h = 0; h < 2; ++h) {
          const float factor = shared.shrink[i * 16 + lane / 4 + 8 * h];
          DSV32_UNROLL for (int c = 0; c < 8; ++c) o[i][c][2 * h] *= factor, o[i][c][2 * h + 1] *= factor;
        }
      }
    }
    add_values<kTiles>(o, shared.weights, rows, warp, lane);
    if (const int head = threadIdx.x; head < kHeads)
      sum = sum * shared.shrink[head] +
            ((shared.sums[0][head] + shared.sums[1][head]) + (shared.sums[2][head] + shared.sums[3][head]));
  }

  __syncthreads();  // from here `sums` and `largest` hold those of all rows
  if (threadIdx.x < kHeads) shared.sums[0][threadIdx.x] = sum;
  if (own.half == 0 && own.group == 0 && lane % 4 == 0)
    shared.largest[0][own.head(0)] = running.largest[0], shared.largest[0][own.head(1)] = running.largest[1];
  __syncthreads();
  DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const int row = i * 16 + lane / 4 + 8 * h, head = first_head + row;
      if (head >= op.n_heads) continue;
      const float all = shared.sums[0][row];
      const int64_t part = (t * parts.n_splits + split) * op.n_heads + head;
      const float factor = all == 0 ? 1.0f : 1.0f / all;
      const int column = warp * 64 + lane % 4 * 2;
      if (!parts.averages) {
        store_head<32>(op, t, head, warp * 64, &o[i][0][0], h, factor);
        continue;
      }
      DSV32_UNROLL for (int c = 0; c < 8; ++c) *
          reinterpret_cast<uint32_t*>(parts.averages + part * kRank + column + c * 8) =
          pack_f16(o[i][c][2 * h] * factor, o[i][c][2 * h + 1] * factor);
      if (warp == 0 && lane % 4 == 0) parts.max_sum[part] = {shared.largest[0][row], all};
    }
  }
}

// o_c = sum_s w_s average_s / sum_s w_s, w_s = 2^(m_s - m) sum_s, over the parts s of one token and head, in
// ascending order. CTA: one token and head, 128 threads of four columns. Parts without rows are not written
// and not read. Bound by reading the parts from L2.
__global__ void __launch_bounds__(kRank / 4) mla_combine_kernel(const Attend op, const Parts parts) {
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.x / op.n_heads, head = blockIdx.x % op.n_heads;
  const int n = min(kSplits, (op.n_selected[t] + kRows - 1) / kRows);
  const int64_t first = t * kSplits * op.n_heads + head;  // parts are n_heads apart
  float2 max_sums[kSplits];
  uint2 averages[kSplits];
  float largest = -INFINITY, sum = 0;
  DSV32_UNROLL for (int s = 0; s < kSplits; ++s) {
    if (s >= n) continue;
    max_sums[s] = parts.max_sum[first + s * op.n_heads];
    averages[s] =
        reinterpret_cast<const uint2*>(parts.averages + (first + s * op.n_heads) * kRank)[threadIdx.x];
  }
  DSV32_UNROLL for (int s = 0; s < kSplits; ++s) if (s < n) largest = fmaxf(largest, max_sums[s].x);
  float4 o = {0, 0, 0, 0};
  DSV32_UNROLL for (int s = 0; s < kSplits; ++s) {
    if (s >= n) continue;
    const float weight = exp2_fast(max_sums[s].x - largest) * max_sums[s].y;
    const float2 low = unpack_f16(averages[s].x), high = unpack_f16(averages[s].y);
    sum += weight;
    o.x += weight * low.x, o.y += weight * low.y, o.z += weight * high.x, o.w += weight * high.y;
  }
  const float factor = sum == 0 ? 1.0f : 1.0f / sum;
  reinterpret_cast<float4*>(op.o_c + (t * op.n_heads + head) * kRank)[threadIdx.x] = {
      o.x * factor, o.y * factor, o.z * factor, o.w * factor};
}

template <KvType kKv, int kTiles>
void launch_tiles(const Attend& op, Parts parts, const Launch& launch) {
  static_assert(sizeof(Room<kKv, kTiles>) <= kGenericSharedBytes);
  parts.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, 16 * kTiles));
  launch_kernel(mla_kernel<kKv, kTiles>,
                {op.step.n_tokens * parts.n_splits * parts.n_head_tiles, kThreads, sizeof(Room<kKv, kTiles>)},
                launch, op, parts);
}

void attend_all(const Attend& op, const Parts& parts, const Launch& launch) {
  with_kv(op, [&]<KvType kKv>() {
    switch (choose_head_tiles(op.step.n_tokens * parts.n_splits, op.n_heads, launch.n_sms)) {
      case 1: return launch_tiles<kKv, 1>(op, parts, launch);
      case 2: return launch_tiles<kKv, 2>(op, parts, launch);
      default: return launch_tiles<kKv, 4>(op, parts, launch);
    }
  });
}

}  // namespace

void attend_generic(const Attend& op, const Launch& launch) {
  Parts parts{op.cache.layout.key_page_bytes(), 0, 1};
  if (op.step.role != Role::decode) return attend_all(op, parts, launch);
  parts.n_splits = kSplits;
  const int64_t n_parts = kSplits * op.n_heads, n_bytes_part = kRank * sizeof(__half) + sizeof(float2);
  in_groups(op, n_parts * n_bytes_part, launch,
            [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
              parts.averages = reinterpret_cast<__half*>(scratch);
              parts.max_sum = reinterpret_cast<float2*>(parts.averages + n_together * n_parts * kRank);
              attend_all(part, parts, launch);
              launch_kernel(mla_combine_kernel, {part.step.n_tokens * part.n_heads, kRank / 4}, launch, part,
                            parts);
            });
}

}  // namespace dsv32::cuda
