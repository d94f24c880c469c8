// Gathers what the members of a team have computed: each writes its part to all, or each row to its owner.
//
// A gather that was announced goes by inbox (inbox.cu): few tokens'. Any other is one kernel on each member's
// stream, which writes the parts straight to their places in every member's vector, counts up a counter of
// each member, and ends when all members have counted in its own memory. The number of the gather lies in
// device memory, and the kernel itself advances it, so that a recorded kernel can be replayed.
//
// Why no value is overwritten before it is read: in gather k, of either kind, a member sends or counts after
// its own wait, when all its work before gather k is complete. So a gather after gather k begins when every
// member has done its work before gather k. It may write what a member read by then: memory that gather j has
// written and that is read before gather k, with j < k, may be written again by the gathers after k.
//
// Blocks that wait do not keep others from running: the kernel has as many as run at once, and waits only for
// work that was enqueued before. For that, Exchange::gather() returns when all members have enqueued the
// gather: the driver may keep a member from enqueuing while another one's kernel waits.
#include "cuda/gather.h"

#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "backend/team.h"
#include "base/stopwatch.h"
#include "cuda/inbox.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 512, kBlocksPerSm = kGatherBlocksPerSm;
constexpr int kTogether = 4;  // words of a thread under way

// A member's part, in words of 16 or 4 bytes, and where it goes.
struct Part {
  const void* from = nullptr;
  void* to[kMostMembers] = {};  // by member; null: it is there already
  bool is_wide = false;         // words of 16 bytes
  // Word i goes to the place i / n_row_words * row_apart + i % n_row_words.
  uint32_t n_words = 0, n_row_words = 1, row_apart = 0;
};

// From `begin` up to `end`.
struct Rows {
  uint32_t begin = 0, end = UINT32_MAX;
};

struct Work {
  Part parts[2];
  int number, n_members;
  Rows rows[kMostMembers];                // by member: those that it gets
  Exchange::State* states[kMostMembers];  // by member
  const float* whole;                     // [n_sum] of the first piece; sum null: no sum
  float* sum;
  int64_t n_sum;
  bool is_sum_wide;
  Alarm alarm;
};

constexpr const char* kLateHint = "another program may keep that GPU busy; nvidia-smi shows it";

// Adds to a counter of any device. What this block's threads wrote before the last barrier is visible to who
// reads the sum.
DSV32_DEVICE void add_release(uint32_t* counter, uint32_t n) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
DSV32_DEVICE uint32_t load_acquire_of_all(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// Copies the part with all blocks, a warp neighbouring words.
template <typename Word>
DSV32_DEVICE void copy_part(const Work& work, const Part& part) {
  const auto* from = static_cast<const Word*>(part.from);
  const uint32_t n_apart = gridDim.x * kThreads;
  for (uint32_t first = blockIdx.x * kThreads + threadIdx.x; first < part.n_words;
       first += kTogether * n_apart) {
    Word words[kTogether];
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) if (first + k * n_apart < part.n_words) words[k] =
        __ldcg(from + first + k * n_apart);
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const uint32_t i = first + k * n_apart, row = i / part.n_row_words;
      if (i >= part.n_words) continue;
      const uint32_t at = row * part.row_apart + (i - row * part.n_row_words);
      for (int member = 0; member < work.n_members; ++member)
        if (part.to[member] && row >= work.rows[member].begin && row < work.rows[member].end)
          static_cast<Word*>(part.to[member])[at] = words[k];
    }
  }
}

// The number of the gather under way, and whether a member was late before.
struct Turn {
  uint32_t number;
  bool is_late;
};

// One thread of each block reads them, after wait_for_inputs(). The last block to have read the number
// advances it, beside the work.
DSV32_DEVICE Turn take_turn(const Work& work) {
  __shared__ Turn turn;
  Exchange::State& own = *work.states[work.number];
  if (threadIdx.x == 0) {
    const volatile Exchange::State& before = own;
    turn = {before.n_gathers + 1, before.is_late != 0};
  }
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1 && atomicAdd(&own.n_blocks_done, 1) == gridDim.x - 1)
    own.n_blocks_done = 0, own.n_gathers = turn.number;
  return turn;
}

