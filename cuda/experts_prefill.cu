// Routed experts for many tokens. Uses are sorted by expert on the device, and products run over tiles of
// uses. Only the device knows how many tokens an expert has, so grids are as large as the worst case. Every
// sum has a fixed order (columns ascending, a token's experts ascending).
//
// Experts in host memory come in groups through a ring in the window (expert_ring.h); each group is added to
// all tokens. A step of many tokens chooses nearly every expert, so all are copied, then those of the next
// layer. In a small step the choices are downloaded first, which waits for the device.
//
// A member of a team makes its share of the hidden values' columns, the members gather these, and each makes
// its share of the outputs. All sort the same uses, so a use has the same place on each.
#include "backend/expert_window.h"
#include "cuda/expert_ring.h"
#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

// Use u = t * n_activated + k is token t's use of expert experts[u]. Sorted by expert, then by u.
struct Uses {
  int32_t* uses;     // [n_uses] u of each place
  int32_t* tokens;   // [n_uses] t of each place
  int32_t* firsts;   // [n_experts] first place of each expert
  int32_t* counts;   // [n_experts]
  TokenTile* tiles;  // [most_tiles] of a range of experts
  int32_t* n_tiles;  // [1]
};

constexpr int kListThreads = 1024;
constexpr int kThreads = 256;
constexpr int64_t kMostTokens = 65535;  // limit of a grid's second dimension

// The sum of x over the block, for every thread.
__device__ int block_count(int x, int* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = __reduce_add_sync(0xffffffffu, x);
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, partial[lane]);
}

// Lists an expert's uses: first = the number of lower experts' uses, then its own in ascending u. A block of
// 32 warps per expert, 1024 uses at a time. Each block reads all ids, from L2, so that no atomic decides an
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

// tiles = for each expert of [first, end), ascending, its places in pieces of up to n_together; the last two
// are equal if both then fit tiles of n_middle. One block; a thread per expert, which adds up the tiles of
// the experts before. Bound by latency.
__global__ void list_tiles_kernel(int32_t first, int32_t end, int n_together, int n_middle, Uses out) {
  for (int expert = first + static_cast<int>(threadIdx.x); expert < end; expert += blockDim.x) {
    int at = 0;
    for (int e = first; e < expert; ++e) at += (out.counts[e] + n_together - 1) / n_together;
    for (int left = out.counts[expert], place = out.firsts[expert]; left > 0;) {
      const int n = left > n_together && left <= 2 * n_middle ? (left + 1) / 2 : min(left, n_together);
      out.tiles[at++] = {expert, place, n};
      place += n, left -= n;
    }
    if (expert == end - 1) *out.n_tiles = at;
  }
}

// y[t, c] (+)= sum over k ascending of weights[t, k] * out[t * n_activated + k, c] over the experts in
// [first, end), for a slab of columns of y; the sum continues that of earlier experts. A thread per value;
// grid (columns, tokens). Bound by bytes: 4 n_activated read and 4 written per value.
__global__ void combine_kernel(const float* out, RunExperts op, int32_t first, int32_t end, bool has_sums,
                               int64_t column, int64_t n_cols) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = blockIdx.y;
  if (c >= n_cols) return;
  float* y = op.y + token * op.w2.n_rows + column + c;
  float sum = has_sums ? *y : 0.0f;
  bool is_new = !has_sums;
  for (int64_t u = token * op.n_activated; u < (token + 1) * op.n_activated; ++u) {
    if (op.experts[u] < first || op.experts[u] >= end) continue;
    sum += op.weights[u] * out[u * n_cols + c];
    is_new = true;
  }
  if (is_new) *y = sum;
}

// For n_experts with at most n_uses in all.
int64_t most_tiles(int64_t n_uses, int64_t n_experts) {
  return n_uses / kTileTokens + std::min(n_uses, n_experts);
}

RoundedRows take_rows(int64_t n_rows, int64_t n_cols, const Launch& launch) {
  return {launch.workspace->take<__half>(n_rows * n_cols), launch.workspace->take<float>(n_rows)};
}

