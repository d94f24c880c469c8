// The threads for all work of the CPU: loops, one at a time, shared by the threads that have a core to run
// on.
//
// A loop is cut into pieces; each thread takes of those that are left, the caller too. The loop ends when the
// pieces that were begun are done: a thread that the machine does not let run delays no other, and an idle
// one sleeps after some microseconds. With several NUMA nodes each has a share of every loop (base/numa.h),
// and its threads take of other shares only when all of their own is begun. Chance decides which thread
// computes what, so a loop's body gives the same bits on any thread and in any order.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace dsv32 {

// Thrown out of a loop that was given up: its results are not whole.
struct Interrupted {};

class WorkerPool {
 public:
  // n_threads: how many work, the caller among them; 0: one for each core that this process may use. As many
  // as the system gives start with the first loop that is shared. With several nodes each is bound to one.
  explicit WorkerPool(int n_threads, NumaNodes nodes = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int n_threads() const { return n_threads_; }
  const NumaNodes& nodes() const { return nodes_; }

  // For a caller that does nothing else: binds its thread to the node that it works for.
  void bind_caller() const { nodes_.bind_thread(node_of(0)); }

  // body(i) for every i of [0, n), each once; by the caller alone unless the work is worth sharing. A loop
  // inside another, or beside that of another caller, is run by its caller alone. The first exception of a
  // body ends the loop and comes out here. Throws nothing else, but Interrupted.
  template <class Body>
  void parallel_for(int64_t n, bool is_worth_sharing, const Body& body) {
    run({&body,
         [](const void* any_body, int64_t begin, int64_t end) {
           for (int64_t i = begin; i < end; ++i) (*static_cast<const Body*>(any_body))(i);
         },
         n},
        is_worth_sharing);
  }

  // A loop's caller asks some thirty times in the loop: true gives it up. Null: it does not ask. Must outlive
  // the loops that follow.
  void set_interrupt(const std::function<bool()>* is_interrupted) { is_interrupted_ = is_interrupted; }

 private:
  struct Loop {
    const void* body = nullptr;
    void (*call)(const void* body, int64_t begin, int64_t end) = nullptr;
    int64_t n = 0;
    int64_t n_each = 1;  // indices of a piece; the last one may be shorter

    void run(int64_t begin, int64_t end) const { call(body, begin, end); }
  };
  // A node's pieces of the loop.
  struct Share {
    alignas(64) std::atomic<uint32_t> n_left = 0;  // not begun: the last ones
    uint32_t end = 0;                              // the first piece of the next share
    uint32_t n_threads = 1;                        // of the node
  };

  void run(const Loop& loop, bool is_worth_sharing);
  void run_alone(const Loop& loop) const;
  void check_interrupt() const;
  void share(const Loop& loop);
  void start_threads();
  void work(int64_t node);
  void take_pieces(int64_t node, bool is_caller);
  void run_pieces(int64_t first, int64_t n, bool is_caller);
  int64_t node_of(int64_t worker) const { return nodes_.node_of(worker, n_threads_); }

  const int n_threads_;
  const NumaNodes nodes_;
  std::vector<std::thread> threads_;  // all but the caller's
  bool has_started_ = false;
  std::atomic<bool> is_in_use_ = false;  // by a caller
  std::atomic<bool> is_ending_ = false;

  // The loop is written only while no piece is left or under way.
  std::vector<Share> shares_;                           // of each node
  alignas(64) std::atomic<uint32_t> n_unfinished_ = 0;  // pieces
  alignas(64) std::atomic<uint32_t> n_loops_ = 0;       // changes with each loop: what idle threads look at
  Loop loop_;
  std::atomic<bool> has_failed_ = false;
  std::exception_ptr error_;  // of the thread that set has_failed_
  const std::function<bool()>* is_interrupted_ = nullptr;
};

}  // namespace dsv32
