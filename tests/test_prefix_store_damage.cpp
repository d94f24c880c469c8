// The prefix store when its files are damaged: a miss, never an error, never a wrong byte.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

namespace {

namespace stdfs = std::filesystem;

void flip(std::string& bytes, uint64_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
}

// The two places of a segment's file that hold its header's checksum, made right again after a change.
void seal(std::string& segment) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(segment.data(), 4080));
  std::memcpy(&segment[4080], sum.digest, sizeof sum.digest);
  std::memcpy(&segment[segment.size() - 4096 + 16], sum.digest, sizeof sum.digest);
}

template <typename Number>
void put(std::string& bytes, size_t offset, Number number) {
  std::memcpy(&bytes[offset], &number, sizeof number);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(prefix_store_damage, DamageFixture)

// --- segments ------------------------------------------------------------------------------------

// T6, with the index and without.
BOOST_AUTO_TEST_CASE(truncated_and_grown_segments_are_misses) {
  const stdfs::path victim = segments()[0];
  const std::string whole = files.at(victim);
  std::mt19937 random(1);
  std::vector<size_t> lengths = {whole.size() - 1, whole.size() + 1, whole.size() + 4096, whole.size() * 2,
                                 1};
  for (size_t length = 0; length < whole.size(); length += 512) lengths.push_back(length);
  for (int i = 0; i < 400; ++i) lengths.push_back(random() % whole.size());
  for (const size_t length : lengths) {
    restore();
    std::string cut = whole;
    cut.resize(length, '\0');
    write_file(victim, cut);
    if (length % 2) stdfs::remove(index());
    const auto found = load_all(options);
    BOOST_REQUIRE(found);
    BOOST_TEST(found->n_wrong == 0);
    BOOST_TEST(found->prompts.size() < 3u, length);
    BOOST_TEST(!stdfs::exists(victim));
  }
}

// A file cut while it is open: the reads come up short, nothing is mapped that could fault.
BOOST_AUTO_TEST_CASE(a_segment_truncated_while_it_is_open_is_a_miss) {
  const auto store = open();
  const StoredSegment first = store->segments()[0];
  PageMemory memory({}, 1);
  BOOST_TEST(store->load_pages(first.id, 0, memory.targets()));
  for (const auto& segment : segments()) stdfs::resize_file(segment, 8192 + 100);
  BOOST_TEST(!store->load_pages(first.id, 0, memory.targets()));
  BOOST_TEST(warnings.size() == 1u);
}

namespace {

// T7. What a flip in a segment may do: make it damaged, or touch padding only.
void flip_segment_bits(const stdfs::path& victim, const std::string& whole, std::span<const int32_t> prompt,
                       int n_flips, unsigned seed) {
  std::mt19937_64 random(seed);
  const int directory = ::open(victim.parent_path().c_str(), O_RDONLY | O_DIRECTORY);
  SegmentFault fault = SegmentFault::none;
  const SegmentInfo before =
      SegmentFile::open(real_file_system(), directory, victim.filename().string(), fault)->info();
  PageMemory expected({}, before.n_pages), loaded({}, before.n_pages);
  expected.fill(prompt.first(static_cast<size_t>((before.first_page + before.n_pages) * 64)),
                before.first_page);
  int n_silent = 0, n_found = 0;
  for (int i = 0; i < n_flips; ++i) {
    std::string bytes = whole;
    // Half of the flips hit the header's fields and tables, the tokens or the trailer.
    const uint64_t n_bits = bytes.size() * 8;
    flip(bytes, i % 2 ? random() % n_bits : i % 4 ? random() % (512 * 8) : n_bits - 1 - random() % (64 * 8));
    write_file(victim, bytes);
    const auto file = SegmentFile::open(real_file_system(), directory, victim.filename().string(), fault);
    if (!file || file->read_pages(0, 0, loaded.targets()) != SegmentFault::none) {
      ++n_found;
      continue;
    }
    n_silent +=
        file->info().tokens != before.tokens || file->info().chain != before.chain || !(loaded == expected);
  }
  ::close(directory);
  write_file(victim, whole);
  BOOST_TEST(n_silent == 0);
  BOOST_TEST(n_found > n_flips / 3);
}

}  // namespace

BOOST_AUTO_TEST_CASE(ten_thousand_flipped_bits_in_segments_give_no_wrong_byte) {
  const stdfs::path victim = segments()[0];
  flip_segment_bits(victim, files.at(victim), prompt, 10'000, 2);
}

BOOST_AUTO_TEST_CASE(flipped_bits_in_segments_are_misses_of_the_store) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    restore();
    for (const auto& [path, whole] : files) {
      if (path.extension() != ".kvs" || random() % 2) continue;
      std::string bytes = whole;
      flip(bytes, random() % (bytes.size() * 8));
      write_file(path, bytes);
    }
    const auto store = open();
    const Contents found = load_all(*store);
    BOOST_TEST(found.n_wrong == 0);
    if (found.n_missed > 0) BOOST_TEST(warnings.size() == 1u);
    BOOST_TEST(store_prompt(*store, prompt) == 3);  // what is missing can be stored again
    BOOST_TEST(load_all(*store).has(prompt));
  }
}

