// Weights that have arrived as whole rows, put into bands where they lie.
#include "cuda/bands.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 512, kBlocksPerSm = 2;

// band [n_steps, 16, step] = rows [16, n_steps, step], words of as many bytes as divide a step.
// A block a band at a time, by way of its own scratch memory [16, row].
// Neighbouring threads write neighbouring words. Bound by bytes: each is read and written twice, half of that
// in L2.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    put_in_bands_kernel(Word* bands, int64_t n_bands, unsigned n_row_words, unsigned n_step_words,
                        Word* scratch) {
  const unsigned n_words = kBandRows * n_row_words;
  Word* rows = scratch + size_t{blockIdx.x} * n_words;
  for (int64_t k = blockIdx.x; k < n_bands; k += gridDim.x) {
    Word* band = bands + k * n_words;
    for (unsigned i = threadIdx.x; i < n_words; i += kThreads) rows[i] = band[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n_words; i += kThreads) {
      const unsigned step_row = i / n_step_words, step = step_row / kBandRows, row = step_row % kBandRows;
      band[i] = rows[row * n_row_words + step * n_step_words + i % n_step_words];
    }
    __syncthreads();  // until all is read
  }
}

template <typename Word>
void start(const WeightMatrix& w, const Launch& launch) {
  const size_t band_bytes = kBandRows * w.row_bytes;
  const int64_t n_bands = w.n_mats * w.n_rows / kBandRows;
  const int64_t n_blocks =
      std::min<int64_t>({n_bands, kBlocksPerSm * launch.n_sms,
                         static_cast<int64_t>(launch.workspace->n_bytes_left() / band_bytes)});
  if (n_blocks < 1) fail(ErrorKind::internal, format("no scratch memory is left for %zu bytes", band_bytes));
  auto* scratch = launch.workspace->take<Word>(static_cast<size_t>(n_blocks) * band_bytes / sizeof(Word));
  put_in_bands_kernel<Word><<<static_cast<unsigned>(n_blocks), kThreads, 0, launch.stream>>>(
      reinterpret_cast<Word*>(const_cast<uint8_t*>(w.data)), n_bands,
      static_cast<unsigned>(w.row_bytes / sizeof(Word)), static_cast<unsigned>(w.step_bytes / sizeof(Word)),
      scratch);
  check_launch("put_in_bands_kernel");
}

}  // namespace

void put_in_bands(const WeightMatrix& w, const Launch& launch) {
  if (w.n_mats * w.n_rows == 0) return;
  if (w.step_bytes != band_step_bytes(w.type, w.n_rows, w.n_cols) || w.step_bytes == 0 ||
      w.mat_bytes != static_cast<size_t>(w.n_rows) * w.row_bytes)
    fail(ErrorKind::internal, "a matrix that cannot lie in bands");
  if (w.step_bytes % 16 == 0)
    start<uint4>(w, launch);
  else if (w.step_bytes % 4 == 0)
    start<uint32_t>(w, launch);
  else
    start<uint16_t>(w, launch);
}

}  // namespace dsv32::cuda
