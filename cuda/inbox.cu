// Few tokens' gathers by inbox: values that are their own flags.
//
// A member's product stores each value, when it is made, to its place in every member's inbox (finish_row,
// sum_uses_kernel). Every word of an inbox is kAbsent until a value arrives. Who needs a vector reads its
// words until none is absent. So there is no packet, no counter and no fence, and a product's end, the way
// over the link and the next product's beginning overlap.
//
// An inbox has two regions for what products read, which take turns, and one for what sums read. The gathers
// of a step go by inboxes all or none (goes_by_inbox()), and then products' and sums' meetings alternate:
//
//   P  the heads' outputs     W_UV's product sends         wo's product waits for its x (make_records)
//   S  wo's rows              wo's product sends           receive_kernel: h += out, and the next norm
//   P' hidden values          the gated products send      w2's product waits for its x
//   S  w2's rows              w2's or sum_uses_kernel      receive_kernel
//
// A product that does not send, of another kernel, is followed by send_kernel, which sends what it has made;
// one that cannot wait is preceded by await_kernel. Then its x is memory like any other.
//
// receive_kernel wipes: each thread the words that it has read, and other blocks the region of the meeting P
// or P' before, whose consumer is complete by then. Why nobody's value is wiped, or mistaken for another
// meeting's. Let m and n be members, and all kernels of a member run in the order of its stream; each does its
// sending, waiting and wiping after wait_for_inputs(), when those before it are complete.
//
//   Products. n sends for a meeting P to a region of m that m has last used two such meetings before, in O. m
//   has wiped O's words in the receive_kernel R behind O. Behind R m has sent its part of the next product
//   meeting P', which lies between O and P. n's sending kernel comes behind n's receive_kernel of the sum after
//   P', which has waited for m's part of that sum; m sent it behind its part of P', so behind R. So m had
//   wiped when n sends. The first meetings of a step have those of the step before them, for which the same
//   holds: every step has both meetings of each layer that goes by inbox, so regions begin with the same turn
//   and recorded addresses hold for every order of steps. Layers that only store rows have no meetings; the
//   gathers of other steps and of logits, in between, only add waits.
//   Sums. n sends for a sum S when its product has waited for all x, or behind that product; x has a part of m
//   of the product meeting between S and the sum before it. m sent that behind its receive_kernel of that
//   sum, which has wiped. Every value of the product needs a word of every member, as each has some columns;
//   blocks of a cluster wait for their columns each, and the one that sends has all blocks' sums.
//   Words. m reads none again before it has wiped it, and wipes none that has not arrived. m's wipe is in m's
//   memory when its kernel is complete; n's store reaches that memory only after n has read a word that m has
//   sent behind it.
//
// A member that does not come is waited for no longer than alarm().most_nanoseconds; then all are told, nobody
// waits, and what is computed is invalid until restart(), which wipes all words.
#include "cuda/inbox.cuh"

#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/norm_row.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 512, kVector = 4;  // words of a load
constexpr int kTogether = 4;                // loads of a thread under way
constexpr uint4 kAllAbsent = {kAbsent, kAbsent, kAbsent, kAbsent};

// Words of a vector [n_rows, width] in the inbox; each member has sent a share of the columns.
struct Words {
  uint32_t* words = nullptr;
  int width = 0, n = 0;

  DSV32_DEVICE int member_of(int i, const Alarm& alarm) const { return i % width / (width / alarm.n_members); }
};

// Loads kTogether vectors, n_apart words from each other, again and again until all words up to `end` are
// there, or somebody is late.
DSV32_DEVICE void load_arrived(const Words& from, int first, int n_apart, int end, const Alarm& alarm,
                               uint4 (&v)[kTogether]) {
  Patience patience;
  for (bool is_complete = false; !is_complete;) {
    int absent = -1;
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * n_apart;
      v[k] = i < end ? load_words(from.words + i) : uint4{};
    }
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) if (has_absent(v[k])) absent =
        first + k * n_apart + absent_in(v[k]);
    is_complete = absent < 0 || patience.ends(alarm, from.member_of(absent, alarm));
  }
}

// What a receive_kernel does.
struct Receive {
  Words from;
  float* sum;              // [n_rows, width]
  uint32_t* wiped;         // [n_wiped] of the product meeting before, a multiple of kVector
  int n_wiped;
  int n_rows;
  Alarm alarm;
};

