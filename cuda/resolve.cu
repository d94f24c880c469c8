// Finds the slot of each selected row: the slot of its position, or a slot of the top-k buffer. For few
// sequences the same kernel also fetches the missing rows.
//
// The policy is that of src/backend/topk_buffer, claim_newest() and resolve() in one, on the same arrays.
// Work that does not depend on the selection runs while positions are still being selected: only this kernel
// writes the buffer's state (dependent.cuh), so each block reads it into a hash table before it waits. Then
// all selected positions are looked up at once. A miss starts its row's copy over the link; victims are
// chosen meanwhile.
//
// The tokens of a sequence are resolved by the blocks of the first, one after the other. Each block brings
// its own table to the state after a token; only the state after the last token goes to the buffer. A slot is
// a victim once in a step, since the loop guesses only as much as a buffer has room for.
// The first token's claims are those of all, also of tokens that a later slice of the step resolves; a slice
// that begins within a sequence claims nothing.

#include "cuda/common.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kResolveThreads = 1024, kWarps = kResolveThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kFetchBlocks = kMostTeamBlocks;  // of a sequence: each fetches an eighth of the missing rows
constexpr int64_t kFetchBytes = 60 << 10;      // of a block's rows under way: 96 of 640 bytes

// The memory of a block for the largest buffer and selection, and for n_rows missing rows under way.
struct Room {
  int n_slots, topk, n_rows, row_bytes;

  static constexpr int kChainBits = 13, kChains = 1 << kChainBits;
  __host__ __device__ static int words(int n) { return (n + 31) / 32; }
  __host__ __device__ int64_t n_row_bytes() const { return (int64_t{n_rows} * row_bytes + 15) / 16 * 16; }
  __host__ __device__ int64_t n_bytes() const {
    const int64_t n_values = int64_t{3} * n_slots + words(n_slots) + words(topk) + int64_t{3} * topk;
    return n_row_bytes() + 4 * (kChains + (n_values + 31) / 32 * 32);
  }
};

// A block's table of a top-k buffer: its slots in order, and a hash table from positions to places in this
// order. In shared memory, or in the workspace if the buffer is too large.
struct SlotTable {
  uint8_t* rows;       // [n_rows, row_bytes]
  int32_t* chains;     // [kChains] the first node of each hash, or -1
  int2* nodes;         // [n_slots] in order: position, next node of the same hash; later its place before
  int32_t* slots;      // [n_slots] in order
  uint32_t* hits;      // [n_slots] bits, in order
  uint32_t* misses;    // [topk] bits
  int32_t* places;     // [topk] a hit's slot; ~number of a miss that this block fetches; else kNotOurs
  int32_t* positions;  // [topk] the selected positions; later their slots
  int32_t* victims;    // [topk] places in order of the slots that the misses take

  static constexpr int kNotOurs = INT_MIN;
  static constexpr int kMostShared = 15 * kResolveThreads;  // slots of a table in shared memory

  __device__ SlotTable(uint8_t* memory, const Room& room)
      : rows(memory),
        chains(reinterpret_cast<int32_t*>(memory + room.n_row_bytes())),
        nodes(reinterpret_cast<int2*>(chains + Room::kChains)),
        slots(reinterpret_cast<int32_t*>(nodes + room.n_slots)),
        hits(reinterpret_cast<uint32_t*>(slots + room.n_slots)),
        misses(hits + Room::words(room.n_slots)),
        places(reinterpret_cast<int32_t*>(misses + Room::words(room.topk))),
        positions(places + room.topk),
        victims(positions + room.topk) {}

  __device__ static uint32_t hash(int pos) {
    return static_cast<uint32_t>(pos) * 2654435761u >> (32 - Room::kChainBits);
  }
  __device__ void insert(int i, int pos) const {
    nodes[i] = make_int2(pos, atomicExch(chains + hash(pos), i));
  }
  __device__ int find(int pos) const {  // the position's place in order, or -1
    for (int i = chains[hash(pos)]; i >= 0;) {
      const int2 node = nodes[i];
      if (node.x == pos) return i;
      i = node.y;
    }
    return -1;
  }

