// Prefixes that survive their sequence, and their process: the tree that knows them, the store on disk, and
// the traffic between disk and pool.
//
// The one idea: the tree says what there is, and everything else only moves pages. A prompt asks with
// restore() and gets pages it does not compute; what it computes it hands over with remember(). Whatever
// fails on the disk's side is a miss. All functions are for the thread that computes; reading and writing go
// on beside it.
//
// Pages come from the disk layer by layer. A sequence takes them when their first layers are there, and the
// step that follows waits before each layer for what of it is still missing. All of it is there when the step
// ends, or the step is abandoned: then the sequence gives these pages up.
//
// Invariants: a page that a read or write job names is retained for it until the job is taken back; only
// whole pages are remembered; a page is in the tree when all its layers are in the pool; a page is stored
// after the pages ahead of it.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "context/latent_cache.h"
#include "context/prefix_store.h"
#include "context/prefix_tree.h"
#include "engine/page_arrival.h"
#include "engine/page_reader.h"
#include "engine/page_writer.h"
#include "engine/prefix_cache_options.h"

namespace dsv32 {

// Ends a step: a layer of a restored prefix did not come.
struct LayersLost : Error {
  LayersLost() : Error(ErrorKind::io, "a remembered prefix could not be read to its end") {}
};

class PrefixCache {
 public:
  // `fingerprint`: of all that decides the bytes of a page. Without a usable directory prefixes are
  // remembered in memory alone, after one warning.
  PrefixCache(LatentCache& pool, const std::array<uint8_t, 32>& fingerprint,
              const PrefixCacheOptions& options);
  // Stores what is waiting to be stored. The sequences may be closed already.
  ~PrefixCache();

  // Begins to read what is known of `tokens`; a restore() of them goes on with it.
  void prefetch(std::span<const int32_t> tokens);

  // `sequence` holds the first n_held of `tokens`. If a longer prefix is known, and worth bringing in, it
  // holds that afterwards; the last token is never among it. Returns how many tokens it holds. Of what it
  // holds, layers may still be on their way: the next step is its own, and may end with LayersLost.
  int64_t restore(Sequence& sequence, std::span<const int32_t> tokens, int64_t n_held);

  // The sequence's next step will wait for layers that are on their way.
  bool is_arriving() const { return reading_ && reading_->reader; }

  // The step after restore() did not come to its end. If layers are still on their way, the sequence gives up
  // the pages that lack them. Returns how many of its n_held tokens it holds then.
  int64_t abandon(Sequence& sequence, int64_t n_held);

  // `sequence` holds `tokens`: its whole pages are known from now on, and stored as the write policy says.
  void remember(const Sequence& sequence, std::span<const int32_t> tokens);

  // The sequence is about to be closed.
  void forget(const Sequence& sequence);

  // So many tokens were computed in so many seconds: what a hit is compared with.
  void note_prefill(int64_t n_tokens, double seconds);

  // What was computed behind these tokens made no sense: what is on disk of them is removed, and nothing is
  // stored from now on.
  void distrust(std::span<const int32_t> tokens);

  // Waits until all that the policy wants stored is on the disk, or has failed.
  void flush();

  // Nothing is read any more. False when a read hangs: it may write to the pool for as long as the process
  // lives, so that neither the pool nor its backend may go.
  bool stop_reading();

  ReadStats read_stats() const { return store_ ? store_->read_stats() : ReadStats{}; }
  const PrefixTree& tree() const { return tree_; }
  bool is_on_disk() const { return store_ != nullptr; }

 private:
  using Clock = std::chrono::steady_clock;

  static std::span<const int32_t> first_pages(std::span<const int32_t> tokens, int64_t n_pages);
  void load_index();
  double read_rate() const;
  void keep_speeds();
  bool is_worth_reading(int64_t n_tokens, int64_t n_pages) const;
  static double timeout_seconds(int64_t n_tokens);  // for pages of so many, with PrefetchPolicy::timeout
  std::optional<Clock::time_point> deadline(int64_t n_tokens) const;
  double prefill_seconds(int64_t n_tokens) const;

  // prefix_cache_reading.cpp
  void begin_reading(std::span<const int32_t> tokens, int64_t n_held);
  void receive_first_layers();
  void drop_failed(const DiskPage& failed);
  std::vector<PoolPage> usable_pages(const PrefixTree::Match& match) const;
  void keep_arriving(Sequence& sequence, std::span<const PoolPage> held);
  void wait_for_layer(int64_t layer);
  void finish_reading();
  void end_reading();
  void end(std::unique_ptr<PageArrival> arrival);
  void take_back_reads();

  void use(const PrefixTree::Match& match);
  void lock(const Sequence& sequence, std::span<const int32_t> tokens);

  uint64_t least_hits() const;
  void pump(bool waits);
  void take_back_write(std::unique_ptr<StoreJob> job);
  std::unique_ptr<StoreJob> next_job();
  std::unique_ptr<StoreJob> make_job(std::span<const int32_t> path, PageRun run);
  void store_leaving(const PrefixTree::Leaving& leaving);

  LatentCache& pool_;
  PrefixCacheOptions options_;
  std::shared_ptr<PrefixStore> store_;  // null: no disk
  PrefixTree tree_;
  std::unique_ptr<PageReader> reader_;
  std::unique_ptr<PageWriter> writer_;

  // The read that is going on: pages first_page, ... of `tokens`. The page that the prompt leaves in its
  // middle is read at once as a whole, since its sequence takes a copy of it.
  struct Reading {
    std::vector<PrefixPage> wanted() const;

    std::vector<int32_t> tokens;  // whole pages, up to the last one
    int64_t first_page = 0;
    std::unique_ptr<PageArrival> pages, last;  // last: null when there is no such page
    PrefixTree::Lock lock;
    Clock::time_point begun;
    Sequence* reader = nullptr;  // that computes behind the pages, from restore() on
    double patience = 0;         // seconds that its step may still wait
  };
  std::unique_ptr<Reading> reading_;
  std::list<std::unique_ptr<PageArrival>> ended_reads_;  // nobody waits for them; pages to be given back
  std::unordered_map<const Sequence*, PrefixTree::Lock> locks_;
  std::list<std::vector<int32_t>> to_store_;  // paths, whole pages
  bool is_storing_ = true;
  CacheSpeeds former_;       // of earlier runs
  double prefill_rate_ = 0;  // tokens a second; 0: not known yet
};

}  // namespace dsv32