// A page is read slab by slab: each has a checksum of its own, and says nothing about the others.
BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_slab_is_found_when_it_is_read) {
  const PageSizes sizes{4, 4096, 512, 1};
  options = store_options(dir->file("slabs"), sizes);
  const auto two_pages = make_prompt(std::vector{6}, 2);
  store_prompt(*open(), two_pages, 2, sizes);
  const stdfs::path path = segments()[0];
  const std::string whole = read_file(path);
  constexpr size_t kSlabBytes = 8192;
  for (size_t slab = 0; slab < 4; ++slab)
    for (size_t page = 0; page < 2; ++page) {
      std::string bytes = whole;
      flip(bytes, (8192 + (slab * 2 + page) * kSlabBytes + (slab % 2 ? 4100 : 7)) * 8);
      write_file(path, bytes);
      const auto store = open();
      const int64_t id = store->segments()[0].id;
      PageMemory memory(sizes, 1);
      for (size_t other = 0; other < 4; ++other)
        if (other != slab)
          BOOST_TEST(store->load_pages(id, static_cast<int32_t>(page),
                                       memory.targets(static_cast<int64_t>(other), 1),
                                       static_cast<int64_t>(other)));
      BOOST_TEST(!store->load_pages(id, static_cast<int32_t>(page),
                                    memory.targets(static_cast<int64_t>(slab), 1),
                                    static_cast<int64_t>(slab)));
      BOOST_TEST(store->segments().empty());
      BOOST_TEST(!stdfs::exists(path));
      write_file(path, whole);
      stdfs::remove(index());
    }
  options.layers_per_slab = 2;  // pages cut otherwise are not believed
  BOOST_TEST(load_all(*open(), sizes).prompts.empty());
  options.layers_per_slab = 1;
  BOOST_TEST(load_all(*open(), sizes).has(two_pages));
}