// Waits until the member has counted all its blocks up to this gather.
DSV32_DEVICE void await_member(const Work& work, const Exchange::State& own, int member, uint32_t n_counted) {
  Patience patience;
  while (static_cast<int32_t>(load_acquire_of_all(&own.arrived[member]) - n_counted) < 0)
    if (patience.ends(work.alarm, member)) return;
}

// sum += whole
DSV32_DEVICE void add_whole(const Work& work) {
  const int64_t n_apart = int64_t{gridDim.x} * kThreads, first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (!work.is_sum_wide) {
    for (int64_t i = first; i < work.n_sum; i += n_apart) work.sum[i] += __ldcg(work.whole + i);
    return;
  }
  for (int64_t i = first; i < work.n_sum / 4; i += n_apart) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(work.whole) + i);
    float4& sum = reinterpret_cast<float4*>(work.sum)[i];
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  }
}

// whole = the parts of all members, on every member; sum += whole. See Gather.
// All blocks copy and count; the first one waits for the members, and all do where there is a sum. The next
// kernel may start after the wait for inputs: then what was older than this kernel's input is older for it
// too (dependent.cuh). Bound by the link between the devices.
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) gather_kernel(const __grid_constant__ Work work) {
  wait_for_inputs();
  let_next_start();
  const Turn turn = take_turn(work);
  const Exchange::State& own = *work.states[work.number];
  DSV32_UNROLL for (int i = 0; i < 2; ++i) {
    const Part& part = work.parts[i];
    part.is_wide ? copy_part<uint4>(work, part) : copy_part<uint32_t>(work, part);
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < work.n_members) {
    add_release(&work.states[thread]->arrived[work.number],
                blockIdx.x == 0 ? kArrivals - (gridDim.x - 1) : 1);
    if ((blockIdx.x == 0 || work.sum) && !turn.is_late)
      await_member(work, own, thread, turn.number * kArrivals);
  }
  __syncthreads();
  if (work.sum) add_whole(work);
}

// The part of `member` of a piece, without its addresses.
Part part_of(const Gather::Piece& piece, const Member& member) {
  const int64_t n_rows =
      piece.is_by_rows ? member.end(piece.n_rows) - member.begin(piece.n_rows) : piece.n_rows;
  const int64_t width = piece.is_by_rows ? piece.width : piece.width / member.n();
  const int64_t n_words = n_rows * width;
  if (n_words > INT32_MAX / kMostMembers || (!piece.is_by_rows && piece.width % member.n() != 0))
    fail(ErrorKind::internal, format("%ld members gather [%ld, %ld]", member.n(), piece.n_rows, piece.width));
  Part part;
  part.from = piece.part;
  part.n_words = static_cast<uint32_t>(n_words);
  const bool is_one_run = piece.is_by_rows || piece.n_rows == 1 || member.is_alone();
  part.n_row_words = std::max(1u, is_one_run ? part.n_words : static_cast<uint32_t>(width));
  part.row_apart = static_cast<uint32_t>(piece.width);
  return part;
}

// The first word of the member's place in a vector.
uint32_t* place_of(const Gather::Piece& piece, const Member& member, void* whole) {
  return static_cast<uint32_t*>(whole) +
         (piece.is_by_rows ? member.begin(piece.n_rows) * piece.width : member.begin(piece.width));
}

// The rows of the first piece that a member gets.
Rows rows_of(const Gather& op, const Member& member) {
  if (!op.is_to_owners) return {};
  const int64_t n_rows = op.pieces[0].n_rows;
  return {static_cast<uint32_t>(member.begin(n_rows)), static_cast<uint32_t>(member.end(n_rows))};
}

// sum += whole, of the rows that the member gets
void set_sum(const Gather& op, Work& work) {
  const Gather::Piece& piece = op.pieces[0];
  const int64_t first = op.is_to_owners ? op.member.begin(piece.n_rows) : 0,
                end = op.is_to_owners ? op.member.end(piece.n_rows) : piece.n_rows;
  work.n_sum = (end - first) * piece.width;
  work.whole = static_cast<const float*>(piece.whole) + first * piece.width;
  work.sum = op.sum ? op.sum + first * piece.width : nullptr;
  work.is_sum_wide = is_aligned(work.whole, 16) && is_aligned(work.sum, 16) && work.n_sum % 4 == 0;
}

