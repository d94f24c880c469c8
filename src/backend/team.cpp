#include "backend/team.h"

#include <chrono>

#include "base/error.h"

namespace dsv32 {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kAwake{20};

struct Abandoned {};  // another member has thrown

}  // namespace

Team::Team(int64_t n_members) : given_(static_cast<size_t>(n_members)), met_(static_cast<size_t>(n_members)) {
  for (int64_t member = 1; member < n_members; ++member)
    threads_.emplace_back([this, member] { serve(member); });
}

Team::~Team() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int64_t)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work, error_ = nullptr, n_arrived_ = 0, n_working_ = n_members();
    ++n_runs_;
    changed_.notify_all();
  }
  work_as(0);
  await([&] { return n_working_ == 0; });
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

// First without sleeping. is_true() reads atomics, which change under the lock.
template <typename Condition>
void Team::await(const Condition& is_true) {
  for (const Clock::time_point end = Clock::now() + kAwake; Clock::now() < end; std::this_thread::yield())
    if (is_true()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, is_true);
}

// The thread of a member.
void Team::serve(int64_t member) {
  for (int64_t n_done = 0;; ++n_done) {
    await([&] { return is_ending_ || n_runs_ > n_done; });
    if (is_ending_) return;
    work_as(member);
  }
}

void Team::work_as(int64_t member) {
  std::exception_ptr error;
  try {
    (*work_)(member);
  } catch (const Abandoned&) {
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  --n_working_;
  changed_.notify_all();
}

std::span<const void* const> Team::meet(int64_t member, const void* given) {
  std::unique_lock lock(mutex_);
  given_[static_cast<size_t>(member)] = given;
  const int64_t n_before = n_meetings_;
  if (++n_arrived_ == n_members()) {
    met_ = given_;
    n_arrived_ = 0, ++n_meetings_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&] { return n_meetings_ > n_before || error_; });
    if (n_meetings_ == n_before) throw Abandoned();
  }
  return met_;
}

int64_t Member::n() const { return team ? team->n_members() : 1; }

}  // namespace dsv32
