// The kernels (the code between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE, compiled once per instruction
// set), and the division of a product over tokens, rows and threads.
//
// A product of a row and a token is always the same chain of operations: step after step, sixteen lanes and
// then the tree over the lanes. Dividing rows or tokens changes which products run together, never the
// operations of a product. For several tokens weights are unpacked once, a panel of rows at a time; for one
// token they go from registers straight to the product.
#include "backend/cpu_matmul.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "backend/cpu_common.h"
#include "backend/cpu_kernels.h"
#include "base/error.h"

#include "backend/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu_matmul.cpp"
#include <hwy/foreach_target.h>

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include "backend/cpu_formats-inl.h"
#include "backend/cpu_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

constexpr int kRows = CpuKernels::kRows;
static_assert(kRows == 4);  // add_sums() adds four

// Where part p of row `row`'s columns [i, i + 16) lies in a panel: a tile's rows side by side, all columns of
// part 0, then of part 1, ..., so that a tile reads contiguous memory.
HWY_INLINE constexpr int64_t place_in_panel(int64_t row, int64_t i, int64_t p) {
  return (row / kDotRows * kParts + p) * (kStepValues / kParts * kDotRows) + i * kDotRows / kParts +
         row % kDotRows * kPartLanes;
}

// F: a format of cpu_formats-inl.h.
template <class F>
struct VectorFormat {
  using Block = typename F::Block;
  static constexpr int kBlockValues = kStepValues / F::kBlocks;
  static constexpr size_t kStepBytes = F::kBlocks * sizeof(Block);

  static void prepare_step(const float* x, int n_values, float* out) {
    std::memcpy(out, x, static_cast<size_t>(n_values) * sizeof(float));
    std::memset(out + n_values, 0, static_cast<size_t>(kStepValues - n_values) * sizeof(float));
  }

  // The blocks of a row's last, short step, padded with zeros.
  struct Padded {
    alignas(64) uint8_t bytes[kStepBytes] = {};
    const uint8_t* fill(const uint8_t* at, int n_values) {
      std::memcpy(bytes, at, static_cast<size_t>(n_values / kBlockValues) * sizeof(Block));
      return bytes;
    }
  };

  static void unpack_step(const uint8_t* at, int n_values, int64_t row, UnpackedPanel& panel) {
    Padded padded;
    typename F::Unpacked unpacked;
    if (n_values < kStepValues) at = padded.fill(at, n_values);
    const auto* blocks = reinterpret_cast<const Block*>(at);
    F::unpack(blocks, unpacked);
    for (int i = 0; i < n_values; i += 16) {
      const Floats values = F::weights(blocks, unpacked, i);
      DSV32_EACH_PART (p) hn::StoreU(values.part[p], FloatTag(), panel.values + place_in_panel(row, i, p));
    }
  }

  // One step of kRows rows. All rows are unpacked before the first is read: by then its small stores have
  // reached the cache, and wide loads need not wait for the store queue.
  static HWY_INLINE void step(const uint8_t* const* at, int n_values, const float* x, float* sums) {
    typename F::Unpacked unpacked[kRows];
    for (int r = 0; r < kRows; ++r) F::unpack(reinterpret_cast<const Block*>(at[r]), unpacked[r]);
    Floats lanes[kRows];
    for (Floats& of_row : lanes) of_row = zeros();
    for (int i = 0; i < n_values; i += 16) {
      const Floats of_x = load_floats(x + i);
      DSV32_UNROLL for (int r = 0; r < kRows; ++r) lanes[r] =
          mul_add(F::weights(reinterpret_cast<const Block*>(at[r]), unpacked[r], i), of_x, lanes[r]);
    }
    Eight halves[kRows];
    DSV32_UNROLL for (int r = 0; r < kRows; ++r) halves[r] = add_halves(lanes[r]);
    add_sums(halves, sums, sums);
  }

