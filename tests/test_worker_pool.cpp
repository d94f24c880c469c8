// base/worker_pool.h: every index once, whatever the range, the threads and those that cannot be started.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/stopwatch.h"
#include "base/worker_pool.h"
#include "tests/support/failing_threads.h"
#include "tests/support/made_up_nodes.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(worker_pool)

namespace {

// Whether a shared loop over [0, n) runs each index once, and none beyond.
bool runs_each_once(WorkerPool& workers, int64_t n) {
  constexpr size_t kBeyond = 4096;
  std::vector<int> counts(static_cast<size_t>(n) + kBeyond), expected(static_cast<size_t>(n), 1);
  expected.resize(counts.size());
  workers.parallel_for(n, true, [&](int64_t i) { ++counts[static_cast<size_t>(i)]; });
  return counts == expected;
}

// Whether the two indices of a loop meet, which takes two threads.
bool two_meet(WorkerPool& workers) {
  std::atomic<int> n_here = 0, n_met = 0;
  workers.parallel_for(2, true, [&](int64_t) {
    ++n_here;
    for (const auto start = std::chrono::steady_clock::now(); n_here < 2 && seconds_since(start) < 10;)
      std::this_thread::yield();
    n_met += n_here == 2;
  });
  return n_met == 2;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_index_runs_once) {
  for (const int n_threads : {1, 2, 3, 7, 40}) {
    WorkerPool workers(n_threads);
    BOOST_TEST(workers.n_threads() == n_threads);
    for (const int64_t n : {0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 1000, 4097, 100'003})
      BOOST_TEST(runs_each_once(workers, n), n << " on " << n_threads);
  }
}

BOOST_AUTO_TEST_CASE(a_loop_that_is_given_up_ends) {
  for (const int n_threads : {1, 4})
    for (const int n_before : {0, 1, 5}) {
      WorkerPool workers(n_threads);
      std::atomic<int> n_asked = 0, n_run = 0;
      const std::function<bool()> is_interrupted = [&] { return n_asked++ >= n_before; };
      workers.set_interrupt(&is_interrupted);
      const auto run = [&] {
        workers.parallel_for(100'000, true, [&](int64_t) {
          ++n_run;
          std::this_thread::sleep_for(std::chrono::microseconds(1));
        });
      };
      BOOST_CHECK_THROW(run(), Interrupted);
      BOOST_TEST(n_run < 100'000 / 2);
      workers.set_interrupt(nullptr);
      BOOST_TEST(runs_each_once(workers, 1000));
    }
}

// Also where a node has no thread, or more threads than units.
BOOST_AUTO_TEST_CASE(every_index_runs_once_on_several_nodes) {
  for (const size_t n_nodes : {2u, 3u, 5u})
    for (const int n_threads : {2, 3, 7}) {
      WorkerPool workers(n_threads, usable_nodes(n_nodes));
      for (int round = 0; round < 20; ++round)
        for (const int64_t n : {0, 1, 2, 3, 5, 64, 65, 1000, 4097})
          BOOST_TEST(runs_each_once(workers, n), n << " on " << n_threads << " threads of " << n_nodes);
    }
}

// Two threads, one of each node, wait for each other at their first index.
BOOST_AUTO_TEST_CASE(a_node_begins_with_its_own_part) {
  constexpr int64_t kIndices = 64;  // the first half is the caller's node's
  WorkerPool workers(2, usable_nodes(2));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> first[2] = {-1, -1};  // the caller's, the other thread's
    workers.parallel_for(kIndices, true, [&, caller = std::this_thread::get_id()](int64_t i) {
      int64_t none = -1;
      if (!first[std::this_thread::get_id() != caller].compare_exchange_strong(none, i)) return;
      const auto start = std::chrono::steady_clock::now();
      while ((first[0] < 0 || first[1] < 0) && seconds_since(start) < 10) std::this_thread::yield();
    });
    BOOST_TEST(first[0] < kIndices / 2);
    BOOST_TEST(first[1] >= kIndices / 2);
  }
}

BOOST_AUTO_TEST_CASE(zero_threads_are_one_for_each_core) {
  const unsigned n_cores = std::thread::hardware_concurrency();
  const WorkerPool workers(0);
  BOOST_TEST(workers.n_threads() >= 1);
  BOOST_TEST(workers.n_threads() <= static_cast<int>(n_cores));
}

BOOST_AUTO_TEST_CASE(what_is_not_worth_sharing_stays_with_the_caller) {
  WorkerPool workers(4);
  bool is_here = true;
  workers.parallel_for(100, false, [&, caller = std::this_thread::get_id()](int64_t) {
    is_here &= std::this_thread::get_id() == caller;
  });
  BOOST_TEST(is_here);
}

BOOST_AUTO_TEST_CASE(a_loop_is_shared) {
  WorkerPool workers(2);
  BOOST_TEST(two_meet(workers));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the worker sleeps now
  BOOST_TEST(two_meet(workers));
}

BOOST_AUTO_TEST_CASE(a_caller_that_sleeps_is_woken_by_the_last_worker) {
  WorkerPool workers(2);
  std::atomic<int> n_done = 0;
  workers.parallel_for(2, true, [&, caller = std::this_thread::get_id()](int64_t) {
    ++n_done;
    while (n_done < 2) std::this_thread::yield();
    if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++n_done;
  });
  BOOST_TEST(n_done == 4);
}

BOOST_AUTO_TEST_CASE(an_exception_comes_out_and_the_next_loop_is_whole) {
  for (const int n_threads : {1, 2, 5}) {
    WorkerPool workers(n_threads);
    for (const int64_t bad : {0, 1, 499, 999}) {
      BOOST_CHECK_EXCEPTION(workers.parallel_for(1000, true,
                                                 [&](int64_t i) {
                                                   if (i == bad)
                                                     throw std::runtime_error("index " + std::to_string(i));
                                                 }),
                            std::runtime_error, [&](const std::runtime_error& error) {
                              return error.what() == "index " + std::to_string(bad);
                            });
      BOOST_TEST(runs_each_once(workers, 1000));
    }
    BOOST_CHECK_THROW(workers.parallel_for(1000, true, [](int64_t) { throw std::bad_alloc(); }),
                      std::bad_alloc);
    BOOST_TEST(runs_each_once(workers, 1000));
  }
}

BOOST_AUTO_TEST_CASE(a_loop_within_a_loop_runs_where_it_stands) {
  WorkerPool workers(3);
  std::vector<int> counts(50 * 70);
  std::atomic<bool> is_here = true;
  workers.parallel_for(50, true, [&](int64_t i) {
    const std::thread::id outer = std::this_thread::get_id();
    workers.parallel_for(70, true, [&](int64_t j) {
      ++counts[static_cast<size_t>(i * 70 + j)];
      if (std::this_thread::get_id() != outer) is_here = false;
    });
  });
  BOOST_TEST((counts == std::vector<int>(50 * 70, 1)));
  BOOST_TEST(is_here);
}

BOOST_AUTO_TEST_CASE(several_callers_do_not_disturb_one_another) {
  WorkerPool workers(3);
  std::atomic<int> n_wrong = 0;
  std::vector<std::thread> callers;
  for (int64_t n = 100; n < 104; ++n)
    callers.emplace_back([&, n] {
      for (int k = 0; k < 300; ++k) n_wrong += !runs_each_once(workers, n);
    });
  for (std::thread& caller : callers) caller.join();
  BOOST_TEST(n_wrong == 0);
}

// Workers are caught at every point of falling asleep, and late ones meet the loop after theirs.
BOOST_AUTO_TEST_CASE(many_small_loops_with_pauses_between) {
  WorkerPool workers(3);
  int n_wrong = 0;
  for (int k = 0; k < 4000; ++k) {
    n_wrong += !runs_each_once(workers, 2 + k % 9);
    const auto start = std::chrono::steady_clock::now();
    while (seconds_since(start) < k % 40 * 1e-6) {
    }
  }
  BOOST_TEST(n_wrong == 0);
}

BOOST_AUTO_TEST_CASE(threads_that_cannot_be_started_are_done_without) {
  for (int n = 0; n < 4; ++n) {
    FailingThreads threads(n, true);
    WorkerPool workers(4);
    for (int k = 0; k < 3; ++k) BOOST_TEST(runs_each_once(workers, 1000), "with " << n);
    BOOST_TEST(threads.stop() == (n < 3));
  }
}

BOOST_AUTO_TEST_CASE(threads_start_with_the_first_shared_loop) {
  FailingThreads threads(0);
  WorkerPool workers(3);
  runs_each_once(workers, 1);
  workers.parallel_for(100, false, [](int64_t) {});
  BOOST_TEST(!threads.stop());
  FailingThreads later(0);
  runs_each_once(workers, 100);
  BOOST_TEST(later.stop());
}

// Not a bar: what a loop costs is printed, for who changes the pool.
BOOST_AUTO_TEST_CASE(an_empty_loop_is_soon_over) {
  WorkerPool workers(2);
  constexpr int kLoops = 2000;
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < kLoops; ++k) workers.parallel_for(64, true, [](int64_t) {});
  const double seconds = seconds_since(start) / kLoops;
  BOOST_TEST_MESSAGE("an empty loop on 2 threads: " << seconds * 1e6 << " us");
  BOOST_TEST(seconds < 0.01);
}

BOOST_AUTO_TEST_SUITE_END()
