// A CPU backend that shares no memory with any other and works on a thread of its own. It guarantees no more
// than the contract of Backend does.
//
// An operation with a pointer into another backend's memory ends the program. Sums of experts in host memory
// appear no earlier than they must, and prefill leaves nothing in their window. Operations return before they
// are done. After hold() none begins until let_go(); meanwhile tests can see what is in flight.
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu_backend.h"
#include "tests/support/cpu_link_share.h"
#include "tests/support/plain_lane.h"

namespace dsv32 {

class IslandBackend : public CpuBackend {
 public:
  IslandBackend() : CpuBackend(1), thread_([this] { work(); }) {}
  ~IslandBackend() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true, is_held_ = false;
    }
    changed_.notify_all();
    thread_.join();
  }

  void set_interrupt(const std::function<bool()>*) override {}  // a device ends what it was given
  bool works_in_host_memory() const override { return false; }
  bool link_adds() const override { return true; }
  std::span<uint8_t> staging() override { return staging_; }
  bool missed_gather() const override { return has_missed; }
  void restart_gathers() override { has_missed = false, ++n_restarts; }
  bool has_missed = false;  // set by tests
  int n_restarts = 0;
  std::unique_ptr<UploadLane> upload_lane() override { return std::make_unique<PlainLane>(*this); }

  void hold() {
    const std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void let_go() {
    {
      const std::lock_guard lock(mutex_);
      is_held_ = false;
    }
    changed_.notify_all();
  }
  size_t n_in_flight() {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }

  void* alloc(Place place, size_t n_bytes, const char* what) override {
    void* memory = CpuBackend::alloc(place, n_bytes, what);
    sizes_[static_cast<const uint8_t*>(memory)] = n_bytes;
    if (place == Place::host) note_host(memory, n_bytes);
    return memory;
  }
  void free(Place place, void* memory) override {
    wait();
    sizes_.erase(static_cast<const uint8_t*>(memory));
    if (place == Place::host) note_host(memory, 0);
    CpuBackend::free(place, memory);
  }
  void upload(void* device, const void* host, size_t n_bytes) override {
    own(device);
    const auto* bytes = static_cast<const uint8_t*>(host);
    enqueue([this, device, copy = std::vector<uint8_t>(bytes, bytes + n_bytes)] {
      CpuBackend::upload(device, copy.data(), copy.size());
    });
  }
  void download(void* host, const void* device, size_t n_bytes) override {
    if (n_bytes > 0) own(device);
    wait();
    CpuBackend::download(host, device, n_bytes);
  }
  std::unique_ptr<Milestone> milestone() override {
    struct Reached : Milestone {
      void wait() override { backend->wait_for(n); }
      IslandBackend* backend = nullptr;
      int64_t n = 0;  // operations
    };
    auto milestone = std::make_unique<Reached>();
    const std::lock_guard lock(mutex_);
    milestone->backend = this, milestone->n = n_done_ + std::ssize(queue_);
    return milestone;
  }
  void mark() override {
    enqueue([this] { CpuBackend::mark(); });
  }
  std::vector<double> laps() override {
    wait();
    return CpuBackend::laps();
  }

  void embed(const Embed& op) override {
    own(op.step, op.table.data, op.out);
    enqueue([this, op] { CpuBackend::embed(op); });
  }
  void rms_norm(const RmsNorm& op) override {
    own(op.x, op.weight, op.out);
    enqueue([this, op] { CpuBackend::rms_norm(op); });
  }
  void matmul(const Matmul& op) override {
    own(op.weight.data, op.x, op.y, op.plus, op.sum);
    enqueue([this, op] { CpuBackend::matmul(op); });
  }
  void matmul_gated(const GatedMatmul& op) override {
    own(op.w1.data, op.w3.data, op.x, op.up, op.y, op.scales);
    enqueue([this, op] { CpuBackend::matmul_gated(op); });
  }
  void matmul_heads(const MatmulHeads& op) override {
    own(op.weight.data, op.x, op.y);
    enqueue([this, op] { CpuBackend::matmul_heads(op); });
  }
  // Beside the contract it waits: the members' threads read each other's memory here.
  void gather(const Gather& op) override {
    for (const Gather::Piece& piece : op.pieces) own(piece.part, piece.whole);
    own(op.sum, op.norm.x, op.norm.weight, op.norm.out);
    wait();
    CpuBackend::gather(op);
  }
  void add(const Add& op) override {
    own(op.x, op.y);
    enqueue([this, op] {
      if (op.x == late_y_ || op.y == late_y_) std::ranges::copy(late_sums_, std::exchange(late_y_, nullptr));
      CpuBackend::add(op);
    });
  }
  void stream_rows(std::span<const RowCopy> rows) override {
    for (const RowCopy& copy : rows) own(copy.to), own_host(copy.from);
    enqueue([this, copies = std::vector(rows.begin(), rows.end())] { CpuBackend::stream_rows(copies); });
  }
  void save_rows(std::span<const RowCopy> rows) override {
    for (const RowCopy& copy : rows) own_host(copy.to), own(copy.from);
    enqueue([this, copies = std::vector(rows.begin(), rows.end())] { CpuBackend::save_rows(copies); });
  }
  void store_tokens(const StoreTokens& op) override {
    own(op.step, op.cache, op.frequencies, op.qr, op.q_norm, op.kv, op.kv_norm, op.c, op.k, op.k_norm,
        op.k_norm_bias);
    for (const Matmul& product : op.products()) own(product.weight.data, product.x, product.y);
    enqueue([this, op] { CpuBackend::store_tokens(op); });
  }
  void turn_queries(const TurnQueries& op) override {
    own(op.step, op.frequencies, op.q, op.index_q, op.turned_fp8, op.turned_scales, op.turned);
    own(op.absorb.weight.data, op.absorb.x, op.absorb.y);
    enqueue([this, op] { CpuBackend::turn_queries(op); });
  }
  void indexer_scores(const IndexerScores& op) override {
    own(op.step, op.cache, op.q, op.q_fp8, op.q_scales, op.weights, op.scores);
    enqueue([this, op] { CpuBackend::indexer_scores(op); });
  }
  void quest_scores(const QuestScores& op) override {
    own(op.step, op.cache, op.q_c, op.q_pe, op.bounds, op.scores);
    enqueue([this, op] { CpuBackend::quest_scores(op); });
  }
  void select_topk(const SelectTopk& op) override {
    own(op.step, op.scores, op.selected, op.n_selected);
    enqueue([this, op] { CpuBackend::select_topk(op); });
  }
  void resolve(const Resolve& op) override {
    own(op.step, op.cache, op.selected, op.n_selected, op.row_ids, op.misses, op.n_misses, op.tally);
    enqueue([this, op] { CpuBackend::resolve(op); });
  }
  void fetch_latents(const FetchLatents& op) override {
    own(op.step, op.cache, op.selected, op.row_ids, op.misses, op.n_misses);
    enqueue([this, op] { CpuBackend::fetch_latents(op); });
  }
  void attend(const Attend& op) override {
    own(op.step, op.cache, op.q_c, op.q_pe, op.selected, op.n_selected, op.row_ids, op.o_c);
    enqueue([this, op] { CpuBackend::attend(op); });
  }
  void route_experts(const RouteExperts& op) override {
    own(op.logits, op.bias, op.experts, op.weights, op.scales, op.gate.weight.data, op.gate.x, op.gate.y);
    own(op.beside.w1.data, op.beside.w3.data, op.beside.x, op.beside.up, op.beside.y, op.beside.scales);
    enqueue([this, op] { CpuBackend::route_experts(op); });
  }
  void run_experts(const RunExperts& op) override {
    own(op.w1.data, op.w3.data, op.w2.data, op.x, op.experts, op.weights, op.y, op.window, op.scales);
    own(op.shared.weight.data, op.shared.x, op.shared.y, op.shared.plus, op.shared.sum);
    if (op.next) own(op.next->w1.data, op.next->w3.data, op.next->w2.data);
    own(op.hidden);
    if (op.member.team) return wait(), CpuBackend::run_experts(op);
    enqueue([this, op] {
      const bool is_shared = op.place == Place::host && op.role == Role::decode;
      const auto compute = [this](const RunExperts& part) { CpuBackend::run_experts(part); };
      if (op.n_tokens > 0 && is_shared) run_with_link_share(op, ShareWay::in_rounds, compute);
      if (op.n_tokens > 0 && !is_shared) compute(op);
      if (is_shared) come_late(op);
      if (op.place == Place::host && op.role == Role::prefill) std::fill_n(op.window, op.n_window_bytes, 255);
    });
  }
  void sample(const Sample& op) override {
    own(op.logits, op.out, op.top, op.masks);
    enqueue([this, op, rules = std::vector<SampleRule>(op.rules, op.rules + op.n_tokens)]() mutable {
      Sample copy = op;
      copy.rules = rules.data();
      CpuBackend::sample(copy);
    });
  }

 private:
  // Holds the host's sums back until the operation that waits for them.
  void come_late(const RunExperts& op) {
    late_y_ = op.y;
    late_sums_.assign(op.y, op.y + op.n_tokens * op.w2.n_rows);
    std::fill_n(op.y, late_sums_.size(), std::nanf(""));
  }

  // On the backend's thread, operations that are parts of others are done at once.
  bool is_at_work() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Host memory of all these backends, which each of them reads and writes.
  struct HostMemory {
    std::mutex mutex;
    std::map<const uint8_t*, size_t> sizes;
  };
  static HostMemory& host_memory() {
    static HostMemory memory;
    return memory;
  }
  static void note_host(const void* memory, size_t n_bytes) {
    const std::lock_guard lock(host_memory().mutex);
    const auto* address = static_cast<const uint8_t*>(memory);
    if (n_bytes > 0)
      host_memory().sizes[address] = n_bytes;
    else
      host_memory().sizes.erase(address);
  }
  void own_host(const void* pointer) const {
    const std::lock_guard lock(host_memory().mutex);
    if (!holds(host_memory().sizes, pointer)) own(pointer);
  }
  static bool holds(const std::map<const uint8_t*, size_t>& sizes, const void* pointer) {
    const auto* address = static_cast<const uint8_t*>(pointer);
    const auto after = sizes.upper_bound(address);
    return after != sizes.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }

  // Ends the program unless the pointer is null or into this backend's memory.
  void own(const void* pointer) const {
    if (!pointer || is_at_work()) return;
    if (holds(sizes_, pointer)) return;
    std::fprintf(stderr, "an operation was given a pointer into another backend's memory\n");
    std::abort();
  }
  void own(const StepTokens& step) const { own(step.tokens, step.pos, step.seq); }
  void own(const CacheView& cache) const {
    own_host(cache.rows);
    own(cache.slots, cache.key_pages, cache.pages, cache.slot_pages, cache.buffers);
  }
  template <typename First, typename Second, typename... Others>
  void own(const First& first, const Second& second, const Others&... others) const {
    own(first);
    own(second, others...);
  }

  void enqueue(std::function<void()> work) {
    if (is_at_work()) return work();
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }
  void wait_for(int64_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_done_ >= n; });
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_ending_ || (!queue_.empty() && !is_held_); });
      if (queue_.empty()) return;
      const std::function<void()>& next = queue_.front();  // stays where it is until it is done
      lock.unlock();
      next();
      lock.lock();
      queue_.pop_front();
      ++n_done_;
      changed_.notify_all();
    }
  }

  int64_t n_done_ = 0;  // operations
  std::map<const uint8_t*, size_t> sizes_;
  std::vector<uint8_t> staging_ = std::vector<uint8_t>(size_t{20} << 20);
  float* late_y_ = nullptr;
  std::vector<float> late_sums_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false, is_held_ = false;
  std::thread thread_;
};

}  // namespace dsv32
