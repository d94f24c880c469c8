// The prefix store when its files are damaged: a miss, never an error, never a wrong byte.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "prefix/cache_directory.h"
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

// T6.
BOOST_AUTO_TEST_CASE(truncated_and_grown_segments_are_misses) {
  const stdfs::path victim = segment_files()[0];
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
  BOOST_TEST(store->load_pages({first.chain, 0}, memory.targets()));
  for (const auto& segment : segment_files()) stdfs::resize_file(segment, 8192 + 100);
  BOOST_TEST(!store->load_pages({first.chain, 0}, memory.targets()));
  BOOST_TEST(warnings.size() == 1u);
}

namespace {

// T7. A flip in a segment makes it damaged, or touches the padding of its tokens.
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
    if (!file || file->read_pages(0, loaded.targets()) != SegmentFault::none) {
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
  const stdfs::path victim = segment_files()[0];
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
    // What is missing can be stored again. Damage behind it shows only when it is there: then once more.
    bool is_back = false;
    for (int again = 0; again < 3 && !is_back; ++again) {
      BOOST_TEST(store_prompt(*store, prompt) == 3);
      is_back = load_all(*store).has(prompt);
    }
    BOOST_TEST(is_back);
  }
}

// Each page has a checksum of its own, of all that it is in the file, and says nothing about the others.
BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_part_of_a_page_is_found_when_it_is_read) {
  const PageSizes sizes{4, 4096, 500};
  constexpr size_t kPageBytes = 5 * 4096;
  options = store_options(dir->file("pages"), sizes);
  const auto two_pages = make_prompt({6}, 2);
  store_prompt(*open(), two_pages, 2, sizes);
  const stdfs::path path = segment_files()[0];
  const std::string whole = read_file(path);
  for (const size_t at : {size_t{7}, size_t{3 * 4096 + 9}, size_t{4 * 4096 + 1999}, kPageBytes - 1})
    for (const int32_t page : {0, 1})
      for (const bool is_aligned : {false, true}) {
        std::string bytes = whole;
        flip(bytes, (8192 + static_cast<size_t>(page) * kPageBytes + at) * 8);
        write_file(path, bytes);
        const auto store = open();
        const Hash256 segment = store->segments()[0].chain;
        PageMemory memory(sizes, 1, is_aligned);
        BOOST_TEST(store->load_pages({segment, 1 - page}, memory.targets()));
        BOOST_TEST(!store->load_pages({segment, page}, memory.targets()));
        BOOST_TEST(store->segments().empty());
        BOOST_TEST(!stdfs::exists(path));
      }
  write_file(path, whole);
  BOOST_TEST(load_all(*open(), sizes).has(two_pages));
}

