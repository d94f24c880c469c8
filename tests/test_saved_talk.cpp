// cli/saved_talk: what is written comes back, what is not ours or not whole is refused with its reason, and
// nobody ever reads half of a talk.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/options.h"
#include "cli/saved_talk.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;
namespace fs = std::filesystem;
namespace tt = boost::test_tools;

namespace {

using Json = nlohmann::json;
using Role = Message::Role;

SavedTalk make_talk() {
  return {"tiny",
          false,
          1'800'000'000'123,
          {{Role::system, "Be brief.", {}},
           {Role::user, "What is \"a row\"?\n\tand é 語 \U0001f600 \\ / </think>", {}},
           {Role::assistant, "A row.\r\n", "The user asks \x01\x1b[31m."},
           {Role::user, std::string("with a NUL\0inside", 17), {}},
           {Role::assistant, "", "nothing but reasoning"}}};
}

void check_same(const SavedTalk& a, const SavedTalk& b) {
  BOOST_TEST(a.model == b.model);
  BOOST_TEST(a.thinking == b.thinking);
  BOOST_TEST(a.used_ms == b.used_ms);
  BOOST_REQUIRE_EQUAL(a.messages.size(), b.messages.size());
  for (size_t i = 0; i < a.messages.size(); ++i) {
    BOOST_TEST((a.messages[i].role == b.messages[i].role));
    BOOST_TEST(a.messages[i].content == b.messages[i].content);
    BOOST_TEST(a.messages[i].reasoning == b.messages[i].reasoning);
  }
}

// What the Error of that kind says, with its hint; empty when there is none.
std::string complaint(const std::function<void()>& action, ErrorKind kind = ErrorKind::usage) {
  try {
    action();
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == kind), error.what());
    return error.what() + (error.hint().empty() ? "" : "; " + error.hint());
  }
  return {};
}