// T13 and the like: headers that are well-formed and wrong.
BOOST_AUTO_TEST_CASE(headers_with_valid_checksums_and_wrong_fields_are_misses) {
  const stdfs::path victim = segments()[0];
  struct Case {
    const char* what;
    std::function<void(std::string&)> change;
    bool stays = false;
  };
  const std::vector<Case> cases = {
      {"magic", [](std::string& s) { s[0] = 'X'; }},
      {"version before", [](std::string& s) { put<uint32_t>(s, 8, 1); }},
      {"version after", [](std::string& s) { put<uint32_t>(s, 8, 3); }, true},
      {"other byte order", [](std::string& s) { put<uint32_t>(s, 12, 0x04030201); }},
      {"all of it in other byte order",
       [](std::string& s) { put<uint32_t>(s, 8, 1 << 24), put<uint32_t>(s, 12, 0x04030201); }},
      {"page of 128 tokens", [](std::string& s) { put<uint32_t>(s, 16, 128); }},
      {"no pages", [](std::string& s) { put<uint32_t>(s, 20, 0); }},
      {"too many pages", [](std::string& s) { put<uint32_t>(s, 20, UINT32_MAX); }},
      {"17 pages", [](std::string& s) { put<uint32_t>(s, 20, 17); }},
      {"negative position", [](std::string& s) { put<int64_t>(s, 24, -1); }},
      {"another position", [](std::string& s) { put<int64_t>(s, 24, 77); }},
      {"no layers", [](std::string& s) { put<int64_t>(s, 32, 0); }},
      {"many layers", [](std::string& s) { put<int64_t>(s, 32, INT64_MAX); }},
      {"large rows", [](std::string& s) { put<int64_t>(s, 40, INT64_MAX / 2); }},
      {"negative rows", [](std::string& s) { put<int64_t>(s, 40, -256); }},
      {"other rows", [](std::string& s) { put<int64_t>(s, 40, 255); }},
      {"large keys", [](std::string& s) { put<int64_t>(s, 48, int64_t{1} << 62); }},
      {"length", [](std::string& s) { put<uint64_t>(s, 56, UINT64_MAX); }},
      {"fingerprint", [](std::string& s) { s[64] ^= 1; }},
      {"end of the fingerprint", [](std::string& s) { s[95] ^= 1; }},
      {"parent", [](std::string& s) { s[96] ^= 1; }},
      {"chain", [](std::string& s) { s[128] ^= 1; }},
      {"no layers in a slab", [](std::string& s) { put<int64_t>(s, 160, 0); }},
      {"fewer layers in a slab", [](std::string& s) { put<int64_t>(s, 160, 1); }},
      {"more layers in a slab", [](std::string& s) { put<int64_t>(s, 160, 3); }},
      {"a slab's checksum", [](std::string& s) { s[168] ^= 1; }},
      {"tokens", [](std::string& s) { s[4096] ^= 1; }},
      {"commit mark", [](std::string& s) { s[s.size() - 4096] = 'X'; }},
  };
  for (const bool has_index : {true, false})
    for (const Case& c : cases) {
      restore();
      std::string bytes = files.at(victim);
      c.change(bytes);
      seal(bytes);
      write_file(victim, bytes);
      if (!has_index) stdfs::remove(index());
      const auto found = load_all(options);
      BOOST_REQUIRE(found);
      BOOST_TEST(found->n_wrong == 0, c.what);
      BOOST_TEST(found->prompts.size() < 3u, c.what);
      // Without the index, a segment that is whole in itself is believed to be what it says, and its page
      // fails later; what belongs to other prompts or other models then stays.
      const bool is_whole =
          !has_index && std::set<std::string>{"end of the fingerprint", "other rows"}.contains(c.what);
      BOOST_TEST(stdfs::exists(victim) == (c.stays || is_whole),
                 c.what << (has_index ? " with index" : " without"));
    }
}

BOOST_AUTO_TEST_CASE(pages_and_files_in_the_wrong_place_are_misses) {
  options.directory = dir->file("pages");
  const auto long_prompt = make_prompt(std::vector{4, 5}, 4);
  store_prompt(*open(), long_prompt, 4);
  const auto paths = segments();
  const std::string one = read_file(paths[0]), two = read_file(paths[1]);
  const auto swapped = [](std::string to, size_t to_page, const std::string& from, size_t from_page) {
    std::memcpy(&to[8192 + to_page * 4096], &from[8192 + from_page * 4096], 4096);
    return to;
  };
  const auto is_a_miss = [&](const char* what) {
    const auto found = load_all(options);
    BOOST_TEST(found->n_wrong == 0, what);
    BOOST_TEST(found->prompts.size() < 2u, what);
    for (const auto& path : segments()) stdfs::remove(path);
    write_file(paths[0], one), write_file(paths[1], two);
    stdfs::remove(index());
    BOOST_TEST(load_all(options)->has(long_prompt), what);
  };
  write_file(paths[0], swapped(swapped(one, 0, one, 1), 1, one, 0));
  is_a_miss("two pages exchanged");
  write_file(paths[0], swapped(one, 2, two, 2));
  is_a_miss("a page of another segment");
  write_file(paths[0], two);
  is_a_miss("another segment under this name");
  write_file(paths[0], two), write_file(paths[1], one);
  const auto exchanged = load_all(options);
  BOOST_TEST(exchanged->n_wrong == 0);
  BOOST_TEST(exchanged->prompts.empty());
  write_file(paths[0], one), write_file(paths[1], two);

  // In the directory of another fingerprint it is worth nothing.
  const std::string folder = options.directory + "/" + std::string(32, '0');
  stdfs::create_directory(folder);
  chmod(folder.c_str(), 0700);
  stdfs::copy_file(paths[0], folder + "/" + paths[0].filename().string());
  stdfs::remove(index());
  BOOST_TEST(load_all(options)->has(long_prompt));
  BOOST_TEST(stdfs::is_empty(folder));
}

