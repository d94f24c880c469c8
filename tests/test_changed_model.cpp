// A model file that is written to while it is in use: base/file.h says so, the engine gives no answer, and
// nothing that was computed stays on the disk.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "engine/loop.h"
#include "tests/support/apart_backend.h"
#include "tests/support/contains.h"
#include "tests/support/known_prompt.h"
#include "tests/support/plain_files.h"
#include "tests/support/stored_pages.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(changed_model)

using namespace dsv32::known_prompt;
namespace fs = std::filesystem;

namespace {

// In place; the bytes may even stay the same.
void write_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end).put(last);
}

// Changes a byte, and sets the mtime back.
void write_secretly(const std::string& path, off_t at) {
  struct stat before {};
  stat(path.c_str(), &before);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at).put(static_cast<char>(byte ^ 1));
  file.close();
  const timespec times[] = {before.st_atim, before.st_mtim};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
}

// So many bytes that no sampled block has the last one.
constexpr uintmax_t kLarge = 8 << 20;

// A model of its own, and a folder that may hold prefixes of it.
struct Changing {
  TinyFile model{least_shape()};
  EngineOptions options = options_in(model.dir.file("cache"));

  Changing() { options.max_seqs = 2; }

  size_t n_stored() const { return page_files(options.cache->directory).size(); }
  void change() const { write_byte(model.path); }
  void change_unsampled() const {
    write_secretly(model.path, static_cast<off_t>(fs::file_size(model.path)) - 1);
  }
  // Whether `is_so` within ten seconds, asked after each step of a run that stores.
  static bool comes_true(TinySequence& opened, const std::function<bool()>& is_so) {
    for (uint64_t seed = 100; seed < 200; ++seed) {
      opened.sequence->sync(random_tokens(2 * kPageTokens, seed));
      opened.engine->prefix_cache()->flush();
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
};

bool is_of_change(const Error& error) {
  return error.kind() == ErrorKind::model && contains(error.what(), "has changed since it was opened");
}

}  // namespace

// However soon it comes after the opening, and that after another one.
BOOST_AUTO_TEST_CASE(a_write_shows) {
  const TempDir dir;
  const std::string path = dir.file("model");
  for (int i = 0; i < 50; ++i) {
    write_file(path, "model");
    const MappedFile file(path);
    file.wait_for_stamp();
    BOOST_TEST(file.is_unchanged());
    write_byte(path);
    BOOST_TEST(!file.is_unchanged());
  }
  write_file(path, "model");
  const MappedFile unsettled(path);
  write_file(path, "other");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  write_file(path, "model");
  BOOST_CHECK_EXCEPTION(unsettled.wait_for_stamp(), Error, is_of_change);
}

BOOST_AUTO_TEST_CASE(a_name_that_goes_is_no_change) {
  const TempDir dir;
  const std::string path = dir.file("model");
  for (const char* how : {"renamed", "replaced", "removed"}) {
    const std::string what = how, moved = dir.file("moved");
    write_file(path, "model");
    const MappedFile file(path);
    file.wait_for_stamp();
    if (what == "renamed") fs::rename(path, moved);
    if (what == "removed") fs::remove(path);
    if (what == "replaced") {
      write_file(moved, "other");
      fs::rename(moved, path);
    }
    BOOST_TEST(file.is_unchanged(), what);
    if (what != "renamed") continue;
    write_byte(moved);
    BOOST_TEST(!file.is_unchanged());
  }
}

BOOST_AUTO_TEST_CASE(a_new_ctime_alone_is_no_change) {
  const TempDir dir;
  for (const uintmax_t n_bytes : {uintmax_t{5}, uintmax_t{100'000}, kLarge}) {
    const std::string path = dir.file("model"), moved = dir.file("moved");
    write_file(path, "model");
    fs::resize_file(path, n_bytes);
    const MappedFile file(path);
    file.wait_for_stamp();
    const FileStamp opened = file.stamp();
    chmod(path.c_str(), 0600);
    fs::create_hard_link(path, dir.file("link"));
    BOOST_TEST(file.is_unchanged());
    fs::remove(dir.file("link"));
    fs::rename(path, moved);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    BOOST_TEST(file.is_unchanged());
    BOOST_TEST(file.stamp().changed_ns > opened.changed_ns);
    // A write whose mtime was set back: in a sampled block, here the first, it shows.
    write_secretly(moved, 3);
    BOOST_TEST(!file.is_unchanged());
    write_secretly(moved, 3);
    BOOST_TEST(!file.is_unchanged());  // the bytes of before; what was computed meanwhile was not
  }
}

BOOST_AUTO_TEST_CASE(samples_find_a_write_to_a_tenth) {
  const TempDir dir;
  const std::string path = dir.file("model");
  for (uintmax_t begin = 0; begin < kLarge; begin += kLarge / 10) {
    write_file(path, std::string(kLarge, 'a'));
    const MappedFile file(path);
    file.wait_for_stamp();
    struct stat before {};
    stat(path.c_str(), &before);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<off_t>(begin))
        .write(std::string(kLarge / 10, 'b').data(), kLarge / 10);
    const timespec times[] = {before.st_atim, before.st_mtim};
    utimensat(AT_FDCWD, path.c_str(), times, 0);
    BOOST_TEST(!file.is_unchanged());
  }
}

// A run goes on after a new ctime, and stores again once all bytes were hashed anew and are the same.
BOOST_AUTO_TEST_CASE(after_a_new_ctime_all_is_hashed_anew) {
  for (const bool is_hashed_beside : {false, true}) {
    Changing changing;
    if (is_hashed_beside) changing.options.cache->most_hashed_first = 0;
    fs::resize_file(changing.model.path, kLarge);
    TinySequence opened(changing.model.path, changing.options);
    BOOST_TEST(Changing::comes_true(opened, [&] { return changing.n_stored() > 0; }));
    const size_t n_former = changing.n_stored();
    chmod(changing.model.path.c_str(), 0600);
    BOOST_TEST(Changing::comes_true(opened, [&] { return changing.n_stored() > n_former; }));
    opened.engine->check_file();
    // What the samples miss is found by then: nothing more is stored, the rest goes, and the run ends.
    const auto has_ended = [&] { return !opened.file.is_unchanged(); };
    changing.change_unsampled();
    BOOST_TEST(opened.file.is_unchanged());
    BOOST_TEST(Changing::comes_true(opened, has_ended));
    BOOST_TEST(changing.n_stored() == 0u);
    BOOST_CHECK_EXCEPTION(opened.engine->check_file(), Error, is_of_change);
    BOOST_TEST(opened.warnings.empty());
  }
}

// A request that was computed meanwhile fails with everything else; what is stored of it goes, what others
// stored of the former bytes stays.
BOOST_AUTO_TEST_CASE(no_request_is_answered_and_nothing_stays_stored) {
  const Changing changing;
  TinySequence(changing.model.path, changing.options).sequence->sync(random_tokens(2 * kPageTokens, 7));
  const size_t n_former = changing.n_stored();
  BOOST_TEST(n_former > 0u);
  TinySequence opened(changing.model.path, changing.options);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(opened.file));
  GenerationOptions few;
  few.max_tokens = 4;
  Listener nobody;
  const auto ask = [&](uint64_t seed) {
    return generate(opened.engine->loop(),
                    {nullptr, tokenizer.get(), random_tokens(3 * kPageTokens, seed), few}, nobody);
  };
  BOOST_TEST(ask(1).n_completion_tokens == 4);
  opened.engine->prefix_cache()->flush();
  BOOST_TEST(changing.n_stored() > n_former);
  changing.change();
  BOOST_CHECK_EXCEPTION(ask(2), Error, is_of_change);
  BOOST_TEST(changing.n_stored() == n_former);
  opened.sequence->sync(base());  // by hand: nothing of it is stored
  opened.engine->prefix_cache()->flush();
  BOOST_TEST(changing.n_stored() == n_former);
}

// What waits for the end of the run, or of hashing, is compared then.
BOOST_AUTO_TEST_CASE(what_waits_to_be_stored_is_not) {
  for (const bool is_hashed_beside : {false, true}) {
    Changing changing;
    changing.options.cache->write = WritePolicy::write_back;
    if (is_hashed_beside) changing.options.cache->most_hashed_first = 0;
    const auto opened = std::make_unique<TinySequence>(changing.model.path, changing.options);
    opened->sequence->sync(base());
    const PrefixCache& prefixes = *opened->engine->prefix_cache();
    while (opened->engine->prefix_cache()->store_more() && prefixes.is_unidentified())
      std::this_thread::yield();
    changing.change();
    const auto warnings = opened->kept_warnings;
    opened->sequence.reset(), opened->engine.reset();
    BOOST_TEST(changing.n_stored() == 0u);
    BOOST_REQUIRE(warnings->size() == 1u);
    BOOST_TEST(contains(warnings->front(), "nothing of this run is kept"));
  }
}

// Hashed bytes and those that were sent to a device are the same or refused.
BOOST_AUTO_TEST_CASE(what_changes_before_it_is_loaded_is_refused) {
  const Changing changing;
  for (const bool is_apart : {false, true}) {
    const GgufFile file(changing.model.path);
    changing.change();
    EngineOptions options = changing.options;
    options.backends = {std::make_shared<ApartBackend>(is_apart)};
    BOOST_CHECK_EXCEPTION(Engine(file, options), Error, is_of_change);
  }
}

BOOST_AUTO_TEST_SUITE_END()