// T13 and the like: headers that are well-formed and wrong.
BOOST_AUTO_TEST_CASE(headers_with_valid_checksums_and_wrong_fields_are_misses) {
  const stdfs::path victim = segment_files()[0];
  struct Case {
    const char* what;
    std::function<void(std::string&)> change;
    bool stays = false;
  };
  const std::vector<Case> cases = {
      {"magic", [](std::string& s) { s[0] = 'X'; }},
      {"version before", [](std::string& s) { put<uint32_t>(s, 8, 2); }},
      {"version after", [](std::string& s) { put<uint32_t>(s, 8, 4); }, true},
      {"other byte order", [](std::string& s) { put<uint32_t>(s, 12, 0x04030201); }},
      {"all of it in other byte order",
       [](std::string& s) { put<uint32_t>(s, 8, 1 << 24), put<uint32_t>(s, 12, 0x04030201); }},
      {"page of 128 tokens", [](std::string& s) { put<int64_t>(s, 16, 128); }},
      {"fingerprint", [](std::string& s) { s[24] ^= 1; }},
      {"end of the fingerprint", [](std::string& s) { s[55] ^= 1; }},
      {"parent", [](std::string& s) { s[56] ^= 1; }},
      {"chain", [](std::string& s) { s[88] ^= 1; }},
      {"negative position", [](std::string& s) { put<int64_t>(s, 120, -1); }},
      {"another position", [](std::string& s) { put<int64_t>(s, 120, 77); }},
      {"no pages", [](std::string& s) { put<int64_t>(s, 128, 0); }},
      {"too many pages", [](std::string& s) { put<int64_t>(s, 128, INT64_MAX); }},
      {"17 pages", [](std::string& s) { put<int64_t>(s, 128, 17); }},
      {"no layers", [](std::string& s) { put<int64_t>(s, 136, 0); }},
      {"many layers", [](std::string& s) { put<int64_t>(s, 136, INT64_MAX); }},
      {"large rows", [](std::string& s) { put<int64_t>(s, 144, INT64_MAX / 2); }},
      {"negative rows", [](std::string& s) { put<int64_t>(s, 144, -256); }},
      {"other rows", [](std::string& s) { put<int64_t>(s, 144, 255); }},
      {"large keys", [](std::string& s) { put<int64_t>(s, 152, int64_t{1} << 62); }},
      {"a page's checksum", [](std::string& s) { s[168] ^= 1; }},
      {"length", [](std::string& s) { put<uint64_t>(s, s.size() - 4096 + 8, UINT64_MAX); }},
      {"tokens", [](std::string& s) { s[4096] ^= 1; }},
      {"commit mark", [](std::string& s) { s[s.size() - 4096] = 'X'; }},
  };
  for (const Case& c : cases) {
    restore();
    std::string bytes = files.at(victim);
    c.change(bytes);
    seal(bytes);
    write_file(victim, bytes);
    const auto found = load_all(options);
    BOOST_REQUIRE(found);
    BOOST_TEST(found->n_wrong == 0, c.what);
    BOOST_TEST(found->prompts.size() < 3u, c.what);
    // A segment that is whole in itself is believed to be what it says, and its pages fail when they are
    // read; what belongs to other prompts or other models stays until then.
    const bool is_whole = std::set<std::string>{"end of the fingerprint", "other rows"}.contains(c.what);
    BOOST_TEST(stdfs::exists(victim) == (c.stays || is_whole), c.what);
  }
}

// A head that says layers of a GB, in a file as long as it says, of which the disk holds nothing: it is
// looked at in little memory.
BOOST_AUTO_TEST_CASE(a_segment_that_says_it_is_huge_is_verified_in_little_memory) {
  const stdfs::path victim = segment_files()[0];
  std::string bytes = files.at(victim);
  SegmentFault fault = SegmentFault::none;
  SegmentInfo info;
  FileInfo file;
  const OwnedFd folder(real_file_system(), real_file_system().open_directory(victim.parent_path()));
  fault = SegmentFile::read_info(real_file_system(), folder.get(), victim.filename().string(), info, file);
  BOOST_REQUIRE((fault == SegmentFault::none));
  info.rows_page_bytes = 1 << 24, info.n_layers = 64;  // 1 GB a page
  put<int64_t>(bytes, 136, info.n_layers), put<int64_t>(bytes, 144, info.rows_page_bytes);
  put<uint64_t>(bytes, bytes.size() - 4096 + 8, info.file_bytes());
  seal(bytes);
  const std::string trailer = bytes.substr(bytes.size() - 4096);
  write_file(victim, bytes.substr(0, 8192));
  stdfs::resize_file(victim, info.file_bytes());
  const int fd = ::open(victim.c_str(), O_WRONLY);
  BOOST_TEST(::pwrite(fd, trailer.data(), 4096, static_cast<off_t>(info.file_bytes() - 4096)) == 4096);
  ::close(fd);
  const auto cache = open_directory();
  const auto rss = [] {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line) && !line.starts_with("VmHWM:")) {
    }
    return line.empty() ? 0 : std::stol(line.substr(6));  // KiB
  };
  const long before = rss();
  const Verification found = verify(*cache, true);
  BOOST_TEST(rss() - before < 100'000);
  BOOST_TEST(found.damaged.size() == 1u);
  BOOST_TEST(found.n_segments == 3);
  BOOST_TEST(!stdfs::exists(victim));
}

