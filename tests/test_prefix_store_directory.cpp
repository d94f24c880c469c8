// T9: every state of the directory ends in a cache, one that is only read, or none and one line why; files of
// others stay.
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "context/cache_maintenance.h"
#include "tests/support/contains.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_directory, StoreFixture)

BOOST_AUTO_TEST_CASE(files_are_for_their_owner_alone) {
  const mode_t before = umask(0);
  store_prompt(*open(), prompt_of({1}));
  umask(before);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory)) {
    const auto mode = static_cast<unsigned>(entry.status().permissions());
    BOOST_TEST(mode == (entry.is_directory() ? 0700u : 0600u), entry.path());
  }
  struct stat info {};
  stat(options.directory.c_str(), &info);
  BOOST_TEST((info.st_mode & 07777) == 0700u);
}

BOOST_AUTO_TEST_CASE(unusable_directories_are_refused_with_one_line) {
  const auto is_refused = [&](const std::string& directory, const char* why) {
    warnings.lines.clear();
    options.directory = directory;
    const bool is_null = !open();
    BOOST_TEST(warnings.lines.size() == 1u);
    const bool says_why = warnings.lines.size() == 1 && contains(warnings.lines[0], why);
    BOOST_TEST(says_why, (warnings.lines.empty() ? "no line" : warnings.lines[0]));
    BOOST_TEST(!contains(warnings.lines[0], "\n"));
    return is_null;
  };
  write_file(dir->file("file"), "not a directory");
  BOOST_TEST(is_refused(dir->file("file"), "no directory"));
  BOOST_TEST(is_refused(dir->file("file/below"), ""));
  std::filesystem::create_directory_symlink("/etc", dir->file("link"));
  BOOST_TEST(is_refused(dir->file("link"), "symbolic link"));
  std::filesystem::create_directory(dir->file("open"));
  chmod(dir->file("open").c_str(), 0777);
  BOOST_TEST(is_refused(dir->file("open"), "others may write"));
  chmod(dir->file("open").c_str(), 0720);
  BOOST_TEST(is_refused(dir->file("open"), "others may write"));
  BOOST_TEST(is_refused("", ""));
  BOOST_TEST(is_refused("/", ""));
  BOOST_TEST(is_refused(dir->file(std::string(5000, 'x')), ""));
  BOOST_TEST(is_refused("/proc/nowhere/cache", ""));
  if (geteuid() == 0) {
    std::filesystem::create_directory(dir->file("foreign"));
    BOOST_REQUIRE(chown(dir->file("foreign").c_str(), 12345, 12345) == 0);
    BOOST_TEST(is_refused(dir->file("foreign"), "belongs to user 12345"));
  }
}

BOOST_AUTO_TEST_CASE(directories_are_made_with_their_parents_and_odd_names_do_no_harm) {
  for (const char* name :
       {"a/b/c", "with\nnewline", "esc\x1b[2J", "a/../b", "slash/", "with space", "qu'ote?x=1"}) {
    options.directory = dir->file(name);
    BOOST_TEST(store_prompt(*open(), prompt_of({1})) == 1);
    BOOST_TEST(load_all(options)->has(prompt_of({1})));
  }
  std::filesystem::create_directories(dir->file("elsewhere"));
  std::filesystem::create_directory_symlink(dir->file("elsewhere"), dir->file("home"));
  options.directory = dir->file("home/cache");  // a link further up is the user's business
  BOOST_TEST(store_prompt(*open(), prompt_of({1})) == 1);
  BOOST_TEST(std::filesystem::exists(dir->file("elsewhere/cache/index.sqlite")));
}

BOOST_AUTO_TEST_CASE(a_directory_that_cannot_be_written_is_read) {
  store_prompt(*open(), prompt_of({1, 2}));
  for (const bool has_index : {true, false}) {
    if (!has_index) std::filesystem::remove(options.directory + "/index.sqlite");
    FaultFileSystem fs;
    fs.on_open = [](const std::string&, int flags) {
      return flags & (O_CREAT | O_WRONLY | O_RDWR) ? std::optional(-EROFS) : std::nullopt;
    };
    fs.on_call = [](int64_t, FileOp op) -> std::optional<int> {
      const bool changes = op == FileOp::unlink || op == FileOp::rename || op == FileOp::make_directory;
      return changes ? std::optional(-EROFS) : std::nullopt;
    };
    warnings.lines.clear();
    const auto store = open(fs);
    BOOST_REQUIRE(store);
    BOOST_TEST(!store->can_write());
    BOOST_TEST(load_all(*store).has(prompt_of({1, 2})));
    BOOST_TEST(store_prompt(*store, prompt_of({3})) == 0);
    const std::vector<int64_t> ids = {store->segments()[0].id};
    store->record_use(ids);
    BOOST_TEST(load_all(*store).prompts.size() == 2u);
    BOOST_TEST(warnings.lines.size() == 1u);
  }
}

BOOST_AUTO_TEST_CASE(foreign_files_are_left_alone) {
  store_prompt(*open(), prompt_of({1}));
  const auto segment = files_named(options.directory, "seg-").at(0);
  const std::string folder = segment.parent_path().string();
  const std::string digits = "00112233445566778899aabbccddeeff";
  std::filesystem::create_symlink("/etc/passwd", folder + "/seg-" + digits + ".kvs");
  mkfifo((folder + "/seg-" + "10112233445566778899aabbccddeeff.kvs").c_str(), 0600);
  std::filesystem::create_directory(folder + "/seg-" + "20112233445566778899aabbccddeeff.kvs");
  std::filesystem::create_symlink("/etc/passwd", folder + "/tmp-" + digits);
  mkfifo((folder + "/tmp-" + "10112233445566778899aabbccddeeff").c_str(), 0600);
  write_file(folder + "/seg-mine", "mine");
  write_file(options.directory + "/seg-" + digits + ".kvs", "mine");
  write_file(options.directory + "/esc\x1b[2J\n", "mine");
  std::filesystem::create_directory(options.directory + "/" + digits);
  chmod((options.directory + "/" + digits).c_str(), 0777);
  std::filesystem::copy_file(segment, options.directory + "/" + digits + "/" + segment.filename().string());
  const auto count = [&] {
    return std::distance(std::filesystem::recursive_directory_iterator(options.directory), {});
  };
  const auto before = count();
  BOOST_TEST(load_all(options)->prompts.size() == 1u);
  std::filesystem::remove(options.directory + "/index.sqlite");
  BOOST_TEST(load_all(options)->prompts.size() == 1u);
  BOOST_TEST(count() == before);
  prune(*CacheDirectory::open(options.directory, options.limits, real_file_system(), {}), 0);
  BOOST_TEST(count() == before - 1);
}

// A hard link would let others keep or change what is inside.
BOOST_AUTO_TEST_CASE(a_segment_with_two_names_is_not_used) {
  store_prompt(*open(), prompt_of({1}));
  const auto segment = files_named(options.directory, "seg-").at(0);
  std::filesystem::create_hard_link(segment, dir->file("second"));
  BOOST_TEST(load_all(options)->n_missed == 1);
  BOOST_TEST(std::filesystem::exists(segment));
}

BOOST_AUTO_TEST_SUITE_END()