// Uses words of 16 bytes where all addresses and lengths allow it.
void widen(Part& part, int64_t n_members) {
  const bool is_one_run = part.n_row_words >= part.n_words;
  bool is_wide = is_aligned(part.from, 16) && part.n_row_words % 4 == 0 && part.n_words % 4 == 0 &&
                 (is_one_run || part.row_apart % 4 == 0);
  for (int64_t member = 0; member < n_members; ++member) is_wide &= is_aligned(part.to[member], 16);
  if (!is_wide) return;
  part.is_wide = true;
  part.n_words /= 4, part.n_row_words /= 4, part.row_apart /= 4;
  part.n_row_words = std::max(1u, part.n_row_words);
}

// The words that the blocks of gather_kernel copy, or then add.
int64_t most_words(const Work& work) {
  const int64_t n_sums = work.sum ? (work.is_sum_wide ? work.n_sum / 4 : work.n_sum) : 0;
  return std::max<int64_t>(int64_t{work.parts[0].n_words} + work.parts[1].n_words, n_sums);
}

// Lets `from` access the memory of `to`, if it can. A recording may be under way in this thread.
void let_one_reach(int from, int to) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  int can_access = 0;
  cudaError_t status = cudaDeviceCanAccessPeer(&can_access, from, to);
  if (status == cudaSuccess) status = cudaSetDevice(from);
  if (status == cudaSuccess && can_access) status = cudaDeviceEnablePeerAccess(to, 0);
  CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  if (status != cudaSuccess) cudaGetLastError();
  // With too many peers copies between the two go by way of the host.
  if (status != cudaErrorPeerAccessAlreadyEnabled && status != cudaErrorTooManyPeers) CUDA_CHECK(status);
}

}  // namespace

Exchange::Exchange(int device, State* state, void* inbox, uint32_t* late, double seconds)
    : seconds_(seconds), inbox_(inbox), visit_{device, state, inbox_.words(), late, {}} {
  *late = 0;
}

// Lets this device reach all members that visit, and returns whom to tell of one that is late.
Alarm Exchange::know(const Member& member, std::span<const void* const> visits) {
  Alarm alarm;
  alarm.number = static_cast<int>(member.number), alarm.n_members = static_cast<int>(visits.size());
  for (size_t m = 0; m < visits.size(); ++m) {
    const auto& visit = *static_cast<const Visit*>(visits[m]);
    devices_[m] = visit.device;
    alarm.flags[m] = &visit.state->is_late, alarm.lates[m] = visit.late;
  }
  alarm.most_nanoseconds = static_cast<uint64_t>(seconds_ * 1e9);
  let_reach({devices_.data(), visits.size()});
  CUDA_CHECK(cudaSetDevice(visit_.device));
  return alarm;
}

// The others may be at their next gather already: of their visits only addresses are read.
void Exchange::announce(const Gather& op) {
  if (op.member.n() > kMostMembers || op.member.is_alone())
    fail(ErrorKind::internal, format("an inbox of %ld devices", op.member.n()));
  const std::span<const void* const> visits = op.member.team->meet(op.member.number, &visit_);
  uint32_t* words[kMostMembers] = {};
  for (size_t m = 0; m < visits.size(); ++m) words[m] = static_cast<const Visit*>(visits[m])->inbox;
  inbox_.announce(op, know(op.member, visits), {words, visits.size()});
}

void Exchange::check_shapes(const Gather& op, std::span<const void* const> visits) const {
  for (const void* visit : visits)
    for (int i = 0; i < 2; ++i) {
      const Gather::Piece &own = op.pieces[i], &other = static_cast<const Visit*>(visit)->op.pieces[i];
      if (own.n_rows != other.n_rows || own.width != other.width || own.is_by_rows != other.is_by_rows)
        fail(ErrorKind::internal, format("members gather [%ld, %ld] and [%ld, %ld]", own.n_rows, own.width,
                                         other.n_rows, other.width));
    }
}

