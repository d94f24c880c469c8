// Prefixes that survive their sequence, and their process: the tree that knows them, the store on disk, and
// the traffic between disk and pool.
//
// A prompt asks with restore() and gets pages it does not compute; what it computes it hands over with
// remember(). Whatever fails on the disk's side, or for lack of memory or threads, is a miss. All functions
// are for the thread that computes; reading and writing go on beside it.
//
// Where the roles' bits differ, tree and store know histories (Timeline::history) in place of tokens: a row
// that decode made is found only by a prompt that says that decode made it there.
//
// Invariants: a page that a read or write job names is retained for it until the job is taken back; only
// whole pages are remembered; a page is stored after the pages ahead of it.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "context/latent_cache.h"
#include "prefix/prefix_cache_options.h"
#include "prefix/prefix_store.h"
#include "prefix/prefix_tree.h"
#include "prefix/store_threads.h"

namespace dsv32 {

class PrefixCache {
 public:
  // The fingerprint of all that decides the bytes of a page, once it is known; nothing when what it stands
  // for has changed. Never waits. Asked before anything is stored.
  using Identity = std::function<std::optional<Hash256>()>;
  // Until `identity` tells, and without a usable directory (after one warning), prefixes are remembered in
  // memory alone.
  PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity, const PrefixCacheOptions& options);
  // Stores what waits to be stored. The timelines may be closed already. A read or write that hangs is left
  // behind, and keeps the pool.
  ~PrefixCache();

  using Tokens = std::span<const int32_t>;
  using Runs = std::span<const TokenRun>;

  // Begins to read what is known of `tokens`, those in the runs decoded; a restore() of them goes on with it.
  void prefetch(Tokens tokens, Runs decoded = {});

  // Whether restore() of these tokens would wait. If nothing else is being read, reading them begins.
  enum class Readiness {
    is_ready,
    is_read,      // what is read has a use for it
    waits_for_it  // for its turn at the disk: the answer is the same until n_changes() has risen
  };
  Readiness readiness(Tokens tokens, Runs decoded = {});
  uint64_t n_changes() const { return n_reads_ended_ + tree_.n_changes(); }

  // `timeline` holds the first n_held of `tokens`, by whatever role, and then a longer prefix, if one is
  // known and worth reading; the last token is never among it. Returns how many tokens it holds.
  int64_t restore(Timeline& timeline, Tokens tokens, int64_t n_held, Runs decoded = {});

  // Cancels the current read; a request that still needs it must ask again.
  void end_reading();

  // `timeline` begins with this history: its whole pages are known from now on, and stored by the write
  // policy.
  void remember(const Timeline& timeline, Tokens history);

  // The timeline is about to be closed.
  void forget(const Timeline& timeline);

  // So many tokens were computed in so many seconds: what a hit is compared with.
  void note_prefill(int64_t n_tokens, double seconds);

  // What was computed behind this history made no sense: it is removed from the disk, and nothing more is
  // stored.
  void distrust(Tokens history);

  // The model is not what was hashed: what this object stored is removed, and nothing more is stored.
  void disown();

  // Gives the disk what it may take now, while no request asks. Returns whether there is more.
  bool tend();

  // Waits until all that the policy wants stored is on the disk, or has failed.
  void flush();

  // Why restore() last brought nothing in, as half a sentence; empty: it did.
  const char* why_none() const { return why_none_; }

  ReadStats read_stats() const { return store_ ? store_->read_stats() : ReadStats{}; }
  const PrefixTree& tree() const { return tree_; }
  bool is_unidentified() const { return identity_ && !is_identified_; }  // the disk waits for the identity

 private:
  using Clock = Offload::Clock;
  using Deadline = Offload::Deadline;

  // A failure for lack of memory leaves everything whole and is a miss. Errors have other causes.
  template <typename Body>
  void attempt(const Body& body) {
    or_miss<Error>(body, &why_none_);
  }

  void open_store();
  void take_heads(Deadline until);
  Deadline heads_until(int64_t n_tokens);
  void attach(const StoredSegment& segment);

  void note_reading();
  void keep_speeds();
  bool is_worth_reading(int64_t n_tokens, int64_t n_pages);
  Deadline deadline(int64_t n_tokens) const;
  double prefill_seconds(int64_t n_tokens) const;

  int64_t try_restore(Timeline& timeline, Tokens history, int64_t n_held);
  PrefixTree::Lock lock_pages(Tokens tokens);
  void use(const PrefixTree::Match& match);
  int64_t reclaim(int64_t n_pages);

  // prefix_cache_reading.cpp
  void begin_reading(Tokens wanted, int64_t n_held);
  bool ask_for(const std::shared_ptr<ReadJob>& job, std::span<const PrefixPage> pages);
  int64_t n_wanted(Tokens wanted) const;
  bool lacks_pages(Tokens wanted) const;
  PageReader::Progress take(Deadline until);
  void receive(Tokens wanted);
  void publish(int64_t begin, int64_t end);
  void insert_received(int64_t n_pages);
  void give_up(ReadJob& job);
  int64_t take_back_reads();

  // prefix_cache_storing.cpp
  void pump(bool waits);
  bool may_store();
  void stop_storing();
  std::unique_ptr<StoreJob> take_back_write(bool waits);
  std::unique_ptr<StoreJob> next_job();
  std::unique_ptr<StoreJob> make_job(Tokens path, PageRun run);
  bool store_leaving(Tokens leaving);

  std::shared_ptr<LatentCache> pool_;
  PrefixCacheOptions options_;
  Identity identity_;  // empty: there is no disk to ask it for
  bool is_identified_ = false, is_disowned_ = false;
  std::shared_ptr<PrefixStore> store_;  // null: no disk, or none yet
  PrefixTree tree_;
  std::shared_ptr<PageReader> reader_;
  std::shared_ptr<PageWriter> writer_;

  // While the disk says what it has: what it said so far; until when prompts wait for the rest, which the
  // first one that waits decides (a year: for all); and what is to be read then.
  std::shared_ptr<HeadReader> heads_;
  struct Attached {
    PrefixTree::Place place;
    int64_t end_page = 0;
  };
  std::map<Hash256, Attached> attached_;
  std::optional<Deadline> heads_until_;
  std::vector<int32_t> prefetched_;

  // The read that is going on: of a path, the pages from first_page on.
  struct Reading {
    std::vector<int32_t> tokens;  // of the path's whole pages
    int64_t first_page = 0;
    std::shared_ptr<ReadJob> job;
    PrefixTree::Lock lock;
    int64_t n_taken = 0;            // pages from the front that are published
    std::optional<Deadline> until;  // as long it is waited for; nothing: no prompt waits yet
  };
  std::unique_ptr<Reading> reading_;
  uint64_t n_reads_ended_ = 0;
  std::list<std::shared_ptr<ReadJob>> reads_;  // this, and those given up: their pages are to be given back
  std::unordered_map<const Timeline*, PrefixTree::Lock> locks_;
  std::list<std::vector<int32_t>> to_store_;  // paths, whole pages
  bool is_storing_ = true;
  const char* why_none_ = "";
  CacheSpeeds former_;       // of earlier runs
  double prefill_rate_ = 0;  // tokens a second; 0: not known yet
  double read_rate_;         // bytes a second, as far as it is believed
  ReadStats noted_;          // what it was made of
};

}  // namespace dsv32
