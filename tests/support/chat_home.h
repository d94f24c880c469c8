// A home folder, and the talks that chats on terminals leave in it.
#pragma once

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/chat/talk.h"
#include "tests/support/chat_terminal.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

// The precondition of suites with such chats.
inline boost::test_tools::assertion_result has_terminal(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(can_have_terminal() &&
                                             std::filesystem::exists("models/demo.gguf"));
  result.message() << "no program, no model, or no pseudo-terminal";
  return result;
}

struct Home {
  TempDir temp;
  std::string path = temp.file("");
  std::string talks = temp.file("state/dsv32/talks");

  // Arguments for short answers that are always the same.
  std::vector<std::string> words(std::vector<std::string> more = {},
                                 const char* model = "models/demo.gguf") const {
    std::vector<std::string> all{"chat",       "-m",      model,   "--temp", "0", "--no-think",
                                 "--no-cache", "--color", "never", "-t",     "2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<Talk> saved() const {
    std::vector<Talk> all;
    if (!std::filesystem::exists(talks)) return all;
    const TalkStore folder(talks);
    for (const std::string& name : folder.names()) all.push_back(*folder.load(name));
    return all;
  }
  // The user's messages in all saved talks.
  std::vector<std::string> questions() const {
    std::vector<std::string> all;
    for (const Talk& talk : saved())
      for (const Message& message : talk.messages)
        if (message.role == Message::Role::user) all.push_back(message.content);
    return all;
  }
};

}  // namespace dsv32
