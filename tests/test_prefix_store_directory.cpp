// T9: every state of the directory ends in a cache, one that is only read, or none and one line why; files of
// others stay.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "prefix/cache_directory.h"
#include "tests/support/contains.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_directory, StoreFixture)

BOOST_AUTO_TEST_CASE(files_are_for_their_owner_alone) {
  const mode_t before = umask(0);
  store_prompt(*open(), make_prompt({1}));
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
    warnings.clear();
    options.directory = directory;
    const bool is_null = !open();
    BOOST_TEST(warnings.size() == 1u);
    const bool says_why = warnings.size() == 1 && contains(warnings[0], why);
    BOOST_TEST(says_why, (warnings.empty() ? "no line" : warnings[0]));
    BOOST_TEST(!contains(warnings[0], "\n"));
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
    BOOST_TEST(store_prompt(*open(), make_prompt({1})) == 1);
    BOOST_TEST(load_all(options)->has(make_prompt({1})));
  }
  std::filesystem::create_directories(dir->file("elsewhere"));
  std::filesystem::create_directory_symlink(dir->file("elsewhere"), dir->file("home"));
  options.directory = dir->file("home/cache");  // a link further up is the user's business
  BOOST_TEST(store_prompt(*open(), make_prompt({1})) == 1);
  BOOST_TEST(std::filesystem::exists(dir->file("elsewhere/cache/LOCK")));
}

BOOST_AUTO_TEST_CASE(a_directory_that_cannot_be_written_is_read) {
  store_prompt(*open(), make_prompt({1, 2}));
  FaultFileSystem fs;
  fs.on_open = [](const std::string&, int flags) {
    return flags & (O_CREAT | O_WRONLY | O_RDWR) ? std::optional(-EROFS) : std::nullopt;
  };
  fs.on_call = [](int64_t, FileOp op) -> std::optional<int> {
    const bool changes = op == FileOp::unlink || op == FileOp::rename || op == FileOp::make_directory ||
                         op == FileOp::set_time;
    return changes ? std::optional(-EROFS) : std::nullopt;
  };
  const auto store = open(fs);
  BOOST_REQUIRE(store);
  BOOST_TEST(!store->can_write());
  BOOST_TEST(load_all(*store).has(make_prompt({1, 2})));
  BOOST_TEST(store_prompt(*store, make_prompt({3})) == 0);
  const std::vector<Hash256> ids = {store->segments()[0].chain};
  store->record_use(ids);
  store->record_speeds({1, 1});
  BOOST_TEST(load_all(*store).prompts.size() == 2u);
  BOOST_TEST(warnings.size() == 1u);
}

BOOST_AUTO_TEST_CASE(foreign_files_are_left_alone) {
  store_prompt(*open(), make_prompt({1}));
  const auto segment = segment_files().at(0);
  const std::string folder = segment.parent_path().string();
  const std::string digits = "00112233445566778899aabbccddeeff";
  std::filesystem::create_symlink("/etc/passwd", folder + "/tmp-" + digits);
  mkfifo((folder + "/tmp-" + "10112233445566778899aabbccddeeff").c_str(), 0600);
  write_file(folder + "/seg-mine", "mine");
  mkfifo((folder + "/seg-pipe").c_str(), 0600);
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
  BOOST_TEST(count() == before);
  prune(*open_directory(), 0);
  BOOST_TEST(count() == before - 1);
}

// Other names like them are others' files.
BOOST_AUTO_TEST_CASE(what_former_versions_kept_is_removed_at_the_start) {
  const std::string note = "/model-00112233445566778899aabbccddeeff";
  const std::vector<std::string> former = {"/index.sqlite", "/index.sqlite-journal", "/index.sqlite-wal",
                                           "/index.sqlite-shm", note + ".new"};
  const std::vector<std::string> others = {"/index.sqlite3", "/my-index.sqlite", "/model-mine.new", note};
  open();
  for (const auto& names : {former, others})
    for (const std::string& name : names) write_file(options.directory + name, "text");
  open();
  for (const std::string& name : former) BOOST_TEST(!std::filesystem::exists(options.directory + name), name);
  for (const std::string& name : others) BOOST_TEST(std::filesystem::exists(options.directory + name), name);
  std::filesystem::create_symlink(options.directory + note, options.directory + former[0]);
  open();
  BOOST_TEST(std::filesystem::is_symlink(options.directory + former[0]));
  BOOST_TEST(warnings.empty());
}

// --- what backups and accidents leave --------------------------------------------------------------

// As `cp -al` makes them, the lock included: the copy and what it was made from are used like any other.
BOOST_AUTO_TEST_CASE(segments_and_a_lock_with_two_names_are_used_like_any_other) {
  store_prompt(*open(), make_prompt({1}));
  const std::string copy = dir->file("backup");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory)) {
    const std::string to = copy + entry.path().string().substr(options.directory.size());
    std::filesystem::create_directories(std::filesystem::path(to).parent_path());
    if (entry.is_regular_file()) std::filesystem::create_hard_link(entry.path(), to);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(copy))
    if (entry.is_directory()) chmod(entry.path().c_str(), 0700);
  chmod(copy.c_str(), 0700);
  for (const std::string& directory : {options.directory, copy}) {
    options.directory = directory;
    const auto store = open();
    BOOST_REQUIRE(store);
    BOOST_TEST(store->can_write());
    BOOST_TEST(load_all(*store).has(make_prompt({1})));
    BOOST_TEST(store_prompt(*store, make_prompt({1, 2})) == 2);
    BOOST_TEST(load_all(options)->has(make_prompt({1, 2})));
  }
  BOOST_TEST(warnings.empty());
}