// --- the index -----------------------------------------------------------------------------------

namespace {

void damage(std::string& index, std::mt19937_64& random) {
  constexpr size_t kPageBytes = 4096;
  const size_t n_pages = index.size() / kPageBytes;
  const size_t page = random() % n_pages * kPageBytes;
  switch (random() % 8) {
    case 0:
      for (int i = 0; i < 8; ++i) flip(index, random() % (index.size() * 8));
      break;
    case 1: std::memset(&index[page], 0, kPageBytes); break;
    case 2:
      for (size_t i = 0; i < kPageBytes; ++i) index[page + i] = static_cast<char>(random());
      break;
    case 3: index.resize(random() % index.size()); break;
    case 4:  // a page's header: type, cells, free blocks
      flip(index, (page + (page == 0 ? random() % 112 : random() % 12)) * 8 + random() % 8);
      break;
    default: flip(index, random() % (index.size() * 8));
  }
}

}  // namespace

// T7: the files are intact, so nothing may be lost, whatever the index says.
BOOST_AUTO_TEST_CASE(three_thousand_damaged_indexes_lose_nothing) {
  std::mt19937_64 random(5);
  const std::string whole = files.at(index());
  int n_rebuilt = 0;
  for (int i = 0; i < 3000; ++i) {
    restore();
    std::string bytes = whole;
    damage(bytes, random);
    write_file(index(), bytes);
    FileInfo before, after;
    const OwnedFd held(real_file_system(),
                       ::open(index().c_str(), O_RDONLY));  // or its inode could be given out again
    real_file_system().stat(held.get(), before);
    check_all_there(format("index %d", i));
    real_file_system().stat_at(AT_FDCWD, index(), after);
    n_rebuilt += before.inode != after.inode;
    BOOST_REQUIRE(warnings.size() <= 1u);
  }
  BOOST_TEST(n_rebuilt > 500);
}

BOOST_AUTO_TEST_CASE(files_that_are_no_index_of_ours_are_replaced) {
  const auto sql = [&](const char* text) {
    return [this, text] {
      sqlite3* database = nullptr;
      sqlite3_open(index().c_str(), &database);
      BOOST_TEST(sqlite3_exec(database, text, nullptr, nullptr, nullptr) == SQLITE_OK, text);
      sqlite3_close(database);
    };
  };
  const auto content = [&](const std::string& bytes) {
    return [this, bytes] { write_file(index(), bytes); };
  };
  std::string noise(20'000, '\0');
  std::mt19937 random(6);
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::string other_header = std::string("SQLite format 3\0", 16) + noise;
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"none", [&] { stdfs::remove(index()); }},
      {"empty", content("")},
      {"one byte", content("x")},
      {"noise", content(noise)},
      {"noise after a header", content(other_header)},
      {"a directory", [&] { stdfs::remove(index()), stdfs::create_directory(index()); }},
      {"a symbolic link", [&] { stdfs::remove(index()), stdfs::create_symlink("/etc/passwd", index()); }},
      {"a hard link", [&] { stdfs::create_hard_link(index(), dir->file("second")); }},
      {"another application", sql("PRAGMA application_id=1")},
      {"an older version", sql("PRAGMA user_version=0")},
      {"one more table", sql("CREATE TABLE more (x)")},
      {"a view", sql("CREATE VIEW more AS SELECT * FROM segment")},
      {"a trigger", sql("CREATE TRIGGER more AFTER INSERT ON segment BEGIN DELETE FROM tokens; END")},
      {"one index less", sql("DROP TABLE tokens; CREATE TABLE tokens (name TEXT, ids BLOB NOT NULL)")},
      {"no tokens", sql("DELETE FROM tokens")},
      {"tokens of others", sql("UPDATE tokens SET ids = (SELECT ids FROM tokens ORDER BY name LIMIT 1)")},
      {"tokens too long", sql("UPDATE tokens SET ids = zeroblob(1000000)")},
      {"tokens as text", sql("UPDATE tokens SET ids = 'text'")},
      {"no entries", sql("DELETE FROM segment")},
      {"one entry", sql("DELETE FROM segment WHERE first_page > 0")},
      {"other values", sql("UPDATE segment SET n_hits = n_hits + 1")},
      {"negative values", sql("UPDATE segment SET n_pages = -1, last_use = -5")},
      {"huge values", sql("UPDATE segment SET n_pages = 9223372036854775807")},
      {"parents in a circle", sql("UPDATE segment SET parent = chain")},
      {"a path for a name", sql("UPDATE segment SET name = '../../' || name")},
      {"entries for files that are not there", sql("INSERT INTO segment SELECT name || 'x', randomblob(32), "
                                                   "parent, fingerprint, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 "
                                                   "FROM segment")},
      {"more entries than files", sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE "
                                      "i < 20000) INSERT INTO segment SELECT "
                                      "hex(randomblob(16)), randomblob(32), randomblob(32), randomblob(32), "
                                      "0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM n")},
      {"a write-ahead log", sql("PRAGMA journal_mode=WAL")},
      {"a journal of another database", [&] { write_file(index() + "-journal", noise); }},
      {"a log of another database",
       [&] { write_file(index() + "-wal", noise), write_file(index() + "-shm", noise); }},
  };
  for (const auto& [what, make] : cases) {
    restore();
    make();
    check_all_there(what);
    BOOST_TEST(warnings.size() <= 1u, what);
    check_all_there(what);  // and at the next start as well
    stdfs::remove(dir->file("second"));
  }
}

