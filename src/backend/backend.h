// The interface of a device: the closed set of operations that the forward pass consists of, and the
// device's memory. A new operation needs a sentence here on why existing ones cannot express it.
//
// A Backend is one device. src/backend/cpu_backend is plain and is the reference; cuda/ is fast.
//
// Operations are enqueued and may return before they are done; each sees the results of all operations
// enqueued before it. Of the other functions those wait whose
// comment says so; alloc() and free() may. Params structs are read before the call returns; the memory that
// they point to must stay until the work is done. All pointers are to memory of this backend (alloc,
// alloc_weights) unless a comment says host. f32 unless said otherwise; strides count elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cache_layout.h"
#include "backend/choose.h"
#include "backend/matrix.h"
#include "backend/sampling.h"
#include "backend/team.h"
#include "backend/topk_buffer.h"

namespace dsv32 {

enum class Place {
  device,  // where the operations work
  host,    // host memory that the device can read and write at the link's full rate (pinned)
};

struct MemoryInfo {
  uint64_t n_bytes_total = 0;  // the machine's
  uint64_t n_bytes_free = 0;   // that can still be taken within the user's limit
  uint64_t n_bytes_used = 0;   // taken by this backend
};

// A step's tokens belong to a prompt, or are the newest tokens of their sequences. A token's bits depend on
// its own sequence and its role alone: not on the other tokens of the step or their number, on how a prompt
// is cut into steps, on where rows lie or on how much memory there is.
enum class Role {
  prefill,  // any number of tokens of each sequence
  decode,   // of each sequence the next token, and perhaps guesses of those that follow
};

// The most tokens of a sequence in a decode step: the next one and three guesses.
constexpr int kMostSequenceTokens = 4;

// The tokens of one step, of one or more sequences. In decode each token has a number of its own in `seq`;
// tokens of the same sequence are adjacent, at positions in a row, with consecutive numbers and equal lines
// in the tables of pages and of buffers.
struct StepTokens {
  int64_t n_tokens = 0;
  int64_t n_seqs = 0;
  int64_t max_pos = 0;              // largest position in the step (host value, sizes grids)
  const int32_t* tokens = nullptr;  // [n_tokens] token ids
  const int32_t* pos = nullptr;     // [n_tokens] position in its sequence
  const int32_t* seq = nullptr;     // [n_tokens] 0..n_seqs-1
  Role role = Role::prefill;
};

// One layer of the cache, with each sequence's pages. A step reads rows from its sequences' slots: slot n of
// a sequence is row n % kPageTokens of the sequence's page n / kPageTokens. Without a top-k buffer a sequence
// is resident: the row of position p lies in its slot p.
struct CacheView {
  CacheLayout layout;
  uint8_t* rows = nullptr;  // host pool of this layer: [n_pages, kPageTokens, row_bytes]
  // Device, in pages of the same size: the slot pool, a window that the rows were streamed into, or, on a
  // backend that works in host memory, perhaps `rows` itself.
  uint8_t* slots = nullptr;
  uint8_t* key_pages = nullptr;           // device: [n_pages, key_page_bytes]
  const int32_t* row_pages = nullptr;     // [n_seqs, max_pages] page of `rows`
  const int32_t* slot_pages = nullptr;    // [n_seqs, max_pages] page of `slots`
  const int32_t* key_page_ids = nullptr;  // [n_seqs, max_pages] page of key_pages
  int64_t max_pages = 0;
  // [n_seqs] the LRU of each sequence's slots; n_slots 0: it is resident; null: all are resident.
  const TopkBuffer* buffers = nullptr;
  int64_t most_slots = 0;  // the most slots of a buffer
};

// out[t] = row tokens[t] of the table, as f32.
struct Embed {
  StepTokens step;
  WeightMatrix table;    // [vocab_size, dim]
  float* out = nullptr;  // [n_tokens, dim]
};

// out = x * rsqrt(mean(x^2) + eps) * weight, per row, in f32.
struct RmsNorm {
  const float* x = nullptr;  // [n_rows, width], rows x_stride apart
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  float* out = nullptr;  // [n_rows, width], rows out_stride apart; may be x when both are dense
  int64_t n_rows = 0, width = 0;
  int64_t out_stride = 0;  // 0: dense
};

// y[t] = W @ x[t] (+ plus[t]);  sum[t] += y[t]
struct Matmul {
  WeightMatrix weight;       // [n_rows, n_cols]
  const float* x = nullptr;  // [n_tokens, n_cols], rows x_stride apart
  int64_t x_stride = 0;
  float* y = nullptr;  // [n_tokens, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
  const float* plus = nullptr;  // [n_tokens, n_rows], or null
  float* sum = nullptr;         // [n_tokens, n_rows], or null
};

// y[t] = silu(scales[0] * W1 @ x[t]) * (scales[1] * W3 @ x[t]). An operation so that x is read once.
struct GatedMatmul {
  WeightMatrix w1, w3;       // [n_rows, n_cols] each
  const float* x = nullptr;  // [n_tokens, n_cols], dense
  float* up = nullptr;       // [n_tokens, n_rows] for the operation's own use
  float* y = nullptr;        // [n_tokens, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
  const float* scales = nullptr;  // [2]; null: 1
};

// y[t, h] = W[h] @ x[t, h]: the absorbed products with W_UK and W_UV.
struct MatmulHeads {
  WeightMatrix weight;       // [n_heads, n_rows, n_cols]
  const float* x = nullptr;  // [n_tokens, n_heads, n_cols], strides below
  int64_t x_token_stride = 0, x_head_stride = 0;
  float* y = nullptr;  // [n_tokens, n_heads, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
};

// Makes a vector of the parts that the members of a team have computed. All members call it for the same
// shapes, in the same order. What one call writes is read before the next call begins; the calls after that
// one may write there again. So two calls, one behind the other, never write the same memory.
struct Gather {
  // whole[r, c] on every member, for all r and c, from the member that has that value: either each member has
  // its share of the columns of all rows, or its share of the rows.
  struct Piece {
    const void* part = nullptr;     // [n_rows, share of width] or [share of n_rows, width], dense
    void* whole = nullptr;          // [n_rows, width]; `part` may be its own place in it
    int64_t n_rows = 0, width = 0;  // width in words of 4 bytes; shares are equal
    bool is_by_rows = false;        // shares of rows: member m has n_rows * m / n up to n_rows * (m + 1) / n
  };
  Member member;
  Piece pieces[2];  // the second one may be empty
  // [n_rows, width] += the first piece's `whole`, as f32; null: no sum. With it, `whole` holds anything
  // after.
  float* sum = nullptr;
  RmsNorm norm = {};  // of `sum` afterwards, whose x it is; without `out`: none
  // Member m gets only the rows n_rows * m / n up to n_rows * (m + 1) / n, also of `sum`. One piece, not by
  // rows; without a norm.
  bool is_to_owners = false;
};

// y += x
struct Add {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t n_values = 0;
};

// Stores each token's row and key, computed from the products with its hidden state:
//   qr = RMSNorm(qr)
//   c = RMSNorm(kv[:rank]), kv[rank:] = k_pe = rope(kv[rank:]); the row (c, k_pe) goes to the host pool, its
//   scales to the key page; the row is also copied to a slot: its position's, or the one from claim_newest()
//   (a backend may leave it to resolve() to record the claim); without cache.rows it goes to the slot alone
//   k = rope(LayerNorm(k)); H k goes to the key page, rounded as the layout says. H is the orthonormal
//   Hadamard matrix in Sylvester order.
//   the products of qr; if a backend normalises qr within them, qr itself stays as it was
// In main attention rope rotates values 2 i and 2 i + 1 together, in the indexer i and i + rope_dim / 2
// (model.py as corrected on 2025-11-17).
struct StoreTokens {
  StepTokens step;
  CacheView cache;                     // its layout has rank, rope_dim and index_head_dim
  const float* frequencies = nullptr;  // [rope_dim / 2]: pair i turns by pos * frequencies[i]
  float norm_eps = 0;
  float* qr = nullptr;            // [n_tokens, q_lora_rank]
  const float* q_norm = nullptr;  // [q_lora_rank]
  int64_t q_lora_rank = 0;
  float* kv = nullptr;             // [n_tokens, rank + rope_dim]
  const float* kv_norm = nullptr;  // [rank]
  float* c = nullptr;              // [n_tokens, rank]
  float* k = nullptr;              // [n_tokens, index_head_dim]; null: no indexer
  const float* k_norm = nullptr;   // [index_head_dim]
  const float* k_norm_bias = nullptr;
  float k_norm_eps = 0;
  // Products of qr; a product without weights is absent.
  Matmul to_q = {}, to_index_q = {};

