// The cache: which sequences and which other holders (the prefix tree) use which pages of the pools.
//
// There is one LatentCache for all devices. Each stage has the rows, keys and slots of its layers
// (StageCache); a page's number means the same tokens in every stage, for rows and keys. The members of a
// team have equal keys and slots, and share the rows. Sequences with a common prefix share pages; a retained
// page outlives its sequences. Not thread-safe, except page_rows().
//
// Invariants: a page is free or counts its users; a page with several users is never written: a sequence that
// has to write there copies it first; a sequence of n tokens holds ceil(n / kPageTokens) pages, or more after
// reserve(); rows at positions below its length are immutable; all rows of a resident sequence are in its
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
#include "context/cached_sequence.h"
#include "context/page_pool.h"
#include "context/stage_cache.h"

namespace dsv32 {

// A stage's device and its layers: from the end of the previous stage (or 0) up to end_layer. Or one of a
// team, whose members have the same layers.
struct StageLayers {
  Backend* backend = nullptr;
  int64_t end_layer = 0;
  Member member = {};
};

class LatentCache : public PagePins {
 public:
  // The stages in the order of their layers. Throws Error{memory}.
  LatentCache(std::span<const StageLayers> stages, const CachePlan& plan);

  const CachePlan& plan() const { return plan_; }
  StageCache& stage(size_t i) { return *stages_[i]; }

  // An empty sequence. Throws Error{memory} when max_seqs sequences are open.
  std::unique_ptr<CachedSequence> open();
  void close(CachedSequence& sequence);

  // Sets the most slot pages that the sequence may have; at first CachePlan::buffer_pages(). Fewer leave room
  // for other sequences and cost fetches. There must be slots for the rows that a step selects and for the
  // newest row. Throws Error{context_full} when too few slots are free.
  void set_most_slots(CachedSequence& sequence, int64_t n_pages);

  // Makes room for the sequence to grow to `n_tokens`. Throws Error{context_full} when a context holds fewer
  // tokens, or the pool has no room.
  void reserve(CachedSequence& sequence, int64_t n_tokens);
  // Whether reserve() would succeed and leave a free page to each of n_sequences sequences, without
  // reclaiming any.
  bool has_spare(const CachedSequence& sequence, int64_t n_tokens, int64_t n_sequences) const;
  // Appends tokens whose rows a step of this role has stored.
  void append(CachedSequence& sequence, std::span<const int32_t> tokens, Role role = Role::prefill);
  // The history of these tokens, of which the runs `decoded` were decoded.
  std::vector<int32_t> history(std::span<const int32_t> tokens, std::span<const TokenRun> decoded) const;
  // Removes all tokens from `n_tokens` on.
  void truncate(CachedSequence& sequence, int64_t n_tokens);
  // The same after a decode step, for guesses that were wrong: their pages stay reserved and the buffer is
  // kept. A row of theirs in the buffer is stored again before a step can select its position.
  void cut(CachedSequence& sequence, int64_t n_tokens);

  // Called with the number of missing pages: releases that many pages and returns the number released; 0:
  // none is left to release. A page becomes free only when its last user releases it.
  using Reclaim = std::function<int64_t(int64_t n_pages)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  // A page's users are the sequences that hold it and the callers that retained it.
  void retain(const PoolPage& page) override;
  void release(const PoolPage& page) override;
  // Takes a free page, with the caller as its only user; nothing when no page is free even after reclaiming.
  std::optional<PoolPage> take_page();
  // Replaces the sequence's content by this history, whose rows are in these pages [ceil(n_tokens /
  // kPageTokens)]. The sequence becomes one more user of each page.
  void adopt(CachedSequence& sequence, std::span<const PoolPage> pages, std::span<const int32_t> history);

  // A page's rows of one layer in the host pool, [kPageTokens, row_bytes]. Steps read what the host writes
  // there only after publish(). Any thread may call this while the cache exists.
  uint8_t* page_rows(const PoolPage& page, int64_t layer) const;
  // The keys of each page, [n_layers, key_page_bytes], in the device's layout. Waits for all work, so that
  // the pages' rows are in the pool too.
  std::vector<std::vector<uint8_t>> download_keys(std::span<const PoolPage> pages);
  // Uploads the pages' keys, and makes their rows that the host wrote visible to the devices.
  void publish(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);

 private:
  void make_free(const std::function<int64_t()>& n_lacking);
  bool last_page_is_shared(const CachedSequence& sequence) const;
  void own_last_page(CachedSequence& sequence);
  int64_t slot_pages_for(const CachedSequence& sequence, int64_t n_pages) const;
  void check_slots(const CachedSequence& sequence, int64_t n_pages) const;
  void give_slots(CachedSequence& sequence, bool keeps);

  CachePlan plan_;
  bool roles_agree_ = true;  // of all devices
  std::vector<std::unique_ptr<StageCache>> stages_;
  std::vector<StageCache*> stage_of_layer_;  // [n_layers]
  PagePool pages_, slot_pages_;
  Reclaim reclaim_;
  std::vector<int64_t> free_numbers_;
};

}  // namespace dsv32