BOOST_AUTO_TEST_CASE(pages_and_files_in_the_wrong_place_are_misses) {
  options.directory = dir->file("pages");
  const auto long_prompt = make_prompt({4, 5}, 4);
  store_prompt(*open(), long_prompt, 4);
  const auto paths = segment_files();
  const std::string one = read_file(paths[0]), two = read_file(paths[1]);
  const auto swapped = [](std::string to, size_t to_page, const std::string& from, size_t from_page) {
    to.replace(8192 + to_page * 4096, 4096, from, 8192 + from_page * 4096, 4096);
    return to;
  };
  const auto is_a_miss = [&](const char* what) {
    const auto found = load_all(options);
    BOOST_TEST(found->n_wrong == 0, what);
    BOOST_TEST(found->prompts.size() < 2u, what);
    for (const auto& path : segment_files()) stdfs::remove(path);
    write_file(paths[0], one), write_file(paths[1], two);
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
  BOOST_TEST(load_all(options)->has(long_prompt));
  const auto cache = open_directory();
  BOOST_TEST(list_segments(*cache, "").size() == 2u);
  BOOST_TEST(verify(*cache, true).damaged.size() == 1u);
  BOOST_TEST(stdfs::is_empty(folder));
}

// --- heads ---------------------------------------------------------------------------------------

// T7 for all heads at once: each start reads them all, and what one says harms no other.
BOOST_AUTO_TEST_CASE(three_thousand_damaged_heads_cost_themselves_alone) {
  constexpr size_t kHeadBytes = 4096 + 64 * sizeof(int32_t);  // header and tokens
  std::mt19937_64 random(5);
  for (int i = 0; i < 3000; ++i) {
    restore();
    const stdfs::path victim = segment_files()[random() % 3];
    std::string bytes = files.at(victim);
    switch (random() % 4) {
      case 0: flip(bytes, random() % (4096 * 8)); break;
      case 1: std::memset(&bytes[random() % 8 * 512], 0, 512); break;
      case 2:
        for (size_t at = random() % kHeadBytes, n = 0; n < 512 && at < kHeadBytes; ++at, ++n)
          bytes[at] = static_cast<char>(random());
        break;
      default: bytes.resize(random() % 8192);
    }
    const bool is_changed = bytes != files.at(victim);
    write_file(victim, bytes);
    const auto store = open();
    const Contents found = load_all(*store);
    BOOST_REQUIRE(found.n_wrong == 0);
    if (is_changed) BOOST_REQUIRE(found.prompts.size() < 3u);
    BOOST_REQUIRE(warnings.size() <= 1u);
    BOOST_REQUIRE(store_prompt(*store, prompt) == 3);  // what was lost, and no more, is written anew
    BOOST_REQUIRE(load_all(*store).has(prompt));
    BOOST_REQUIRE(segment_files().size() == 3u);
  }
}

BOOST_AUTO_TEST_CASE(segments_lost_or_replaced_while_the_store_is_open_are_found_again) {
  const auto store = open();
  const auto first = segment_files();
  for (const auto& path : first) stdfs::remove(path);
  BOOST_TEST(load_all(*store).prompts.empty());
  BOOST_TEST(store_prompt(*store, make_prompt({1, 4})) == 2);
  for (const auto& path : first) write_file(path, files.at(path));
  BOOST_TEST(load_all(*store).has(prompt));
  BOOST_TEST(load_all(*store).has(make_prompt({1, 4})));
  stdfs::remove(options.directory + "/LOCK");  // a lock that is removed splits nobody's data
  BOOST_TEST(store_prompt(*open(), make_prompt({1, 6})) == 2);
  BOOST_TEST(store_prompt(*store, make_prompt({1, 6})) == 2);
  BOOST_TEST(load_all(options)->n_missed == 0);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(a_directory_removed_while_it_is_open_is_a_miss) {
  const auto store = open();
  const auto segments_before = store->segments();
  stdfs::remove_all(options.directory);
  PageMemory memory({}, 1);
  BOOST_TEST(!store->load_pages({segments_before[0].chain, 0}, memory.targets()));
  BOOST_TEST(store_prompt(*store, make_prompt({7})) == 0);
  BOOST_TEST(store->segments().empty());
  BOOST_TEST(warnings.size() <= 3u);
}

BOOST_AUTO_TEST_SUITE_END()