  // Reads the buffer and claims slots for the n_new newest positions, from `first` on, as claim_newest() does
  // one after the other: they become the last in order. Called by all threads; reads the state past L1. All
  // see the table after the next barrier.
  DSV32_DEVICE void read(const TopkBuffer& buffer, int first, int n_new) const {
    constexpr int kBatch = 5;  // loads of a thread in flight together
    const int thread = static_cast<int>(threadIdx.x), n = buffer.n_slots;
    for (int i = thread; i < Room::kChains / 4; i += kResolveThreads)
      reinterpret_cast<int4*>(chains)[i] = make_int4(-1, -1, -1, -1);
    for (int i = thread; i < Room::words(n); i += kResolveThreads) hits[i] = 0;
    int claimed[kMostSequenceTokens];  // places in order
    find_claimed(buffer, first, n_new, claimed);
    for (int begin = thread; begin < n; begin += kBatch * kResolveThreads) {
      int slot[kBatch], pos[kBatch];
      DSV32_UNROLL for (int k = 0; k < kBatch; ++k) {
        const int i = begin + k * kResolveThreads;
        slot[k] = i < n ? __ldcg(buffer.order + i) : 0;
      }
      DSV32_UNROLL for (int k = 0; k < kBatch; ++k) pos[k] = __ldcg(buffer.slot_pos + slot[k]);
      DSV32_UNROLL for (int k = 0; k < kBatch; ++k) {
        const int i = begin + k * kResolveThreads;
        int to = i, known = pos[k];
        if (i >= n) break;
        DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) to -= claimed[j] < i;
        DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) if (claimed[j] == i) to = n - n_new + j,
                                                                                        known = first + j;
        slots[to] = slot[k];
        put(to, known);
      }
    }
  }

  // Brings the table in shared memory to the state after a token: each slot to its new place; victims have
  // their new positions already. Called by all threads; all see the table after the next barrier.
  DSV32_DEVICE void follow(int n) const {
    constexpr int kMost = kMostShared / kResolveThreads, kHeld = kMost - Room::kChains / kResolveThreads;
    const int thread = static_cast<int>(threadIdx.x);
    int slot[kHeld];  // further slots are held where the chains were, and new positions in nodes[].y
    __syncthreads();
    DSV32_UNROLL for (int k = 0; k < kMost; ++k) {
      const int to = thread + k * kResolveThreads;
      if (to >= n) break;
      const int from = nodes[to].y;
      (k < kHeld ? slot[k] : chains[to - kHeld * kResolveThreads]) = slots[from];
      nodes[to].y = nodes[from].x;
    }
    __syncthreads();
    DSV32_UNROLL for (int k = 0; k < kMost; ++k) {
      const int to = thread + k * kResolveThreads;
      if (to < n) slots[to] = k < kHeld ? slot[k] : chains[to - kHeld * kResolveThreads];
    }
    if (n > kHeld * kResolveThreads) __syncthreads();
    for (int i = thread; i < Room::kChains / 4; i += kResolveThreads)
      reinterpret_cast<int4*>(chains)[i] = make_int4(-1, -1, -1, -1);
    for (int i = thread; i < Room::words(n); i += kResolveThreads) hits[i] = 0;
    __syncthreads();
    for (int to = thread; to < n; to += kResolveThreads) put(to, nodes[to].y);
  }

 private:
  DSV32_DEVICE void put(int i, int pos) const {
    pos == kEmptySlot ? static_cast<void>(nodes[i].x = pos) : insert(i, pos);
  }
  // The places in order of the slots that the new positions claim; INT_MAX where there is no such position.
  // Called by all threads; has a barrier.
  DSV32_DEVICE static void find_claimed(const TopkBuffer& buffer, int first, int n_new,
                                        int (&claimed)[kMostSequenceTokens]) {
    __shared__ int own_slots[kMostSequenceTokens], own_places[kMostSequenceTokens];
    __shared__ bool has_own;
    const int thread = static_cast<int>(threadIdx.x), n = buffer.n_slots;
    if (thread < kMostSequenceTokens) own_slots[thread] = kEmptySlot, own_places[thread] = -1;
    if (thread == 0) has_own = false;
    __syncthreads();
    if (n_new == 0) {
      DSV32_UNROLL for (int& place : claimed) place = INT_MAX;
      return;
    }
#pragma unroll 5
    for (int slot = thread; slot < n; slot += kResolveThreads) {
      const int j = __ldcg(buffer.slot_pos + slot) - first;
      if (0 <= j && j < n_new) own_slots[j] = slot, has_own = true;
    }
    __syncthreads();
    if (has_own) {
      for (int i = thread; i < n; i += kResolveThreads) {
        const int slot = __ldcg(buffer.order + i);
        DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) if (slot == own_slots[j]) own_places[j] =
            i;
      }
      __syncthreads();
    }
    constexpr int kFirstPlaces[] = {0, 1, 2, 3};
    static_assert(std::size(kFirstPlaces) == kMostSequenceTokens);
    DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) claimed[j] = own_places[j];
    claim_in_turn(n_new, kFirstPlaces, claimed);
    DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) if (j >= n_new) claimed[j] = INT_MAX;
  }
};

