#include "tests/tools/lab/buffer_policies.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>

#include "backend/topk_buffer.h"

namespace dsv32 {
namespace {

using Rows = std::vector<int32_t>;

// Both ascending.
Rows lacking(const Rows& wanted, const Rows& held) {
  Rows missing;
  std::ranges::set_difference(wanted, held, std::back_inserter(missing));
  return missing;
}

Rows sorted(Rows rows) {
  std::ranges::sort(rows);
  return rows;
}

// Takes the first rows out of `held` that are not among `kept` (ascending), until no more than n_most are
// left.
void drop_first(Rows& held, size_t n_most, const Rows& kept) {
  size_t n_over = held.size() > n_most ? held.size() - n_most : 0;
  std::erase_if(held, [&](int32_t row) {
    if (n_over == 0 || std::ranges::binary_search(kept, row)) return false;
    --n_over;
    return true;
  });
  assert(n_over == 0);
}

// Each policy below serves one step and returns its misses.

class Lru {
 public:
  Lru(std::span<const SelectedRows>, int32_t capacity)
      : slot_pos_(static_cast<size_t>(capacity) + 1),
        order_(slot_pos_.size()),
        buffer_{capacity + 1, slot_pos_.data(), order_.data()} {
    reset(buffer_);
  }
  Lru(const Lru&) = delete;
  Lru& operator=(const Lru&) = delete;

  int64_t serve(const SelectedRows& step) {
    claim_newest(buffer_, step.newest);
    slots_.resize(step.rows.size()), misses_.resize(step.rows.size());
    return resolve(buffer_, step.rows.data(), static_cast<int32_t>(step.rows.size()), slots_.data(),
                   misses_.data());
  }

 private:
  Rows slot_pos_, order_, slots_, misses_;
  TopkBuffer buffer_;
};

class Fifo {
 public:
  Fifo(std::span<const SelectedRows>, int32_t capacity) : n_slots_(static_cast<size_t>(capacity) + 1) {}

  int64_t serve(const SelectedRows& step) {
    drop_first(held_, n_slots_ - 1, {});  // what will be selected is not known yet
    held_.push_back(step.newest);
    const Rows missing = lacking(step.rows, sorted(held_));
    drop_first(held_, n_slots_ - missing.size(), step.rows);
    held_.insert(held_.end(), missing.begin(), missing.end());
    return std::ssize(missing);
  }

 private:
  size_t n_slots_;
  Rows held_;  // in the order they came
};

class Optimal {
 public:
  Optimal(std::span<const SelectedRows> steps, int32_t capacity)
      : n_slots_(static_cast<size_t>(capacity) + 1), uses_(static_cast<size_t>(steps.back().newest) + 1) {
    for (size_t step = 0; step < steps.size(); ++step)
      for (const int32_t row : steps[step].rows) uses_[static_cast<size_t>(row)].push_back(step);
    n_past_uses_.resize(uses_.size());
  }

  int64_t serve(const SelectedRows& step) {
    Rows wanted = step.rows;
    if (wanted.empty() || wanted.back() != step.newest) wanted.push_back(step.newest);
    Rows missing = lacking(wanted, sorted(held_));
    const size_t n_most = n_slots_ - missing.size();
    if (held_.size() > n_most) {
      std::ranges::sort(held_, [&](int32_t a, int32_t b) { return next_use(a) > next_use(b); });
      drop_first(held_, n_most, wanted);
    }
    held_.insert(held_.end(), missing.begin(), missing.end());
    for (const int32_t row : step.rows) ++n_past_uses_[static_cast<size_t>(row)];
    return std::ssize(missing) -
           std::ranges::count(missing, step.newest);  // that one was computed, not loaded
  }

 private:
  size_t next_use(int32_t row) const {
    const std::vector<size_t>& uses = uses_[static_cast<size_t>(row)];
    const size_t next = n_past_uses_[static_cast<size_t>(row)];
    return next < uses.size() ? uses[next] : std::numeric_limits<size_t>::max();
  }

  size_t n_slots_;
  std::vector<std::vector<size_t>> uses_;  // of each position, the steps that select it
  std::vector<size_t> n_past_uses_;
  Rows held_;
};

template <class Policy>
HitCounts replay_with(std::span<const SelectedRows> steps, int32_t capacity) {
  Policy policy(steps, capacity);
  HitCounts counts;
  for (size_t step = 0; step < steps.size(); ++step) {
    assert(std::ssize(steps[step].rows) <= capacity);
    const int64_t n_misses = policy.serve(steps[step]), n_rows = std::ssize(steps[step].rows);
    if (step > 0) counts += {n_rows, n_rows - n_misses};
  }
  return counts;
}

HitCounts every_row_resident(std::span<const SelectedRows> steps) {
  HitCounts counts;
  for (const SelectedRows& step : steps.subspan(1)) counts += {std::ssize(step.rows), std::ssize(step.rows)};
  return counts;
}

}  // namespace

const char* policy_name(BufferPolicy policy) {
  switch (policy) {
    case BufferPolicy::lru: return "lru";
    case BufferPolicy::fifo: return "fifo";
    case BufferPolicy::optimal: return "optimal";
  }
  return "";
}

double HitCounts::rate() const {
  return n_rows > 0 ? static_cast<double>(n_hits) / static_cast<double>(n_rows) : 1;
}

HitCounts& HitCounts::operator+=(const HitCounts& other) {
  n_rows += other.n_rows, n_hits += other.n_hits;
  return *this;
}

HitCounts replay(BufferPolicy policy, std::span<const SelectedRows> steps, int32_t capacity) {
  if (steps.empty()) return {};
  if (capacity > steps.back().newest) return every_row_resident(steps);
  if (policy == BufferPolicy::lru) return replay_with<Lru>(steps, capacity);
  if (policy == BufferPolicy::fifo) return replay_with<Fifo>(steps, capacity);
  return replay_with<Optimal>(steps, capacity);
}

HitCounts count_repeated(std::span<const SelectedRows> steps) {
  HitCounts counts;
  for (size_t step = 1; step < steps.size(); ++step) {
    const Rows fresh = lacking(steps[step].rows, steps[step - 1].rows);
    const int64_t n_rows = std::ssize(steps[step].rows);
    counts += {n_rows, n_rows - std::ssize(fresh)};
  }
  return counts;
}

}  // namespace dsv32
