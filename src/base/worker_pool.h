// The threads for all work of the CPU: one loop at a time, shared by the threads that get a core.
//
// A loop is cut into pieces; each thread, the caller included, takes pieces until none is left. The loop ends
// when all taken pieces are done, so a thread that the system does not run delays no other. An idle thread
// sleeps after some microseconds. With several NUMA nodes each has a share of every loop (base/numa.h), and
// its threads take from other shares only when all pieces of their own are taken. Chance decides which thread
// computes which piece, so a loop's body must give the same bits on any thread and in any order.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace dsv32 {

// Thrown out of a loop that was interrupted: its results are incomplete.
struct Interrupted {};

class WorkerPool {
 public:
  // n_threads: including the caller; 0: one for each core that this process may use. The first shared loop
  // starts them, as many as the system gives. With several nodes each thread is bound to one.
  explicit WorkerPool(int n_threads, NumaNodes nodes = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int n_threads() const { return n_threads_; }
  const NumaNodes& nodes() const { return nodes_; }

  // For a caller that does nothing else: binds its thread to the node that it works for.
  void bind_caller() const { nodes_.bind_thread(node_of(0)); }

  // Calls body(i) once for every i of [0, n), by the caller alone unless the work is worth sharing. A loop
  // inside another, or beside that of another caller, is run by its caller alone. The first exception of a
  // body ends the loop and is thrown here; else only Interrupted is.
  template <class Body>
  void parallel_for(int64_t n, bool is_worth_sharing, const Body& body) {
    const auto run_part = [&body](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    };
    run({run_part, n}, is_worth_sharing);
  }

  // The caller of a loop calls this some thirty times during it; true interrupts the loop. Null: never. Must
  // outlive the loops that follow.
  void set_interrupt(const std::function<bool()>* is_interrupted) { is_interrupted_ = is_interrupted; }

 private:
  struct Loop {
    std::function<void(int64_t begin, int64_t end)> run;
    int64_t n = 0;
    int64_t n_each = 1;  // indices of a piece; the last one may be shorter
  };
  // A node's pieces of a loop.
  struct Share {
    // The loop's number << 32 | pieces that are not taken: the share's last ones. Only threads that have come
    // to the loop take them: one that still looks for pieces of the loop before goes to its own share first.
    alignas(64) std::atomic<uint64_t> left = 0;
    uint32_t end = 0;        // the first piece of the next share
    uint32_t n_threads = 1;  // of the node
  };

  void run(const Loop& loop, bool is_worth_sharing);
  void run_alone(const Loop& loop) const;
  void check_interrupt() const;
  void share(const Loop& loop);
  void start_threads();
  void work(int64_t node);
  void take_pieces(uint32_t loop, int64_t node, bool is_caller);
  void run_pieces(int64_t first, int64_t n, bool is_caller);
  int64_t node_of(int64_t worker) const { return nodes_.node_of(worker, n_threads_); }

  const int n_threads_;
  const NumaNodes nodes_;
  std::vector<std::thread> threads_;  // all but the caller's
  bool has_started_ = false;
  std::atomic<bool> is_in_use_ = false;  // by a caller
  std::atomic<bool> is_ending_ = false;

  // loop_ is written only while no piece is left or being computed.
  std::vector<Share> shares_;                           // of each node
  alignas(64) std::atomic<uint32_t> n_unfinished_ = 0;  // pieces
  alignas(64) std::atomic<uint32_t> n_loops_ = 0;       // the last one's number: idle threads wait
  Loop loop_;
  std::atomic<bool> has_failed_ = false;
  std::exception_ptr error_;  // of the thread that set has_failed_
  const std::function<bool()>* is_interrupted_ = nullptr;
};

}  // namespace dsv32