// The number of a sequence's row i in the pool of `pages`.
DSV32_DEVICE int64_t row_of(const int32_t* pages, int i) {
  return static_cast<int64_t>(pages[i / kPageTokens]) * kPageTokens + i % kPageTokens;
}

// Fetches a warp's missing rows from the host pool through shared memory into their slots, in rounds of at
// most n_rows rows of the block.
struct RowFetch {
  const Resolve& op;
  const SlotTable& table;
  const Room& room;
  const int32_t *row_pages, *slot_pages;
  uint64_t* arrived;                  // the warp's
  const int32_t* selected = nullptr;  // of the token
  int n = 0;                          // entries
  uint32_t parity = 0;
  bool is_under_way = false;

#if __CUDA_ARCH__ >= 900
  __device__ static void prepare(uint64_t* arrived) {
    if (threadIdx.x % 32 == 0) init_barrier(arrived, 1), publish_barriers();
  }
  __device__ bool is_of(int round, int e) const {
    return e < n && table.places[e] < 0 && ~table.places[e] / room.n_rows == round;
  }
  __device__ uint8_t* stage(int round, int e) const {
    return table.rows + (~table.places[e] - round * room.n_rows) * room.row_bytes;
  }
  __device__ void start(int round) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    int n_own = 0;
    for (int e = thread; e - lane < n; e += kResolveThreads)
      n_own += __popc(__ballot_sync(0xffffffffu, is_of(round, e)));
    is_under_way = n_own > 0;
    if (!is_under_way) return;
    if (lane == 0) arrive_expecting(arrived, static_cast<uint32_t>(n_own * room.row_bytes));
    __syncwarp();
    for (int e = thread; e < n; e += kResolveThreads) {
      if (!is_of(round, e)) continue;
      const int pos = round == 0 ? table.positions[e] : __ldcg(selected + e);
      copy_in(stage(round, e), op.cache.rows + row_of(row_pages, pos) * room.row_bytes, room.row_bytes,
              arrived);
    }
  }
  // Waits for the round's rows and copies them to their slots, which `positions` holds by now.
  __device__ void finish(int round) {
    if (!is_under_way) return;
    wait_for_phase(arrived, parity);
    parity ^= 1;
    fence_async_proxy();
    for (int e = threadIdx.x; e < n; e += kResolveThreads)
      if (is_of(round, e))
        copy_out(op.cache.slots + row_of(slot_pages, table.positions[e]) * room.row_bytes, stage(round, e),
                 room.row_bytes);
    commit_copies_out();
  }
  __device__ void finish_all(int n_fetched) {
    for (int round = 0; round * room.n_rows < n_fetched; ++round) {
      if (round > 0) {
        wait_until_read<0>();
        __syncthreads();
        start(round);
      }
      finish(round);
    }
    wait_until_written();
  }
#else
  __device__ static void prepare(uint64_t*) {}
  __device__ void start(int) {}
  __device__ void finish_all(int) {}
#endif
};

// The number of bits set in the words before `word`, for all lanes.
DSV32_DEVICE int count_before(const uint32_t* words, int word) {
  int n = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < word; i += 32) n += __popc(words[i]);
  return __reduce_add_sync(kAllLanes, n);
}

// Loads n page numbers into L1.
DSV32_DEVICE void touch_pages(const int32_t* pages, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kResolveThreads) {
    [[maybe_unused]] int page;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(page) : "l"(pages + i));
  }
}

