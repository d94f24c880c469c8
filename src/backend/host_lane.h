// Experts that the host computes for devices: a thread, the lane, waits for their posts, computes, answers.
//
// A device in recorded work cannot call the host. So it writes a step's tokens into its mailbox, memory that
// both sides see, then one word, and goes on. The lane sees the word, computes with all threads, writes the
// sums and then a word, for which the device waits when it needs the sums. A layer's matrices are registered
// once (a job) and named by a number in the post. A device has one post under way at a time. The lane polls
// the mailboxes only while posts are expected, and sleeps otherwise.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/expert_ops.h"
#include "base/worker_pool.h"

namespace dsv32 {

class Mailbox;

class HostLane {
 public:
  // n_threads: threads that compute, the lane's own included; 0: all cores except one for each of the
  // n_devices, on which a thread waits for the driver. Throws Error{memory} when the system gives no thread.
  HostLane(int n_threads, int n_devices);
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

 private:
  friend class Mailbox;
  void run();
  Mailbox* find_posted();
  void serve(Mailbox& box, std::unique_lock<std::mutex>& lock);
  void compute(const Mailbox& box, RunExperts op);

  WorkerPool workers_;
  std::vector<float> scratch_;
  std::mutex mutex_;  // guards the following members, and the mailboxes' members but not their memory
  std::condition_variable changed_;
  std::vector<Mailbox*> boxes_;
  size_t next_box_ = 0;               // the box to look at first
  const Mailbox* serving_ = nullptr;  // the box whose post is being computed
  int64_t n_expected_ = 0;            // expected posts of all boxes
  bool is_ending_ = false;
  std::thread thread_;
};

// Room for kMostPostTokens tokens of 8 experts at dim 7168.
constexpr size_t kMailboxBytes = size_t{32} << 20;
constexpr int64_t kMostPostTokens = 512;

// The beginning of a mailbox's memory. Each word is written by one side; is_late is cleared by the other, in
// Mailbox::check().
struct MailWords {
  alignas(128) uint64_t posted = 0;    // sequence number << 32 | request: by the device, after its data
  alignas(128) uint64_t answered = 0;  // the sequence number: by the lane, after the sums
  alignas(128) uint32_t is_late = 0;   // by the device: it has waited too long, and waits for no answer
};

// Where a post's data lie in a mailbox's memory.
struct Mail {
  float* x = nullptr;          // [n_tokens, dim]
  float* y = nullptr;          // [n_tokens, dim], by the lane
  float* weights = nullptr;    // [n_tokens, n_activated]
  int32_t* experts = nullptr;  // [n_tokens, n_activated]
};

// One device's mailbox.
class Mailbox {
 public:
  // memory: kMailboxBytes of zeroed host memory that the device can read and write, used only by this mailbox
  // while it exists.
  Mailbox(std::shared_ptr<HostLane> lane, uint8_t* memory);
  ~Mailbox();  // waits until the post being computed is answered; expects no further posts
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  MailWords& words() const { return *reinterpret_cast<MailWords*>(memory_); }
  // The most tokens of a post with the widths of `op`. Throws Error{internal} when not even one fits.
  int64_t most_tokens(const RunExperts& op) const;
  Mail place(const RunExperts& op) const;
  // The request word of a post of op.n_tokens tokens for these matrices. Valid as long as the mailbox exists.
  uint32_t request(const RunExperts& op);
  // Announces posts that will come or have come already: the lane stays awake until it has answered them.
  void expect(int64_t n_posts);
  // Throws Error{device} when a post since the last call was answered without being computed, or too late.
  void check();

 private:
  friend class HostLane;
  bool has_post() const;

  const std::shared_ptr<HostLane> lane_;
  uint8_t* const memory_;
  std::vector<RunExperts> jobs_;  // jobs by number; their tokens come with a post
  int64_t n_expected_ = 0;
  std::exception_ptr error_;
};

}  // namespace dsv32
