// The pages on disk under one fingerprint, shared by processes and found by their names.
//
// Which pages there are is read once, from the names in the folder, and kept up to date with what this
// process does. Other processes' pages come and go unseen: a page that has gone is a miss, as is any doubt.
// No call throws: after a fault the program runs without the cache, with one line through `warn`, which any
// thread may call.
//
// An object must not be used after a fork. The program must ignore SIGXFSZ, or a limit on file sizes would
// end it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "prefix/cache_files.h"

namespace dsv32 {

class PageStore {
 public:
  // Null, after one warning, when the directory cannot be used; one that cannot be written is only read.
  // A missing one is created (its parents too), 0700.
  static std::unique_ptr<PageStore> open(const PrefixCacheOptions& options, const PageFormat& format);

  // Removes leftovers, and pages over the limits. One thread at a time with store().
  void tidy();

  // Any thread.
  bool has(const PageHash& page) const { return find(page).has_value(); }
  int64_t n_pages() const;
  bool can_write() const { return n_write_failures_ < kMaxWriteFailures; }
  const PageFormat& format() const { return format_; }

  // Reads a page that is there. A damaged one is removed with a warning; for a vanished one, false without a
  // warning. Any thread.
  bool load(const PageHash& page, std::span<const int32_t> tokens, const PageBytes& target);

  // Stores consecutive pages of a prompt; the first one begins the prompt, or continues a page that is there.
  // Evicts to stay under the limits. Returns how many of them are there then, durably.
  int64_t store(std::span<const NewPage> pages);

  // Notes on the disk that these pages of a path, from its beginning on, are used now. Any thread.
  void record_use(std::span<const PageHash> path);

  void discard(const PageHash& page);  // removes a page whose rows led to logits that are not finite
  void take_back();                    // removes all pages that this object wrote; not during store()

 private:
  static constexpr int kMaxWriteFailures = 3;

  PageStore(const PrefixCacheOptions& options, const PageFormat& format, CacheFiles files);
  OwnedFd open_folder() const { return files_.open_folder(format_.folder()); }
  std::optional<PageName> find(const PageHash& page) const;  // nothing: it is not there
  void forget(const PageHash& page);
  bool remove(const PageHash& page);
  bool has_room(uint64_t n_bytes, const PageHash& kept);
  int64_t write(int folder, std::span<const NewPage> pages);
  size_t write_together(int folder, std::span<const NewPage> pages);
  void warn_once(const std::string& reason);
  bool check_write(int64_t result);

  const PrefixCacheOptions options_;
  const PageFormat format_;
  const CacheFiles files_;
  std::vector<PageHash> written_;    // by store()
  uint64_t room_ = 0, n_since_ = 0;  // the bytes that fitted when it was looked, and those written since
  bool is_noted_ = false;            // the model's path

  mutable std::mutex mutex_;              // guards the containers below
  std::map<PageHash, PageHash> parents_;  // of the pages that are there
  std::set<std::string> warned_;
  std::atomic<int> n_write_failures_ = 0;
};

}  // namespace dsv32
