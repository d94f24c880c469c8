#include "backend/host_lane.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "backend/cpu_common.h"
#include "base/error.h"
#include "base/thread.h"

namespace dsv32 {
namespace {

constexpr uint32_t kTokenBits = 16;  // a request's low bits: its tokens; the job is above them
constexpr size_t kMailAlignment = 128;
// Pauses between two looks at the mailboxes, when others may take the mutex: shorter than a word's way over
// the link.
constexpr int kPauses = 8;

int lane_threads(int n_threads, int n_devices) {
  return n_threads > 0 ? n_threads : std::max(1, WorkerPool(0).n_threads() - n_devices);
}

bool is_same_job(const RunExperts& a, const RunExperts& b) {
  return a.w1.data == b.w1.data && a.w3.data == b.w3.data && a.w2.data == b.w2.data &&
         a.w1.n_rows == b.w1.n_rows && a.n_activated == b.n_activated;
}

uint64_t load(uint64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

HostLane::HostLane(int n_threads, int n_devices)
    : workers_(lane_threads(n_threads, n_devices), NumaNodes::of_machine()) {
  // The destructor waits for this thread; nothing in it can hang.
  if (!start_thread(thread_, [this] { run(); }))
    fail(ErrorKind::memory, "the system gives no thread for the experts in host memory",
         "the number of threads may be limited (ulimit -u)");
}

HostLane::~HostLane() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostLane::run() {
  workers_.bind_caller();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || n_expected_ > 0; });
    if (is_ending_) return;
    if (Mailbox* box = find_posted()) {
      serve(*box, lock);
      continue;
    }
    lock.unlock();
    for (int i = 0; i < kPauses; ++i) hwy::Pause();
    lock.lock();
  }
}

// Takes the mailboxes in turn, so that no device keeps the others waiting.
Mailbox* HostLane::find_posted() {
  for (size_t i = 0; i < boxes_.size(); ++i) {
    const size_t at = (next_box_ + i) % boxes_.size();
    if (!boxes_[at]->has_post()) continue;
    next_box_ = at + 1;
    return boxes_[at];
  }
  return nullptr;
}

// Answers a post even if it cannot be computed, because its device waits for the answer.
void HostLane::serve(Mailbox& box, std::unique_lock<std::mutex>& lock) {
  const uint64_t post = load(box.words().posted);
  const auto request = static_cast<uint32_t>(post);
  const size_t job = request >> kTokenBits;
  RunExperts op = job < box.jobs_.size() ? box.jobs_[job] : RunExperts{};
  op.n_tokens = request & ((1u << kTokenBits) - 1);
  serving_ = &box;
  lock.unlock();
  std::exception_ptr error;
  try {
    compute(box, op);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  serving_ = nullptr;
  if (error) box.error_ = error;
  --box.n_expected_, --n_expected_;
  std::atomic_ref(box.words().answered).store(post >> 32, std::memory_order_release);
  changed_.notify_all();
}

// Expert ids come from a device, so they are checked before they are used as indices, in a copy: a device
// that was late may post again meanwhile.
void HostLane::compute(const Mailbox& box, RunExperts op) {
  if (!op.w1.data || op.n_tokens > box.most_tokens(op))
    fail(ErrorKind::internal, "a device posts what nobody announced");
  const Mail mail = box.place(op);
  const std::vector<int32_t> experts(mail.experts, mail.experts + op.n_tokens * op.n_activated);
  op.x = mail.x, op.y = mail.y, op.weights = mail.weights, op.experts = experts.data();
  for (const int32_t expert : experts)
    if (expert < 0 || expert >= op.w1.n_mats)
      fail(ErrorKind::device, format("a device asks for expert %d of %lld", expert, as_ll(op.w1.n_mats)));
  cpu_run_experts(op, workers_, scratch_);
}

Mailbox::Mailbox(std::shared_ptr<HostLane> lane, uint8_t* memory) : lane_(std::move(lane)), memory_(memory) {
  const std::lock_guard lock(lane_->mutex_);
  lane_->boxes_.push_back(this);
}

Mailbox::~Mailbox() {
  std::unique_lock lock(lane_->mutex_);
  lane_->changed_.wait(lock, [&] { return lane_->serving_ != this; });
  std::erase(lane_->boxes_, this);
  lane_->n_expected_ -= n_expected_;
}

bool Mailbox::has_post() const {
  return static_cast<uint32_t>(load(words().posted) >> 32) != static_cast<uint32_t>(load(words().answered));
}

int64_t Mailbox::most_tokens(const RunExperts& op) const {
  const auto token_bytes = static_cast<size_t>(2 * op.w2.n_rows + 2 * op.n_activated) * sizeof(float);
  const size_t n_bytes = kMailboxBytes - sizeof(MailWords) - 3 * kMailAlignment;
  const auto n = std::min(kMostPostTokens, static_cast<int64_t>(n_bytes / std::max<size_t>(token_bytes, 1)));
  if (n < 1) fail(ErrorKind::internal, "a mailbox has no room for a token");
  return n;
}

Mail Mailbox::place(const RunExperts& op) const {
  uint8_t* at = memory_ + sizeof(MailWords);
  const auto take = [&](int64_t n_words) {
    uint8_t* const taken = at;
    const size_t n_bytes = static_cast<size_t>(n_words) * sizeof(float);
    at += (n_bytes + kMailAlignment - 1) / kMailAlignment * kMailAlignment;
    return reinterpret_cast<float*>(taken);
  };
  Mail mail;
  mail.x = take(op.n_tokens * op.w2.n_rows);
  mail.y = take(op.n_tokens * op.w2.n_rows);
  mail.weights = take(op.n_tokens * op.n_activated);
  mail.experts = reinterpret_cast<int32_t*>(take(op.n_tokens * op.n_activated));
  return mail;
}

// Jobs are never removed: there is one for each layer.
uint32_t Mailbox::request(const RunExperts& op) {
  const std::lock_guard lock(lane_->mutex_);
  auto job = std::ranges::find_if(jobs_, [&](const RunExperts& known) { return is_same_job(known, op); });
  if (job == jobs_.end()) job = jobs_.emplace(job);
  *job = op;
  return static_cast<uint32_t>(job - jobs_.begin()) << kTokenBits | static_cast<uint32_t>(op.n_tokens);
}

void Mailbox::expect(int64_t n_posts) {
  if (n_posts == 0) return;
  {
    const std::lock_guard lock(lane_->mutex_);
    n_expected_ += n_posts, lane_->n_expected_ += n_posts;
  }
  lane_->changed_.notify_all();
}

void Mailbox::check() {
  std::exception_ptr error;
  const std::atomic_ref is_late(words().is_late);
  const bool was_late = is_late.load() != 0;
  {
    const std::lock_guard lock(lane_->mutex_);
    error = std::exchange(error_, nullptr);
    if (was_late && !has_post()) {  // the lane has caught up; posts that it has not seen come no more
      is_late.store(0);
      lane_->n_expected_ -= std::exchange(n_expected_, 0);
    }
  }
  if (was_late) fail(ErrorKind::device, "a GPU waited in vain for the experts that the host computes");
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    fail(ErrorKind::device, format("the host did not compute its experts: %s", reason.what()));
  }
}

}  // namespace dsv32