// Prepares a step's tokens for their experts, then adds the experts in ascending order. Enqueues on the
// launch's stream; its memory is from the launch's workspace.
class PromptExperts {
 public:
  // How many of op's tokens fit n_scratch_bytes together, at least one; else throws Error{internal}.
  static int64_t tokens_together(const RunExperts& op, size_t n_scratch_bytes);
  // Throws Error{internal} when the shapes of the matrices do not match.
  static void check(const RunExperts& op);

  PromptExperts(const RunExperts& op, const Launch& launch);

  // y (+)= the weighted outputs of the experts [first, end); the first call writes every token's y. Matrix e
  // of `stacks` is expert e; only those of [first, end) must be present.
  void add(const ExpertStacks& stacks, int64_t first, int64_t end);

 private:
  Uses list_uses() const;
  Product over_tiles(const WeightMatrix& weight, int64_t first, int64_t end) const;
  void make_hidden(const ExpertStacks& stacks, int64_t first, int64_t end);
  RoundedRows gather_hidden() const;
  void combine(const WeightMatrix& w2, int64_t first, int64_t end);

  const RunExperts op_;
  const Launch launch_;
  const bool is_paired_;  // multiply_pairs() makes all products: x_ and h_ are in turned order
  const int64_t n_uses_;
  const bool is_double_;                // tiles of up to kDoubleTokens
  const int64_t n_columns_, n_hidden_;  // padded widths of x and of this device's hidden values
  Uses uses_;
  RoundedRows x_, h_;     // by token; by place
  int64_t slab_ = 0;      // columns of y at a time
  float* out_ = nullptr;  // [n_uses, slab] by use
  bool has_sums_ = false;
};

static_assert(ExpertScratch::kStep == kStep && ExpertScratch::kFewestColumns % kTileRows == 0 &&
              sizeof(TokenTile) + 2 * sizeof(int32_t) == 20);

int64_t PromptExperts::tokens_together(const RunExperts& op, size_t n_scratch_bytes) {
  const ExpertScratch scratch(shape_of(op), ExpertScratch::kFewestColumns);
  if (n_scratch_bytes < scratch.n_bytes(1))
    fail(ErrorKind::internal, "no scratch memory is left for the experts of a token");
  const auto n = static_cast<int64_t>((n_scratch_bytes - scratch.n_bytes_fixed) / scratch.n_bytes_token);
  return std::min({op.n_tokens, n, kMostTokens});
}

void PromptExperts::check(const RunExperts& op) {
  if (op.w1.n_rows * op.member.n() != op.w2.n_cols || op.w3.n_rows != op.w1.n_rows ||
      op.w3.n_cols != op.w1.n_cols || op.w1.whole_rows() != op.w2.n_cols || op.w1.n_mats != op.w2.n_mats ||
      op.w3.n_mats != op.w1.n_mats || op.n_activated < 1)
    fail(ErrorKind::internal, "the shapes of the experts' matrices do not match");
  if (!op.member.is_alone() && (op.w1.n_rows % kTurnedColumns != 0 || op.w2.n_cols % kStep != 0))
    fail(ErrorKind::internal, format("a team of %ld with %ld hidden values", op.member.n(), op.w2.n_cols));
  for (const WeightMatrix* weight : {&op.w1, &op.w2, &op.w3}) check_weight(*weight);
}

