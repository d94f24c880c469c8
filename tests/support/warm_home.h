// A home with warm processes in it, and messages sent to them by hand. It calls the program itself, so its
// suites have has_program() as a precondition.
#pragma once

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/request_json.h"
#include "cli/warm/warm_client.h"
#include "tests/support/chat_terminal.h"
#include "tests/support/child_process.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/tiny_file.h"

namespace dsv32 {

inline boost::test_tools::assertion_result has_program(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!program_path().empty());
  result.message() << "no program";
  return result;
}

inline const std::string& model_path() {
  static const TinyFile model(least_shape());
  return model.path;
}

struct Ran {
  int code = 0;
  std::string out, err;
};

// A home, and perhaps warm processes in it, which end with the object.
struct Warm {
  const std::string flags;
  const TempDir temp;
  const std::string runtime = temp.file("runtime"), folder = runtime + "/dsv32";

  explicit Warm(int context = 512, const std::string& model = model_path())
      : flags(" -m " + model + " -c " + std::to_string(context) + " -t 1 ") {}
  ~Warm() {
    run("warm stop");
    for (const std::string& log : logs()) BOOST_TEST(log == "");
  }

  // What processes logged after their start.
  std::vector<std::string> logs() const {
    std::vector<std::string> texts;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().extension() == ".log") texts.push_back(read_file(entry.path()));
    return texts;
  }

  // Starts the program with these words, which a shell reads. The shell execs it: the child is the program.
  pid_t begin(const std::string& words, const std::string& name = "ran") const {
    const std::string command = "exec env -u NO_COLOR XDG_RUNTIME_DIR=" + runtime +
                                " XDG_STATE_HOME=" + temp.file("state") +
                                " XDG_CACHE_HOME=" + temp.file("cache") + " " + program_path() + " " + words +
                                " >" + temp.file(name + ".out") + " 2>" + temp.file(name + ".err") +
                                (contains(words, "<") ? "" : " </dev/null");
    return fork_child([&] { return execl("/bin/sh", "sh", "-c", command.c_str(), nullptr), 98; });
  }
  Ran end(pid_t pid, const std::string& name = "ran") const {
    const int code = wait_for(pid);
    return {code, read_file(temp.file(name + ".out")), read_file(temp.file(name + ".err"))};
  }
  Ran run(const std::string& words, const std::string& name = "ran") const {
    return end(begin(words, name), name);
  }
  // Runs "run", "batch" and so on with the flags that decide the engine, then `words`.
  Ran ask(const std::string& command, const std::string& words, const char* how = "only",
          const std::string& name = "ran") const {
    return run(command + flags + "--warm " + how + " " + words, name);
  }
  void start(const std::string& more = "") const {
    const Ran ran = run("warm start" + flags + more);
    BOOST_REQUIRE_MESSAGE(ran.code == 0, ran.err);
  }

  std::string socket() const {
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".sock") return entry.path().string();
    return {};
  }
  Json status() const {
    const std::string path = socket();
    if (path.empty()) return {};
    std::optional<WarmGreeting> greeting = greet_warm(path, "status");
    return greeting ? greeting->answer : Json();
  }
  int64_t warm_pid() const try {
    const Json now = status();
    return now.is_null() ? 0 : now.at("pid").get<int64_t>();
  } catch (const Error&) {
    return 0;
  }
  bool await(const std::function<bool()>& condition, double seconds = 30) const {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
      if (seconds_since(begin) > seconds) return false;
      usleep(20000);
    }
    return true;
  }
  bool is_idle() const { return status().value("requests", 1) == 0; }
};

inline WarmLink raw_link(const Warm& warm) { return WarmLink(connect_warm(warm.socket())); }

// Sends the bytes and returns what the other end says until it closes or has said `until`.
inline std::string said_to(WarmLink link, const std::string& bytes, const char* until = "\n\n") {
  link.queue(bytes);
  std::string heard;
  const auto begin = std::chrono::steady_clock::now();
  std::string line;
  for (bool is_there = true; is_there && !contains(heard, until) && seconds_since(begin) < 60;) {
    link.send();
    const LineReader::Result result = link.next_line(line, 100);
    if (result == LineReader::Result::line) heard += line + "\n";
    is_there = result != LineReader::Result::end;
  }
  return heard;
}

inline constexpr const char* kHello = "{\"want\": \"facts\"}";

inline Request small_request() {
  Request request;
  request.prompt = {0, 1, 2, 3, 4, 5, 6, 7};
  request.options.max_tokens = 4, request.options.thinking = false;
  return request;
}

// A line that asks for it.
inline Json asked(const Request& request) { return {{"body", Json(request_json(request))}}; }

// 0 if the process has ended.
inline int64_t resident_kib(int64_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
  const size_t at = text.find("VmRSS:");
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + 6));
}

}  // namespace dsv32