void Exchange::gather(const Gather& op, const Launch& launch) {
  const Member& member = op.member;
  if (inbox_.is_announced(op)) {
    inbox_.send(op, launch);
    member.team->meet(member.number, nullptr);  // kernels wait only for what is enqueued
    return inbox_.take(op, launch);
  }
  const int64_t n_members = member.n();
  if (n_members > kMostMembers) fail(ErrorKind::internal, format("a team of %ld devices", n_members));
  visit_.op = op;
  const void* const alone[] = {&visit_};
  std::span<const void* const> visits = alone;
  if (!member.is_alone()) visits = member.team->meet(member.number, &visit_);
  check_shapes(op, visits);
  Work work{};
  work.number = static_cast<int>(member.number), work.n_members = static_cast<int>(n_members);
  for (int i = 0; i < 2; ++i) work.parts[i] = part_of(op.pieces[i], member);
  for (int64_t m = 0; m < n_members; ++m) {
    const auto& visit = *static_cast<const Visit*>(visits[static_cast<size_t>(m)]);
    work.states[m] = visit.state;
    for (int i = 0; i < 2; ++i) {
      void* to = place_of(op.pieces[i], member, visit.op.pieces[i].whole);
      work.parts[i].to[m] = to == op.pieces[i].part ? nullptr : to;
    }
    work.rows[m] = rows_of(op, {member.team, m});
  }
  for (Part& part : work.parts) widen(part, n_members);
  set_sum(op, work);
  work.alarm = know(member, visits);
  launch_kernel(gather_kernel, {gather_blocks(most_words(work), kThreads, launch.n_sms), kThreads}, launch,
                work);
  if (op.norm.out) rms_norm(op.norm, launch);
  if (!member.is_alone()) member.team->meet(member.number, nullptr);
}

void Exchange::check() const {
  const uint32_t code = *static_cast<const volatile uint32_t*>(visit_.late);
  for (int waiter = 0; code && waiter < kMostMembers; ++waiter)
    for (int member = 0; member < kMostMembers; ++member)
      if (code == late_code(waiter, member))
        fail(ErrorKind::device,
             format("GPU %d waited %g seconds for GPU %d", devices_[static_cast<size_t>(waiter)], seconds_,
                    devices_[static_cast<size_t>(member)]),
             kLateHint);
}

// Members that were late have not counted alike, so all numbers begin anew, and what lies in inboxes goes.
void Exchange::restart(cudaStream_t stream) {
  const int device = visit_.device;
  CUDA_CHECK(cudaSetDevice(device));
  for (const auto begin = std::chrono::steady_clock::now(); cudaStreamQuery(stream) == cudaErrorNotReady;) {
    cudaGetLastError();
    if (seconds_since(begin) > seconds_)
      fail(ErrorKind::device, format("GPU %d has not ended its work in %g seconds", device, seconds_),
           kLateHint);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CUDA_CHECK(cudaMemsetAsync(visit_.state, 0, sizeof(State), stream));
  inbox_.wipe(stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  *static_cast<volatile uint32_t*>(visit_.late) = 0;
}

void gather(const Gather& op, const Launch& launch) {
  if (!launch.exchange) fail(ErrorKind::internal, "a gather without an exchange");
  launch.exchange->gather(op, launch);
}

bool can_reach_each_other(int device, int other) {
  const auto reaches = [](int from, int to) {
    int can_access = 0, can_count = 0;
    CUDA_CHECK(cudaDeviceCanAccessPeer(&can_access, from, to));
    CUDA_CHECK(cudaDeviceGetP2PAttribute(&can_count, cudaDevP2PAttrNativeAtomicSupported, from, to));
    return can_access && can_count;
  };
  return device != other && reaches(device, other) && reaches(other, device);
}

// The first caller does it for all pairs: after its return every caller may use the others' memory. A pair
// that failed is tried again.
void let_reach(std::span<const int> devices) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> done;
  const std::lock_guard lock(mutex);
  for (const int from : devices)
    for (const int to : devices) {
      if (from == to || done.contains({from, to})) continue;
      let_one_reach(from, to);
      done.insert({from, to});
    }
}

}  // namespace dsv32::cuda
