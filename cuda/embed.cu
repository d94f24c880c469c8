// The embedding: rows of the stored table as f32, for every format.
#include "cuda/bands.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 64;

// out[t] = row tokens[t] of the table
// Grid (tokens, pieces of a row); a thread sixteen values at a time (one at a time for floats, whose rows may
// have any length). i16 of dequantize16 is no constant here: the shifts are computed, which nobody notices in
// so small an operation. Bound by latency.
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
  const int64_t first = blockIdx.y * kThreads + threadIdx.x, n_threads = gridDim.y * kThreads;
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

template <TensorType kType>
void launch_embed(const Embed& op, const Launch& launch) {
  const dim3 blocks(static_cast<unsigned>(op.step.n_tokens),
                    static_cast<unsigned>(ceil_div(op.table.n_cols, 16 * kThreads)));
  launch_kernel("embed_kernel", embed_kernel<kType>, {blocks, kThreads}, launch, op);
}

}  // namespace

void embed(const Embed& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  with_type(op.table.type, [&]<TensorType kType>() { launch_embed<kType>(op, launch); });
}

}  // namespace dsv32::cuda