  std::vector<Matmul> products() const {
    std::vector<Matmul> products = {to_q, to_index_q};
    std::erase_if(products, [](const Matmul& op) { return !op.weight.data; });
    return products;
  }
};

// Rotates the last rope_dim values of each head of q as k_pe is rotated, and index_q as k is rotated. Writes
// H index_q as e4m3 with one power-of-two scale per tile of kTileValues (rule: base/numbers.h,
// e4m3_tile_scale), or as f32.
struct TurnQueries {
  StepTokens step;
  const float* frequencies = nullptr;  // [rope_dim / 2]
  int64_t rope_dim = 0;
  float* q = nullptr;  // [n_tokens, n_heads, head_dim]
  int64_t n_heads = 0, head_dim = 0;
  float* index_q = nullptr;  // [n_tokens, n_index_heads, index_dim]; null: none
  int64_t n_index_heads = 0, index_dim = 0;
  uint8_t* turned_fp8 = nullptr;   // as index_q; turned_fp8 and turned_scales, or `turned`
  float* turned_scales = nullptr;  // [n_tokens, n_index_heads, tiles(index_dim)]
  float* turned = nullptr;         // as index_q
  // An independent product of the values that are not rotated: W_UK's. Without weights: none.
  MatmulHeads absorb = {};
};

// Copies rows beside the work that follows: from the host pool into a window on the device (stream_rows), or
// from slots to the host pool (save_rows). The latter is an operation because a kernel that writes to the
// host keeps a gather waiting until it has arrived there; the next gather, step or wait comes after its
// copies.
struct RowCopy {
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
  size_t n_bytes = 0;
};

// scores[t, s] = sum over h of weights[t, h] * max(0, q[t, h] . key[s])  for s <= pos[t] (other scores are
// not written).
struct IndexerScores {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q = nullptr;         // [n_tokens, n_heads, index_head_dim] when the keys are f32, else null
  const uint8_t* q_fp8 = nullptr;   // the same as e4m3, else null
  const float* q_scales = nullptr;  // [n_tokens, n_heads, tiles(index_head_dim)]
  const float* weights = nullptr;   // [n_tokens, n_heads]
  float weight_scale = 1;           // multiplies every weight: n_heads^-0.5 * index_head_dim^-0.5
  float* scores = nullptr;          // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
};

// Quest's scores of spans, in decode, for the spans p < pos[t] / kSpanTokens, those before the token's own:
// scores[t, p] = sum over heads h of softmax over p of bounds[t, h]. But for rounding, bounds[t, h, p] is an
// upper bound of the attention score of each row in p: scale * sum over values i of max(q_i * largest[p]_i,
// q_i * smallest[p]_i), q = (q_c, q_pe). An operation because no product has such keys.
struct QuestScores {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q_c = nullptr;   // [n_tokens, n_heads, kv_lora_rank]
  const float* q_pe = nullptr;  // [n_tokens, n_heads, qk_rope_head_dim], strides below
  int64_t q_pe_token_stride = 0, q_pe_head_stride = 0;
  float scale = 0;
  float* bounds = nullptr;  // [n_tokens, n_heads, scores_stride] for the operation's own use
  float* scores = nullptr;  // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
};

// selected[t] = of the positions from `first` to pos[t] the topk with the largest scores, or all, ascending;
// ties: the lower position wins. NaN ranks below every number. With null scores all of them are selected
// (topk > max_pos then). With n_together = kSpanTokens a score is that of a span: selected are the token's
// own span up to pos[t] and, if not all positions, the topk / kSpanTokens - 1 best others, whole.
struct SelectTopk {
  StepTokens step;
  const float* scores = nullptr;  // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
  int64_t topk = 0;
  int32_t* selected = nullptr;    // [n_tokens, topk]
  int32_t* n_selected = nullptr;  // [n_tokens]
  int32_t first = 0;              // 0 or 1, at most any pos[t]; with spans 0
  int64_t n_together = 1;         // positions of a score; a divisor of topk
};

// Finds where each selected row is read from. For a sequence with a buffer the LRU of backend/topk_buffer
// decides, and the misses are listed for FetchLatents: first the positions of all its tokens claim slots, in
// order, then its tokens' selections are resolved one after the other. A buffer has slots for the claims and
// for all of these selections, so that no row of the step is a victim.
struct Resolve {
  StepTokens step;
  CacheView cache;
  const int32_t* selected = nullptr;    // [n_tokens, topk]
  const int32_t* n_selected = nullptr;  // [n_tokens]
  int64_t topk = 0;
  int64_t* row_ids = nullptr;   // [n_tokens, topk] row of cache.slots
  int32_t* misses = nullptr;    // [n_tokens, topk] indices into `selected`
  int32_t* n_misses = nullptr;  // [n_tokens]
  int64_t* tally = nullptr;     // [2] grows by the rows looked up in buffers and by the missing rows
};

// Copies the missing rows from the host pool into their slots, after resolve() of the same tokens and beside
// the operations that follow. Each attend() with row_ids waits for the oldest fetch that no attend() has
// waited for yet. At most four fetches may be pending.
struct FetchLatents {
  StepTokens step;
  CacheView cache;
  const int32_t* selected = nullptr;  // as in Resolve
  const int64_t* row_ids = nullptr;
  const int32_t* misses = nullptr;
  const int32_t* n_misses = nullptr;
  int64_t topk = 0;
};

// Sparse MLA, absorbed: s(j) = (q_c . c_j + q_pe . k_pe_j) * scale over the selected rows; o_c = sum_j
// softmax(s)(j) * c_j.
struct Attend {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q_c = nullptr;   // [n_tokens, n_heads, kv_lora_rank]
  const float* q_pe = nullptr;  // [n_tokens, n_heads, qk_rope_head_dim], strides below
  int64_t q_pe_token_stride = 0, q_pe_head_stride = 0;
  float scale = 0;
  const int32_t* selected = nullptr;    // [n_tokens, topk] (finds the scales)
  const int32_t* n_selected = nullptr;  // [n_tokens]
  const int64_t* row_ids = nullptr;     // [n_tokens, topk]; null: the row of position p is in slot p
  int64_t topk = 0;
  // [n_tokens, n_heads, kv_lora_rank]; in prefill in the backend's own format, for matmul_heads only.
  float* o_c = nullptr;
  bool are_queries_older = false;  // q_c and q_pe were ready before `selected`: no need to wait for them
};

// logits = gate x, if there is a gate; p = sigmoid(logits); s = p + bias; the best groups by the sum of their
// two largest s; the best experts of these groups by s, ties to the lower index; weights p[chosen] / sum *
// route_scale (model.py, Gate) * scales[chosen].
struct RouteExperts {
  const float* logits = nullptr;  // [n_tokens, n_experts]: gate.y where there is a gate
  const float* bias = nullptr;    // [n_experts] or null
  int64_t n_tokens = 0, n_experts = 0, n_activated = 0, n_groups = 1, n_limited_groups = 1;
  bool normalize = true;
  float route_scale = 1;
  int32_t* experts = nullptr;     // [n_tokens, n_activated] ascending
  float* weights = nullptr;       // [n_tokens, n_activated]
  Matmul gate = {};               // without weights: `logits` are given
  GatedMatmul beside = {};        // an independent product that may run beside; without weights: none
  const float* scales = nullptr;  // [n_experts]; null: 1
};

// The routed experts of a layer.
struct ExpertStacks {
  WeightMatrix w1, w3;  // [n_experts, moe_inter_dim, dim]
  WeightMatrix w2;      // [n_experts, dim, moe_inter_dim]
  // [n_experts, 2]: factors of each expert's W1 x and W3 x; null: 1. host_scales: the same in host memory.
  const float *scales = nullptr, *host_scales = nullptr;
};

// y[t] = sum over chosen e of weights[t, e] * w2[e] @ (silu(w1[e] @ x[t]) * (w3[e] @ x[t])), added in
// ascending e; w1[e] and w3[e] times their scales, if there are any.
//
// Experts in host memory (Backend::alloc_weights). Decode: the host computes them in place, beside the
// operations enqueued after this one, up to the `add` with this y; a fixed part of each expert is uploaded to
// the end of `window` and computed by the device, and the two sums are added (backend/link_share.h). Prefill:
// the chosen experts are uploaded through `window`, in ascending order. The upload of `next`, the experts
// that follow in this step or in the prompt's next step, may begin as soon as the window has room. An op
// without tokens computes nothing and only announces `next`.
struct RunExperts : ExpertStacks {
  const float* x = nullptr;          // [n_tokens, dim]
  const int32_t* experts = nullptr;  // [n_tokens, n_activated]
  const float* weights = nullptr;    // [n_tokens, n_activated]
  int64_t n_tokens = 0, n_activated = 0;
  float* y = nullptr;  // [n_tokens, dim]
  Role role = Role::prefill;
  Place place = Place::device;  // of the matrices
  // Device memory. For experts in host memory: the same for all ops of a device, used by nothing else, and at
  // least expert_window_bytes() (backend/expert_window.h). For others: scratch memory, used if it is larger
  // than the backend's own.
  uint8_t* window = nullptr;
  size_t n_window_bytes = 0;
  size_t n_link_bytes = 0;             // window bytes of the link, same for all ops; 0: the host computes all
  const ExpertStacks* next = nullptr;  // in host memory too; null: not known
  // In decode, with experts in device memory: the product that follows, the shared expert's w2, with `plus` =
  // y and a `sum`. Without weights: none. With it, y itself need not be written.
  Matmul shared = {};
  // In a team w1 and w3 are the member's share of the rows of larger matrices, and so is w2: y has that share
  // of dim, and shared.y too, without a sum. Between the products the members gather all hidden values, and
  // the shared expert's, of which each has its share in shared.x. Not with experts in host memory.
  Member member = {};
  uint8_t* hidden = nullptr;  // for the gathered values: hidden_bytes(); used by nothing else

