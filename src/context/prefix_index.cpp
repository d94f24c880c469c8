#include "context/prefix_index.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <sqlite3.h>
#include <xxhash.h>

#include "backend/cache_layout.h"
#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int kApplicationId = 0x44533332;  // "DS32"
constexpr int kVersion = 2;
constexpr int kMaxValueBytes = 1 << 20;  // of one value in the database; the largest of ours is 4 KiB
constexpr size_t kNameDigits = 32;

// Tokens are a table of their own: what chooses victims reads all entries and no tokens.
constexpr const char* kTables[] = {
    "CREATE TABLE segment (name TEXT PRIMARY KEY, chain BLOB NOT NULL UNIQUE, parent BLOB NOT NULL, "
    "fingerprint BLOB NOT NULL, first_page INTEGER NOT NULL, n_pages INTEGER NOT NULL, n_layers INTEGER NOT "
    "NULL, "
    "rows_page_bytes INTEGER NOT NULL, keys_page_bytes INTEGER NOT NULL, layers_per_slab INTEGER NOT NULL, "
    "last_use INTEGER NOT NULL, "
    "created INTEGER NOT NULL, n_hits INTEGER NOT NULL, priority INTEGER NOT NULL, checksum INTEGER NOT "
    "NULL) "
    "WITHOUT ROWID",
    "CREATE TABLE tokens (name TEXT PRIMARY KEY, ids BLOB NOT NULL)",
    "CREATE TABLE speeds (fingerprint BLOB PRIMARY KEY, read_rate REAL NOT NULL, prefill_rate REAL NOT NULL) "
    "WITHOUT ROWID",
};
constexpr const char* kColumns =
    "SELECT segment.name, chain, parent, fingerprint, first_page, n_pages, n_layers, rows_page_bytes, "
    "keys_page_bytes, layers_per_slab, "
    "last_use, created, n_hits, priority, checksum";

[[noreturn]] void fail_damaged(const char* what) { throw IndexFailure(IndexFailure::damaged, what); }

[[noreturn]] void fail_as(sqlite3* database, int result) {
  const std::string message = database ? sqlite3_errmsg(database) : sqlite3_errstr(result);
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: throw IndexFailure(IndexFailure::busy, message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_SCHEMA:
    case SQLITE_READONLY:  // a header that forbids writing; where the directory does, nobody writes
    case SQLITE_ERROR:     // a table or column that is not there
      throw IndexFailure(IndexFailure::damaged, message);
    case SQLITE_IOERR:  // reading past the end of a file that was cut short
      if (result == SQLITE_IOERR_SHORT_READ) throw IndexFailure(IndexFailure::damaged, message);
      [[fallthrough]];
    default: throw IndexFailure(IndexFailure::fault, message);
  }
}

bool is_name(const std::string& name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Over everything of an entry but its tokens, one field after the other.
int64_t checksum_of(const IndexEntry& entry) {
  std::vector<uint8_t> bytes;
  const auto add = [&](const void* from, size_t n) {
    const uint8_t* begin = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), begin, begin + n);
  };
  const auto add_number = [&](auto number) {
    const uint64_t wide = static_cast<uint64_t>(number);
    add(&wide, sizeof wide);
  };
  const SegmentInfo& segment = entry.segment;
  add(entry.name.data(), entry.name.size());
  for (const Hash256& hash : {segment.chain, segment.parent, segment.fingerprint})
    add(hash.data(), hash.size());
  for (const int64_t number : {segment.first_page, segment.n_pages, segment.n_layers, segment.rows_page_bytes,
                               segment.keys_page_bytes, segment.layers_per_slab})
    add_number(number);
  add_number(entry.use.last_use), add_number(entry.use.created), add_number(entry.use.n_hits);
  add_number(entry.use.priority);
  return static_cast<int64_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace

