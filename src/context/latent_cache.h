// What is remembered: latent rows in the host pool, their scales and index keys on the device, per sequence a
// page table for each, and per sequence and layer the slots of the top-k buffer.
//
// Both pools are layer-major: for each layer one contiguous array, cut into pages of kPageTokens tokens; page
// p means the same tokens in every layer, so one table serves all layers. Rows and keys are two pools with
// tables of their own; a sequence is admitted by both. Pages are shared: by sequences with a common prefix,
// and with the prefix tree, which keeps them when the sequence has gone. Not thread-safe, but for
// page_rows().
//
// Invariants: a page is free or counts its users; a page with several users is not written, its next writer
// takes a copy; a sequence of n tokens holds ceil(n / kPageTokens) pages of each pool, or more after
// reserve(); rows at positions below its length are immutable.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/page_pool.h"
#include "context/prefix_tree.h"
#include "context/topk_buffer.h"

namespace dsv32 {

struct CachePlan {
  CacheLayout layout;
  bool is_apart = false;  // the device does not work in host memory
  int64_t n_layers = 0;
  int64_t max_tokens = 0;  // of all sequences together
  int64_t max_seqs = 1;
  int64_t buffer_rows = 0;  // capacity B of a top-k buffer; 0: every row is resident, no buffers

  int64_t n_pages() const { return (max_tokens + kPageTokens - 1) / kPageTokens + max_seqs - 1; }
  int64_t n_slots() const { return buffer_rows > 0 ? buffer_rows + 1 : 0; }
  uint64_t row_pool_bytes() const;  // host
  uint64_t resident_bytes() const;  // device: the rows once more, when it is apart and there are no buffers
  uint64_t key_pool_bytes() const;  // device
  uint64_t buffer_bytes() const;    // device: slots and their LRU
  uint64_t window_bytes() const;    // device: two layers' rows, when it is apart and there are buffers
  uint64_t table_bytes() const;     // device: page tables and the like
};

// One sequence's share of the cache. Made and given back by LatentCache.
class Sequence {
 public:
  int64_t n_tokens() const { return n_tokens_; }

 private:
  friend class LatentCache;
  int64_t n_tokens_ = 0;
  int64_t number_ = 0;  // which slots are its own
  std::vector<int32_t> row_pages_, key_pages_;
  std::vector<TopkBuffer> buffers_;  // [n_layers]
  Buffer<int32_t> buffer_state_;     // the arrays of buffers_
};

// A small array on the device that is uploaded anew only when it has changed: from one decode step to the
// next it rarely has.
template <typename T>
class Table {
 public:
  Table() = default;
  Table(Backend& backend, int64_t n)
      : backend_(&backend), buffer_(backend, Place::device, n, "the page tables") {}
  int64_t n() const { return buffer_.n(); }
  const T* data() const { return buffer_.data(); }
  void upload(const std::vector<T>& values) {
    if (values.empty() || (values.size() == uploaded_.size() &&
                           std::memcmp(values.data(), uploaded_.data(), values.size() * sizeof(T)) == 0))
      return;
    backend_->upload(buffer_.data(), values.data(), values.size() * sizeof(T));
    uploaded_ = values;
  }

 private:
  Backend* backend_ = nullptr;
  Buffer<T> buffer_;
  std::vector<T> uploaded_;
};

class LatentCache : public PagePins {
 public:
  LatentCache(Backend& backend, const CachePlan& plan);

  const CachePlan& plan() const { return plan_; }

  // Throws Error{memory} when max_seqs sequences exist.
  std::unique_ptr<Sequence> open();
  void close(Sequence& sequence);

  // Makes room for the sequence to grow to `n_tokens`. Throws Error{context_full} when the pools are too
  // small.
  void reserve(Sequence& sequence, int64_t n_tokens);
  // Says that the rows up to `n_tokens` have been stored.
  void set_length(Sequence& sequence, int64_t n_tokens) { sequence.n_tokens_ = n_tokens; }
  // Forgets all tokens from `n_tokens` on.
  void truncate(Sequence& sequence, int64_t n_tokens);

  // Called when pages are lacking, with how many: gives up that many shares in pages, and says how many it
  // gave up; 0 ends the asking. A share given up frees a page only if it was the last.
  using Reclaim = std::function<int64_t(int64_t n_pages)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // Sharing. A page counts its users: a sequence whose table names it, and whoever retained it.
  void retain(const PoolPage& page) override;
  void release(const PoolPage& page) override;
  // Page i of a sequence, for whoever wants to retain it.
  PoolPage page(const Sequence& sequence, int64_t i) const;
  // A free page with its caller as the only user; nothing when there is none, also after reclaiming.
  std::optional<PoolPage> take_page();
  // The sequence forgets what it holds and begins with `n_tokens` tokens in these pages
  // [ceil(n_tokens / kPageTokens)], as one more user of each.
  void adopt(Sequence& sequence, std::span<const PoolPage> pages, int64_t n_tokens);

  // A page's rows of one layer in the host pool, [kPageTokens, row_bytes], 4096-aligned with V3.2's sizes.
  // What the host writes there is read by steps after publish(). Any thread may ask, while the cache lives.
  uint8_t* page_rows(const PoolPage& page, int64_t layer) const;
  // [n_layers, key_page_bytes] of each page, as they lie on the device. Waits for all work, so that the
  // pages' rows are in the pool too.
  std::vector<std::vector<uint8_t>> download_keys(std::span<const PoolPage> pages);
  // The other way round; and rows that the host wrote become what the device sees.
  void publish(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);

  // Sets the sequences of a step, in the order of the step's `seq` numbers; with `use_buffers` each has one
  // token in it.
  void begin_step(std::span<Sequence* const> sequences, bool use_buffers);
  // One layer as the operations of that step see it; valid until the next begin_step(). Layers are entered in
  // order: where the step's rows are streamed through windows, entering one begins the streaming of the next.
  CacheView enter(int64_t layer);

 private:
  Backend& backend_;
  CachePlan plan_;
  int64_t n_free_pages() const;
  void make_free(const std::function<int64_t()>& n_wanted);
  uint8_t* key_page(const PoolPage& page, int64_t layer) const;
  bool last_page_is_shared(const Sequence& sequence) const;
  void own_last_page(Sequence& sequence);
  void begin_windows(std::span<Sequence* const> sequences);
  void stream_layer(int64_t layer);

  std::vector<Buffer<uint8_t>> rows_, resident_, keys_, slots_;  // [n_layers] each
  // Two layers' rows of a prefill step whose sequences are not resident, in the order of their positions; and
  // what was there before the step: runs of pages, at the same places in every layer.
  struct Run {
    int64_t from_row, to_row, n_rows;
  };
  Buffer<uint8_t> windows_[2];
  std::vector<Run> runs_;
  std::vector<StreamRows::Copy> copies_;
  bool step_uses_windows_ = false;
  PagePool row_pages_, key_pages_;
  Reclaim reclaim_;
  std::vector<int64_t> free_numbers_;
  Table<int32_t> row_tables_, key_tables_, window_tables_;  // [max_seqs, max_pages] of the step
  Table<int64_t> first_slots_;                              // [max_seqs] of the step
  Table<TopkBuffer> step_buffers_;                          // [n_layers, max_seqs] of the step
  bool step_uses_buffers_ = false;
};

}  // namespace dsv32
