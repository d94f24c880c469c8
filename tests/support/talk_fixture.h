// A talk with every kind of message, a folder for talks, and helpers for the tests of both.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/chat/talk.h"
#include "tests/support/plain_files.h"
#include "tests/support/temp_dir.h"

namespace dsv32::talk_test {

inline Talk make_talk() {
  return {"tiny",
          false,
          1'800'000'000'123,
          {{Message::Role::system, "Be brief.", {}},
           {Message::Role::user, "What is \"a row\"?\n\tand é 語 \U0001f600 \\ / </think>", {}},
           {Message::Role::assistant, "A row.\r\n", "The user asks \x01\x1b[31m."},
           {Message::Role::user, std::string("with a NUL\0inside", 17), {}},
           {Message::Role::assistant, "", "nothing but reasoning"}},
          {{9, 12}, {40, 41}}};
}

inline void check_same(const Talk& a, const Talk& b) {
  BOOST_TEST(a.model == b.model);
  BOOST_TEST(a.thinking == b.thinking);
  BOOST_TEST(a.used_ms == b.used_ms);
  BOOST_TEST((a.decoded == b.decoded));
  BOOST_REQUIRE_EQUAL(a.messages.size(), b.messages.size());
  for (size_t i = 0; i < a.messages.size(); ++i) {
    BOOST_TEST((a.messages[i].role == b.messages[i].role));
    BOOST_TEST(a.messages[i].content == b.messages[i].content);
    BOOST_TEST(a.messages[i].reasoning == b.messages[i].reasoning);
    BOOST_REQUIRE_EQUAL(a.messages[i].calls.size(), b.messages[i].calls.size());
    for (size_t k = 0; k < a.messages[i].calls.size(); ++k) {
      BOOST_TEST(a.messages[i].calls[k].name == b.messages[i].calls[k].name);
      BOOST_TEST(a.messages[i].calls[k].arguments == b.messages[i].calls[k].arguments);
    }
    BOOST_TEST(a.messages[i].calls_text == b.messages[i].calls_text);
  }
}

// The message and hint of the Error of that kind that `action` throws; empty when it throws none.
inline std::string complaint(const std::function<void()>& action, ErrorKind kind = ErrorKind::usage) {
  try {
    action();
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == kind), error.what());
    return error.what() + (error.hint().empty() ? "" : "; " + error.hint());
  }
  return {};
}

inline void set_clock(const std::string& path, int64_t seconds) {
  const timespec times[2] = {{seconds, 0}, {seconds, 0}};
  BOOST_REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

inline std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// A folder of talks that is removed at the end.
struct Fixture {
  TempDir temp;
  std::string path = temp.file("talks");
  TalkStore folder{path};
  std::string file(const std::string& name) const { return path + "/" + name; }
};

}  // namespace dsv32::talk_test