// A prepared statement; parameters are bound and columns read from left to right.
class PrefixIndex::Statement {
 public:
  Statement(sqlite3* database, const std::string& sql) : database_(database) {
    check(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement_, nullptr));
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int64_t value) { return check(sqlite3_bind_int64(statement_, ++n_bound_, value)); }
  Statement& bind(double value) { return check(sqlite3_bind_double(statement_, ++n_bound_, value)); }
  Statement& bind(const std::string& text) {
    return check(sqlite3_bind_text(statement_, ++n_bound_, text.data(), static_cast<int>(text.size()),
                                   SQLITE_TRANSIENT));
  }
  Statement& bind(std::span<const uint8_t> bytes) {
    return check(sqlite3_bind_blob(statement_, ++n_bound_, bytes.data(), static_cast<int>(bytes.size()),
                                   SQLITE_TRANSIENT));
  }

  // True when there is a row to read.
  bool step() {
    n_read_ = 0;
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE)
      fail_as(database_, sqlite3_extended_errcode(database_));
    return result == SQLITE_ROW;
  }

  int64_t number() {
    if (sqlite3_column_type(statement_, n_read_) != SQLITE_INTEGER)
      fail_damaged("the index holds a value of another type");
    return sqlite3_column_int64(statement_, n_read_++);
  }
  double real() {
    if (sqlite3_column_type(statement_, n_read_) != SQLITE_FLOAT)
      fail_damaged("the index holds a value of another type");
    return sqlite3_column_double(statement_, n_read_++);
  }
  std::string text() {
    const std::span<const uint8_t> bytes = value(SQLITE_TEXT);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const uint8_t> blob() { return value(SQLITE_BLOB); }
  Hash256 hash() {
    const std::span<const uint8_t> bytes = blob();
    Hash256 hash{};
    if (bytes.size() != hash.size()) fail_damaged("the index holds a hash of another length");
    std::ranges::copy(bytes, hash.begin());
    return hash;
  }

 private:
  Statement& check(int result) {
    if (result != SQLITE_OK) fail_as(database_, sqlite3_extended_errcode(database_));
    return *this;
  }
  std::span<const uint8_t> value(int type) {
    if (sqlite3_column_type(statement_, n_read_) != type)
      fail_damaged("the index holds a value of another type");
    const void* bytes = sqlite3_column_blob(statement_, n_read_);
    const int n_bytes = sqlite3_column_bytes(statement_, n_read_++);
    if (!bytes || n_bytes < 0) return {};
    return {static_cast<const uint8_t*>(bytes), static_cast<size_t>(n_bytes)};
  }

  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int n_bound_ = 0, n_read_ = 0;
};

