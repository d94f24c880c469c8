// Routed experts for many tokens: the uses of experts are sorted by expert on the device, and products run
// over tiles of them.
//
// Which expert has how many tokens is known on the device alone: grids are as large as the worst case, and
// what is past the last tile returns. Every sum runs in a fixed order (columns ascending, a token's experts
// ascending), so nothing depends on scheduling.
#include <algorithm>

#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kListThreads = 1024;
constexpr int kThreads = 256;
constexpr int64_t kMostTokens = 65535;  // of a grid's second dimension

// Use u = t * n_activated + k: token t has expert experts[u]. Sorted by expert, then by u.
struct Uses {
  int32_t* uses;     // [n_uses] u of each place
  int32_t* tokens;   // [n_uses] t of each place
  int32_t* firsts;   // [n_experts] first place of each expert
  int32_t* counts;   // [n_experts]
  TokenTile* tiles;  // [max_tiles]
  int32_t* n_tiles;  // [1]
};

// The sum over the block, for every thread.
__device__ int block_count(int x, int* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = __reduce_add_sync(0xffffffffu, x);
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, partial[lane]);
}

// Places of an expert's uses: first = uses of lower experts, then its own in ascending u.
// A block of 32 warps an expert; 1024 uses at a time.
// Each block reads all the ids (they stay in L2), so that no block waits for another and no atomic decides an
// order. Bound by latency.
__global__ void __launch_bounds__(kListThreads)
    list_uses_kernel(const int32_t* experts, int32_t n_uses, int32_t n_activated, Uses out) {
  __shared__ int partial[32];
  const int expert = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int n_lower = 0, n_equal = 0;
  for (int u = threadIdx.x; u < n_uses; u += kListThreads) {
    n_lower += experts[u] < expert;
    n_equal += experts[u] == expert;
  }
  n_lower = block_count(n_lower, partial);
  n_equal = block_count(n_equal, partial);
  if (threadIdx.x == 0) out.firsts[expert] = n_lower, out.counts[expert] = n_equal;
  if (n_equal == 0) return;
  int place = n_lower;  // of the first use of this round
  for (int begin = 0; begin < n_uses; begin += kListThreads) {
    const int u = begin + static_cast<int>(threadIdx.x);
    const bool is_mine = u < n_uses && experts[u] == expert;
    const unsigned mine = __ballot_sync(0xffffffffu, is_mine);
    __syncthreads();
    if (lane == 0) partial[warp] = __popc(mine);
    __syncthreads();
    const int n_warp = partial[lane];
    const int n_before = __reduce_add_sync(0xffffffffu, lane < warp ? n_warp : 0);
    if (is_mine) {
      const int at = place + n_before + __popc(mine & ((1u << lane) - 1));
      out.uses[at] = u;
      out.tokens[at] = u / n_activated;
    }
    place += __reduce_add_sync(0xffffffffu, n_warp);
  }
}

// tiles = for each expert, ascending, its places in runs of up to 128.
// One block; a thread an expert.
// A thread adds up the tiles of the experts before its own: counts are few and stay in L1.
// Bound by latency.
__global__ void list_tiles_kernel(int32_t n_experts, Uses out) {
  for (int expert = threadIdx.x; expert < n_experts; expert += blockDim.x) {
    int at = 0;
    for (int e = 0; e < expert; ++e) at += (out.counts[e] + kTileTokens - 1) / kTileTokens;
    const int count = out.counts[expert];
    for (int i = 0; i < count; i += kTileTokens)
      out.tiles[at++] = {expert, out.firsts[expert] + i, min(count - i, kTileTokens)};
    if (expert == n_experts - 1) *out.n_tiles = at;
  }
}

// y[t, c] = sum over k ascending of weights[t, k] * out[t * n_activated + k, c], for a slab of columns of y.
// A thread a value; grid (columns, tokens).
// A gather in fixed order instead of atomic adds.
// Bound by bytes: 4 n_activated read and 4 written a value.
__global__ void combine_kernel(const float* out, const float* weights, int64_t n_activated, int64_t n_cols,
                               float* y, int64_t y_stride) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = blockIdx.y;
  if (column >= n_cols) return;
  float sum = 0;
  for (int64_t k = 0; k < n_activated; ++k)
    sum += weights[token * n_activated + k] * out[(token * n_activated + k) * n_cols + column];
  y[token * y_stride + column] = sum;
}

int64_t most_tiles(int64_t n_uses, int64_t n_experts) {
  return n_uses / kTileTokens + std::min(n_uses, n_experts);
}

Uses list_uses(const RunExperts& op, const Launch& launch) {
  const int64_t n_uses = op.n_tokens * op.n_activated, n_experts = op.w1.n_mats;
  Workspace& scratch = *launch.workspace;
  const Uses uses = {scratch.take<int32_t>(static_cast<size_t>(n_uses)),
                     scratch.take<int32_t>(static_cast<size_t>(n_uses)),
                     scratch.take<int32_t>(static_cast<size_t>(n_experts)),
                     scratch.take<int32_t>(static_cast<size_t>(n_experts)),
                     scratch.take<TokenTile>(static_cast<size_t>(most_tiles(n_uses, n_experts))),
                     scratch.take<int32_t>(1)};
  list_uses_kernel<<<static_cast<unsigned>(n_experts), kListThreads, 0, launch.stream>>>(
      op.experts, static_cast<int32_t>(n_uses), static_cast<int32_t>(op.n_activated), uses);
  check_launch("list_uses_kernel");
  list_tiles_kernel<<<1, kThreads, 0, launch.stream>>>(static_cast<int32_t>(n_experts), uses);
  check_launch("list_tiles_kernel");
  return uses;
}

