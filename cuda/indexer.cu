// The indexer's scores: score(t, s) = sum over heads h of w[t, h] * max(0, q[t, h] . key[s]), computed by one
// warp from its key and query alone. choose_scores() chooses the kernel; here is the one for any sizes and
// f32 keys.
#include "cuda/indexer.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kPlainThreads = 256, kPlainGroups = kPlainThreads / kPage;

// Value i of a key of the page.
DSV32_DEVICE float key_value(const Scoring& op, const uint8_t* page, int key, int i) {
  const int at = key * op.dim + i;
  if (op.q) return reinterpret_cast<const float*>(page + op.keys_offset)[at];
  const int n_tiles = (op.dim + static_cast<int>(kTileValues) - 1) / static_cast<int>(kTileValues);
  const float* scales = reinterpret_cast<const float*>(page + op.scales_offset);
  return from_e4m3(page[op.keys_offset + at]) * scales[key * n_tiles + i / kTileValues];
}

// score(t, s) in f32.
// Grid (pages, tokens): a thread has one key of the page and every fourth head. kInShared: shared memory
// holds the keys transposed, [dim, 65]; else, for keys without room there, each is read again for each head.
// Bound by f32 arithmetic and shared memory; for comparisons and small models.
template <bool kInShared>
__global__ void __launch_bounds__(kPlainThreads) score_plain_kernel(Scoring op) {
  extern __shared__ float plain_keys[];  // [dim, 65]
  __shared__ float partial[kPlainGroups][kPage];
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.y;
  const int32_t pos = op.step.pos[t], first_key = blockIdx.x * kPage;
  if (first_key > pos) return;
  const int n_tiles = (op.dim + static_cast<int>(kTileValues) - 1) / static_cast<int>(kTileValues);
  const uint8_t* page = op.page(op.step.seq[t], blockIdx.x);
  if constexpr (kInShared) {
    for (int item = threadIdx.x; item < kPage * op.dim; item += kPlainThreads) {
      const int key = item / op.dim, i = item % op.dim;
      plain_keys[i * (kPage + 1) + key] = key_value(op, page, key, i);
    }
    __syncthreads();
  }
  const int key = threadIdx.x % kPage, group = threadIdx.x / kPage;
  float sum = 0;
  for (int h = group; h < op.n_heads; h += kPlainGroups) {
    const int64_t r = t * op.n_heads + h;
    float product = 0;
    for (int i = 0; i < op.dim; ++i) {
      const float q = op.q ? op.q[r * op.dim + i]
                           : from_e4m3(op.q_fp8[r * op.dim + i]) * op.q_scales[r * n_tiles + i / kTileValues];
      product = fmaf(q, kInShared ? plain_keys[i * (kPage + 1) + key] : key_value(op, page, key, i), product);
    }
    sum = fmaf(op.weights[r] * op.weight_scale, fmaxf(product, 0.0f), sum);
  }
  partial[group][key] = sum;
  __syncthreads();
  if (group > 0 || first_key + key > pos) return;
  for (int other = 1; other < kPlainGroups; ++other) sum += partial[other][key];
  op.scores[t * op.scores_stride + first_key + key] = sum;
}

void score_plain(const Scoring& op, int64_t n_pages, const Launch& launch) {
  const Extent blocks = {n_pages, op.step.n_tokens};
  const int64_t n_bytes = int64_t{op.dim} * (kPage + 1) * 4;
  if (n_bytes <= most_shared_bytes(score_plain_kernel<true>))
    launch_kernel(score_plain_kernel<true>, {blocks, kPlainThreads, n_bytes}, launch, op);
  else
    launch_kernel(score_plain_kernel<false>, {blocks, kPlainThreads}, launch, op);
}

void check(const IndexerScores& op) {
  const int64_t dim = op.cache.layout.index_head_dim, n_visible = op.step.max_pos + 1;
  const bool is_f32 = op.cache.layout.kv_type == KvType::f32;
  if (!op.scores || !op.weights || (is_f32 ? !op.q : !op.q_fp8 || !op.q_scales))
    fail(ErrorKind::internal, "indexer_scores: the queries are not in the form of the keys");
  if (dim <= 0 || dim > INT32_MAX / kPage || op.n_heads <= 0 || op.step.n_tokens > 65535 ||
      n_visible > INT32_MAX / 2 || (op.step.n_tokens > 1 && op.scores_stride < n_visible))
    fail(ErrorKind::internal,
         format("indexer_scores: %ld tokens, %ld heads of %ld values, %ld positions in rows of %ld and %ld "
                "pages",
                op.step.n_tokens, op.n_heads, dim, n_visible, op.scores_stride, op.cache.max_pages));
}

}  // namespace

void indexer_scores(const IndexerScores& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  check(op);
  const Scoring scoring(op);
  const int64_t n_pages = op.step.max_pos / kPageTokens + 1;
  const bool has_fast_shape = op.cache.layout.kv_type != KvType::f32 && scoring.dim == kDim;
  switch (choose_scores(op.n_heads, has_fast_shape, card().family)) {
    case ScoreKernel::plain: return score_plain(scoring, n_pages, launch);
    case ScoreKernel::generic: return score_generic(scoring, n_pages, launch);
    case ScoreKernel::hopper:
      return op.step.role == Role::decode ? score_decode(scoring, n_pages, launch)
                                          : score_prefill(scoring, n_pages, launch);
  }
}

}  // namespace dsv32::cuda