PrefixIndex::PrefixIndex(const std::string& path, Access access, WaitBudget& budget) : budget_(&budget) {
  const int flags = (access == Access::write ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY) |
                    SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  try {
    const int result = sqlite3_open_v2(path.c_str(), &database_, flags, nullptr);
    if (result != SQLITE_OK) fail_as(database_, result);
    sqlite3_busy_handler(database_, on_busy, this);
    configure(access);
    check_schema(access);
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
  budget_ = nullptr;
}

PrefixIndex::PrefixIndex() {
  try {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_NOMUTEX;
    const int result = sqlite3_open_v2(":memory:", &database_, flags, nullptr);
    if (result != SQLITE_OK) fail_as(database_, result);
    for (const char* table : kTables) run(table);
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
}

PrefixIndex::~PrefixIndex() { sqlite3_close(database_); }

int PrefixIndex::on_busy(void* self, int) {
  WaitBudget* budget = static_cast<PrefixIndex*>(self)->budget_;
  return budget && budget->wait() ? 1 : 0;
}

void PrefixIndex::run(const char* sql) {
  Statement statement(database_, sql);
  while (statement.step()) {
  }
}

void PrefixIndex::configure(Access access) {
  sqlite3_limit(database_, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  sqlite3_db_config(database_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(database_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(database_, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  for (const char* pragma : {"PRAGMA trusted_schema=OFF", "PRAGMA cell_size_check=ON", "PRAGMA mmap_size=0",
                             "PRAGMA synchronous=FULL", "PRAGMA temp_store=MEMORY"})
    run(pragma);
  if (access == Access::read) return;
  {
    // An index that is made here shrinks with what it lists. Said to one that is there, it would be written.
    Statement pages(database_, "PRAGMA page_count");
    if (pages.step() && pages.number() == 0) run("PRAGMA auto_vacuum=FULL");
  }
  Statement journal(database_, "PRAGMA journal_mode=TRUNCATE");
  if (!journal.step() || journal.text() != "truncate") fail_damaged("the index keeps no rollback journal");
}

// Makes the tables in an empty database; anything but exactly these tables is no index of ours.
void PrefixIndex::check_schema(Access access) {
  begin(access, *budget_);
  const auto pragma = [&](const char* sql) {
    Statement statement(database_, sql);
    return statement.step() ? statement.number() : 0;
  };
  std::vector<std::string> found;
  Statement schema(database_, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid");
  while (schema.step()) found.push_back(schema.text());

  const int64_t application = pragma("PRAGMA application_id"), version = pragma("PRAGMA user_version");
  if (application == kApplicationId && version > kVersion)
    throw IndexFailure(IndexFailure::newer, "the index is of a newer version");
  if (found.empty() && application == 0 && version == 0 && access == Access::write) {
    for (const char* table : kTables) run(table);
    run(format("PRAGMA application_id=%d", kApplicationId).c_str());
    run(format("PRAGMA user_version=%d", kVersion).c_str());
  } else if (application != kApplicationId || version != kVersion || !std::ranges::equal(found, kTables)) {
    fail_damaged("the index is of another kind");
  }
  commit();
}

void PrefixIndex::begin(Access access, WaitBudget& budget) {
  budget_ = &budget;
  run(access == Access::write ? "BEGIN IMMEDIATE" : "BEGIN");
}

void PrefixIndex::commit() {
  run("COMMIT");
  budget_ = nullptr;
}

void PrefixIndex::rollback() noexcept {
  if (!sqlite3_get_autocommit(database_)) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  budget_ = nullptr;
}

IndexEntry PrefixIndex::entry_of(Statement& statement, bool has_tokens) {
  IndexEntry entry;
  SegmentInfo& segment = entry.segment;
  entry.name = statement.text();
  segment.chain = statement.hash(), segment.parent = statement.hash(), segment.fingerprint = statement.hash();
  segment.first_page = statement.number(), segment.n_pages = statement.number();
  segment.n_layers = statement.number();
  segment.rows_page_bytes = statement.number(), segment.keys_page_bytes = statement.number();
  segment.layers_per_slab = statement.number();
  entry.use.last_use = static_cast<uint64_t>(statement.number());
  entry.use.created = static_cast<uint64_t>(statement.number());
  entry.use.n_hits = static_cast<uint64_t>(statement.number());
  entry.use.priority = static_cast<int32_t>(statement.number());
  if (statement.number() != checksum_of(entry)) fail_damaged("an entry of the index has another checksum");
  if (!is_name(entry.name) || !segment.has_sane_sizes())
    fail_damaged("an entry of the index holds other values");
  if (!has_tokens) return entry;
  const std::span<const uint8_t> ids = statement.blob();
  segment.tokens.resize(static_cast<size_t>(segment.n_pages * kPageTokens));
  if (ids.size() != segment.tokens.size() * sizeof(int32_t)) fail_damaged("the index holds too few tokens");
  std::memcpy(segment.tokens.data(), ids.data(), ids.size());
  if (chain_next(segment.parent, segment.first_page, segment.tokens) != segment.chain)
    fail_damaged("the index holds other tokens");
  return entry;
}

std::vector<IndexEntry> PrefixIndex::all_of(Statement& statement, bool has_tokens) {
  std::vector<IndexEntry> all;
  while (statement.step()) all.push_back(entry_of(statement, has_tokens));
  return all;
}

int64_t PrefixIndex::n_entries() {
  Statement statement(database_, "SELECT count(*) FROM segment");
  return statement.step() ? statement.number() : 0;
}

std::vector<IndexEntry> PrefixIndex::entries() {
  Statement statement(database_, std::string(kColumns) + " FROM segment");
  return all_of(statement, false);
}

// A LEFT JOIN: an entry whose tokens are gone shows up, as damage.
std::vector<IndexEntry> PrefixIndex::entries_of(const Hash256& fingerprint) {
  Statement statement(database_, std::string(kColumns) +
                                     ", ids FROM segment LEFT JOIN tokens ON tokens.name = segment.name "
                                     "WHERE fingerprint = ?");
  statement.bind(fingerprint);
  return all_of(statement, true);
}

std::optional<IndexEntry> PrefixIndex::find(const Hash256& chain) {
  Statement statement(database_, std::string(kColumns) + " FROM segment WHERE chain = ?");
  statement.bind(chain);
  if (!statement.step()) return std::nullopt;
  return entry_of(statement, false);
}

void PrefixIndex::insert(const IndexEntry& entry) {
  const SegmentInfo& segment = entry.segment;
  Statement statement(database_, "INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  statement.bind(entry.name).bind(segment.chain).bind(segment.parent).bind(segment.fingerprint);
  statement.bind(segment.first_page).bind(segment.n_pages).bind(segment.n_layers);
  statement.bind(segment.rows_page_bytes).bind(segment.keys_page_bytes).bind(segment.layers_per_slab);
  statement.bind(static_cast<int64_t>(entry.use.last_use)).bind(static_cast<int64_t>(entry.use.created));
  statement.bind(static_cast<int64_t>(entry.use.n_hits))
      .bind(int64_t{entry.use.priority})
      .bind(checksum_of(entry));
  statement.step();
  const std::span<const uint8_t> ids(reinterpret_cast<const uint8_t*>(segment.tokens.data()),
                                     segment.tokens.size() * sizeof(int32_t));
  Statement(database_, "INSERT OR REPLACE INTO tokens VALUES (?, ?)").bind(entry.name).bind(ids).step();
}

void PrefixIndex::erase(const std::string& name) {
  Statement(database_, "DELETE FROM segment WHERE name = ?").bind(name).step();
  Statement(database_, "DELETE FROM tokens WHERE name = ?").bind(name).step();
}

void PrefixIndex::update_use(const IndexEntry& entry) {
  Statement statement(database_, "UPDATE segment SET last_use = ?, n_hits = ?, checksum = ? WHERE name = ?");
  statement.bind(static_cast<int64_t>(entry.use.last_use)).bind(static_cast<int64_t>(entry.use.n_hits));
  statement.bind(checksum_of(entry)).bind(entry.name).step();
}

uint64_t PrefixIndex::next_time() {
  Statement statement(database_, "SELECT ifnull(max(last_use), 0) FROM segment");
  return statement.step() ? static_cast<uint64_t>(statement.number()) + 1 : 1;
}

// Wrong ones cost time and never an answer, so that they need no checksum; those that make no sense are none.
CacheSpeeds PrefixIndex::speeds_of(const Hash256& fingerprint) {
  Statement statement(database_, "SELECT read_rate, prefill_rate FROM speeds WHERE fingerprint = ?");
  statement.bind(fingerprint);
  if (!statement.step()) return {};
  const auto sane = [](double rate) { return rate > 0 && rate < 1e15 ? rate : 0; };
  const double read = statement.real(), prefill = statement.real();
  return {sane(read), sane(prefill)};
}

void PrefixIndex::set_speeds(const Hash256& fingerprint, const CacheSpeeds& speeds) {
  Statement statement(database_, "INSERT OR REPLACE INTO speeds VALUES (?, ?, ?)");
  statement.bind(fingerprint).bind(speeds.read_bytes_per_second).bind(speeds.prefill_tokens_per_second);
  statement.step();
}

}  // namespace dsv32
