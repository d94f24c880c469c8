// The prefix store when its files are damaged: a miss, never an error, never a wrong byte.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <functional>
#include <random>

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_damage, DamageFixture)

namespace {

namespace stdfs = std::filesystem;

void flip(std::string& bytes, uint64_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
}

// The checksum of a page's header, made right again after a change.
void seal(std::string& page) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(page.data(), 4080));
  std::memcpy(&page[4080], sum.digest, sizeof sum.digest);
}

template <typename Number>
void put(std::string& bytes, size_t offset, Number number) {
  std::memcpy(&bytes[offset], &number, sizeof number);
}

}  // namespace

// T6.
BOOST_AUTO_TEST_CASE(truncated_and_grown_pages_are_misses) {
  const stdfs::path victim = pages()[0];
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

namespace {

// T7. Whatever a flipped bit hits, the page is damaged.
void flip_page_bits(const DamageFixture& fixture, int n_flips) {
  const PageName name = names_of(fixture.prompt)[2];
  const std::string whole = fixture.files.at(fixture.path_of(name));
  const OwnedFd folder(real_file_system(),
                       real_file_system().open_directory(fixture.path_of(name).parent_path()));
  const PageFormat& format = fixture.options.format;
  const auto tokens = std::span(fixture.prompt).subspan(128, 64);
  std::mt19937_64 random(2);
  PageMemory loaded({}, 1);
  int n_silent = 0;
  for (int i = 0; i < n_flips; ++i) {
    std::string bytes = whole;
    // Half of the flips hit the header's fields.
    flip(bytes, random() % (i % 2 ? bytes.size() * 8 : 400 * 8));
    write_file(fixture.path_of(name), bytes);
    n_silent +=
        read_page(real_file_system(), folder.get(), format, name, tokens, loaded.at(0)) != PageFault::damaged;
    n_silent += verify_page(real_file_system(), folder.get(), format.folder(), name) != PageFault::damaged;
  }
  BOOST_TEST(n_silent == 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(ten_thousand_flipped_bits_give_no_wrong_byte) { flip_page_bits(*this, 10'000); }

BOOST_AUTO_TEST_CASE(flipped_bits_are_misses_of_the_store) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    restore();
    for (const auto& [path, whole] : files) {
      if (random() % 2) continue;
      std::string bytes = whole;
      flip(bytes, random() % (bytes.size() * 8));
      write_file(path, bytes);
    }
    const auto store = open();
    const Contents found = load_all(*store, options);
    BOOST_TEST(found.n_wrong == 0);
    if (found.n_missed > 0) BOOST_TEST(warnings.size() == 1u);
    // What is missing can be stored again. Damage behind it shows only when it is there: then once more.
    bool is_back = false;
    for (int again = 0; again < 3 && !is_back; ++again) {
      BOOST_TEST(store_prompt(*store, prompt) == 3);
      is_back = load_all(*store, options).has(prompt);
    }
    BOOST_TEST(is_back);
  }
}

// T13 and the like: headers that are well-formed and wrong.
BOOST_AUTO_TEST_CASE(headers_with_valid_checksums_and_wrong_fields_are_misses) {
  const stdfs::path victim = path_of(names_of(prompt)[1]);
  struct Case {
    const char* what;
    std::function<void(std::string&)> change;
  };
  const std::vector<Case> cases = {
      {"magic", [](std::string& s) { s[0] = 'X'; }},
      {"version", [](std::string& s) { s[6] = '2'; }},
      {"other byte order", [](std::string& s) { put<uint32_t>(s, 8, 0x04030201); }},
      {"page of 128 tokens", [](std::string& s) { put<uint32_t>(s, 12, 128); }},
      {"fingerprint", [](std::string& s) { s[16] ^= 1; }},
      {"end of the fingerprint", [](std::string& s) { s[47] ^= 1; }},
      {"no layers", [](std::string& s) { put<int64_t>(s, 48, 0); }},
      {"many layers", [](std::string& s) { put<int64_t>(s, 48, INT64_MAX); }},
      {"large rows", [](std::string& s) { put<int64_t>(s, 56, INT64_MAX / 2); }},
      {"negative rows", [](std::string& s) { put<int64_t>(s, 56, -256); }},
      {"large keys", [](std::string& s) { put<int64_t>(s, 64, int64_t{1} << 62); }},
      {"parent", [](std::string& s) { s[72] ^= 1; }},
      {"own name", [](std::string& s) { s[88] ^= 1; }},
      {"tokens", [](std::string& s) { s[104] ^= 1; }},
      {"a token's role", [](std::string& s) { s[107] ^= 0x40; }},
      {"the data's checksum", [](std::string& s) { s[360] ^= 1; }},
      {"the padding", [](std::string& s) { s[1000] ^= 1; }},
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
    BOOST_TEST(found->prompts.size() == 1u, c.what);
    BOOST_TEST(!stdfs::exists(victim), c.what);
  }
}

// A file that the disk holds nothing of is looked at in little memory.
BOOST_AUTO_TEST_CASE(a_huge_file_is_verified_in_little_memory) {
  const PageName name = names_of(prompt)[0];
  stdfs::resize_file(path_of(name), uint64_t{1} << 40);
  const OwnedFd folder(real_file_system(), real_file_system().open_directory(path_of(name).parent_path()));
  BOOST_TEST(
      (verify_page(real_file_system(), folder.get(), options.format.folder(), name) == PageFault::damaged));
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(!stdfs::exists(path_of(name)));
}

BOOST_AUTO_TEST_CASE(files_in_the_wrong_place_are_misses) {
  const std::vector<PageName> names = names_of(prompt);
  const std::string one = files.at(path_of(names[0])), two = files.at(path_of(names[1]));
  const auto is_a_miss = [&](const char* what, size_t n_left) {
    const auto found = load_all(options);
    BOOST_TEST(found->n_wrong == 0, what);
    BOOST_TEST(found->prompts.size() == n_left, what);
    restore();
    BOOST_TEST(load_all(options)->has(prompt), what);
  };
  write_file(path_of(names[1]), one);
  is_a_miss("another page under this name", 1);
  write_file(path_of(names[0]), two), write_file(path_of(names[1]), one);
  is_a_miss("two pages exchanged", 0);
  std::string mixed = two;
  mixed.replace(4096, std::string::npos, one, 4096, std::string::npos);
  write_file(path_of(names[1]), mixed);
  is_a_miss("the rows of another page", 1);
  stdfs::rename(path_of(names[1]), path_of({{}, names[1].own}));
  is_a_miss("a page behind another parent", 1);

  // In the folder of another fingerprint it is worth nothing.
  StoreOptions other = options;
  other.format.fingerprint.fill(9);
  const std::string folder = options.directory + "/" + other.format.folder();
  stdfs::create_directory(folder);
  chmod(folder.c_str(), 0700);
  stdfs::copy_file(path_of(names[0]), folder + "/" + names[0].file());
  BOOST_TEST(load_all(other)->prompts.empty());
  BOOST_TEST(load_all(options)->has(prompt));
  BOOST_TEST(stdfs::is_empty(folder));
}

BOOST_AUTO_TEST_CASE(pages_lost_or_replaced_while_the_store_is_open_are_found_again) {
  const auto store = open();
  for (const auto& path : pages()) stdfs::remove(path);
  PageMemory memory({}, 1);
  for (size_t i = 0; i < 3; ++i)
    BOOST_TEST(!store->load(names_of(prompt)[i].own, std::span(prompt).subspan(i * 64, 64), memory.at(0)));
  BOOST_TEST(store->n_pages() == 0);
  BOOST_TEST(store_prompt(*store, make_prompt({1, 4})) == 2);
  for (const auto& [path, bytes] : files) write_file(path, bytes);
  BOOST_TEST(load_all(*open(), options).has(prompt));
  BOOST_TEST(store_prompt(*store, prompt) == 3);
  BOOST_TEST(load_all(*store, options).has(prompt));
  BOOST_TEST(load_all(*store, options).has(make_prompt({1, 4})));
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(a_directory_removed_while_it_is_open_is_a_miss) {
  const auto store = open();
  stdfs::remove_all(options.directory);
  PageMemory memory({}, 1);
  BOOST_TEST(!store->load(names_of(prompt)[0].own, std::span(prompt).first(64), memory.at(0)));
  BOOST_TEST(store_prompt(*store, make_prompt({7})) == 0);
  BOOST_TEST(warnings.size() <= 3u);
}

BOOST_AUTO_TEST_SUITE_END()
