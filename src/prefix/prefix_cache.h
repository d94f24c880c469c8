// Prefixes that outlive their sequence and process: the tree that lists them, the store on disk, and the
// transfers between disk and pool.
//
// restore() gives a prompt pages that it need not compute; remember() takes the pages that it has computed. A
// failure of the disk, or a lack of memory or threads, is a miss. All functions are for the computing thread;
// other threads read and write.
//
// Where the roles' bits differ, tree and store hold histories (CachedSequence::history) in place of tokens: a
// prompt finds a row that decode made only if it says that decode made it.
//
// Invariants: a page that a read or write job names is retained for it until the job is taken back; only
// whole pages are remembered; a page is stored after the pages before it.
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
  // Returns the fingerprint; nothing while it is unknown; another one than before once the model has changed.
  // Called before each store.
  using Identity = std::function<std::optional<Hash256>()>;
  // Until `identity` returns a fingerprint, and without a usable directory (after one warning), prefixes are
  // kept only in memory.
  PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity, const PrefixCacheOptions& options);
  // Stores the paths that wait. The sequences may be closed already. A thread whose read or write hangs is
  // left behind, and keeps the pool.
  ~PrefixCache();

  using Tokens = std::span<const int32_t>;
  using Runs = std::span<const TokenRun>;

  // Begins to read the stored prefix of `tokens`, where decode made those in the runs `decoded`; a restore()
  // of the same tokens uses this read.
  void prefetch(Tokens tokens, Runs decoded = {});

  // Whether restore() of these tokens would wait. If no other read is going on, begins to read them.
  enum class Readiness {
    is_ready,
    is_read,      // the current read brings pages for it
    waits_for_it  // its turn at the disk: the answer stays the same until n_changes() rises
  };
  Readiness readiness(Tokens tokens, Runs decoded = {});
  uint64_t n_changes() const { return n_reads_ended_ + tree_.n_changes(); }

  // `sequence` holds the first n_held of `tokens`, made by either role. Extends it to a longer prefix if one
  // is known and worth reading, but never to the last token. Returns how many tokens it holds.
  int64_t restore(CachedSequence& sequence, Tokens tokens, int64_t n_held, Runs decoded = {});

  // Cancels the current read; a request that still needs it must ask again.
  void end_reading();

  // `sequence` begins with this history: adds its whole pages to the tree, and stores them by the write
  // policy.
  void remember(const CachedSequence& sequence, Tokens history);

  // To be called before the sequence is closed.
  void forget(const CachedSequence& sequence);

  // Notes the speed of computing, with which restore() compares that of a read.
  void note_prefill(int64_t n_tokens, double seconds);

  // The logits after this history were not finite: removes its segments from the disk, and stores nothing
  // more.
  void distrust(Tokens history);

  // The model has changed: removes everything that this object stored, and stores nothing more.
  void disown();

  // Opens the store and gives the writer its next job, while no request calls. Returns whether more is left.
  bool tend();

  // Waits until everything that is to be stored is on the disk, or has failed.
  void flush();

  // Why the last restore() added nothing, as half a sentence; empty: it added pages.
  const char* why_none() const { return why_none_; }

  ReadStats read_stats() const { return store_ ? store_->read_stats() : ReadStats{}; }
  const PrefixTree& tree() const { return tree_; }
  bool is_unidentified() const { return identity_ && !fingerprint_; }  // the disk waits for the identity

 private:
  using Clock = Offload::Clock;
  using Deadline = Offload::Deadline;

  // Lack of memory leaves everything whole and is a miss. Errors have other causes and are thrown on.
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

  int64_t try_restore(CachedSequence& sequence, Tokens history, int64_t n_held);
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
  Identity identity_;  // empty: no disk is used
  std::optional<Hash256> fingerprint_;
  bool is_disowned_ = false;
  std::shared_ptr<PrefixStore> store_;  // null: no disk, or not open yet
  PrefixTree tree_;
  std::shared_ptr<PageReader> reader_;
  std::shared_ptr<PageWriter> writer_;

  // While the stored segments are being listed (heads_): those attached so far; until when prompts wait for
  // the rest, set by the first prompt that waits (a year: until the list is complete); and the prefix to read
  // then.
  std::shared_ptr<HeadReader> heads_;
  struct Attached {
    PrefixTree::PageRef last;  // page
    int64_t end_page = 0;
  };
  std::map<Hash256, Attached> attached_;
  std::optional<Deadline> heads_until_;
  std::vector<int32_t> prefetched_;

  // The current read: a path's pages from first_page on.
  struct Reading {
    std::vector<int32_t> tokens;  // of the path's whole pages
    int64_t first_page = 0;
    std::shared_ptr<ReadJob> job;
    PrefixTree::Lock lock;
    int64_t n_taken = 0;            // pages from the front that are published
    std::optional<Deadline> until;  // prompts wait until then; nothing: none waits yet
  };
  std::unique_ptr<Reading> reading_;
  uint64_t n_reads_ended_ = 0;
  std::list<std::shared_ptr<ReadJob>> reads_;  // the current one, and given-up ones with pages
  std::unordered_map<const CachedSequence*, PrefixTree::Lock> locks_;
  std::list<std::vector<int32_t>> to_store_;  // paths, whole pages
  bool is_storing_ = true;
  const char* why_none_ = "";
  CacheSpeeds former_;       // of earlier runs
  double prefill_rate_ = 0;  // tokens a second; 0: not known yet
  double read_rate_;         // bytes a second, estimated
  ReadStats noted_;          // read_stats() at the last estimate
};

}  // namespace dsv32