std::string parse_complaint(const std::string& json) {
  return complaint([&] { parse_talk(json); });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  BOOST_REQUIRE(lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

void set_clock(const std::string& path, int64_t seconds) {
  const timespec times[2] = {{seconds, 0}, {seconds, 0}};
  BOOST_REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

struct Fixture {
  TempDir temp;
  std::string path = temp.file("talks");
  TalkFolder folder{path};
  std::string file(const std::string& name) const { return path + "/" + name; }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(saved_talk)

BOOST_AUTO_TEST_CASE(every_field_comes_back) {
  const SavedTalk talk = make_talk();
  check_same(parse_talk(talk_json(talk)), talk);
  SavedTalk other = talk;
  other.thinking = true, other.used_ms = 0, other.model.clear(), other.messages.clear();
  check_same(parse_talk(talk_json(other)), other);
  other.used_ms = INT64_MAX;
  other.messages = {{Role::system, "only this, as after /clear", {}}};
  check_same(parse_talk(talk_json(other)), other);
  const std::string json = talk_json(talk);
  BOOST_TEST(std::ranges::count(json, '\n') == 1);
}

BOOST_AUTO_TEST_CASE(bytes_that_json_cannot_carry_are_replaced) {
  SavedTalk talk = make_talk();
  talk.messages[2].content = "cut \xe8\xaa";
  BOOST_TEST(parse_talk(talk_json(talk)).messages[2].content == "cut \xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(saving_and_loading) {
  Fixture f;
  BOOST_TEST(!f.folder.load("work").has_value());
  f.folder.save("work", make_talk());
  check_same(f.folder.load("work").value(), make_talk());
  SavedTalk shorter = make_talk();
  shorter.messages.resize(3);
  f.folder.save("work", shorter);  // nothing of the longer one is left
  check_same(TalkFolder(f.path).load("work").value(), shorter);
  BOOST_TEST(!f.folder.load("wor").has_value());
  BOOST_TEST(names_in(f.path) == std::vector<std::string>{"work.json"}, tt::per_element());
}

BOOST_AUTO_TEST_CASE(for_their_owner_alone) {
  for (const mode_t mask : {0000, 0022, 0777}) {
    TempDir temp;
    const mode_t former = umask(mask);
    const std::string path = temp.file("talks");
    if (mask == 0777) fs::create_directory(path), fs::permissions(path, fs::perms::owner_all);
    const TalkFolder folder(path);
    folder.save("a", make_talk());
    umask(former);
    BOOST_TEST(mode_of(path) == 0700u);
    BOOST_TEST(mode_of(path + "/a.json") == 0600u);
    fs::permissions(path + "/a.json", fs::perms::all);
    folder.save("a", make_talk());
    BOOST_TEST(mode_of(path + "/a.json") == 0600u);
  }
}

BOOST_AUTO_TEST_CASE(names) {
  Fixture f;
  for (const std::string& name : {std::string("a"), std::string("-n"), std::string("A.b_c-9"),
                                  std::string("_"), std::string("x.json"), std::string(64, 'z')}) {
    f.folder.save(name, make_talk());
    BOOST_TEST(f.folder.load(name).has_value(), name);
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("/a"), std::string("a b"), std::string("a\n"), std::string("a\0b", 3),
        std::string("\u00e9"), std::string("a\\"), std::string("*"), std::string("a:b"),
        std::string("\x1b[31m"), std::string(65, 'z')}) {
    const std::string said = complaint([&] { check_talk_name(name); });
    BOOST_TEST(contains(said, "is no name for a talk"), "'" << name << "' is taken");
    BOOST_TEST(!contains(said, "\x1b"));
    BOOST_CHECK_THROW(f.folder.load(name), Error);
    BOOST_CHECK_THROW(f.folder.save(name, make_talk()), Error);
    if (name.find('\0') == name.npos)  // which a command line cannot carry
      BOOST_CHECK_THROW(parse_options(Command::chat, {"--session", name}), Error);
  }
  BOOST_TEST(names_in(f.path).size() == 6u);
}

BOOST_AUTO_TEST_CASE(missing_keys_and_wrong_types) {
  const Json good = Json::parse(talk_json(make_talk()));
  for (const char* key : {"used_ms", "model", "thinking", "messages"}) {
    Json bad = good;
    bad.erase(key);
    BOOST_TEST(contains(parse_complaint(bad.dump()), std::string("damaged, ") + key + " is missing"));
    for (const Json& value :
         {Json(nullptr), Json(-1), Json(1.5), Json(Json::object()), Json(Json::array({1}))}) {
      bad[key] = value;
      BOOST_TEST(contains(parse_complaint(bad.dump()), "it is damaged, "), key << " may be " << value.dump());
    }
  }
  for (const char* key : {"role", "content", "reasoning"}) {
    Json bad = good;
    bad["messages"][3].erase(key);
    BOOST_TEST(contains(parse_complaint(bad.dump()), std::string("messages[3].") + key + " is missing"));
    for (const Json& value :
         {Json(nullptr), Json(1), Json(true), Json(Json::array()), Json(Json::object())}) {
      bad["messages"][3][key] = value;
      BOOST_TEST(contains(parse_complaint(bad.dump()), std::string("messages[3].") + key + " is no text"));
    }
  }
  Json extended = good;
  extended["more"] = {{"unknown", 1}};
  extended["messages"][1]["more"] = true;
  check_same(parse_talk(extended.dump()), make_talk());
  extended["used_ms"] = UINT64_MAX;
  BOOST_TEST(contains(parse_complaint(extended.dump()), "used_ms"));
}

BOOST_AUTO_TEST_CASE(roles_take_turns) {
  const auto said = [](const std::vector<const char*>& roles) {
    Json bad = Json::parse(talk_json(make_talk()));
    bad["messages"] = Json::array();
    for (const char* role : roles)
      bad["messages"].push_back({{"role", role}, {"content", ""}, {"reasoning", ""}});
    return parse_complaint(bad.dump());
  };
  BOOST_TEST(said({}) == "");
  BOOST_TEST(said({"system"}) == "");
  BOOST_TEST(said({"user", "assistant"}) == "");
  BOOST_TEST(contains(said({"user"}), "the last message has no answer"));
  BOOST_TEST(contains(said({"assistant"}), "messages[0].role is 'assistant', expected user"));
  BOOST_TEST(contains(said({"system", "system"}), "messages[1].role is 'system', expected user"));
  BOOST_TEST(contains(said({"user", "user"}), "messages[1].role is 'user', expected assistant"));
  BOOST_TEST(contains(said({"user", "assistant", "tool"}), "messages[2].role is 'tool', expected user"));
  BOOST_TEST(!contains(said({"\x1b[31m"}), "\x1b"));
}

BOOST_AUTO_TEST_CASE(versions) {
  Json talk = Json::parse(talk_json(make_talk()));
  talk["dsv32_talk"] = 2;
  talk["messages"] = "in some new form";
  BOOST_TEST(contains(parse_complaint(talk.dump()), "newer version 2, this program reads version 1"));
  for (const Json& value : {Json(0), Json(-1), Json("1"), Json(1.0), Json(nullptr)}) {
    talk["dsv32_talk"] = value;
    BOOST_TEST(contains(parse_complaint(talk.dump()), "is no version"), value.dump());
  }
  talk.erase("dsv32_talk");
  for (const std::string& other :
       {talk.dump(), std::string("{}"), std::string("[]"), std::string("1"), std::string("null")})
    BOOST_TEST(contains(parse_complaint(other), "it is no talk of dsv32"), other);
}

// Cut anywhere, and any one byte changed: refused, or a talk all the same, and never anything but
// Error{usage}.
BOOST_AUTO_TEST_CASE(damage) {
  const std::string json = talk_json(make_talk());
  for (size_t n = 0; n + 1 < json.size(); ++n)
    BOOST_TEST(contains(parse_complaint(json.substr(0, n)), "it is damaged, it is no JSON from byte"));
  size_t n_refused = 0;
  for (size_t at = 0; at < json.size(); ++at)
    for (const int flip : {0x01, 0x04, 0x10, 0x80}) {
      std::string bad = json;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      n_refused += !parse_complaint(bad).empty();
    }
  BOOST_TEST(n_refused > json.size());
  BOOST_TEST(contains(parse_complaint(json + "x"), "no JSON"));
  const std::string deep(1 << 20, '[');
  BOOST_TEST(contains(parse_complaint(deep), "it nests too deep"));
  BOOST_TEST(contains(parse_complaint("{\"dsv32_talk\":" + deep), "it nests too deep"));
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
  SavedTalk other = make_talk();
  other.messages.clear();
  f.folder.save("link", other);
  BOOST_TEST(!fs::is_symlink(f.file("link.json")));
  BOOST_TEST(read_file(target) == talk_json(make_talk()));
}

boost::test_tools::assertion_result is_root(boost::unit_test::test_unit_id) { return geteuid() == 0; }

BOOST_AUTO_TEST_CASE(other_users_files_are_refused, *boost::unit_test::precondition(is_root)) {
  Fixture f;
  f.folder.save("theirs", make_talk());
  BOOST_REQUIRE(chown(f.file("theirs.json").c_str(), 1234, 1234) == 0);
  BOOST_TEST(contains(complaint([&] { f.folder.load("theirs"); }), "it belongs to user 1234, not to user 0"));
  BOOST_REQUIRE(chown(f.path.c_str(), 1234, 1234) == 0);
  BOOST_TEST(
      contains(complaint([&] { TalkFolder again(f.path); }), "it belongs to user 1234, not to user 0"));
}

BOOST_AUTO_TEST_CASE(folders_that_are_not_used) {
  TempDir temp;
  const auto said = [&](const std::string& path) { return complaint([&] { TalkFolder folder(path); }); };
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
  SavedTalk talk = make_talk();
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

BOOST_AUTO_TEST_CASE(the_talk_used_last) {
  Fixture f;
  BOOST_TEST(!f.folder.latest().has_value());
  const auto save = [&](const char* name, int64_t used_ms) {
    SavedTalk talk = make_talk();
    talk.used_ms = used_ms;
    f.folder.save(name, talk);
  };
  save("b", 2000), save("a", 1000), save("c", 1500);
  BOOST_TEST(f.folder.latest().value() == "b");
  set_clock(f.file("a.json"), 4'000'000'000);  // as copying does
  BOOST_TEST(f.folder.latest().value() == "b");
  save("c", 2000);
  BOOST_TEST(f.folder.latest().value() == "b");
  save("c", 2001);
  BOOST_TEST(f.folder.latest().value() == "c");
  // The beginning of a file is enough, wherever in the messages it ends.
  SavedTalk talk = make_talk();
  talk.used_ms = 3000;
  talk.messages[1].content.assign(100'000, 'x');
  f.folder.save("long", talk);
  BOOST_TEST(f.folder.latest().value() == "long");
}

// Such a talk counts with the clock of its file: one that was used last is complained about, an old one is in
// nobody's way.
BOOST_AUTO_TEST_CASE(a_last_talk_that_is_damaged_is_not_passed_over) {
  Fixture f;
  SavedTalk talk = make_talk();
  talk.used_ms = 5'000'000;
  f.folder.save("good", talk);
  const std::string inner = R"({"dsv32_talk":1,"messages":[{"used_ms":9000000}],"used_ms":"9000000"})";
  for (const std::string& bytes :
       {std::string("{"), std::string(), inner, std::string(R"({"used_ms":-9000000})")}) {
    write_file(f.file("bad.json"), bytes);
    set_clock(f.file("bad.json"), 4999);
    BOOST_TEST(f.folder.latest().value() == "good");
    set_clock(f.file("bad.json"), 5001);
    BOOST_TEST(f.folder.latest().value() == "bad");
  }
  fs::remove(f.file("bad.json"));
  fs::create_symlink("good.json", f.file("link.json"));
  set_clock(f.file("link.json"), 5001);
  BOOST_TEST(f.folder.latest().value() == "link");
  BOOST_CHECK_THROW(f.folder.load("link"), Error);
  fs::remove(f.file("link.json"));
  for (const char* other : {"notes.txt", ".hidden.json", "a b.json", ".json", ".good.0123456789abcdef.tmp"})
    write_file(f.file(other), talk_json(make_talk()));
  BOOST_TEST(f.folder.latest().value() == "good");
}

// A failure in any call leaves the talk as it was or as it is, and no other file.
BOOST_AUTO_TEST_CASE(failures_while_saving) {
  TempDir temp;
  const std::string path = temp.file("talks");
  FaultFileSystem faults;
  const TalkFolder folder(path, faults);
  SavedTalk before = make_talk(), after = make_talk();
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
  const TalkFolder folder(path, faults);
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
  const TalkFolder again(f.path);
  BOOST_TEST(
      names_in(f.path) == (std::vector<std::string>{".notes", ".work.0000000000000001.tmp", "work.tmp"}),
      tt::per_element());
}

// Writers of two lengths and a reader at once, each with a folder of its own as processes have.
BOOST_AUTO_TEST_CASE(a_reader_never_sees_half_a_talk) {
  TempDir temp;
  const std::string path = temp.file("talks");
  const auto talk_of = [](char letter, size_t n_bytes) {
    SavedTalk talk = make_talk();
    talk.model = std::string(1, letter);
    for (Message& message : talk.messages) message.content.assign(n_bytes, letter);
    return talk;
  };
  TalkFolder(path).save("work", talk_of('a', 50'000));
  std::atomic<int> n_writing = 2, n_saved = 0;
  const auto write = [&](char letter, size_t n_bytes) {
    const TalkFolder folder(path);
    const SavedTalk talk = talk_of(letter, n_bytes);
    for (int i = 0; i < 60; ++i) folder.save("work", talk), ++n_saved;
    --n_writing;
  };
  std::thread long_writer(write, 'a', 50'000), short_writer(write, 'b', 20);
  const TalkFolder folder(path);
  size_t n_read = 0, n_mixed = 0;
  std::string said;
  while (n_writing > 0 && said.empty()) {
    try {
      const SavedTalk seen = folder.load("work").value();
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

BOOST_AUTO_TEST_CASE(how_long_ago) {
  const auto ago = [](int64_t seconds) { return time_ago(1'000'000, 1'000'000 + seconds * 1000); };
  BOOST_TEST(ago(-100) == "just now");
  BOOST_TEST(ago(0) == "just now");
  BOOST_TEST(ago(59) == "just now");
  BOOST_TEST(ago(60) == "1 minute ago");
  BOOST_TEST(ago(3599) == "59 minutes ago");
  BOOST_TEST(ago(3600) == "1 hour ago");
  BOOST_TEST(ago(86399) == "23 hours ago");
  BOOST_TEST(ago(86400 * 3) == "3 days ago");
  BOOST_TEST(ago(86400 * 365) == "1 year ago");
  BOOST_TEST(time_ago(INT64_MAX, 0) == "just now");
  BOOST_TEST(now_ms() > 1'700'000'000'000);
}

BOOST_AUTO_TEST_CASE(flags) {
  BOOST_TEST(parse_options(Command::chat, {"--session", "work"}).session == "work");
  BOOST_TEST(parse_options(Command::chat, {"--continue"}).continues);
  const Options neither = parse_options(Command::chat, {});
  BOOST_TEST((neither.session.empty() && !neither.continues && !neither.is_thinking_given));
  BOOST_TEST(parse_options(Command::chat, {"--no-think"}).is_thinking_given);
  BOOST_TEST(parse_options(Command::chat, {"--think"}).is_thinking_given);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--session", "a", "--continue"},
                                                {"--continue", "--session=a"},
                                                {"--session"},
                                                {"--session="},
                                                {"--continue=a"}})
    BOOST_CHECK_THROW(parse_options(Command::chat, words), Error);
  BOOST_CHECK_THROW(parse_options(Command::run, {"--session", "a", "hi"}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