// Looks up all selected positions. Called by all threads. n_fetched grows by the misses that the block
// fetches.
template <bool kFetches>
DSV32_DEVICE void look_up(const SlotTable& table, const Team& team, const int32_t* selected, int n,
                          int* n_fetched) {
  constexpr int kBatch = 2;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int first = thread; first - lane < n; first += kBatch * kResolveThreads) {
    int pos[kBatch];
    DSV32_UNROLL for (int k = 0; k < kBatch; ++k) {
      const int e = first + k * kResolveThreads;
      pos[k] = e < n ? __ldcg(selected + e) : kEmptySlot;
    }
    DSV32_UNROLL for (int k = 0; k < kBatch; ++k) {
      const int e = first + k * kResolveThreads;
      const bool is_there = e < n;
      const int at = is_there ? table.find(pos[k]) : -1;
      const unsigned missing = __ballot_sync(kAllLanes, is_there && at < 0);
      if (lane == 0 && is_there) table.misses[e / 32] = missing;
      int place = SlotTable::kNotOurs;
      if (kFetches) {
        const bool is_ours = is_there && at < 0 && e % team.size == team.rank;
        const unsigned ours = __ballot_sync(kAllLanes, is_ours);
        int number = 0;
        if (lane == 0 && ours) number = atomicAdd(n_fetched, __popc(ours));
        number = __shfl_sync(kAllLanes, number, 0) + __popc(ours & ((1u << lane) - 1));
        if (is_ours) place = ~number;
      }
      if (at >= 0) atomicOr(table.hits + at / 32, 1u << at % 32), place = table.slots[at];
      if (is_there) table.places[e] = place, table.positions[e] = pos[k];
    }
  }
}

// Makes the new order: stale slots that are no victims [n_left] | victims [n_misses] | hits. A warp goes
// through consecutive words of the old order; each block of the team writes every size-th word's slots, if
// the order is to be written.
DSV32_DEVICE void make_order(const TopkBuffer& buffer, const SlotTable& table, const Team& team, int n_left,
                             int n_misses, bool is_written) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int n_words = Room::words(buffer.n_slots), n_each = (n_words + kWarps - 1) / kWarps,
            begin = min(warp * n_each, n_words), end = min(begin + n_each, n_words);
  int n_hits_before = count_before(table.hits, begin);
  for (int word = begin; word < end; ++word) {
    const uint32_t bits = table.hits[word];
    const int i = 32 * word + lane, n_before = n_hits_before + __popc(bits & ((1u << lane) - 1)),
              n_stale = i - n_before;
    n_hits_before += __popc(bits);
    if (i >= buffer.n_slots) continue;
    const bool is_hit = bits >> lane & 1, is_victim = !is_hit && n_stale < n_misses;
    if (is_victim) table.victims[n_stale] = i;
    const int to = is_hit ? n_left + n_misses + n_before : is_victim ? n_left + n_stale : n_stale - n_misses;
    table.nodes[to].y = i;
    if (is_written && word % team.size == team.rank) buffer.order[to] = table.slots[i];
  }
}

// Gives each miss a victim, and writes row_ids of all entries. Each block of the team writes every size-th
// word's.
DSV32_DEVICE void place_rows(const TopkBuffer& buffer, const SlotTable& table, const Team& team,
                             const int32_t* slot_pages, int n, int64_t* row_ids, int32_t* misses) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int e = thread; e - lane < n; e += kResolveThreads) {
    const int word = e / 32;
    const uint32_t bits = table.misses[word];
    const int rank = count_before(table.misses, word) + __popc(bits & ((1u << lane) - 1));
    if (e >= n) continue;
    const bool is_miss = bits >> lane & 1;
    const int victim = is_miss ? table.victims[rank] : 0;
    const int slot = is_miss ? table.slots[victim] : table.places[e];
    if (is_miss) table.nodes[victim].x = table.positions[e];
    if (word % team.size == team.rank) {
      row_ids[e] = row_of(slot_pages, slot);
      if (is_miss) buffer.slot_pos[slot] = table.positions[e], misses[rank] = e;
    }
    table.positions[e] = slot;
  }
}

