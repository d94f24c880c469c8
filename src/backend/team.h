// A team: devices of one host that compute every layer together.
//
// Each member has its share of the rows of the large matrices, and works on its share of the heads or of the
// tokens. No sum is ever divided, so that a token's bits are those of one device. Members run the same
// operations, each in a thread of its own, and meet where they gather what each has computed
// (Backend::gather). A member that throws ends the others' work too. For a while after its work a thread
// looks for the next one without sleeping: a step of an answer takes some milliseconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/member.h"

namespace dsv32 {

class Team {
 public:
  explicit Team(int64_t n_members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int64_t n_members() const { return std::ssize(given_); }

  // Calls work(member) for all members at the same time, member 0 in this thread, and returns when all are
  // done. Rethrows the first exception.
  void run(const std::function<void(int64_t member)>& work);

  // Within run(): returns when all members have called it, what each has given, by member. The result is
  // valid until this member calls meet() again. Throws if another member has thrown.
  std::span<const void* const> meet(int64_t member, const void* given);

 private:
  template <typename Condition>
  void await(const Condition& is_true);
  void serve(int64_t member);
  void work_as(int64_t member);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int64_t)>* work_ = nullptr;
  std::atomic<int64_t> n_runs_ = 0, n_working_ = 0;
  std::vector<const void*> given_, met_;  // of the meeting that gathers, and of the last one
  int64_t n_arrived_ = 0, n_meetings_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dsv32