  static void one_token(const uint8_t* const* rows, size_t row_bytes, const float* const* token,
                        float* sums) {
    const uint8_t* at[kRows];
    const float* x = *token;
    for (int r = 0; r < kRows; ++r) at[r] = rows[r], sums[r] = 0;
    const size_t ahead = prefetch_distance(rows);
    size_t left = row_bytes;
    for (; left >= kStepBytes; left -= kStepBytes, x += kStepValues) {
      for (int r = 0; r < kRows; ++r) prefetch_weights(at[r] + ahead, kStepBytes);
      step(at, kStepValues, x, sums);
      for (int r = 0; r < kRows; ++r) at[r] += kStepBytes;
    }
    if (left == 0) return;
    const int n_values = static_cast<int>(left / sizeof(Block)) * kBlockValues;
    Padded padded[kRows];
    for (int r = 0; r < kRows; ++r) at[r] = padded[r].fill(at[r], n_values);
    step(at, n_values, x, sums);
  }

  static constexpr CpuKernels kKernels = {kStepValues, prepare_step, one_token, nullptr, unpack_step};
};

// y[t * y_stride + r] = panel[r] . x[t] over n_cols columns from `first` on, added to y unless `first` is 0.
void multiply_panel(const UnpackedPanel& panel, int64_t first, int64_t n_cols,
                    std::span<const float* const> x, float* y, int64_t y_stride) {
  const int64_t n_padded = (n_cols + 15) / 16 * 16;
  const auto n_tokens = static_cast<int64_t>(x.size());
  for (int64_t t = 0; t < n_tokens; t += kDotVectors) {
    const int64_t n = std::min<int64_t>(kDotVectors, n_tokens - t);
    const float* tokens[kDotVectors];
    for (int64_t v = 0; v < n; ++v) tokens[v] = x[static_cast<size_t>(t + v)] + first;
    // The next tokens' outputs: lines far apart, which no hardware prefetcher predicts.
    for (int64_t v = t + n; v < std::min(t + n + kDotVectors, n_tokens); ++v)
      __builtin_prefetch(y + v * y_stride, 1);
    for (int64_t row = 0; row < panel.n_rows; row += kDotRows) {
      const float* values = panel.values + place_in_panel(row, 0, 0);
      const auto at = [&](int r, int64_t i, int p) { return values + place_in_panel(r, i, p); };
      const int64_t n_rows = std::min<int64_t>(kDotRows, panel.n_rows - row);
      float* to = y + t * y_stride + row;
      const Tile tile = first == 0 ? Tile{kZeros, 0, to, y_stride} : Tile{to, y_stride, to, y_stride};
      if (n_rows == kDotRows) {
        dot_tile(n, at, tokens, n_padded, tile);
        continue;
      }
      float cut[kDotVectors][kDotRows];
      dot_tile(n, at, tokens, n_padded, {kZeros, 0, cut[0], kDotRows});
      for (int64_t v = 0; v < n; ++v)
        for (int64_t r = 0; r < n_rows; ++r)
          to[v * y_stride + r] = tile.from[v * tile.from_stride + r] + cut[v][r];
    }
  }
}

// The first n of sixteen lanes, then zeros.
HWY_INLINE Floats load_some(const float* from, int64_t n) {
  alignas(64) float padded[16] = {};
  std::copy_n(from, n, padded);
  return load_floats(padded);
}

float dot(const float* a, const float* b, int64_t n) {
  Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    DSV32_UNROLL for (int k = 0; k < 4; ++k) sums[k] =
        mul_add(load_floats(a + i + 16 * k), load_floats(b + i + 16 * k), sums[k]);
  }
  for (; i + 16 <= n; i += 16) sums[0] = mul_add(load_floats(a + i), load_floats(b + i), sums[0]);
  if (i < n) sums[1] = mul_add(load_some(a + i, n - i), load_some(b + i, n - i), sums[1]);
  return sum_of_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