BOOST_AUTO_TEST_CASE(an_index_of_a_newer_version_is_left_alone) {
  sqlite3* database = nullptr;
  sqlite3_open(index().c_str(), &database);
  sqlite3_exec(database, "PRAGMA user_version=1000", nullptr, nullptr, nullptr);
  sqlite3_close(database);
  const std::string before = read_file(index());
  const auto store = open();
  BOOST_TEST(!store->can_write());
  BOOST_TEST(load_all(*store).has(prompt));
  BOOST_TEST((read_file(index()) == before));
}

BOOST_AUTO_TEST_CASE(an_index_lost_or_replaced_while_it_is_open_is_found_again) {
  const auto store = open();
  stdfs::remove(index());
  BOOST_TEST(load_all(*store).has(prompt));
  stdfs::remove(index());
  BOOST_TEST(store_prompt(*store, make_prompt(std::vector{1, 4})) == 2);
  write_file(index(), files.at(index()));  // as it was before the last prompt
  BOOST_TEST(load_all(*store).has(prompt));
  std::string damaged = read_file(index());
  std::memset(&damaged[100], 0xff, 200);
  write_file(index(), damaged);
  BOOST_TEST(store_prompt(*store, make_prompt(std::vector{1, 5})) == 2);
  BOOST_TEST(load_all(options)->has(make_prompt(std::vector{1, 5})));
  // Another file under the index's name, to which others write: it counts from then on.
  write_file(dir->file("other_index"), read_file(index()));
  stdfs::rename(dir->file("other_index"), index());
  BOOST_TEST(store_prompt(*open(), make_prompt(std::vector{1, 8})) == 2);
  BOOST_TEST(load_all(*store).has(make_prompt(std::vector{1, 8})));
  stdfs::remove(options.directory + "/LOCK");  // a lock that is removed splits nobody's data
  BOOST_TEST(store_prompt(*open(), make_prompt(std::vector{1, 6})) == 2);
  BOOST_TEST(store_prompt(*store, make_prompt(std::vector{1, 6})) == 2);
  BOOST_TEST(load_all(options)->n_missed == 0);
}

BOOST_AUTO_TEST_CASE(a_directory_removed_while_it_is_open_is_a_miss) {
  const auto store = open();
  const auto segments_before = store->segments();
  stdfs::remove_all(options.directory);
  PageMemory memory({}, 1);
  BOOST_TEST(!store->load_pages(segments_before[0].id, 0, memory.targets()));
  BOOST_TEST(store_prompt(*store, make_prompt(std::vector{7})) == 0);
  BOOST_TEST(store->segments().empty());
  BOOST_TEST(warnings.size() <= 3u);
}

BOOST_AUTO_TEST_SUITE_END()