Product over_tiles(const WeightMatrix& weight, const Uses& uses, int64_t n_uses) {
  Product product;
  product.weight = weight;
  product.tiles = uses.tiles, product.n_tiles = uses.n_tiles;
  product.max_tiles = most_tiles(n_uses, weight.n_mats);
  return product;
}

RoundedRows take_rows(int64_t n_rows, int64_t n_cols, const Launch& launch) {
  return {launch.workspace->take<__half>(static_cast<size_t>(n_rows * n_cols)),
          launch.workspace->take<float>(static_cast<size_t>(n_rows))};
}

// h [n_uses, stride] = silu(w1 x) * (w3 x), by place, as fp16 (Output says in which units).
RoundedRows hidden(const RunExperts& op, const Uses& uses, int64_t stride, const Launch& launch) {
  const int64_t n_uses = op.n_tokens * op.n_activated, n_padded = padded_columns(op.w1.n_cols);
  const RoundedRows x = take_rows(op.n_tokens, n_padded, launch), h = take_rows(n_uses, stride, launch);
  round_activations({op.x, op.w1.n_cols, 0, op.n_tokens, 1, op.w1.n_cols}, x, false, launch);
  if (stride != op.w1.n_rows)  // the columns that pad it
    CUDA_CHECK(cudaMemsetAsync(h.values, 0, static_cast<size_t>(n_uses * stride) * 2, launch.stream));
  Product product = over_tiles(op.w1, uses, n_uses);
  product.x = x.values, product.x_units = x.units, product.x_columns = n_padded, product.x_rows = uses.tokens;
  product.y = h.values, product.y_stride = stride;
  product.output = Output::silu_f16;
  multiply(product, launch);
  product.weight = op.w3;
  product.output = Output::times_f16;
  product.y_units = h.units;
  multiply(product, launch);
  return h;
}

// y = the weighted sums of w2 h, in slabs of y's columns whose products by use fit the scratch memory that is
// left.
void combine(const RunExperts& op, const Uses& uses, const RoundedRows& h, int64_t stride,
             const Launch& launch) {
  const int64_t n_uses = op.n_tokens * op.n_activated, dim = op.w2.n_rows;
  int64_t slab = static_cast<int64_t>(launch.workspace->n_bytes_left() / sizeof(float)) / n_uses;
  const int64_t n_slabs = ceil_div(dim, std::max<int64_t>(slab / kTileRows * kTileRows, 1));
  slab = std::min(slab, ceil_div(ceil_div(dim, n_slabs), kTileRows) * kTileRows);
  if (slab < 1) fail(ErrorKind::internal, "no scratch memory is left for the experts' outputs");
  auto* out = launch.workspace->take<float>(static_cast<size_t>(n_uses * slab));
  for (int64_t column = 0; column < dim; column += slab) {
    WeightMatrix part = op.w2;
    part.data += static_cast<size_t>(column) * part.row_bytes;
    part.n_rows = std::min(slab, dim - column);
    Product product = over_tiles(part, uses, n_uses);
    product.x = h.values, product.x_units = h.units, product.x_columns = stride;
    product.y = out, product.y_stride = part.n_rows, product.y_rows = uses.uses;
    multiply(product, launch);
    const dim3 grid(static_cast<unsigned>(ceil_div(part.n_rows, kThreads)),
                    static_cast<unsigned>(op.n_tokens));
    combine_kernel<<<grid, kThreads, 0, launch.stream>>>(out, op.weights, op.n_activated, part.n_rows,
                                                         op.y + column, dim);
    check_launch("combine_kernel");
  }
}

// Tokens that fit the scratch memory together, with room for the outputs of kTileRows columns at least.
int64_t tokens_together(const RunExperts& op, const Launch& launch) {
  const int64_t n_bytes_fixed = op.w1.n_mats * (8 + static_cast<int64_t>(sizeof(TokenTile))) + 16 * 256;
  const int64_t n_bytes_use =
      2 * padded_columns(op.w2.n_cols) + 4 * std::min<int64_t>(op.w2.n_rows, 2 * kTileRows) + 13;
  const int64_t n_bytes_token = 2 * padded_columns(op.w1.n_cols) + 4 + op.n_activated * n_bytes_use;
  return (static_cast<int64_t>(launch.workspace->n_bytes_left()) - n_bytes_fixed) / n_bytes_token;
}

}  // namespace

void run_experts_prefill(const RunExperts& op, const Launch& launch) {
  if (op.n_tokens == 0 || op.w2.n_rows == 0) return;
  if (op.w1.n_rows != op.w2.n_cols || op.w3.n_rows != op.w1.n_rows || op.w3.n_cols != op.w1.n_cols ||
      op.w1.n_mats != op.w2.n_mats || op.w3.n_mats != op.w1.n_mats || op.n_activated < 1)
    fail(ErrorKind::internal, "the shapes of the experts' matrices do not match");
  for (const WeightMatrix* weight : {&op.w1, &op.w2, &op.w3}) check_weight(*weight);
  const int64_t run = std::min({op.n_tokens, tokens_together(op, launch), kMostTokens});
  if (run < 1) fail(ErrorKind::internal, "no scratch memory is left for the experts of a token");
  for (int64_t token = 0; token < op.n_tokens; token += run) {
    RunExperts part = op;
    part.n_tokens = std::min(run, op.n_tokens - token);
    part.x += token * op.w1.n_cols, part.y += token * op.w2.n_rows;
    part.experts += token * op.n_activated, part.weights += token * op.n_activated;
    Workspace scratch = *launch.workspace;
    const Launch here = {launch.stream, &scratch, launch.n_sms};
    const Uses uses = list_uses(part, here);
    const int64_t stride = padded_columns(op.w1.n_rows);
    combine(part, uses, hidden(part, uses, stride, here), stride, here);
  }
}

}  // namespace dsv32::cuda
