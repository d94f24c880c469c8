// The small operations of a step, each in its own kernel: embedding, norm, sums, gates and the router;
// storing tokens and turning queries if they do not run beside a product (beside.cuh); and putting loaded
// weights into bands.
//
// Bound by launch latency in decode, by one reading of their input in prefill.
#include "cuda/dequant.cuh"
#include "cuda/norm_row.cuh"
#include "cuda/token_work.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256, kEmbedThreads = 64;

// out[t] = row tokens[t] of the table. Grid (tokens, pieces of a row); a thread takes sixteen values at a
// time (one at a time of float types, whose rows may have any length). Bound by latency.
template <TensorType kType>
__global__ void embed_kernel(Embed op) {
  __shared__ uint32_t grid[kGridWords<kType> > 0 ? kGridWords<kType> : 1];
  let_next_start();
  fill_grid<kType>(grid);
  __syncthreads();
  wait_for_inputs();
  const int64_t dim = op.table.n_cols;
  const uint8_t* row = row_of(op.table, 0, op.step.tokens[blockIdx.x]);
  float* out = op.out + blockIdx.x * dim;
  const int64_t first = blockIdx.y * kEmbedThreads + threadIdx.x, n_threads = gridDim.y * kEmbedThreads;
  if constexpr (kIsFloat<kType>) {
    for (int64_t i = first; i < dim; i += n_threads) out[i] = load_float<kType>(row, i);
  } else {
    for (int64_t i = first * 16; i < dim; i += n_threads * 16) {
      const auto step = static_cast<uint32_t>(i / kStepColumns<kType>);
      dequantize16<kType>(row + span_offset<kType, kStepColumns<kType>>(op.table.step_bytes > 0, step),
                          i % kStepColumns<kType>, out + i, grid);
    }
  }
}

// One block per row. Bound by latency in decode, by bytes in prefill.
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNorm op) {
  let_next_start();
  const float* x = op.x + blockIdx.x * op.x_stride;
  const NormWeights weights(op);
  wait_for_inputs();
  norm_row(op, weights, x, op.out + blockIdx.x * op.out_stride);
}

// y += x. A thread takes four values, fewer at the end. Bound by bytes.
__global__ void add_kernel(Add op, bool is_aligned) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (is_aligned && i + 4 <= op.n_values) {
    const float4 x = *reinterpret_cast<const float4*>(op.x + i);
    float4& y = *reinterpret_cast<float4*>(op.y + i);
    y = {y.x + x.x, y.y + x.y, y.z + x.z, y.w + x.w};
    return;
  }
  for (int64_t j = i; j < i + 4 && j < op.n_values; ++j) op.y[j] += op.x[j];
}

DSV32_DEVICE float gated(float value, float up) { return value / (1.0f + expf(-value)) * up; }

// A thread takes four values, fewer at the end. Bound by bytes.
__global__ void gate_kernel(float* values, const float* up, const float* factors, GateScales scales,
                            int64_t n_values, int64_t width, bool is_aligned) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (is_aligned && i + 4 <= n_values) {
    const float4 u = *reinterpret_cast<const float4*>(up + i);
    float4& v = *reinterpret_cast<float4*>(values + i);
    v = {gated(v.x, u.x), gated(v.y, u.y), gated(v.z, u.z), gated(v.w, u.w)};
    return;
  }
  for (int64_t j = i; j < i + 4 && j < n_values; ++j) {
    float value = values[j], other = up[j];
    scale_pair(scales, j / width, value, other);
    values[j] = gated(value, other) * (factors ? factors[j / width] : 1.0f);
  }
}

// One block per token (token_work.cuh). Bound by latency.
__global__ void route_experts_kernel(const __grid_constant__ RouteExperts op) {
  extern __shared__ float floats[];
  let_next_start();
  if (op.bias)
    for (int64_t e = 32 * threadIdx.x; e < op.n_experts; e += 32 * blockDim.x) prefetch_constant(op.bias + e);
  wait_for_inputs();
  choose_experts(op, blockIdx.x, floats);
}

// See TurnQueries. Grid (tokens, blocks of a token). Bound by latency in decode, by bytes in prefill.
__global__ void turn_queries_kernel(const __grid_constant__ TurnQueries op,
                                    const __grid_constant__ TurnBlocks blocks) {
  extern __shared__ float floats[];
  let_next_start();
  turn_block(op, blocks, blockIdx.x, static_cast<int>(blockIdx.y), floats);
}

// See StoreTokens. Grid (tokens, parts). The kernel itself writes the row to the host pool's pinned memory,
// 640 bytes over the link; nothing waits for these writes. Sums and stages have the same order for any number
// of threads. Bound by latency in decode, by the link in prefill (about 50 GB/s).
__global__ void __launch_bounds__(kStoreThreads)
    store_tokens_kernel(const __grid_constant__ StoreTokens op, StoreRoom room) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_start();
  store_part(op, room, blockIdx.x, static_cast<StorePart>(blockIdx.y), shared);
}

constexpr int kBandThreads = 512, kBlocksPerSm = 2;