PromptExperts::PromptExperts(const RunExperts& op, const Launch& launch)
    : op_(op),
      launch_(launch),
      is_paired_(op.w1.type == op.w3.type && has_pairs(op.w1) && has_pairs(op.w3) && has_pairs(op.w2)),
      n_uses_(op.n_tokens * op.n_activated),
      is_double_(is_paired_ && has_double_tiles(n_uses_, op.w1.n_mats)),
      n_columns_(padded_columns(op.w1.n_cols)),
      n_hidden_(op.member.is_alone() ? padded_columns(op.w1.n_rows) : op.w1.n_rows),
      uses_(list_uses()),
      x_(take_rows(op.n_tokens, n_columns_, launch)),
      h_(take_rows(n_uses_, n_hidden_, launch)) {
  round_activations({op.x, op.w1.n_cols, 0, op.n_tokens, 1, op.w1.n_cols}, x_,
                    is_paired_ ? RowForm::turned : RowForm::scaled, launch);
  if (n_hidden_ != op.w1.n_rows)  // zeros in the padding columns
    CUDA_CHECK(cudaMemsetAsync(h_.values, 0, static_cast<size_t>(n_uses_ * n_hidden_) * 2, launch.stream));
  const int64_t dim = op.w2.n_rows;
  slab_ = launch.workspace->n_bytes_left() / 4 / n_uses_;
  const int64_t n_slabs = ceil_div(dim, std::max<int64_t>(slab_ / kTileRows * kTileRows, 1));
  slab_ = std::min(slab_, ceil_div(ceil_div(dim, n_slabs), kTileRows) * kTileRows);
  if (slab_ > kBandRows) slab_ = slab_ / kBandRows * kBandRows;
  if (slab_ < std::min(kBandRows, dim))
    fail(ErrorKind::internal, "no scratch memory is left for the experts' outputs");
  out_ = launch.workspace->take<float>(n_uses_ * slab_);
}

Uses PromptExperts::list_uses() const {
  const int64_t n_experts = op_.w1.n_mats;
  Workspace& scratch = *launch_.workspace;
  const Uses uses = {scratch.take<int32_t>(n_uses_),
                     scratch.take<int32_t>(n_uses_),
                     scratch.take<int32_t>(n_experts),
                     scratch.take<int32_t>(n_experts),
                     scratch.take<TokenTile>(most_tiles(n_uses_, n_experts)),
                     scratch.take<int32_t>(1)};
  launch_plain(list_uses_kernel, {n_experts, kListThreads}, launch_, op_.experts, n_uses_, op_.n_activated,
               uses);
  return uses;
}

// A token uses an expert at most once.
Product PromptExperts::over_tiles(const WeightMatrix& weight, int64_t first, int64_t end) const {
  const int64_t n_experts = end - first;
  Product product;
  product.weight = weight;
  product.tiles = uses_.tiles, product.n_tiles = uses_.n_tiles;
  product.max_tiles = most_tiles(std::min(n_uses_, op_.n_tokens * n_experts), n_experts);
  return product;
}

// h = silu(w1 x) * (w3 x) as fp16, in units that Output describes.
void PromptExperts::make_hidden(const ExpertStacks& stacks, int64_t first, int64_t end) {
  Product product = over_tiles(stacks.w1, first, end);
  product.x = x_.values, product.x_units = x_.units, product.x_columns = n_columns_;
  product.x_rows = uses_.tokens;
  product.scales = stacks.scales;
  product.y = h_.values, product.y_stride = n_hidden_;
  if (is_paired_) {
    product.y_units = h_.units;
    return multiply_pairs({product, stacks.w3, true, is_double_}, launch_);
  }
  product.output = Output::silu_f16;
  multiply(product, launch_);
  product.weight = stacks.w3;
  if (product.scales) ++product.scales;
  product.output = Output::times_f16;
  product.y_units = h_.units;
  multiply(product, launch_);
}

// The hidden values of all columns. Each member has all units, which depend on x alone.
RoundedRows PromptExperts::gather_hidden() const {
  if (op_.member.is_alone()) return h_;
  gather(
      {.member = op_.member,
       .pieces = {{.part = h_.values, .whole = op_.hidden, .n_rows = n_uses_, .width = op_.w2.n_cols / 2}}},
      launch_);
  return {reinterpret_cast<__half*>(op_.hidden), h_.units};
}

