// Few tokens' gathers by inbox: values that are their own flags.
//
// A member's product stores each value, as soon as it is made, to its place in every member's inbox
// (finish_row, sum_uses_kernel). Every word there is kAbsent until a value arrives, and who needs a vector
// reads its words until none is absent. So there is no counter and no fence; and a product's end,
// the way over the link and the next product's beginning overlap.
//
// An inbox has two regions for what products read, which take turns, and one for what sums read. All gathers
// within a step's layers go by inbox or none (goes_by_inbox()), so the two kinds alternate. In a layer:
//
//   P  the heads' outputs  sent by W_UV's product              read by wo's product (make_records)
//   S  wo's rows           sent by wo's product                read by receive_kernel: h += out, and its norm
//   P  hidden values       sent by the gated products          read by w2's product
//   S  w2's rows           sent by w2's, or sum_uses_kernel    read by receive_kernel
//
// Behind a product that does not send, send_kernel sends what it has made. Before one that does not wait,
// await_kernel waits; its x is then memory like any other. receive_kernel also wipes: each thread the words
// that it has read, other blocks the words of the P before, whose reader is complete.
//
// Why no value is lost, and none taken for another gather's. A member's kernels send, read and wipe after
// wait_for_inputs(), when all before them in its stream are complete. n and m are any two members.
//
// - n sends to m's words for a P behind its own receive_kernel of the S before. That kernel has read what m
//   sent for this S, behind m's receive_kernel of the S before that one. And that kernel of m has wiped the
//   P before it, which had the same region: P1 S1 P2 S2 P3, and S1's kernel wipes P1 before P3 is sent.
// - n sends to m's words for an S when its product has read all of its x, so also what m sent for the P
//   before, behind m's receive_kernel of the S before that P, which has wiped the words of S. Each value
//   needs x of every member, as each has some of its columns. (Blocks of a cluster each read their columns;
//   the block that sends has the sums of all.)
// - The wipe is in m's memory when m's kernel is complete, so before m's next kernel sends; n stores after
//   it has read what was sent. So m's memory has them in this order.
//
// The first gathers of a step follow the last ones of an earlier step, or of its recording, in the same way:
// a step begins with the first region and, having two P in each layer, ends with the second. So regions have
// fixed addresses in recordings, which may follow each other in any order. What lies between adds no gather
// by inbox: steps of more tokens or of prompts, layers that only store rows, and the logits. The block for
// drafts is a layer like others when it guesses. A last S without a norm behind it, before the head, has a
// receive_kernel without a norm.
//
// A member that does not come is waited for no longer than Alarm::most_nanoseconds. Then all are told, nobody
// waits any more, and what is computed is invalid until Exchange::restart(), which wipes all words.
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
      v[k] = i < end ? load_arriving(from.words + i) : uint4{};
    }
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) if (has_absent(v[k])) absent =
        first + k * n_apart + absent_in(v[k]);
    is_complete = absent < 0 || patience.ends(alarm, absent % from.width / (from.width / alarm.n_members));
  }
}

// What a receive_kernel does.
struct Receive {
  Words from;
  float* sum;       // [n_rows, width]
  uint32_t* wiped;  // [n_wiped] of the P before, a multiple of kVector
  int n_wiped, n_rows;
  Alarm alarm;
};

// sum += the words of the inbox, which are wiped; out = the sums' norm, if there is an out. A block has a
// row, a thread every n_threads-th four values; the blocks behind the rows' wipe. Shared memory: the row's
// sums. The next kernel may start after the wait for inputs: then what was older than this kernel's input is
// older for it too (dependent.cuh). Bound by latency.
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
    for (int i = (block - work.n_rows) * n_apart + kVector * thread; i < work.n_wiped;
         i += n_blocks * n_apart)
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
  Announced& announced = op.sum ? sum_ : product_;
  const int64_t begin = op.sum ? 2 * kInboxProductWords : turn_ * kInboxProductWords;
  int64_t at = begin;
  announced = {};
  for (int i = 0; i < 2; ++i) {
    const Gather::Piece& piece = op.pieces[i];
    if (piece.width % alarm.n_members != 0 || piece.width % kVector != 0 || piece.is_by_rows)
      fail(ErrorKind::internal, format("an inbox for [%ld, %ld]", piece.n_rows, piece.width));
    announced.pieces[i] = {piece.part, piece.whole, piece.n_rows, piece.width, at};
    at += piece.n_rows * piece.width;
  }
  if (at - begin > (op.sum ? kInboxSumWords : kInboxProductWords))
    fail(ErrorKind::internal, format("an inbox for %ld words", at - begin));
  if (!op.sum) turn_ = 1 - turn_;
}

bool Inbox::is_announced(const Gather& op) const {
  const Announced& announced = announced_as(op);
  const Piece& first = announced.pieces[0];
  if (first.n() == 0 || first.whole != op.pieces[0].whole || announced.is_taken) return false;
  for (int i = 0; i < 2; ++i)
    if (announced.pieces[i].n_rows != op.pieces[i].n_rows || announced.pieces[i].width != op.pieces[i].width)
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
  if (Piece& piece = product_.pieces[0]; piece.n() > 0 && piece.whole == whole) piece.part = part;
}

Mail Inbox::send_from(const void* part, int64_t problem_stride, int64_t token_stride) {
  for (Announced* announced : {&product_, &sum_})
    for (Piece& piece : announced->pieces) {
      if (piece.n() == 0 || piece.part != part || announced->is_taken) continue;
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
    const Piece& piece = announced_as(op).pieces[i];
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

void Inbox::wipe(cudaStream_t stream) const { CUDA_CHECK(cudaMemsetAsync(words_, 0xff, kBytes, stream)); }

}  // namespace dsv32::cuda