// band [n_steps, 16, step] = rows [16, n_steps, step], in words whose size divides a step. A block takes a
// band at a time and copies it through its own scratch memory [16, row]. Bound by bytes: each is read and
// written twice, half of that in L2.
template <typename Word>
__global__ void __launch_bounds__(kBandThreads)
    put_in_bands_kernel(Word* bands, int64_t n_bands, unsigned n_row_words, unsigned n_step_words,
                        Word* scratch) {
  const unsigned n_words = kBandRows * n_row_words;
  Word* rows = scratch + size_t{blockIdx.x} * n_words;
  for (int64_t k = blockIdx.x; k < n_bands; k += gridDim.x) {
    Word* band = bands + k * n_words;
    for (unsigned i = threadIdx.x; i < n_words; i += kBandThreads) rows[i] = band[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n_words; i += kBandThreads) {
      const unsigned step_row = i / n_step_words, step = step_row / kBandRows, row = step_row % kBandRows;
      band[i] = rows[row * n_row_words + step * n_step_words + i % n_step_words];
    }
    __syncthreads();  // all of `rows` is read
  }
}

template <typename Word>
void start_bands(const WeightMatrix& w, const Launch& launch) {
  const auto band_bytes = static_cast<int64_t>(kBandRows * w.row_bytes);
  const int64_t n_bands = w.n_mats * w.n_rows / kBandRows;
  const int64_t n_blocks = std::min<int64_t>(
      {n_bands, kBlocksPerSm * launch.n_sms, launch.workspace->n_bytes_left() / band_bytes});
  if (n_blocks < 1) fail(ErrorKind::internal, format("no scratch memory is left for %ld bytes", band_bytes));
  auto* scratch = launch.workspace->take<Word>(n_blocks * band_bytes / static_cast<int>(sizeof(Word)));
  launch_plain(put_in_bands_kernel<Word>, {n_blocks, kBandThreads}, launch,
               reinterpret_cast<Word*>(const_cast<uint8_t*>(w.data)), n_bands, w.row_bytes / sizeof(Word),
               w.step_bytes / sizeof(Word), scratch);
}

}  // namespace

void embed(const Embed& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const Extent blocks = {op.step.n_tokens, ceil_div(op.table.n_cols, 16 * kEmbedThreads)};
  with_type(op.table.type, [&]<TensorType kType>() {
    launch_kernel(embed_kernel<kType>, {blocks, kEmbedThreads}, launch, op);
  });
}

void rms_norm(const RmsNorm& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  if (op.width > INT32_MAX / 2) fail(ErrorKind::internal, "rms_norm: rows of a billion values");
  RmsNorm apart = op;
  if (apart.out_stride == 0) apart.out_stride = op.width;
  launch_kernel(rms_norm_kernel, {op.n_rows, norm_threads(op.width)}, launch, apart);
}

void add(const Add& op, const Launch& launch) {
  if (op.n_values == 0) return;
  launch_kernel(add_kernel, {ceil_div(op.n_values, 4 * kThreads), kThreads}, launch, op,
                is_aligned(op.x, 16) && is_aligned(op.y, 16));
}

void gate(float* values, const float* up, const float* factors, const GateScales& scales, int64_t n_values,
          int64_t width, const Launch& launch) {
  if (n_values == 0) return;
  const bool are_fours = !factors && !scales.pairs && is_aligned(values, 16) && is_aligned(up, 16);
  launch_kernel(gate_kernel, {ceil_div(n_values, 4 * kThreads), kThreads}, launch, values, up, factors,
                scales, n_values, width, are_fours);
}

void matmul_gated_apart(const GatedMatmul& op, const Launch& launch) {
  const Matmul both[] = {{op.w1, op.x, op.w1.n_cols, op.y, op.n_tokens},
                         {op.w3, op.x, op.w3.n_cols, op.up, op.n_tokens}};
  op.role == Role::decode ? matmuls_decode(both, launch) : matmuls_prefill(both, launch);
  gate(op.y, op.up, nullptr, {op.scales}, op.n_tokens * op.w1.n_rows, op.w1.n_rows, launch);
}

void route_experts(const RouteExperts& op, const Launch& launch) {
  if (op.n_tokens == 0) return;
  const size_t n_bytes = route_bytes(op);
  if (n_bytes > 48 << 10) fail(ErrorKind::internal, "the router's shared memory holds some 6000 experts");
  launch_kernel(route_experts_kernel, {op.n_tokens, kThreads, n_bytes}, launch, op);
}

void turn_queries(const TurnQueries& op, const Launch& launch) {
  if (op.step.n_tokens == 0 || op.rope_dim < 2) return;
  if (turn_bytes(op) > 48 << 10) fail(ErrorKind::internal, "index heads of more than 1536 values");
  const TurnBlocks blocks(op);
  launch_kernel(turn_queries_kernel, {{op.step.n_tokens, blocks.n()}, kTurnThreads, turn_bytes(op)}, launch,
                op, blocks);
}

void store_tokens(const StoreTokens& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const StoreRoom room = StoreRoom::of(op.cache.layout);
  launch_kernel(store_tokens_kernel, {{op.step.n_tokens, op.k ? 3 : 2}, kStoreThreads, room.n_bytes}, launch,
                op, room);
}

void put_in_bands(const WeightMatrix& w, const Launch& launch) {
  if (w.n_mats * w.n_rows == 0) return;
  if (w.step_bytes != band_step_bytes(w.type, w.n_rows, w.n_cols) || w.step_bytes == 0 ||
      w.mat_bytes != static_cast<size_t>(w.n_rows) * w.row_bytes)
    fail(ErrorKind::internal, "a matrix that cannot lie in bands");
  if (w.step_bytes % 16 == 0)
    start_bands<uint4>(w, launch);
  else if (w.step_bytes % 4 == 0)
    start_bands<uint32_t>(w, launch);
  else
    start_bands<uint16_t>(w, launch);
}

}  // namespace dsv32::cuda