// The weighted sums of w2 h, in slabs of y's columns: the products of all uses fit the scratch memory.
void PromptExperts::combine(const WeightMatrix& w2, int64_t first, int64_t end) {
  const RoundedRows hidden = gather_hidden();
  for (int64_t column = 0; column < w2.n_rows; column += slab_) {
    WeightMatrix part = w2;
    part.data += static_cast<size_t>(column) * part.row_bytes;
    part.n_rows = std::min(slab_, w2.n_rows - column);
    Product product = over_tiles(part, first, end);
    product.x = hidden.values, product.x_units = hidden.units, product.x_columns = padded_columns(w2.n_cols);
    product.y = out_, product.y_stride = part.n_rows, product.y_rows = uses_.uses;
    if (is_paired_)
      multiply_pairs({product, {}, false, is_double_}, launch_);
    else
      multiply(product, launch_);
    launch_plain(combine_kernel, {{ceil_div(part.n_rows, kThreads), op_.n_tokens}, kThreads}, launch_, out_,
                 op_, first, end, has_sums_, column, part.n_rows);
  }
}

void PromptExperts::add(const ExpertStacks& stacks, int64_t first, int64_t end) {
  launch_plain(list_tiles_kernel, {1, kThreads}, launch_, first, end,
               is_double_ ? kDoubleTokens : kTileTokens, is_double_ ? kMiddleDoubleTokens : kMiddleTokens,
               uses_);
  make_hidden(stacks, first, end);
  combine(stacks.w2, first, end);
  has_sums_ = true;
}

constexpr size_t kFewestPlaces = 2;

bool is_same(const ExpertRing::Group& a, const ExpertRing::Group& b) {
  return a.stacks.w1.data == b.stacks.w1.data && a.stacks.w3.data == b.stacks.w3.data &&
         a.stacks.w2.data == b.stacks.w2.data && a.first == b.first;
}

bool chooses_all(const RunExperts& op) {
  return chooses_all_experts(op.n_tokens * op.n_activated, op.w1.n_mats);
}

