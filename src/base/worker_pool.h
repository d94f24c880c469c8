// The threads for all work of the CPU: loops, one at a time, divided over whoever has a core to run on.
//
// A loop is cut into units, and whoever runs takes of those that are left, the caller too. The loop ends when
// the units that somebody has begun are done: a thread that the machine does not let run holds nobody up, and
// one that has nothing to do sleeps after some microseconds. On a machine of several NUMA nodes each has a
// part of every loop (base/numa.h), and its threads take of the others' parts only when their own is begun.
// Which thread computes what is left to chance, so a loop's body gives the same bits on any thread and in any
// order.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace dsv32 {

// Thrown out of a loop that was given up: what it was computing makes no sense.
struct Interrupted {};

class WorkerPool {
 public:
  // n_threads: how many work, the caller among them; 0: one for each core that this process may use. They
  // start with the first loop that is shared. What cannot be started is done without. With several nodes each
  // thread is bound to one.
  explicit WorkerPool(int n_threads, NumaNodes nodes = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int n_threads() const { return n_threads_; }
  const NumaNodes& nodes() const { return nodes_; }

  // For the thread that will share loops, when it does nothing else: binds it to the node that it works for.
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

  // Asked by a loop's caller, some thirty times in the loop: true gives it up. Empty: it is not asked. It
  // must outlive the loops that follow.
  void set_interrupt(const std::function<bool()>* is_interrupted) { is_interrupted_ = is_interrupted; }

 private:
  struct Worker;
  struct Loop {
    const void* body = nullptr;
    void (*call)(const void* body, int64_t begin, int64_t end) = nullptr;
    int64_t n = 0;
    int64_t unit = 1;  // indices of a unit; the last one may be shorter

    int64_t n_units() const { return (n + unit - 1) / unit; }
    void run(int64_t begin, int64_t end) const { call(body, begin, end); }
  };
  // A node's part of the loop.
  struct Part {
    alignas(64) std::atomic<uint32_t> left = 0;  // units that nobody has begun: the last ones
    uint32_t end = 0;                            // the first unit of the next part
    uint32_t n_threads = 1;                      // of the node
  };

  void run(const Loop& loop, bool is_worth_sharing);
  void run_alone(const Loop& loop) const;
  void check_interrupt() const;
  void share(const Loop& loop);
  void start_threads();
  void work(int64_t node);
  void take_units(int64_t node, bool is_caller);
  void take_units_of(Part& part, bool is_caller);
  void run_units(int64_t first, int64_t n, bool is_caller);
  int64_t node_of(int64_t worker) const { return nodes_.node_of(worker, n_threads_); }

  const int n_threads_;
  const NumaNodes nodes_;
  std::vector<std::thread> threads_;  // all but the caller's
  bool has_started_ = false;
  std::atomic<bool> is_in_use_ = false;  // by a caller
  std::atomic<bool> is_ending_ = false;

  // Who takes units writes these; the loop is written only while there are none left and none under way.
  std::vector<Part> parts_;                             // of each node
  alignas(64) std::atomic<uint32_t> n_unfinished_ = 0;  // units
  alignas(64) std::atomic<uint32_t> n_loops_ = 0;       // changes with each loop: what idle threads look at
  Loop loop_;
  std::atomic<bool> has_failed_ = false;
  std::exception_ptr error_;  // of whoever set has_failed_
  const std::function<bool()>* is_interrupted_ = nullptr;
};

}  // namespace dsv32
