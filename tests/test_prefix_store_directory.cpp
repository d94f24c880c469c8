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
  BOOST_TEST(page_files(dir->file("elsewhere")).size() == 1u);
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
  BOOST_TEST(load_all(*store, options).has(make_prompt({1, 2})));
  for (int i = 0; i < 4; ++i) BOOST_TEST(store_prompt(*store, make_prompt({3})) == 0);
  BOOST_TEST(!store->can_write());
  store->record_use({&names_of(make_prompt({1}))[0].own, 1});
  BOOST_TEST(load_all(*store, options).prompts.size() == 2u);
  BOOST_TEST(warnings.size() == 1u);
}

// Also those of earlier formats.
BOOST_AUTO_TEST_CASE(foreign_files_are_left_alone) {
  store_prompt(*open(), make_prompt({1}));
  const auto page = pages().at(0);
  const std::string folder = page.parent_path().string();
  const std::string digits = "00112233445566778899aabbccddeeff";
  std::filesystem::create_symlink("/etc/passwd", folder + "/tmp-" + digits);
  mkfifo((folder + "/tmp-" + "10112233445566778899aabbccddeeff").c_str(), 0600);
  mkfifo((folder + "/pipe").c_str(), 0600);
  write_file(folder + "/seg-" + digits + ".kvs", "of an earlier format");
  write_file(options.directory + "/LOCK", "");
  write_file(options.directory + "/" + page.filename().string(), "mine");
  write_file(options.directory + "/esc\x1b[2J\n", "mine");
  const std::string open_to_all = options.directory + "/" + digits + digits;
  std::filesystem::create_directory(open_to_all);
  chmod(open_to_all.c_str(), 0777);
  std::filesystem::copy_file(page, open_to_all + "/" + page.filename().string());
  std::filesystem::create_directory(options.directory + "/mine");
  std::filesystem::copy_file(page, options.directory + "/mine/" + page.filename().string());
  const auto count = [&] {
    return std::distance(std::filesystem::recursive_directory_iterator(options.directory), {});
  };
  const auto before = count();
  BOOST_TEST(load_all(options)->prompts.size() == 1u);
  BOOST_TEST(count() == before);
  prune(0);
  BOOST_TEST(count() == before - 1);
}

// --- what backups and accidents leave --------------------------------------------------------------

// As `cp -al` makes them: the copy and what it was made from are used like any other.
BOOST_AUTO_TEST_CASE(pages_with_two_names_are_used_like_any_other) {
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
    BOOST_TEST(load_all(*store, options).has(make_prompt({1})));
    BOOST_TEST(store_prompt(*store, make_prompt({1, 2})) == 2);
    BOOST_TEST(load_all(options)->has(make_prompt({1, 2})));
  }
  BOOST_TEST(warnings.empty());
}

namespace {

void make_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const std::filesystem::path whole(path);
  const int folder = ::open(whole.parent_path().c_str(), O_RDONLY | O_DIRECTORY);
  const std::string name = "/proc/self/fd/" + std::to_string(folder) + "/" + whole.filename().string();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", name.c_str());  // which is short enough
  BOOST_TEST(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::close(fd), ::close(folder);
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

// In a page's place it is a miss, and gives way to the page: told once and removed; but a folder that is not
// empty stays, because it may be somebody's.
BOOST_AUTO_TEST_CASE(what_is_no_file_in_a_pages_place_gives_way) {
  int n = 0;
  for (const Oddity& oddity : oddities()) {
    options.directory = dir->file("odd_" + std::to_string(++n));
    warnings.clear();
    const auto prompt = make_prompt({1, 2});
    store_prompt(*open(), prompt);
    for (const auto& path : pages()) {
      std::filesystem::remove(path);
      oddity.make(path.string());
    }
    const bool stays = std::string(oddity.what) == "a folder with something in it";
    const auto store = open();
    PageMemory memory({}, 1);
    for (size_t i = 0; i < 2; ++i)
      BOOST_TEST(!store->load(names_of(prompt)[i].own, std::span(prompt).subspan(i * 64, 64), memory.at(0)),
                 oddity.what);
    BOOST_TEST(warnings.size() == (stays ? 0u : 1u), oddity.what);
    store_prompt(*store, prompt);
    BOOST_TEST(load_all(*store, options).has(prompt) == !stays, oddity.what);
    BOOST_TEST(load_all(options)->has(prompt) == !stays, oddity.what);
    BOOST_TEST(files_named(options.directory, "mine").size() == (stays ? 2u : 0u));
  }
}

// Under every name that the cache uses: nothing that is opened could be waited for.
BOOST_AUTO_TEST_CASE(nothing_in_the_directory_hangs_a_start) {
  const auto start = std::chrono::steady_clock::now();
  options.model_path = "/a/model";
  int n = 0;
  for (const Oddity& oddity : oddities())
    for (const char* name :
         {"path", "tmp-00112233445566778899aabbccddeeff",
          "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "anything"}) {
      options.directory = dir->file("any_" + std::to_string(++n));
      store_prompt(*open(), make_prompt({1}));
      const bool is_below = *name == 'p' || *name == 't';
      const std::string folder = pages().at(0).parent_path();
      const std::string path = (is_below ? folder : options.directory) + "/" + name;
      std::filesystem::remove(path);
      oddity.make(path);
      const auto store = open();
      BOOST_REQUIRE(store);
      BOOST_TEST(load_all(*store, options).has(make_prompt({1})), oddity.what << " as " << name);
      BOOST_TEST(store_prompt(*store, make_prompt({1, 2})) == 2, oddity.what << " as " << name);
      content_of(open_files());
    }
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(60)));
}

BOOST_AUTO_TEST_SUITE_END()