namespace {

void make_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  BOOST_TEST(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::close(fd);
}

// Everything that is no file, each under a name that it can be told by. A device needs rights to be made.
struct Oddity {
  const char* what;
  std::function<void(const std::string& path)> make;
};
std::vector<Oddity> oddities() {
  std::vector<Oddity> all = {
      {"a FIFO", [](const std::string& path) { mkfifo(path.c_str(), 0600); }},
      {"a socket", make_socket},
      {"a symbolic link",
       [](const std::string& path) { std::filesystem::create_symlink("/etc/passwd", path); }},
      {"a link to nowhere", [](const std::string& path) { std::filesystem::create_symlink(path, path); }},
      {"a folder", [](const std::string& path) { std::filesystem::create_directory(path); }},
      {"a folder with something in it",
       [](const std::string& path) {
         std::filesystem::create_directory(path);
         write_file(path + "/mine", "mine");
       }},
  };
  const auto make_device = [](const std::string& path) {
    mknod(path.c_str(), S_IFCHR | 0600, makedev(5, 0));
  };
  if (geteuid() == 0) all.push_back({"a terminal", make_device});
  return all;
}

}  // namespace

// In a segment's place it gives way to the segment: told once, removed, and the segment written anew. It is
// found at the start, when the segment is asked for, or when it is to be stored.
BOOST_AUTO_TEST_CASE(what_is_no_file_in_a_segments_place_gives_way) {
  enum Moment { before_the_start, before_loading, before_storing };
  int n = 0;
  for (const Oddity& oddity : oddities())
    for (const Moment moment : {before_the_start, before_loading, before_storing}) {
      options.directory = dir->file("odd_" + std::to_string(++n));
      warnings.clear();
      const auto prompt = make_prompt({1, 2});
      store_prompt(*open(), prompt);
      const auto store = moment == before_the_start ? nullptr : open();
      const auto segments = store ? store->segments() : std::vector<StoredSegment>();
      for (const auto& path : segment_files()) {
        std::filesystem::remove(path);
        oddity.make(path.string());
      }
      if (moment == before_loading) {
        PageMemory memory({}, 1);
        for (const StoredSegment& segment : segments)
          BOOST_TEST(!store->load_pages({segment.chain, 0}, memory.targets()), oddity.what);
      }
      const auto last = store ? nullptr : open();
      PrefixStore& user = store ? *store : *last;
      if (moment == before_the_start) BOOST_TEST(user.segments().empty(), oddity.what);
      BOOST_TEST(store_prompt(user, prompt) == 2, oddity.what);
      BOOST_TEST(load_all(user).has(prompt), oddity.what);
      BOOST_TEST(load_all(options)->has(prompt), oddity.what);
      BOOST_TEST(warnings.size() == 1u, oddity.what);
      BOOST_TEST(contains(warnings.at(0), "in a segment's place"), warnings.at(0));
      // What lay in a folder may be somebody's: it is moved, not removed.
      if (std::string(oddity.what) == "a folder with something in it")
        BOOST_TEST(files_named(options.directory, "mine").size() == 2u);
    }
}

// Under every name that the cache uses: nothing that is opened could be waited for. At worst the cache is
// only read.
BOOST_AUTO_TEST_CASE(nothing_in_the_directory_hangs_a_start) {
  const auto start = std::chrono::steady_clock::now();
  int n = 0;
  for (const Oddity& oddity : oddities())
    for (const char* name : {"LOCK", "speeds", "tmp-00112233445566778899aabbccddeeff",
                             "00112233445566778899aabbccddeeff", "anything"}) {
      options.directory = dir->file("any_" + std::to_string(++n));
      store_prompt(*open(), make_prompt({1}));
      const bool is_below = *name == 's' || *name == 't';
      const std::string folder = segment_files().at(0).parent_path();
      const std::string path = (is_below ? folder : options.directory) + "/" + name;
      std::filesystem::remove(path);
      oddity.make(path);
      const auto store = open();
      BOOST_REQUIRE(store);
      BOOST_TEST(load_all(*store).has(make_prompt({1})), oddity.what << " as " << name);
      BOOST_TEST((store->speeds() == CacheSpeeds{}));
      store->record_speeds({1, 1});
      const bool is_locked = std::string(name) == "LOCK";
      BOOST_TEST(store_prompt(*store, make_prompt({1, 2})) == (is_locked ? 0 : 2),
                 oddity.what << " as " << name);
      BOOST_TEST(!is_locked == store->can_write());
      verify(*open_directory(), true);
    }
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(60)));
}

BOOST_AUTO_TEST_SUITE_END()