// Resolves the selected positions of token t. Called by all threads of the team when the table has the
// state, and n_fetched is 0. has_read: the state was read from the buffer, and all blocks have arrived at the
// cluster. is_written: the new order goes to the buffer. Returns how many rows this block fetches.
template <bool kFetches>
DSV32_DEVICE int resolve_token(const Resolve& op, const TopkBuffer& buffer, const SlotTable& table,
                               const Team& team, RowFetch& fetch, int t, bool has_read, bool is_written,
                               int* n_fetched) {
  const int n = __ldcg(op.n_selected + t);
  fetch.selected = op.selected + t * op.topk, fetch.n = n;
  look_up<kFetches>(table, team, fetch.selected, n, n_fetched);
  if (kFetches) fetch.start(0);
  __syncthreads();
  const int n_own = kFetches ? *n_fetched : 0;
  if (has_read && team.size > 1) wait_for_cluster();  // all blocks have read it
  const int n_misses = count_before(table.misses, Room::words(n));
  make_order(buffer, table, team, buffer.n_slots - n, n_misses, is_written);
  __syncthreads();
  place_rows(buffer, table, team, fetch.slot_pages, n, op.row_ids + t * op.topk, op.misses + t * op.topk);
  if (team.rank == 0 && threadIdx.x == 0) {
    op.n_misses[t] = n_misses;
    atomicAdd(reinterpret_cast<unsigned long long*>(op.tally), static_cast<unsigned long long>(n));
    atomicAdd(reinterpret_cast<unsigned long long*>(op.tally + 1), static_cast<unsigned long long>(n_misses));
  }
  return n_own;
}

// selected -> slots: hits stay, misses take the oldest stale slots; order becomes stale | loaded | hits, each
// part in its previous order (topk_buffer.h). kFetches: also slot = host row, for every missing row.
// One team per token, from first_token on; the team of a sequence's first token resolves them all. Without a
// buffer a row lies in the slot of its position. Each block resolves all entries, fetches the missing rows
// among every size-th entry and writes a share of the state after all blocks have read it. kInShared: the
// table is in shared memory. Else it is in scratch memory, which may be written only after the wait, and each
// next token reads the state again. A token's rows travel while the table is made ready for the next one.
// Bound by latency: loading the selection, one load over the link, the copy to the slots. Measured (H100,
// 2026-11-24), added to a layer of decode with 4160 slots, 2048 selected: 7 us by one block that fetches
// nothing; 10 us by eight until the missing rows are there.
template <bool kFetches, bool kInShared>
__global__ void __launch_bounds__(kResolveThreads, 1)
    resolve_kernel(const __grid_constant__ Resolve op, const Room room, int first_token, uint8_t* scratch) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t arrived[kWarps];
  __shared__ int n_fetched;
  const Team team;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int t = first_token + static_cast<int>(blockIdx.x) / team.size, seq = op.step.seq[t];
  const TopkBuffer buffer = op.cache.buffers[seq];
  SequenceTokens tokens;
  if (buffer.n_slots > 0) tokens = SequenceTokens::of(op.cache, op.step.n_seqs, seq);
  if (t > 0 && tokens.n_before > 0) return wait_for_inputs();
  const int32_t *slot_pages = op.cache.slot_pages + seq * op.cache.max_pages,
                *row_pages = op.cache.pages + seq * op.cache.max_pages;
  const int newest = op.step.pos[t], n_new = tokens.n_before > 0 ? 0 : tokens.n;
  const int n_tokens = min(static_cast<int>(op.step.n_tokens) - t, tokens.n - tokens.n_before);
  const SlotTable table(kInShared ? shared : scratch + (t - first_token) * room.n_bytes(), room);
  const auto read_state = [&](int n_claims) {
    if (thread == 0) n_fetched = 0;
    table.read(buffer, newest, n_claims);
    if (team.size > 1) arrive_at_cluster();
  };
  const bool reads_early = kInShared && n_new > 0;  // else another slice of the step may be writing it
  if (buffer.n_slots > 0) {
    if (kFetches) RowFetch::prepare(&arrived[warp]);
    if (reads_early) read_state(n_new);
    if (kFetches) touch_pages(row_pages, (newest + n_tokens - 1) / kPageTokens + 1);
    if (kInShared) touch_pages(slot_pages, (buffer.n_slots - 1) / kPageTokens + 1);
  }
  __syncthreads();
  wait_for_inputs();
  let_next_start();  // only after the wait: the rule's exception (dependent.cuh)

  if (buffer.n_slots == 0) {
    const int n = __ldcg(op.n_selected + t);
    const int32_t* selected = op.selected + t * op.topk;
    for (int e = team.rank * kResolveThreads + thread; e < n; e += team.size * kResolveThreads)
      op.row_ids[t * op.topk + e] = row_of(slot_pages, selected[e]);
    if (team.rank == 0 && thread == 0) op.n_misses[t] = 0;
    return;
  }
  if (!reads_early) {
    read_state(n_new);
    __syncthreads();
  }
  RowFetch fetch{op, table, room, row_pages, slot_pages, &arrived[warp]};
  const int end = t + n_tokens;
  for (int own = t, next; own < end; own = next) {
    for (next = own + 1; next < end && __ldcg(op.n_selected + next) == 0; ++next)
      if (team.rank == 0 && thread == 0) op.n_misses[next] = 0;
    const bool has_read = own == t || !kInShared, is_written = next >= end || !kInShared;
    const int n_own =
        resolve_token<kFetches>(op, buffer, table, team, fetch, own, has_read, is_written, &n_fetched);
    if (own == t && team.rank == 0 && thread < n_new)
      buffer.slot_pos[table.slots[buffer.n_slots - n_new + thread]] = newest + thread;
    if (next < end && kInShared) {
      table.follow(buffer.n_slots);
      if (thread == 0) n_fetched = 0;
    } else if (next < end) {
      __syncthreads();
      read_state(0);
    }
    if (kFetches) fetch.finish_all(n_own);
    __syncthreads();
  }
}

