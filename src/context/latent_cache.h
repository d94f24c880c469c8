// What is remembered: which timelines, and which others beyond them, have which pages of the pools.
//
// One object for all devices: each stage has the rows, keys and slots of its layers (StageCache); a
// page's two numbers, of the row pool and of the key pool, mean the same tokens in all of them. Timelines
// with a common prefix share pages; a page that is retained outlives its timelines. Not thread-safe, but for
// page_rows().
//
// Invariants: a page is free or counts its users; a page with several users is not written, its next writer
// takes a copy; a timeline of n tokens holds ceil(n / kPageTokens) pages of each pool, or more after
// reserve(); rows at positions below its length are immutable; all rows of a resident timeline are in its
// slots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/page_pool.h"
#include "context/stage_cache.h"
#include "context/timeline.h"

namespace dsv32 {

// Which layers a device has: those from the end of the stage before (or 0) up to end_layer.
struct StageLayers {
  Backend* backend = nullptr;
  int64_t end_layer = 0;
};

class LatentCache : public PagePins {
 public:
  // The stages in the order of their layers. Throws Error{memory}.
  LatentCache(std::span<const StageLayers> stages, const CachePlan& plan);

  const CachePlan& plan() const { return plan_; }
  StageCache& stage(size_t i) { return *stages_[i]; }

  // An empty timeline. Throws Error{memory} when max_seqs exist.
  std::unique_ptr<Timeline> open();
  void close(Timeline& timeline);

  // Its key pages and its slots become free; its keys wait in host memory, its rows where they are. resume()
  // brings it back, with the bits it had. Throws Error{context_full} without room for its keys
  // or slots, Error{memory} when max_seqs others are not suspended.
  void suspend(Timeline& timeline);
  void resume(Timeline& timeline);

  // Most pages of slots that the timeline has from now on, CachePlan::buffer_pages() at the beginning: fewer
  // make room for others and cost fetches. At least those of a step's rows and the newest. Throws
  // Error{context_full} when more are not there.
  void set_most_slots(Timeline& timeline, int64_t n_pages);

  // Makes room for the timeline to grow to `n_tokens`. Throws Error{context_full} when they are more than a
  // context holds, or the pools are too small.
  void reserve(Timeline& timeline, int64_t n_tokens);
  // Says that the rows of these tokens, which follow those that it has, have been stored by a step of this
  // role.
  void append(Timeline& timeline, std::span<const int32_t> tokens, Role role = Role::prefill);
  // The history of these tokens when those in the runs are decoded and the others are not.
  std::vector<int32_t> history(std::span<const int32_t> tokens, std::span<const TokenRun> decoded) const;
  // Forgets all tokens from `n_tokens` on.
  void truncate(Timeline& timeline, int64_t n_tokens);

  // Called when pages are lacking, with how many: stops using that many pages, and returns how many; 0 ends
  // the asking. A page is free only when its last user has gone.
  using Reclaim = std::function<int64_t(int64_t n_pages)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // A page counts its users: the timelines that hold it, and those that retained it.
  void retain(const PoolPage& page) override;
  void release(const PoolPage& page) override;
  // A free page with its caller as the only user; nothing when there is none, also after reclaiming.
  std::optional<PoolPage> take_page();
  // The timeline forgets what it holds and begins with this history, whose rows are in these pages
  // [ceil(n_tokens / kPageTokens)], as one more user of each.
  void adopt(Timeline& timeline, std::span<const PoolPage> pages, std::span<const int32_t> history);

  // A page's rows of one layer in the host pool, [kPageTokens, row_bytes]. What the host writes there is read
  // by steps after publish(). Any thread may ask, while the cache lives.
  uint8_t* page_rows(const PoolPage& page, int64_t layer) const;
  // [n_layers, key_page_bytes] of each page, as they lie on the device. Waits for all work, so that the
  // pages' rows are in the pool too.
  std::vector<std::vector<uint8_t>> download_keys(std::span<const PoolPage> pages);
  // The other way round: the pages' keys, and their rows that the host wrote, become what the devices see.
  void publish(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);

 private:
  int64_t n_free_pages() const { return std::min(row_pages_.n_free(), key_pages_.n_free()); }
  void make_free(const std::function<int64_t()>& n_lacking);
  int64_t take_share();
  std::vector<PoolPage> pages_of(const Timeline& timeline) const;
  bool last_page_is_shared(const Timeline& timeline) const;
  void own_last_page(Timeline& timeline);
  int64_t slot_pages_for(const Timeline& timeline, int64_t n_row_pages) const;
  void check_slots(const Timeline& timeline, int64_t n_row_pages) const;
  void give_slots(Timeline& timeline, bool keeps);

  CachePlan plan_;
  bool roles_agree_ = true;  // on all devices
  std::vector<std::unique_ptr<StageCache>> stages_;
  std::vector<StageCache*> stage_of_layer_;  // [n_layers]
  PagePool row_pages_, key_pages_, slot_pages_;
  Reclaim reclaim_;
  std::vector<int64_t> free_shares_;
};

}  // namespace dsv32