void axpy(float scale, const float* x, float* y, int64_t n) {
  const Floats factor = broadcast(scale);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_floats(mul_add(factor, load_floats(x + i), load_floats(y + i)), y + i);
  if (i == n) return;
  float last[16];
  store_floats(mul_add(factor, load_some(x + i, n - i), load_some(y + i, n - i)), last);
  std::copy_n(last, n - i, y + i);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

const CpuKernels* kernels_of(TensorType type) {
  switch (type) {
    case TensorType::f32: return &VectorFormat<FloatFormat<float>>::kKernels;
    case TensorType::f16: return &VectorFormat<FloatFormat<hwy::float16_t>>::kKernels;
    case TensorType::bf16: return &VectorFormat<FloatFormat<hwy::bfloat16_t>>::kKernels;
    default:
      return with_block(type,
                        [](auto block) { return &VectorFormat<BlockFormat<decltype(block)>>::kKernels; });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dsv32 {
namespace {

HWY_EXPORT(kernels_of);
HWY_EXPORT(multiply_panel);
HWY_EXPORT(target_name);
HWY_EXPORT(dot);
HWY_EXPORT(axpy);

constexpr int kRows = CpuKernels::kRows;
constexpr int kTokens = CpuKernels::kTokens;
// Panels, 64 KiB, and the tokens multiplied with them, with as much of x; a multiple of kDotVectors.
constexpr int64_t kPanels = 4;
constexpr size_t kTokensOfPanels = 63;

const CpuKernels& kernels_of(const WeightMatrix& weight) {
  assert(weight.row_bytes >= row_bytes(weight.type, weight.n_cols));
  const CpuKernels* kernels = vnni_kernels_of(weight.type);
  if (kernels == nullptr) kernels = HWY_DYNAMIC_DISPATCH(kernels_of)(weight.type);
  assert(kernels != nullptr);
  return *kernels;
}

// Rows that a thread takes at a time: whole panels, few enough that every thread gets several shares. The
// first tile of a share is not prefetched, so with one token the shares are long.
int64_t rows_at_a_time(int64_t n_rows, int64_t n_tokens, int n_threads) {
  constexpr int64_t kPanel = UnpackedPanel::kRows;
  const int64_t most = n_tokens == 1 ? 256 : kPanels * kPanel;
  return std::clamp<int64_t>(n_rows / (4 * n_threads) / kPanel * kPanel, kPanel, most);
}

// Rows [begin, end) of W[mat].
struct Rows {
  const WeightMatrix& weight;
  int64_t mat, begin, end;

  int64_t n() const { return end - begin; }
  const uint8_t* at(int64_t r) const { return weight.row(mat, std::min(begin + r, end - 1)); }
};

// In tiles of kRows rows and kTokens tokens. The last row or token is repeated to fill a tile; the surplus
// results are dropped.
void multiply_tiles(const CpuKernels& kernels, const Rows& rows, std::span<const float* const> tokens,
                    float* y, int64_t y_stride) {
  const size_t n_row_bytes = row_bytes(rows.weight.type, rows.weight.n_cols);
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  for (int64_t row = 0; row < rows.n(); row += kRows)
    for (int64_t token = 0; token < n_tokens; token += kTokens) {
      const uint8_t* at[kRows];
      const float* x[kTokens];
      float sums[kRows * kTokens];
      for (int64_t r = 0; r < kRows; ++r) at[r] = rows.at(row + r);
      for (int64_t t = 0; t < kTokens; ++t)
        x[t] = tokens[static_cast<size_t>(std::min(token + t, n_tokens - 1))];
      const int64_t n_t = n_tokens - token == 1 ? 1 : kTokens;
      (n_t == 1 ? kernels.one_token : kernels.many_tokens)(at, n_row_bytes, x, sums);
      for (int64_t t = 0; t < std::min(n_t, n_tokens - token); ++t)
        for (int64_t r = 0; r < std::min<int64_t>(kRows, rows.n() - row); ++r)
          y[(token + t) * y_stride + row + r] = sums[r * n_t + t];
    }
}

// Columns [first, first + n) of the panels from `row` on; returns the number of panels.
int64_t unpack(const CpuKernels& kernels, const Rows& rows, int64_t row, int64_t first, int64_t n,
               UnpackedPanel (&panels)[kPanels]) {
  const size_t offset = row_bytes(rows.weight.type, first);
  int64_t p = 0;
  for (; p < kPanels && row < rows.n(); ++p, row += UnpackedPanel::kRows) {
    panels[p].n_rows = std::min(UnpackedPanel::kRows, rows.n() - row);
    for (int64_t r = 0; r < (panels[p].n_rows + kRows - 1) / kRows * kRows; ++r)
      kernels.unpack_step(rows.at(row + r) + offset, static_cast<int>(n), r, panels[p]);
  }
  return p;
}

// In panels, each unpacked once for all tokens. kPanels panels and kTokensOfPanels tokens stay together in
// the second-level cache, so that tokens are loaded into it less often.
void multiply_unpacked(const CpuKernels& kernels, const Rows& rows, std::span<const float* const> tokens,
                       float* y, int64_t y_stride) {
  const int64_t n_cols = rows.weight.n_cols;
  UnpackedPanel panels[kPanels];
  for (int64_t row = 0; row < rows.n(); row += kPanels * UnpackedPanel::kRows)
    for (int64_t first = 0; first < n_cols; first += kStepValues) {
      const int64_t n = std::min<int64_t>(kStepValues, n_cols - first);
      const int64_t n_panels = unpack(kernels, rows, row, first, n, panels);
      for (size_t t = 0; t < tokens.size(); t += kTokensOfPanels) {
        const auto some = tokens.subspan(t, std::min(kTokensOfPanels, tokens.size() - t));
        float* to = y + static_cast<int64_t>(t) * y_stride + row;
        for (int64_t p = 0; p < n_panels; ++p, to += UnpackedPanel::kRows)
          HWY_DYNAMIC_DISPATCH(multiply_panel)(panels[p], first, n, some, to, y_stride);
      }
    }
}

}  // namespace

std::string cpu_instruction_set() {
  const std::string name = HWY_DYNAMIC_DISPATCH(target_name)();
  return vnni_kernels_of(TensorType::q8_0) ? name + "+VNNI" : name;
}

CpuActivations::CpuActivations(const WeightMatrix& weight, const float* x, int64_t x_stride, int64_t n_tokens)
    : kernels_(kernels_of(weight)),
      x_(x),
      x_stride_(x_stride),
      n_cols_(weight.n_cols),
      n_tokens_(n_tokens),
      n_token_steps_((n_cols_ + kStepValues - 1) / kStepValues),
      n_floats_(n_token_steps_ * kernels_.step_floats),
      floats_(hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(n_tokens, 1) * n_floats_))) {
  if (!floats_)
    fail(ErrorKind::memory, format("no memory for the activations of %lld tokens", as_ll(n_tokens)),
         "a smaller batch of tokens needs less");
}

void CpuActivations::prepare(int64_t i) {
  const int64_t t = i / n_token_steps_, begin = i % n_token_steps_ * kStepValues;
  const int64_t n = std::min<int64_t>(kStepValues, n_cols_ - begin);
  kernels_.prepare_step(x_ + t * x_stride_ + begin, static_cast<int>(n),
                        floats_.get() + i * kernels_.step_floats);
}

std::vector<const float*> CpuActivations::tokens() const {
  std::vector<const float*> tokens(static_cast<size_t>(n_tokens_));
  for (int64_t t = 0; t < n_tokens_; ++t) tokens[static_cast<size_t>(t)] = token(t);
  return tokens;
}

void cpu_multiply_rows(const WeightMatrix& weight, int64_t mat, int64_t row_begin, int64_t row_end,
                       std::span<const float* const> tokens, float* y, int64_t y_stride) {
  assert(weight.data != nullptr && mat >= 0 && mat < weight.n_mats);
  const CpuKernels& kernels = kernels_of(weight);
  const bool is_unpacked = kernels.unpack_step && tokens.size() > 1;
  (is_unpacked ? multiply_unpacked : multiply_tiles)(kernels, {weight, mat, row_begin, row_end}, tokens, y,
                                                     y_stride);
}

void cpu_matmul(const Matmul& op, WorkerPool& workers) {
  CpuActivations x(op.weight, op.x, op.x_stride, op.n_tokens);
  const int64_t n_rows = op.weight.n_rows;
  const bool is_shared = products_worth_sharing(n_rows * op.weight.n_cols * op.n_tokens);
  workers.parallel_for(x.n_steps(), is_shared, [&](int64_t i) { x.prepare(i); });
  const std::vector<const float*> tokens = x.tokens();
  const int64_t share = rows_at_a_time(n_rows, op.n_tokens, workers.n_threads());
  workers.parallel_for((n_rows + share - 1) / share, is_shared, [&](int64_t i) {
    cpu_multiply_rows(op.weight, 0, i * share, std::min((i + 1) * share, n_rows), tokens, op.y + i * share,
                      n_rows);
  });
}

float cpu_dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(dot)(a, b, n); }

void cpu_axpy(float scale, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(axpy)(scale, x, y, n);
}

}  // namespace dsv32

#endif  // HWY_ONCE