  // For every use and, behind the uses, every token's shared expert: at most a word for each value.
  size_t hidden_bytes() const {
    return static_cast<size_t>(n_tokens * (n_activated * w1.whole_rows() + shared.weight.n_cols)) * 4;
  }
};

// Recorded operations with their params. The memory that these point to must still exist at a replay; its
// contents may differ. The backend must outlive the recording.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // enqueues the operations
};

// A point behind work that was enqueued.
class Milestone {
 public:
  virtual ~Milestone() = default;
  virtual void wait() = 0;  // until that work is done; not for what was enqueued later
};

class Backend;

// y on another device = x. y is written after all work enqueued on `to` before; work enqueued on `to`
// afterwards sees it, and work enqueued here afterwards may change x. An operation because no other knows two
// devices.
struct HandOver {
  const float* x = nullptr;  // [n_values] of this backend
  Backend* to = nullptr;
  float* y = nullptr;  // [n_values] of `to`
  int64_t n_values = 0;
};

// Uploads by one thread, beside other threads' uploads.
class UploadLane {
 public:
  virtual ~UploadLane() = default;  // waits
  virtual void upload(void* device, const void* staged, size_t n_bytes) = 0;
  virtual void wait() = 0;  // until all uploads are complete
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual std::string device_name() const { return {}; }  // by its maker; empty: the host's processors
  // Names all that decides the bits of rows and keys besides the model: the backend, the properties of the
  // machine that its arithmetic depends on, and an epoch that rises whenever a change of the program changes
  // these bits. Equal strings promise equal bits.
  virtual std::string numerics() const = 0;
  // Whether Place::device is host memory too, so that nothing need be kept twice.
  virtual bool works_in_host_memory() const = 0;
  // Whether in decode the device computes a part of each host expert, uploaded over the link
  // (backend/link_share.h): true where the link adds to the bandwidth of the host's processors. Depends on
  // the machine alone.
  virtual bool link_adds() const { return false; }
  // Whether a token's bits are the same in both roles.
  virtual bool roles_agree() const = 0;