Room room_of(const Resolve& op) {
  return {static_cast<int>(op.cache.most_slots), static_cast<int>(op.topk), 0,
          static_cast<int>(op.cache.layout.row_bytes())};
}

// The room with as many rows under way as fit beside the table.
Room room_to_fetch(const Resolve& op) {
  Room room = room_of(op);
  const int64_t n_left = most_shared_bytes(resolve_kernel<true, true>) - room.n_bytes();
  room.n_rows = static_cast<int>(std::clamp<int64_t>(n_left, 0, kFetchBytes) / 16 * 16 / room.row_bytes);
  return room;
}

bool can_fetch(const Resolve& op) {
  const CacheView& cache = op.cache;
  return cache.buffers && cache.layout.row_bytes() > 0 && has_whole_words(cache) && card().has_clusters &&
         cache.most_slots <= SlotTable::kMostShared &&
         fetches_in_resolve(op.step.n_tokens, room_to_fetch(op).n_rows);
}

}  // namespace

bool resolve(const Resolve& op, bool may_fetch, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens;
  const bool fetches = may_fetch && can_fetch(op);
  if (n_tokens == 0) return fetches;
  const Room room = fetches ? room_to_fetch(op) : room_of(op);
  const int64_t n_bytes = room.n_bytes();
  const bool in_shared = fetches || (room.n_slots <= SlotTable::kMostShared &&
                                     n_bytes <= most_shared_bytes(resolve_kernel<false, true>));
  const auto kernel = fetches     ? resolve_kernel<true, true>
                      : in_shared ? resolve_kernel<false, true>
                                  : resolve_kernel<false, false>;
  const unsigned n_cluster = fetches ? kFetchBlocks : 1;
  const int64_t n_room = launch.workspace->n_bytes_left() / n_bytes;
  const int64_t n_together = in_shared ? n_tokens : std::clamp<int64_t>(n_room, 1, n_tokens);
  auto* scratch = in_shared ? nullptr : launch.workspace->take<uint8_t>(n_together * n_bytes);
  for (int64_t first = 0; first < n_tokens; first += n_together) {
    const int64_t n = std::min(n_together, n_tokens - first);
    launch_kernel(kernel, {n * n_cluster, kResolveThreads, in_shared ? n_bytes : 0, n_cluster}, launch, op,
                  room, static_cast<int>(first), scratch);
  }
  return fetches;
}

}  // namespace dsv32::cuda
