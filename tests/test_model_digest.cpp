// prefix/model_digest.h: all bytes count, paths do not; what was hashed is remembered, and any doubt means
// hashing again.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "gguf/random_weights.h"
#include "prefix/model_digest.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/plain_files.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(model_digest)

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kEverything = UINT64_MAX;

std::string random_bytes(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::string bytes(n, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.next());
  return bytes;
}

struct Parts {
  std::vector<MappedFile> files;
  explicit Parts(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) files.emplace_back(path);
  }
};

struct Digested {
  std::optional<Hash256> value;
  uint64_t n_bytes;
};

// Of a model that is hashed before anything else, remembered however new it is.
Digested digest(const std::vector<std::string>& paths, const std::string& directory = {},
                size_t n_threads = 1) {
  const ModelDigest found(Parts(paths).files, {.directory = directory, .most_hashed_first = kEverything},
                          n_threads, std::chrono::nanoseconds(0));
  return {found.value(), found.n_bytes_hashed()};
}

// A model and a directory that knows its digest.
struct Remembered {
  TempDir dir;
  std::string path = dir.file("model"), cache = dir.file("cache");
  Digested first;
  Remembered() {
    write_file(path, random_bytes(100'000, 1));
    first = digest({path}, cache);
    BOOST_REQUIRE(first.value);
    BOOST_REQUIRE(first.n_bytes == 100'000u);
  }
  std::string memory() const {
    for (const auto& entry : fs::directory_iterator(cache)) return entry.path();
    return {};
  }
  void check_known() const {
    const Digested again = digest({path}, cache);
    BOOST_TEST((again.value == first.value));
    BOOST_TEST(again.n_bytes == 0u);
  }
  void check_hashed_again(bool is_same) const {
    const Digested again = digest({path}, cache);
    BOOST_TEST(again.value.has_value());
    BOOST_TEST((again.value == first.value) == is_same);
    BOOST_TEST(again.n_bytes == fs::file_size(path));
  }
};

void set_written(const std::string& path, const FileStamp& stamp) {
  const timespec time{stamp.written_ns / 1'000'000'000, stamp.written_ns % 1'000'000'000};
  const timespec times[2] = {time, time};
  BOOST_REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_byte_counts_and_no_path) {
  const TempDir dir;
  const std::string bytes = random_bytes(3000, 1);
  write_file(dir.file("model"), bytes);
  const std::optional<Hash256> value = digest({dir.file("model")}).value;
  BOOST_REQUIRE(value);
  write_file(dir.file("moved"), bytes);
  BOOST_TEST((digest({dir.file("moved")}, {}, 4).value == value));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] ^= 1;
    write_file(dir.file("other"), other);
    if (digest({dir.file("other")}).value == value) BOOST_ERROR("byte " << at << " does not count");
  }
  for (const std::string& other : {bytes + '\0', bytes.substr(1), bytes.substr(0, 2999)}) {
    write_file(dir.file("other"), other);
    BOOST_TEST((digest({dir.file("other")}).value != value));
  }
  // The same bytes in two parts, in either order, cut here or there.
  std::vector<Hash256> cut{*value};
  for (const size_t n : {size_t{1000}, size_t{2000}}) {
    write_file(dir.file("a"), bytes.substr(0, n));
    write_file(dir.file("b"), bytes.substr(n));
    cut.push_back(*digest({dir.file("a"), dir.file("b")}).value);
    cut.push_back(*digest({dir.file("b"), dir.file("a")}).value);
  }
  std::ranges::sort(cut);
  BOOST_TEST((std::ranges::adjacent_find(cut) == cut.end()));
}

// Pieces are put together in their order, whoever hashed them when.
BOOST_AUTO_TEST_CASE(threads_and_the_background_do_not_show) {
  const TempDir dir;
  const std::string path = dir.file("model");
  write_file(path, random_bytes(1000, 1));
  fs::resize_file(path, 3 * ModelDigest::kPieceBytes + 1000);
  const Digested alone = digest({path});
  BOOST_REQUIRE(alone.value);
  BOOST_TEST((digest({path}, {}, 3).value == alone.value));
  const ModelDigest beside(Parts({path}).files, {.most_hashed_first = 0}, 2);
  while (!beside.value()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  BOOST_TEST((beside.value() == alone.value));
  write_file(path, random_bytes(1000, 1));
  fs::resize_file(path, 3 * ModelDigest::kPieceBytes);
  std::ofstream(path, std::ios::app) << std::string(1000, 'x');
  BOOST_TEST((digest({path}).value != alone.value));
}

BOOST_AUTO_TEST_CASE(the_next_start_reads_nothing) {
  const Remembered known;
  known.check_known();
  known.check_known();
  struct stat info {};
  BOOST_REQUIRE(stat(known.memory().c_str(), &info) == 0);
  BOOST_TEST((info.st_mode & 0777) == 0600u);
  BOOST_TEST(info.st_size < 1000);
}

BOOST_AUTO_TEST_CASE(a_changed_file_is_hashed_again) {
  const Remembered known;
  const FileStamp stamp = MappedFile(known.path).stamp();
  FileStamp later = stamp;
  later.written_ns += 1;
  set_written(known.path, later);
  known.check_hashed_again(true);
  known.check_known();
  // The old time again: the time of that change shows.
  set_written(known.path, stamp);
  known.check_hashed_again(true);
  // Other bytes under the old time.
  std::string bytes = read_file(known.path);
  std::swap(bytes[50'000], bytes[50'001]);
  write_file(known.path, bytes);
  set_written(known.path, stamp);
  known.check_hashed_again(false);
  // Another file of the same bytes in its place.
  std::swap(bytes[50'000], bytes[50'001]);
  write_file(known.path + "2", bytes);
  set_written(known.path + "2", stamp);
  fs::rename(known.path + "2", known.path);
  known.check_hashed_again(true);
  known.check_known();
  fs::resize_file(known.path, 100'001);
  known.check_hashed_again(false);
}

BOOST_AUTO_TEST_CASE(a_damaged_memory_is_not_believed) {
  const Remembered known;
  const std::string path = known.memory(), bytes = read_file(path);
  const auto check = [&](const std::string& damaged, bool is_same = true) {
    write_file(path, damaged);
    known.check_hashed_again(is_same);
    BOOST_TEST(read_file(path) == bytes);
  };
  for (size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] ^= 0x20;
    check(damaged);
    check(bytes.substr(0, at));
  }
  check(bytes + 'x');
  check(bytes + bytes);
  // A fifo, a link and another model's memory; a folder, which stays.
  fs::remove(path);
  BOOST_REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  known.check_hashed_again(true);
  known.check_known();
  write_file(known.dir.file("elsewhere"), bytes);
  fs::remove(path);
  fs::create_symlink(known.dir.file("elsewhere"), path);
  known.check_hashed_again(true);
  known.check_known();
  fs::remove(path);
  fs::create_directories(path + "/full");
  known.check_hashed_again(true);
  known.check_hashed_again(true);
}

// Another change could leave the times of such a file the same.
BOOST_AUTO_TEST_CASE(a_new_file_is_not_remembered) {
  const TempDir dir;
  write_file(dir.file("model"), random_bytes(1000, 1));
  for (int i = 0; i < 2; ++i) {
    const ModelDigest found(Parts({dir.file("model")}).files,
                            {.directory = dir.file("cache"), .most_hashed_first = kEverything});
    BOOST_TEST(found.value().has_value());
    BOOST_TEST(found.n_bytes_hashed() == 1000u);
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_is_another_one_has_no_digest) {
  const TempDir dir;
  for (const char* how : {"written", "replaced", "shortened", "gone"}) {
    const std::string path = dir.file("model"), what = how;
    write_file(path, random_bytes(1000, 1));
    const Parts parts({path});
    if (what == "written") std::ofstream(path, std::ios::in | std::ios::out) << "x";
    if (what == "replaced") {
      write_file(path + "2", random_bytes(1000, 1));
      fs::rename(path + "2", path);
    }
    if (what == "shortened") fs::resize_file(path, 10);
    if (what == "gone") fs::remove(path);
    const ModelDigest found(parts.files, {.most_hashed_first = kEverything});
    BOOST_TEST(!found.value().has_value(), what);
  }
  BOOST_TEST(!ModelDigest({}, {}).value().has_value());
}

// What was hashed when a run ended is not hashed again.
BOOST_AUTO_TEST_CASE(hashing_goes_on_where_it_ended) {
  const TempDir dir;
  const std::string path = dir.file("model"), cache = dir.file("cache");
  write_file(path, "model");
  const uint64_t n_bytes = 12 * ModelDigest::kPieceBytes;
  fs::resize_file(path, n_bytes);
  uint64_t n_first = 0;
  {
    const ModelDigest ended(Parts({path}).files, {.directory = cache, .most_hashed_first = 0}, 1,
                            std::chrono::nanoseconds(0));
    while (ended.n_bytes_hashed() < 2 * ModelDigest::kPieceBytes)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    n_first = ended.n_bytes_hashed();
  }
  const Digested rest = digest({path}, cache);
  BOOST_TEST(rest.n_bytes <= n_bytes - n_first / ModelDigest::kPieceBytes * ModelDigest::kPieceBytes);
  BOOST_TEST((rest.value == digest({path}).value));
  BOOST_TEST(digest({path}, cache).n_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(without_memory_there_is_no_digest_at_worst) {
  const TempDir dir;
  write_file(dir.file("model"), random_bytes(1000, 1));
  const Parts parts({dir.file("model")});
  const std::optional<Hash256> expected = digest({dir.file("model")}).value;
  for (const uint64_t most_hashed_first : {uint64_t{0}, kEverything})
    for (const bool lasts : {false, true}) {
      const PrefixCacheOptions options{.directory = dir.file("cache"),
                                       .most_hashed_first = most_hashed_first};
      bool has_failed = true;
      for (int64_t n = 0; has_failed; ++n) {
        std::optional<Hash256> value;
        FailingAllocations failing(n, lasts);
        value = ModelDigest(parts.files, options).value();
        has_failed = failing.stop();
        BOOST_TEST((!value || value == expected));
      }
    }
}

BOOST_AUTO_TEST_CASE(all_that_decides_a_page_is_in_its_fingerprint) {
  const CacheLayout layout{KvType::fp8, 512, 64, 128};
  std::vector<Hash256> all;
  for (const Hash256& model : {Hash256{1}, Hash256{2}})
    for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32})
      for (const char* numerics : {"cpu/AVX2/epoch-1", "cpu/AVX3/epoch-1", "cpu/AVX2/epoch-2"}) {
        CacheLayout other = layout;
        other.kv_type = kv_type;
        all.push_back(fingerprint(model, other, numerics));
        BOOST_TEST((fingerprint(model, other, numerics) == all.back()));
      }
  std::ranges::sort(all);
  BOOST_TEST((std::ranges::adjacent_find(all) == all.end()));
}

BOOST_AUTO_TEST_SUITE_END()
