// cli/chat/talk, the files: they are their owner's alone, durable before they have their name, refused when
// they are not ours, and nobody ever reads half of a talk.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/contains.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/talk_fixture.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(talk_folder)

using namespace dsv32::talk_test;
namespace fs = std::filesystem;
namespace tt = boost::test_tools;

namespace {

mode_t mode_of(const std::string& path) {
  struct stat info {};
  BOOST_REQUIRE(lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

}  // namespace

BOOST_AUTO_TEST_CASE(saving_and_loading) {
  Fixture f;
  BOOST_TEST(!f.folder.load("work").has_value());
  f.folder.save("work", make_talk());
  check_same(f.folder.load("work").value(), make_talk());
  Talk shorter = make_talk();
  shorter.messages.resize(3);
  f.folder.save("work", shorter);  // nothing of the longer one is left
  check_same(TalkStore(f.path).load("work").value(), shorter);
  BOOST_TEST(!f.folder.load("wor").has_value());
  BOOST_TEST(names_in(f.path) == std::vector<std::string>{"work.json"}, tt::per_element());
}

BOOST_AUTO_TEST_CASE(for_their_owner_alone) {
  for (const mode_t mask : {0000, 0022, 0777}) {
    TempDir temp;
    const mode_t former = umask(mask);
    const std::string path = temp.file("talks");
    if (mask == 0777) fs::create_directory(path), fs::permissions(path, fs::perms::owner_all);
    const TalkStore folder(path);
    folder.save("a", make_talk());
    umask(former);
    BOOST_TEST(mode_of(path) == 0700u);
    BOOST_TEST(mode_of(path + "/a.json") == 0600u);
    fs::permissions(path + "/a.json", fs::perms::all);
    folder.save("a", make_talk());
    BOOST_TEST(mode_of(path + "/a.json") == 0600u);
  }
}

BOOST_AUTO_TEST_CASE(a_refused_file_is_named_and_left_alone) {
  Fixture f;
  write_file(f.file("bad.json"), "{\"dsv32_talk\":1,");
  const std::string said = complaint([&] { f.folder.load("bad"); });
  BOOST_TEST(contains(said, f.file("bad.json")));
  BOOST_TEST(contains(said, "it is damaged"));
  BOOST_TEST(contains(said, "the file is left as it is"));
  BOOST_TEST(read_file(f.file("bad.json")) == "{\"dsv32_talk\":1,");
  write_file(f.file("empty.json"), "");
  BOOST_TEST(contains(complaint([&] { f.folder.load("empty"); }), "it is damaged"));
}

BOOST_AUTO_TEST_CASE(no_talk_is_followed_elsewhere) {
  Fixture f;
  const std::string target = f.temp.file("target.json");
  write_file(target, talk_json(make_talk()));
  fs::create_symlink(target, f.file("link.json"));
  fs::create_symlink(f.temp.file("absent"), f.file("dangling.json"));
  fs::create_directory(f.file("folder.json"));
  BOOST_REQUIRE(mkfifo(f.file("pipe.json").c_str(), 0600) == 0);
  BOOST_TEST(contains(complaint([&] { f.folder.load("link"); }), "it is a symbolic link"));
  BOOST_TEST(contains(complaint([&] { f.folder.load("dangling"); }), "it is a symbolic link"));
  BOOST_TEST(contains(complaint([&] { f.folder.load("folder"); }), "it is no regular file"));
  BOOST_TEST(contains(complaint([&] { f.folder.load("pipe"); }), "it is no regular file"));
  // A link that appeared after loading is replaced, not written through.
  Talk other = make_talk();
  other.messages.clear();
  f.folder.save("link", other);
  BOOST_TEST(!fs::is_symlink(f.file("link.json")));
  BOOST_TEST(read_file(target) == talk_json(make_talk()));
}

boost::test_tools::assertion_result is_root(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(geteuid() == 0);
  result.message() << "only root can make files of other users";
  return result;
}

BOOST_AUTO_TEST_CASE(other_users_files_are_refused, *boost::unit_test::precondition(is_root)) {
  Fixture f;
  f.folder.save("theirs", make_talk());
  BOOST_REQUIRE(chown(f.file("theirs.json").c_str(), 1234, 1234) == 0);
  BOOST_TEST(contains(complaint([&] { f.folder.load("theirs"); }), "it belongs to user 1234, not to user 0"));
  BOOST_REQUIRE(chown(f.path.c_str(), 1234, 1234) == 0);
  BOOST_TEST(contains(complaint([&] { TalkStore again(f.path); }), "it belongs to user 1234, not to user 0"));
}

BOOST_AUTO_TEST_CASE(folders_that_are_not_used) {
  TempDir temp;
  const auto said = [&](const std::string& path) { return complaint([&] { TalkStore folder(path); }); };
  BOOST_TEST(contains(said(temp.file("absent/talks")), "No such file or directory"));
  write_file(temp.file("file"), "");
  BOOST_TEST(
      contains(said(temp.file("file")), "cannot keep talks in " + temp.file("file") + ": Not a directory"));
  fs::create_directory(temp.file("real"));
  fs::create_symlink(temp.file("real"), temp.file("link"));
  BOOST_TEST(!said(temp.file("link")).empty());
  fs::permissions(temp.file("real"), fs::perms::all);
  BOOST_TEST(contains(said(temp.file("real")), "others may write in it (mode 777)"));
  fs::permissions(temp.file("real"), fs::perms::owner_all | fs::perms::others_read);
  BOOST_TEST(said(temp.file("real")) == "");
}

BOOST_AUTO_TEST_CASE(no_more_than_64_mib) {
  Fixture f;
  write_file(f.file("huge.json"), "");
  fs::resize_file(f.file("huge.json"), kMaxTalkBytes + 1);  // a hole
  BOOST_TEST(contains(complaint([&] { f.folder.load("huge"); }),
                      "it has 67108865 bytes, expected at most 67108864"));
  fs::resize_file(f.file("huge.json"), uint64_t{1} << 40);
  BOOST_TEST(contains(complaint([&] { f.folder.load("huge"); }), "expected at most"));
  Talk talk = make_talk();
  f.folder.save("long", talk);
  talk.messages[1].content.assign(kMaxTalkBytes, 'x');
  BOOST_TEST(
      contains(complaint([&] { f.folder.save("long", talk); }, ErrorKind::io), "longer than 67108864 bytes"));
  check_same(f.folder.load("long").value(), make_talk());
  talk.messages[1].content.resize(kMaxTalkBytes - 1000);
  f.folder.save("long", talk);
  BOOST_TEST((f.folder.load("long").value().messages[1].content == talk.messages[1].content));
  BOOST_TEST(names_in(f.path).size() == 2u);
}

// A failure in any call leaves the talk as it was or as it is, and no other file.
BOOST_AUTO_TEST_CASE(failures_while_saving) {
  TempDir temp;
  const std::string path = temp.file("talks");
  FaultFileSystem faults;
  const TalkStore folder(path, faults);
  Talk before = make_talk(), after = make_talk();
  before.messages.clear();
  folder.save("work", before);
  int64_t n_calls = faults.n_calls;
  folder.save("work", before);
  n_calls = faults.n_calls - n_calls;
  BOOST_REQUIRE(n_calls >= 4);
  size_t n_failed = 0;
  for (int64_t fails_at = 0; fails_at < n_calls; ++fails_at) {
    faults.on_call = nullptr;
    folder.save("work", before);
    const int64_t first = faults.n_calls;
    faults.on_call = [&](int64_t n, FileOp) {
      return n - first == fails_at ? std::optional<int>(-ENOSPC) : std::nullopt;
    };
    const std::string said = complaint([&] { folder.save("work", after); }, ErrorKind::io);
    faults.on_call = nullptr;
    n_failed += !said.empty();
    if (!said.empty()) BOOST_TEST(contains(said, path + "/work.json: No space left on device"));
    const size_t n_messages = folder.load("work").value().messages.size();
    BOOST_TEST((n_messages == 0 || n_messages == after.messages.size()));
    BOOST_TEST(names_in(path) == std::vector<std::string>{"work.json"}, tt::per_element());
  }
  BOOST_TEST(n_failed >= 4u);  // opening, writing, and both syncs
  faults.most_at_once = 7;     // short writes and reads
  folder.save("work", after);
  check_same(folder.load("work").value(), after);
}

// The bytes are durable before the name is theirs: the order of the calls.
BOOST_AUTO_TEST_CASE(durable_before_it_is_named) {
  TempDir temp;
  const std::string path = temp.file("talks");
  FaultFileSystem faults;
  const TalkStore folder(path, faults);
  std::vector<std::pair<FileOp, bool>> calls;  // and whether the name was there before
  faults.on_call = [&](int64_t, FileOp op) {
    if (op == FileOp::write || op == FileOp::sync_directory || op == FileOp::sync_data)
      calls.emplace_back(op, fs::exists(path + "/work.json"));
    return std::optional<int>();
  };
  folder.save("work", make_talk());
  BOOST_REQUIRE_EQUAL(calls.size(), 3u);
  BOOST_TEST((calls[0].first == FileOp::write && !calls[0].second));
  BOOST_TEST(!calls[1].second);  // the file's sync
  BOOST_TEST((calls[2].first == FileOp::sync_directory && calls[2].second));
}

BOOST_AUTO_TEST_CASE(leftovers_of_crashes_are_removed_when_they_are_old) {
  Fixture f;
  const std::string young = f.file(".work.0000000000000001.tmp"), old = f.file(".work.0000000000000002.tmp");
  for (const std::string& path : {young, old, f.file("work.tmp"), f.file(".notes")}) write_file(path, "x");
  const int64_t now = std::time(nullptr);
  for (const std::string& path : {old, f.file("work.tmp"), f.file(".notes")}) set_clock(path, now - 4000);
  const TalkStore again(f.path);
  BOOST_TEST(
      names_in(f.path) == (std::vector<std::string>{".notes", ".work.0000000000000001.tmp", "work.tmp"}),
      tt::per_element());
}

// Locks of one process exclude each other as those of two do: each opens the file anew.
BOOST_AUTO_TEST_CASE(one_chat_holds_a_talk) {
  Fixture f;
  const TalkStore second(f.path);
  std::optional<TalkLock> lock = f.folder.lock("work");
  BOOST_REQUIRE(lock.has_value());
  BOOST_TEST(lock->is_open());
  for (int i = 0; i < 2; ++i) {  // saving changes the talk's inode, not the lock's
    BOOST_TEST(!second.lock("work").has_value());
    f.folder.save("work", make_talk());
  }
  BOOST_TEST(second.lock("other").has_value());
  BOOST_TEST(f.folder.latest().value() == "work");
  lock.reset();
  BOOST_TEST(second.lock("work").has_value());
}

BOOST_AUTO_TEST_CASE(a_name_that_nobody_has_or_holds) {
  Fixture f;
  std::string first = "work", second = "work", third(64, 'x');
  f.folder.save("work-2", make_talk());
  const TalkLock first_lock = f.folder.lock_new(first), second_lock = f.folder.lock_new(second);
  BOOST_TEST(first == "work");
  BOOST_TEST(second == "work-3");
  std::string long_name(64, 'x');
  f.folder.save(long_name, make_talk());
  const TalkLock third_lock = f.folder.lock_new(third);
  BOOST_TEST(third == std::string(62, 'x') + "-2");
  check_talk_name(third);
}

BOOST_AUTO_TEST_CASE(a_new_name_is_free) {
  Fixture f;
  f.folder.save("other", make_talk());
  const std::optional<TalkLock> held = f.folder.lock("held");
  BOOST_TEST(contains(complaint([&] { f.folder.lock_free("other"); }), "there is a talk other already"));
  BOOST_TEST(contains(complaint([&] { f.folder.lock_free("held"); }), "there is a talk held already"));
  BOOST_TEST(contains(complaint([&] { f.folder.lock_free("../b"); }), "is no name"));
  BOOST_TEST(f.folder.lock_free("b").is_open());
}

BOOST_AUTO_TEST_CASE(talks_are_removed_with_their_locks) {
  Fixture f;
  f.folder.save("b", make_talk()), f.folder.save("other", make_talk());
  const TalkLock lock = f.folder.lock("b").value();
  f.folder.remove("b");
  BOOST_TEST(f.folder.lock("b").has_value());  // of a new file, whoever still holds the former
  BOOST_TEST(contains(complaint([&] { f.folder.remove("b"); }), "there is no talk b"));
  BOOST_TEST(!fs::exists(f.file(".b.lock")));
  check_same(f.folder.load("other").value(), make_talk());
}

// Where nothing can be locked, chats go on as if alone.
BOOST_AUTO_TEST_CASE(locks_that_fail) {
  TempDir temp;
  FaultFileSystem faults;
  const TalkStore folder(temp.file("talks"), faults);
  const int64_t first = faults.n_calls;
  BOOST_TEST(folder.lock("work").value().is_open());
  const int64_t n_calls = faults.n_calls - first;
  BOOST_REQUIRE(n_calls >= 2);
  for (int64_t fails_at = 0; fails_at < 2; ++fails_at) {
    const int64_t begin = faults.n_calls;
    faults.on_call = [&](int64_t n, FileOp) {
      return n - begin == fails_at ? std::optional<int>(-ENOLCK) : std::nullopt;
    };
    const std::optional<TalkLock> lock = folder.lock("work");
    faults.on_call = nullptr;
    BOOST_REQUIRE(lock.has_value());
    BOOST_TEST(!lock->is_open());
  }
}

// Writers of two lengths and a reader at once, each with a folder of its own as processes have.
BOOST_AUTO_TEST_CASE(a_reader_never_sees_half_a_talk) {
  TempDir temp;
  const std::string path = temp.file("talks");
  const auto talk_of = [](char letter, size_t n_bytes) {
    Talk talk = make_talk();
    talk.model = std::string(1, letter);
    for (Message& message : talk.messages) message.content.assign(n_bytes, letter);
    return talk;
  };
  TalkStore(path).save("work", talk_of('a', 50'000));
  std::atomic<int> n_writing = 2, n_saved = 0;
  const auto write = [&](char letter, size_t n_bytes) {
    const TalkStore folder(path);
    const Talk talk = talk_of(letter, n_bytes);
    for (int i = 0; i < 60; ++i) folder.save("work", talk), ++n_saved;
    --n_writing;
  };
  std::thread long_writer(write, 'a', 50'000), short_writer(write, 'b', 20);
  const TalkStore folder(path);
  size_t n_read = 0, n_mixed = 0;
  std::string said;
  while (n_writing > 0 && said.empty()) {
    try {
      const Talk seen = folder.load("work").value();
      for (const Message& message : seen.messages)
        n_mixed += message.content != std::string(seen.model == "a" ? 50'000 : 20, seen.model[0]);
      ++n_read;
    } catch (const Error& error) {
      said = error.what();
    }
  }
  long_writer.join();
  short_writer.join();
  BOOST_TEST(said == "");
  BOOST_TEST(n_mixed == 0u);
  BOOST_TEST(n_read > 0u);
  BOOST_TEST(n_saved == 120);
  BOOST_TEST(names_in(path) == std::vector<std::string>{"work.json"}, tt::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