  // Memory. alloc returns zeroed memory aligned to 128 bytes, or throws Error{memory} naming `what`, the
  // bytes wanted and the bytes free.
  virtual void* alloc(Place place, size_t n_bytes, const char* what) = 0;
  virtual void free(Place place, void* memory) = 0;
  virtual void upload(void* device, const void* host, size_t n_bytes) = 0;
  virtual void download(void* host, const void* device,
                        size_t n_bytes) = 0;           // waits for all work, even with 0 bytes
  virtual std::unique_ptr<Milestone> milestone() = 0;  // behind all work enqueued so far
  virtual MemoryInfo memory_info(Place place) const = 0;
  // Memory for weights, freed with the backend; products may read past its end. Place::host: for experts that
  // stay in host memory. Each n_part_bytes there (an expert's matrix) are divided over the NUMA nodes
  // (base/numa.h); 0: not divided. Throws Error{memory}.
  virtual uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) = 0;
  // Waits until this memory of Place::host lies on its NUMA nodes. Call it before filling the memory. Throws
  // Error{memory}.
  virtual void await_weights(const uint8_t*) {}
  // Announces the bytes that later calls of alloc_weights() will take in Place::device, so that one
  // allocation serves them. Throws Error{memory}.
  virtual void expect_weights(size_t) {}
  // Whether Place::device has its matrices in bands (matrix.h) where their shape allows it.
  virtual bool keeps_bands() const { return false; }
  // Puts a stack's matrices, uploaded as whole rows, into bands.
  virtual void put_in_bands(const WeightMatrix&) {}
  // Waits until the device, and any other, can use this memory of Place::host.
  virtual void await_pinned(const uint8_t*) {}
  // Whether this device and the other can be members of a team: gather() works between them.
  virtual bool can_team_with(const Backend&) const { return false; }
  // Pinned host memory to upload from, also to other devices; empty when the backend works in host memory.
  virtual std::span<uint8_t> staging() { return {}; }
  // Null when the backend works in host memory.
  virtual std::unique_ptr<UploadLane> upload_lane() { return nullptr; }

  // Called while an operation computes on the host: true ends the operation with Interrupted, and the step's
  // results are invalid. Null: never called. Must outlive the operations that follow.
  virtual void set_interrupt(const std::function<bool()>*) {}

  // Whether this member of a team or another did not come to a gather() in time: what they have computed
  // since is invalid. Until all begin anew their gathers wait for nobody.
  virtual bool missed_gather() const { return false; }
  // Begins anew, once the device's work is done. Called for all members, one after the other, while none
  // enqueues, and then for all once more: the work of one that was behind may tell and count to the others.
  // Throws Error{device} when the device's work does not end.
  virtual void restart_gathers() {}

  // Called before a step's first operation: what operations of an earlier step, which may have failed in its
  // midst, left for later ones of that step is forgotten. Their work is done before this step's.
  virtual void begin_step() {}

  // Records the operations that `body` enqueues, without doing them; `body` neither allocates nor waits.
  // Null, without calling `body`: this backend does not record.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& body) = 0;

  // For measuring: a point in time after all work enqueued before it and before all work enqueued after it.
  // Must not be recorded.
  virtual void mark() = 0;
  // Seconds between successive marks since the last call. Waits for all work.
  virtual std::vector<double> laps() = 0;

  virtual void embed(const Embed&) = 0;
  virtual void rms_norm(const RmsNorm&) = 0;
  virtual void matmul(const Matmul&) = 0;
  // Products of the same x, in any order or together; without `plus` and `sum`. A product's bits do not
  // depend on the others.
  virtual void matmuls(std::span<const Matmul> ops) {
    for (const Matmul& op : ops) matmul(op);
  }
  virtual void matmul_gated(const GatedMatmul&) = 0;
  virtual void matmul_heads(const MatmulHeads&) = 0;
  virtual void gather(const Gather&) = 0;
  virtual void add(const Add&) = 0;
  // Work enqueued from now on waits for the previous call's copies; this call's copies begin when all work
  // enqueued before the call is done. So two windows take turns: one fills while the other is read.
  virtual void stream_rows(std::span<const RowCopy>) = 0;
  virtual void save_rows(std::span<const RowCopy>) = 0;
  virtual void store_tokens(const StoreTokens&) = 0;
  virtual void turn_queries(const TurnQueries&) = 0;
  virtual void indexer_scores(const IndexerScores&) = 0;
  virtual void quest_scores(const QuestScores&) = 0;
  virtual void select_topk(const SelectTopk&) = 0;
  virtual void resolve(const Resolve&) = 0;
  virtual void fetch_latents(const FetchLatents&) = 0;
  virtual void attend(const Attend&) = 0;
  virtual void route_experts(const RouteExperts&) = 0;
  virtual void run_experts(const RunExperts&) = 0;
  virtual void sample(const Sample&) = 0;
  // By way of the host, which waits; a backend that can reach the other's memory overrides this.
  virtual void hand_over(const HandOver& op) {
    std::vector<float> values(static_cast<size_t>(op.n_values));
    download(values.data(), op.x, values.size() * sizeof(float));
    op.to->upload(op.y, values.data(), values.size() * sizeof(float));
  }
};

// Owns memory of a backend; move-only.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& backend, Place place, int64_t n, const char* what)
      : backend_(&backend),
        place_(place),
        n_(n),
        data_(n ? static_cast<T*>(backend.alloc(place, static_cast<size_t>(n) * sizeof(T), what)) : nullptr) {
  }
  ~Buffer() {
    if (data_) backend_->free(place_, data_);
  }
  Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    if (data_) backend_->free(place_, data_);
    backend_ = other.backend_, place_ = other.place_, n_ = other.n_, data_ = other.data_;
    other.data_ = nullptr, other.n_ = 0;
    return *this;
  }
  T* data() const { return data_; }
  int64_t n() const { return n_; }
  size_t n_bytes() const { return static_cast<size_t>(n_) * sizeof(T); }

 private:
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  int64_t n_ = 0;
  T* data_ = nullptr;
};

}  // namespace dsv32