// Whether each expert is chosen. Waits for the device, unless all are.
std::vector<bool> chosen_experts(const RunExperts& op, cudaStream_t stream) {
  std::vector<bool> is_chosen(static_cast<size_t>(op.w1.n_mats), chooses_all(op));
  if (chooses_all(op)) return is_chosen;
  std::vector<int32_t> ids(static_cast<size_t>(op.n_tokens * op.n_activated));
  CUDA_CHECK(
      cudaMemcpyAsync(ids.data(), op.experts, ids.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (const int32_t id : ids) is_chosen.at(static_cast<size_t>(id)) = true;
  return is_chosen;
}

void append_groups(const ExpertStacks& stacks, const std::vector<bool>& is_chosen, int64_t n_together,
                   std::vector<ExpertRing::Group>& groups) {
  for (int64_t first = 0; first < stacks.w1.n_mats; first += n_together) {
    ExpertRing::Group group{stacks, first, {}};
    for (int64_t e = first; e < std::min(first + n_together, stacks.w1.n_mats); ++e)
      if (is_chosen[static_cast<size_t>(e)]) group.experts.push_back(static_cast<int32_t>(e));
    if (!group.experts.empty()) groups.push_back(std::move(group));
  }
}

// Adds the next layer's groups. Before the first step the ring has no size: adds none.
void announce(const ExpertStacks* next, const ExpertRing& ring, std::vector<ExpertRing::Group>& groups) {
  if (!next || ring.n_together(*next) == 0) return;
  const std::vector<bool> all(static_cast<size_t>(next->w1.n_mats), true);
  append_groups(*next, all, ring.n_together(*next), groups);
}

// Bytes of the ring: the window less the scratch memory of the largest step so far, and less the link's share
// in decode, so that announced experts stay; at least two experts, even if tokens then need several runs.
size_t ring_bytes(const RunExperts& op, size_t n_bytes_before) {
  const size_t n_least = kFewestPlaces * expert_ring_bytes(op);
  const ExpertScratch few(shape_of(op), ExpertScratch::kFewestColumns), all(shape_of(op));
  if (op.n_window_bytes < n_least + std::max<size_t>(few.n_bytes(1), op.n_link_bytes))
    fail(ErrorKind::internal, format("a window of %zu bytes for experts of %zu bytes", op.n_window_bytes,
                                     n_least / kFewestPlaces));
  size_t n_bytes = op.n_window_bytes - std::min(all.n_bytes(op.n_tokens), op.n_window_bytes - n_least);
  n_bytes = std::min(n_bytes, op.n_window_bytes - op.n_link_bytes);
  if (n_bytes_before > 0) n_bytes = std::min(n_bytes, n_bytes_before);
  return std::max(n_bytes / kRingAlignment * kRingAlignment, n_least);
}

}  // namespace

// When the division changes, each stream first waits for the other's work on the old one.
void ExpertRing::lie_in(uint8_t* memory, size_t n_bytes, const ExpertStacks& like, cudaStream_t stream) {
  const size_t n_places = std::min(n_bytes / expert_ring_bytes(like), kMostPlaces);
  if (n_places < kFewestPlaces)
    fail(ErrorKind::internal, format("a ring of %zu bytes for experts of %llu bytes", n_bytes,
                                     static_cast<unsigned long long>(expert_ring_bytes(like))));
  if (memory == memory_ && n_bytes == n_bytes_ && n_places == n_places_) return;
  memory_ = memory, n_bytes_ = n_bytes, n_places_ = n_places;
  n_place_bytes_ = n_bytes / n_places / kRingAlignment * kRingAlignment;
  clear();
  places_[0].left.order(stream, stream_);
  places_[0].arrived.order(stream_, stream);
}

int64_t ExpertRing::n_together(const ExpertStacks& stacks) const {
  return static_cast<int64_t>(n_place_bytes_ / expert_ring_bytes(stacks));
}

void ExpertRing::clear() {
  wanted_.clear(), arrivals_.clear(), free_.clear();
  for (size_t place = 0; place < n_places_; ++place) free_.push_back(place);
}

void ExpertRing::forget() {
  cudaStreamSynchronize(stream_);
  memory_ = nullptr;
  n_bytes_ = n_places_ = n_place_bytes_ = 0;
  clear();
}

// Announced groups were copied in the order of use. Those that are not chosen are dropped here.
void ExpertRing::want(const std::vector<Group>& groups) {
  std::deque<Arrival> there;
  for (Arrival& arrival : arrivals_) {
    if (there.size() < groups.size() && is_same(arrival.group, groups[there.size()]))
      there.push_back(std::move(arrival));
    else
      free_.push_back(arrival.place);
  }
  arrivals_ = std::move(there);
  wanted_.assign(groups.begin() + static_cast<std::ptrdiff_t>(arrivals_.size()), groups.end());
  copy_on();
}

void ExpertRing::copy_on() {
  for (; !wanted_.empty() && !free_.empty(); wanted_.pop_front(), free_.pop_front()) {
    copy(wanted_.front(), free_.front());
    arrivals_.push_back({std::move(wanted_.front()), free_.front()});
  }
}

// Neighbouring experts go in one copy: a driver queues about a thousand. Fused gate and up are rows of a
// wider matrix in host memory. A place whose group was dropped during its copy is free at once, because
// copies run one after another.
void ExpertRing::copy(const Group& group, size_t place) {
  places_[place].left.hold(stream_);
  const ExpertStacks to = in_place(group, place);
  const auto copy_matrices = [&](const WeightMatrix& from, const WeightMatrix& there, int32_t expert,
                                 size_t n) {
    pinned_.wait(from.row(expert, 0));
    auto* target = const_cast<uint8_t*>(there.row(expert, 0));
    CUDA_CHECK(from.mat_bytes == there.mat_bytes
                   ? cudaMemcpyAsync(target, from.row(expert, 0), n * from.mat_bytes, cudaMemcpyHostToDevice,
                                     stream_)
                   : cudaMemcpy2DAsync(target, there.mat_bytes, from.row(expert, 0), from.mat_bytes,
                                       there.mat_bytes, n, cudaMemcpyHostToDevice, stream_));
  };
  const std::vector<int32_t>& experts = group.experts;
  for (size_t begin = 0, end = 0; begin < experts.size(); begin = end) {
    for (end = begin + 1; end < experts.size() && experts[end] == experts[end - 1] + 1;) ++end;
    copy_matrices(group.stacks.w1, to.w1, experts[begin], end - begin);
    copy_matrices(group.stacks.w3, to.w3, experts[begin], end - begin);
    copy_matrices(group.stacks.w2, to.w2, experts[begin], end - begin);
  }
  places_[place].arrived.record(stream_);
}

// Each stack's matrices follow one another in the place. The views begin before it, so that matrix e is
// expert e.
ExpertStacks ExpertRing::in_place(const Group& group, size_t place) const {
  ExpertStacks there = group.stacks;
  auto at = reinterpret_cast<uintptr_t>(memory_) + place * n_place_bytes_;
  const auto n = static_cast<size_t>(n_together(group.stacks)), first = static_cast<size_t>(group.first);
  for (WeightMatrix* w : {&there.w1, &there.w3, &there.w2}) {
    w->mat_bytes = static_cast<size_t>(w->n_rows) * w->row_bytes;
    w->data = reinterpret_cast<const uint8_t*>(at - first * w->mat_bytes);
    at += round_up(n * w->mat_bytes, kRingAlignment);
  }
  return there;
}

ExpertStacks ExpertRing::take(cudaStream_t stream) {
  if (arrivals_.empty()) fail(ErrorKind::internal, "no experts are on their way");
  const Arrival& next = arrivals_.front();
  places_[next.place].arrived.hold(stream);
  return in_place(next.group, next.place);
}

void ExpertRing::give_back(cudaStream_t stream) {
  const size_t place = arrivals_.front().place;
  places_[place].left.record(stream);
  arrivals_.pop_front();
  free_.push_back(place);
  copy_on();
}

void run_experts_prefill(const RunExperts& op, const Launch& launch) {
  if (op.n_tokens == 0 || op.w2.n_rows == 0) return;
  PromptExperts::check(op);
  const int64_t most = PromptExperts::tokens_together(op, launch.workspace->n_bytes_left());
  const int64_t run = ceil_div(op.n_tokens, ceil_div(op.n_tokens, most));  // runs of equal length
  for (int64_t token = 0; token < op.n_tokens; token += run) {
    Workspace scratch = *launch.workspace;
    PromptExperts(tokens_of(op, token, std::min(run, op.n_tokens - token)), launch.with(scratch))
        .add(op, 0, op.w1.n_mats);
  }
}

void run_experts_streamed(const RunExperts& op, ExpertRing& ring, const Launch& launch) {
  std::vector<ExpertRing::Group> once, groups;
  if (op.n_tokens == 0) {
    announce(op.next, ring, groups);
    if (!groups.empty()) ring.want(groups);
    return;
  }
  const size_t n_ring_bytes = ring_bytes(op, ring.lies_in(op.window) ? ring.n_bytes() : 0);
  ring.lie_in(op.window, n_ring_bytes, op, launch.stream);
  PromptExperts::check(op);
  const Workspace rest(op.window + n_ring_bytes, op.n_window_bytes - n_ring_bytes);
  const int64_t run = PromptExperts::tokens_together(op, rest.n_bytes_left());
  const int64_t n_experts = op.w1.n_mats, n_together = ring.n_together(op);
  append_groups(op, chosen_experts(op, launch.stream), n_together, once);
  for (int64_t token = 0; token < op.n_tokens; token += run)
    groups.insert(groups.end(), once.begin(), once.end());
  if (chooses_all(op)) announce(op.next, ring, groups);
  ring.want(groups);
  for (int64_t token = 0; token < op.n_tokens; token += run) {
    Workspace scratch = rest;
    PromptExperts experts(tokens_of(op, token, std::min(run, op.n_tokens - token)), launch.with(scratch));
    for (const ExpertRing::Group& group : once) {
      const ExpertStacks there = ring.take(launch.stream);
      experts.add(there, group.first, std::min(group.first + n_together, n_experts));
      ring.give_back(launch.stream);
    }
  }
}

}  // namespace dsv32::cuda