// sum += the words of the inbox, which are wiped; out = the sums' norm, if there is an out. A block has a row,
// a thread every n_threads-th four values; the blocks behind the rows' wipe. Shared memory: the row's sums.
// The next kernel may start after the wait for inputs: then what was older than this kernel's input is older
// for it too (dependent.cuh). Bound by latency.
__global__ void __launch_bounds__(kNormThreads)
    receive_kernel(const __grid_constant__ Receive work, const __grid_constant__ RmsNorm norm) {
  extern __shared__ __align__(16) float row[];
  const NormWeights weights(norm);
  wait_for_inputs();
  let_next_start();
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x),
            n_apart = kVector * static_cast<int>(blockDim.x);
  if (block >= work.n_rows) {
    const int n_blocks = static_cast<int>(gridDim.x) - work.n_rows;
    for (int i = (block - work.n_rows) * n_apart + kVector * thread; i < work.n_wiped; i += n_blocks * n_apart)
      *reinterpret_cast<uint4*>(work.wiped + i) = kAllAbsent;
    return;
  }
  const int width = work.from.width, begin = block * width;
  for (int first = kVector * thread; first < width; first += kTogether * n_apart) {
    float4 sums[kTogether];
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) if (first + k * n_apart < width) sums[k] =
        *reinterpret_cast<const float4*>(work.sum + begin + first + k * n_apart);
    uint4 v[kTogether];
    load_arrived(work.from, begin + first, n_apart, begin + width, work.alarm, v);
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * n_apart;
      if (i >= width) break;
      const float4 sum = {sums[k].x + __uint_as_float(v[k].x), sums[k].y + __uint_as_float(v[k].y),
                          sums[k].z + __uint_as_float(v[k].z), sums[k].w + __uint_as_float(v[k].w)};
      *reinterpret_cast<float4*>(work.sum + begin + i) = sum;
      *reinterpret_cast<float4*>(row + i) = sum;
      *reinterpret_cast<uint4*>(work.from.words + begin + i) = kAllAbsent;
    }
  }
  if (!norm.out) return;
  __syncthreads();
  norm_row(norm, weights, row, norm.out + blockIdx.x * norm.out_stride);
}

// Sends a part [n_rows, share of width]; a thread has a value. Bound by latency.
__global__ void __launch_bounds__(kThreads)
    send_kernel(const float* part, int n, int share, const __grid_constant__ Mail mail) {
  wait_for_inputs();
  let_next_start();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n) send_row(mail, 0, i / share, i % share, __ldcg(part + i));
}

// Ends when all words have arrived. A thread has kTogether vectors. Bound by latency.
__global__ void __launch_bounds__(kThreads)
    await_kernel(const __grid_constant__ Words first, const __grid_constant__ Words second,
                 const __grid_constant__ Alarm alarm) {
  wait_for_inputs();
  let_next_start();
  const int n_apart = kVector * kThreads, begin = static_cast<int>(blockIdx.x) * kTogether * n_apart +
                                                  kVector * static_cast<int>(threadIdx.x);
  uint4 v[kTogether];
  if (begin < first.n) load_arrived(first, begin, n_apart, first.n, alarm, v);
  if (begin < second.n) load_arrived(second, begin, n_apart, second.n, alarm, v);
}

// Whether the norm is that of the gather's sum, and a block has room for its rows.
bool norms_sum(const Gather& op) {
  const RmsNorm& norm = op.norm;
  return norm.out && norm.x == op.sum && norm.n_rows == op.pieces[0].n_rows &&
         norm.width == op.pieces[0].width && norm.x_stride == norm.width && norm.width <= 12 << 10;
}

}  // namespace

void Inbox::announce(const Gather& op, const Alarm& alarm, std::span<uint32_t* const> words) {
  std::ranges::copy(words, of_members_);
  alarm_ = alarm;
  Meeting& meeting = op.sum ? sum_ : product_;
  const int64_t begin = op.sum ? 2 * kInboxProductWords : turn_ * kInboxProductWords;
  int64_t at = begin;
  meeting = {};
  for (int i = 0; i < 2; ++i) {
    const Gather::Piece& piece = op.pieces[i];
    if (piece.width % std::max(kVector, alarm.n_members) != 0 || piece.is_by_rows)
      fail(ErrorKind::internal, format("an inbox for [%ld, %ld]", piece.n_rows, piece.width));
    meeting.pieces[i] = {piece.part, piece.whole, piece.n_rows, piece.width, at};
    at += piece.n_rows * piece.width;
  }
  if (at - begin > (op.sum ? kInboxSumWords : kInboxProductWords))
    fail(ErrorKind::internal, format("an inbox for %ld words", at - begin));
  if (!op.sum) turn_ = 1 - turn_;
}

