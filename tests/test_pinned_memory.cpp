// Memory that is pinned in the background while it is used already: not a byte changes by it. Run under
// ThreadSanitizer too (make race_tests). The driver is one that only says when it may go on.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "backend/pinned_memory.h"
#include "base/error.h"
#include "tests/support/made_up_nodes.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(pinned_memory)

namespace {

constexpr size_t kPageBytes = 4096, kPieceBytes = 512 * kPageBytes;
constexpr int kPieces = 16;

// Pins nothing, and at most when its gate is open.
class Gate {
 public:
  PinningDriver driver() {
    return {.pin =
                [this](void* memory, size_t) {
                  std::unique_lock lock(mutex_);
                  ++n_asked_;
                  changed_.notify_all();
                  changed_.wait(lock, [&] { return is_open_; });
                  return pins_ && pinned_.insert(memory).second;
                },
            .unpin =
                [this](void* memory) {
                  const std::lock_guard lock(mutex_);
                  n_wrong_ += pinned_.erase(memory) != 1;
                }};
  }
  void open(bool pins = true) {
    const std::lock_guard lock(mutex_);
    is_open_ = true, pins_ = pins;
    changed_.notify_all();
  }
  void wait_until_asked() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_asked_ > 0; });
  }
  bool is_pinned(void* memory) {
    const std::lock_guard lock(mutex_);
    return pinned_.contains(memory);
  }
  size_t n_pinned() {
    const std::lock_guard lock(mutex_);
    return pinned_.size();
  }
  int n_wrong() {  // what was given back and had not been pinned
    const std::lock_guard lock(mutex_);
    return n_wrong_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<void*> pinned_;
  bool is_open_ = false, pins_ = true;
  int n_asked_ = 0, n_wrong_ = 0;
};

uint64_t word_of(int piece, size_t i) { return (static_cast<uint64_t>(piece) + 1) << 40 | (i + 1); }

// As the threads do that read pages from the disk.
void write_piece(uint8_t* memory, int piece) {
  auto* words = reinterpret_cast<uint64_t*>(memory);
  for (size_t i = 0; i < kPieceBytes / sizeof(uint64_t); ++i) words[i] = word_of(piece, i);
}

int64_t n_wrong_words(const uint8_t* memory, int piece) {
  const auto* words = reinterpret_cast<const uint64_t*>(memory);
  int64_t n_wrong = 0;
  for (size_t i = 0; i < kPieceBytes / sizeof(uint64_t); ++i) n_wrong += words[i] != word_of(piece, i);
  return n_wrong;
}

std::vector<uint8_t*> alloc_pieces(PinnedMemory& memory, int n = kPieces) {
  std::vector<uint8_t*> pieces;
  for (int i = 0; i < n; ++i) pieces.push_back(static_cast<uint8_t*>(memory.alloc(kPieceBytes, "a test")));
  return pieces;
}

}  // namespace

// Half of the pieces is written before its turn comes, the other half meanwhile.
BOOST_AUTO_TEST_CASE(what_is_written_while_memory_is_pinned_stays) {
  Gate gate;
  PinnedMemory memory(gate.driver());
  const std::vector<uint8_t*> pieces = alloc_pieces(memory);
  const auto write = [&](int begin, int end) {
    for (int i = begin; i < end; ++i) write_piece(pieces[static_cast<size_t>(i)], i);
  };
  write(kPieces / 2, kPieces);
  std::thread writer([&] { write(0, kPieces / 4); });
  gate.open();
  write(kPieces / 4, kPieces / 2);
  writer.join();
  for (int i = 0; i < kPieces; ++i) {
    uint8_t* piece = pieces[static_cast<size_t>(i)];
    memory.wait(piece + kPieceBytes - 1);
    BOOST_TEST(gate.is_pinned(piece));
    BOOST_TEST(n_wrong_words(piece, i) == 0, "piece " << i);
  }
}

// Whoever makes pages present from one node after the other leaves none out, and is free again then.
BOOST_AUTO_TEST_CASE(memory_that_is_divided_over_nodes_is_present_and_pinned) {
  constexpr size_t kBytes = (size_t{9} << 20) + 5 * kPageBytes;
  const cpu_set_t cores = usable_cores();
  int n_asked = 0, n_absent = 0, n_bound = 0;  // read when the memory is pinned
  PinnedMemory memory({.pin =
                           [&](void* piece, size_t n_bytes) {
                             std::vector<unsigned char> is_there(n_bytes / kPageBytes);
                             mincore(piece, n_bytes, is_there.data());
                             for (const unsigned char c : is_there) n_absent += !(c & 1);
                             const cpu_set_t here = usable_cores();
                             n_bound += !CPU_EQUAL(&here, &cores);
                             ++n_asked;
                             return true;
                           },
                       .unpin = [](void*) {}},
                      usable_nodes(2));
  auto* piece = static_cast<uint8_t*>(memory.alloc(kBytes, "a test", size_t{3} << 20));
  memory.wait(piece + kBytes - 1);
  BOOST_TEST(n_asked == 1);
  BOOST_TEST(n_absent == 0);
  BOOST_TEST(n_bound == 0);
}

// What others write is not lost, be it before, while or after.
BOOST_AUTO_TEST_CASE(touching_pages_changes_no_byte) {
  std::vector<uint64_t> words(kPieceBytes / sizeof(uint64_t));
  auto* bytes = reinterpret_cast<uint8_t*>(words.data());
  std::thread toucher([&] {
    for (int round = 0; round < 20; ++round) touch_pages(bytes, kPieceBytes);
  });
  for (size_t i = 0; i < words.size(); i += kPageBytes / sizeof(uint64_t))
    std::atomic_ref(bytes[i * sizeof(uint64_t)])
        .store(static_cast<uint8_t>(i / 512 + 1), std::memory_order_relaxed);
  toucher.join();
  int64_t n_wrong = 0;
  for (size_t i = 0; i < kPieceBytes; ++i)
    n_wrong += bytes[i] != (i % kPageBytes == 0 ? static_cast<uint8_t>(i / kPageBytes + 1) : 0);
  BOOST_TEST(n_wrong == 0);
}

BOOST_AUTO_TEST_CASE(memory_is_given_back_before_while_and_after_it_is_pinned) {
  Gate gate;
  {
    PinnedMemory memory(gate.driver());
    const std::vector<uint8_t*> pieces = alloc_pieces(memory);
    gate.wait_until_asked();
    for (int i = kPieces / 2; i < kPieces; i += 2)
      BOOST_TEST(memory.free(pieces[static_cast<size_t>(i)]) == kPieceBytes);
    std::thread waiter([&] { memory.free(pieces[0]); });
    gate.open();
    waiter.join();
    memory.wait(pieces[kPieces - 1]);
    memory.free(pieces[kPieces - 1]);
    int elsewhere = 0;
    memory.wait(&elsewhere);
  }
  BOOST_TEST(gate.n_pinned() == 0u);
  BOOST_TEST(gate.n_wrong() == 0);
}

BOOST_AUTO_TEST_CASE(memory_that_cannot_be_pinned_is_told_to_who_waits_for_it) {
  Gate gate;
  gate.open(false);
  PinnedMemory memory(gate.driver());
  void* piece = memory.alloc(kPieceBytes, "the rows");
  BOOST_CHECK_EXCEPTION(memory.wait(piece), Error, [](const Error& error) {
    return error.kind() == ErrorKind::memory &&
           std::string(error.what()).find("the rows") != std::string::npos;
  });
  memory.free(piece);
  BOOST_TEST(gate.n_wrong() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
