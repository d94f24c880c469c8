// How well a buffer of rows does under several policies: selections of real decode steps are replayed, and
// the rows found in the buffer are counted.
//
// A buffer of capacity B has B + 1 slots, as in topk_buffer.h, and every policy serves a step in the same two
// moves: the newest row, which was just computed, takes a slot, then the selected rows that are not there are
// loaded. They differ in who leaves. LRU is topk_buffer itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv32 {

// What one decode step asks of one layer's buffer.
struct SelectedRows {
  int32_t newest = 0;         // the step's own position; ascends from step to step
  std::vector<int32_t> rows;  // selected positions, ascending, none behind `newest`
};

enum class BufferPolicy {
  lru,      // the row whose last use is longest ago leaves
  fifo,     // the row that came first leaves
  optimal,  // the row whose next use is farthest ahead leaves (Belady): the future is known, no policy has
            // fewer misses
};
inline constexpr BufferPolicy kBufferPolicies[] = {BufferPolicy::lru, BufferPolicy::fifo,
                                                   BufferPolicy::optimal};
const char* policy_name(BufferPolicy policy);  // "lru", "fifo", "optimal"

struct HitCounts {
  int64_t n_rows = 0, n_hits = 0;
  double rate() const;  // 1 when no row was counted
  HitCounts& operator+=(const HitCounts& other);
};

// Replays `steps` from an empty buffer. The first step only warms it and is not counted. A capacity that
// holds the whole context means that all rows are resident, and every row is a hit.
// capacity: rows, at least those of the largest selection.
HitCounts replay(BufferPolicy policy, std::span<const SelectedRows> steps, int32_t capacity);

// The rows, of every step but the first, that the step before selected too.
HitCounts count_repeated(std::span<const SelectedRows> steps);

}  // namespace dsv32
