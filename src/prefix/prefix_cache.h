// Prefixes that outlive their sequence and process: the tree of those in memory, the store on disk, and the
// transfers between disk and pool.
//
// restore() gives a prompt pages that it need not compute; remember() takes the pages that it has computed.
// In memory a prefix ends at any token, on disk at the end of a page. A failure of the disk, or a lack of
// memory or threads, is a miss; Errors have other causes and are thrown on. All functions are for the
// computing thread; other threads read and write.
//
// Where the roles' bits differ, tree and store hold histories (CachedSequence::history) in place of tokens: a
// prompt finds a row that decode made only if it says that decode made it.
//
// Invariants: a page that a read or write job names is retained for it until the job is taken back; only
// whole pages are remembered; a page is stored after the pages before it.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/thread.h"
#include "context/latent_cache.h"
#include "prefix/page_store.h"
#include "prefix/prefix_cache_options.h"
#include "prefix/prefix_tree.h"

namespace dsv32 {

class PrefixCache {
 public:
  // Returns the fingerprint; nothing while it is unknown; another one than before once the model has changed.
  // Called before each store.
  using Identity = std::function<std::optional<Hash256>()>;
  // Until `identity` returns a fingerprint, and without a usable directory (after one warning), prefixes are
  // kept only in memory.
  PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity, const PrefixCacheOptions& options);
  // Stores the paths that wait. The sequences may be closed already.
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
  // is known, but never to the last token. Returns how many tokens it holds.
  int64_t restore(CachedSequence& sequence, Tokens tokens, int64_t n_held, Runs decoded = {});

  // Cancels the current read; a request that still needs it must ask again.
  void end_reading();

  // `sequence` begins with this history: adds its whole pages to the tree, and stores them by the write
  // policy.
  void remember(const CachedSequence& sequence, Tokens history);
  void forget(const CachedSequence& sequence);  // to be called before the sequence is closed

  // Notes the speed of computing, which bounds how long a prompt waits for the disk.
  void note_prefill(int64_t n_tokens, double seconds);

  // The logits after this history were not finite: removes its pages from the disk, and stores nothing more.
  void discard(Tokens history);
  // The model has changed: removes everything that this object stored, and stores nothing more.
  void remove_stored();

  // Opens the store and gives the writer its next job, while no request calls. Returns whether more is left.
  bool store_more();
  // Waits until everything that is to be stored is on the disk, or has failed.
  void flush();

  const char* why_none() const { return why_none_; }  // the last restore() added nothing; empty: it did not
  const PrefixTree& tree() const { return tree_; }
  const PageStore* store() const { return store_.get(); }              // null: no disk, or not open yet
  bool is_unidentified() const { return identity_ && !fingerprint_; }  // the disk waits for the identity

 private:
  using Clock = Offload::Clock;
  using Deadline = Offload::Deadline;

  // More than keep a disk busy: while some threads read, others verify.
  static constexpr int64_t kReaders = 16;

  bool is_opening() const { return identity_ && !(opening_ && opening_->is_over); }
  void open_store();
  const char* why_nothing(Tokens wanted) const;

  int64_t try_restore(CachedSequence& sequence, Tokens history, int64_t n_held);
  PrefixTree::Lock lock_pages(Tokens tokens);
  void use(const PrefixTree::Match& match);
  int64_t reclaim(int64_t n_pages);

  struct Opening {
    std::shared_ptr<PageStore> store;  // null: it cannot be opened
    std::atomic<bool> is_over = false;
  };
  // A page being read. While its state is `reading`, its keys and its rows in the pool belong to a thread.
  struct PageRead {
    enum State { waiting, reading, there, failed };
    PrefixPage page;
    std::vector<uint8_t> keys = {};  // [n_layers, key_page_bytes], once it is read and until it is taken
    std::atomic<State> state = waiting;
  };
  // The read of a path's pages from first_page on. Those at the front go to the tree while others are read.
  struct ReadJob {
    std::vector<int32_t> path;  // tokens of whole pages
    int64_t first_page = 0;
    std::deque<PageRead> pages;
    int64_t n_asked = 0, n_taken = 0;  // pages that the readers were given; that went to the tree
    PrefixTree::Lock lock;             // of the pages ahead, and of those taken
    std::optional<Deadline> until;     // prompts wait until then; nothing: none waits yet
    bool is_given_up = false;
    int64_t n_there() const;          // pages, from the front on
    bool has(int64_t n_pages) const;  // or no more will come
  };
  // A run of consecutive pages that is being stored.
  struct StoreJob {
    std::vector<PoolPage> held;
    std::vector<int32_t> tokens;             // [held, kPageTokens]
    std::vector<std::vector<uint8_t>> keys;  // [held][n_layers, key_page_bytes]
    std::vector<NewPage> pages;              // [held], in the three above
    std::atomic<bool> is_done = false, is_complete = false;
  };

  // prefix_reading.cpp
  Deadline deadline(int64_t n_tokens) const;
  std::vector<PageHash> stored_behind(Tokens wanted, const PrefixTree::Match& match) const;
  void begin_reading(Tokens wanted, int64_t n_held);
  int64_t pages_ahead() const;
  void ask_readers(const std::shared_ptr<ReadJob>& job);
  static void load_page(ReadJob& job, int64_t i, PageStore& store, LatentCache& pool);
  int64_t n_wanted(Tokens wanted) const;
  bool take_pages();
  Readiness receive(Tokens wanted, int64_t n_held, bool waits);
  void give_up(ReadJob& job);
  int64_t take_back_reads();

  static PageBytes bytes_of(const LatentCache& pool, const PoolPage& page, std::vector<uint8_t>& keys);
  void store_waiting(bool waits);
  void stop_storing();
  int64_t take_back_write(bool waits);
  std::shared_ptr<StoreJob> next_job();
  bool store_leaving(const PageHash& last, Tokens path);

  std::shared_ptr<LatentCache> pool_;
  const PrefixCacheOptions options_;
  Identity identity_;  // empty: no disk is used
  std::optional<Hash256> fingerprint_;
  std::shared_ptr<Opening> opening_;  // from when the identity is known
  std::shared_ptr<PageStore> store_;  // null: no disk, or not open yet
  std::shared_ptr<Offload> readers_, writer_;
  PrefixTree tree_;
  std::shared_ptr<ReadJob> reading_;           // the current one
  std::list<std::shared_ptr<ReadJob>> reads_;  // it, and given-up ones with pages
  std::shared_ptr<StoreJob> writing_;
  std::unordered_map<const CachedSequence*, PrefixTree::Lock> locks_;
  std::list<std::vector<int32_t>> to_store_;  // paths, whole pages
  bool is_storing_ = true, is_model_changed_ = false, write_hangs_ = false, read_hangs_ = false;
  uint64_t n_reads_ended_ = 0;
  const char* why_none_ = "";
  double prefill_rate_ = 0;  // tokens a second; 0: not known yet
};

}  // namespace dsv32