bool Inbox::is_announced(const Gather& op) const {
  const Meeting& meeting = meeting_of(op);
  const Piece& first = meeting.pieces[0];
  if (first.n() == 0 || first.whole != op.pieces[0].whole || meeting.is_taken) return false;
  for (int i = 0; i < 2; ++i)
    if (meeting.pieces[i].n_rows != op.pieces[i].n_rows || meeting.pieces[i].width != op.pieces[i].width)
      fail(ErrorKind::internal, "a gather is not what was announced");
  return true;
}

Mail Inbox::mail_of(const Piece& piece) const {
  Mail mail;
  mail.n_members = alarm_.n_members;
  for (int m = 0; m < mail.n_members; ++m)
    mail.to[m] = of_members_[m] + piece.first + alarm_.number * (piece.width / mail.n_members);
  mail.token_stride = piece.width;
  return mail;
}

void Inbox::name_part(const void* whole, const void* part) {
  if (Piece& piece = product_.pieces[0]; piece.whole == whole) piece.part = part;
}

Mail Inbox::send_from(const void* part, int64_t problem_stride, int64_t token_stride) {
  for (Meeting* meeting : {&product_, &sum_})
    for (Piece& piece : meeting->pieces) {
      if (!part || piece.part != part || meeting->is_taken) continue;
      const int64_t share = piece.width / alarm_.n_members;
      const auto in_whole = [&](int64_t n) { return n % share == 0 ? n / share * piece.width : n; };
      piece.is_sent = true;
      Mail mail = mail_of(piece);
      mail.problem_stride = in_whole(problem_stride), mail.token_stride = in_whole(token_stride);
      return mail;
    }
  return {};
}

void Inbox::send(const Gather& op, const Launch& launch) {
  for (int i = 0; i < 2; ++i) {
    const Piece& piece = meeting_of(op).pieces[i];
    const auto n = static_cast<int>(piece.n() / alarm_.n_members);
    if (piece.is_sent || n == 0) continue;
    launch_kernel(send_kernel, {ceil_div(n, kThreads), kThreads}, launch,
                  static_cast<const float*>(op.pieces[i].part), n,
                  static_cast<int>(piece.width / alarm_.n_members), mail_of(piece));
  }
}

void Inbox::take(const Gather& op, const Launch& launch) {
  if (!op.sum) {
    product_.is_taken = true;
    return;
  }
  const Piece& piece = sum_.pieces[0];
  Receive work{};
  work.from = {words_ + piece.first, static_cast<int>(piece.width), static_cast<int>(piece.n())};
  work.sum = op.sum, work.n_rows = static_cast<int>(piece.n_rows), work.alarm = alarm_;
  work.wiped = words_ + product_.pieces[0].first;
  work.n_wiped = static_cast<int>(product_.pieces[0].n() + product_.pieces[1].n());
  RmsNorm norm = norms_sum(op) ? op.norm : RmsNorm{};
  if (norm.out_stride == 0) norm.out_stride = norm.width;
  const int n_threads = norm_threads(piece.width);
  launch_kernel(receive_kernel,
                {work.n_rows + ceil_div(work.n_wiped, kTogether * kVector * n_threads), n_threads,
                 piece.width * sizeof(float)},
                launch, work, norm);
  product_ = sum_ = {};
  if (op.norm.out && !norm.out) rms_norm(op.norm, launch);
}

const float* Inbox::arrival_of(const float* x) const {
  for (const Piece& piece : product_.pieces) {
    const auto* whole = static_cast<const float*>(piece.whole);
    if (product_.is_taken && x >= whole && x < whole + piece.n())
      return reinterpret_cast<const float*>(words_ + piece.first) + (x - whole);
  }
  return nullptr;
}

void Inbox::await(const Launch& launch) const {
  Words words[2];
  for (int i = 0; i < 2; ++i) {
    const Piece& piece = product_.pieces[i];
    words[i] = {words_ + piece.first, static_cast<int>(piece.width), static_cast<int>(piece.n())};
  }
  const int n_blocks = ceil_div(std::max(words[0].n, words[1].n), kTogether * kVector * kThreads);
  launch_kernel(await_kernel, {n_blocks, kThreads}, launch, words[0], words[1], alarm_);
}

void Inbox::wipe(cudaStream_t stream) const {
  CUDA_CHECK(cudaMemsetAsync(words_, 0xff, kBytes, stream));
}

}  // namespace dsv32::cuda
