// What the segment files say, in one SQLite database, so that nobody reads them all at each start. Derived:
// whoever doubts it makes it anew from the files.
//
// SQLite is used with a rollback journal (TRUNCATE), which is safe with several processes; nothing is mapped
// into memory. It does not notice a flipped bit in a value: every entry carries a checksum, and its tokens
// are covered by the chain hash. A database of another schema, with triggers or views, is damaged.
//
// Functions throw IndexFailure. One thread at a time. Entries are read and written between begin and commit
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "context/eviction_policy.h"
#include "context/segment_file.h"
#include "context/wait_budget.h"

struct sqlite3;

namespace dsv32 {

// What the index holds about a segment.
struct IndexEntry {
  std::string name;     // 32 hexadecimal digits of the file's name
  SegmentInfo segment;  // tokens only where they were asked for
  UseRecord use;
};

// What was measured on the runs so far, for a fingerprint; 0: not yet.
struct CacheSpeeds {
  double read_bytes_per_second = 0, prefill_tokens_per_second = 0;
  bool operator==(const CacheSpeeds&) const = default;
};

struct IndexFailure : std::runtime_error {
  enum Kind {
    busy,     // another process holds it
    damaged,  // make it anew
    newer,    // of a later version: leave it alone
    fault,    // the disk, memory, permissions
  };
  IndexFailure(Kind kind_, const std::string& message) : std::runtime_error(message), kind(kind_) {}
  Kind kind;
};

class PrefixIndex {
 public:
  enum class Access { read, write };

  // The file must be there; an empty one becomes an index when `access` allows. `path` must not lead through
  // symbolic links.
  PrefixIndex(const std::string& path, Access access, WaitBudget& budget);
  PrefixIndex();  // in memory, empty
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // `budget` is what the transaction may wait, until it ends.
  void begin(Access access, WaitBudget& budget);
  void commit();
  void rollback() noexcept;  // nothing when no transaction is open

  int64_t n_entries();
  std::vector<IndexEntry> entries();                               // all, without tokens
  std::vector<IndexEntry> entries_of(const Hash256& fingerprint);  // with tokens, which match the chain hash
  std::optional<IndexEntry> find(const Hash256& chain);            // without tokens
  void insert(const IndexEntry& entry);                            // with tokens; its chain must not be there
  void erase(const std::string& name);                             // nothing when it is not there
  void update_use(const IndexEntry& entry);                        // an entry that was read here
  uint64_t next_time();                                            // later than every use so far
  CacheSpeeds speeds_of(const Hash256& fingerprint);               // zeros where none are kept
  void set_speeds(const Hash256& fingerprint, const CacheSpeeds& speeds);

 private:
  class Statement;
  void configure(Access access);
  void check_schema(Access access);
  void run(const char* sql);
  IndexEntry entry_of(Statement& statement, bool has_tokens);
  std::vector<IndexEntry> all_of(Statement& statement, bool has_tokens);

  static int on_busy(void* self, int n_calls);

  sqlite3* database_ = nullptr;
  WaitBudget* budget_ = nullptr;
};

}  // namespace dsv32
