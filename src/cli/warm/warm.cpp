// The commands of warm.h. The warm process is forked before it loads anything: threads and devices do not
// survive a fork.
#include "cli/warm/warm.h"

#include <ctime>
#include <filesystem>
#include <functional>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "cli/terminal/streams.h"
#include "cli/warm/warm_client.h"

namespace dsv32 {
namespace {

// Sends the line to the waiting parent, and closes the pipe. If the parent has ended, this process ends too.
void report_ready(OwnedFd ready, const std::string& line) {
  if (write(ready.get(), line.data(), line.size()) < 0) fail(ErrorKind::io, "the starting command has ended");
}

// Closes inherited files, such as locks, and pipes that somebody reads to their end.
void leave_files(int kept) {
  if (kept > 3) close_range(3, static_cast<unsigned>(kept) - 1, 0);
  close_range(static_cast<unsigned>(kept) + 1, ~0u, 0);
}

void leave_terminal(int log) {
  setsid();
  const OwnedFd nothing(real_file_system(), open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  dup2(nothing.get(), STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
}

int hold(const Options& options, OwnedFd ready) {
  leave_files(ready.get());
  Model model(options);
  const std::string path = warm_path(options, model.file()),
                    shown = std::filesystem::absolute(model.path()).string();
  const OwnedFd log = lock_warm(path);
  if (!log.is_open()) {
    report_ready(std::move(ready), "warm: a process holds " + shown + " with these flags already");
    return 0;
  }
  model.load();
  model.report();
  const GracefulStop stop;
  WarmListener listener(path);
  leave_terminal(log.get());
  report_ready(
      std::move(ready),
      format("warm: process %d holds %s until it is idle for %s; its log is %s", getpid(), shown.c_str(),
             duration(static_cast<double>(options.keep.count())).c_str(), warm_log(path).c_str()));
  serve_warm(model, std::move(listener), options.keep, stop);
  return 0;
}

// Waits until the child is ready or has ended. Returns the exit code.
int await(pid_t child, OwnedFd ready, bool is_quiet) {
  LineReader lines(ready.get(), "the pipe", kMostLineBytes);
  LineReader::Line line;
  LineReader::Result result;
  while ((result = lines.next(line, -1)) == LineReader::Result::later) continue;
  if (result == LineReader::Result::line) {
    if (!is_quiet) say(line.text);
    return 0;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string status_line(const Json& status) {
  const auto value = [&](const char* key) { return status.at(key).get<int64_t>(); };
  const auto shown = [](int64_t seconds) { return duration(static_cast<double>(seconds)); };
  return format("process %lld holds %s since %s: %lld clients, %lld requests, idle for %s of %s",
                as_ll(value("pid")), visible(status.at("model").get<std::string>()).c_str(),
                shown(std::time(nullptr) - value("began")).c_str(), as_ll(value("clients")),
                as_ll(value("requests")), shown(value("idle_seconds")).c_str(),
                shown(value("keep_seconds")).c_str());
}

// Calls `act` with the status of each warm process that answers. Returns how many failed.
int64_t for_each_process(const std::function<void(const std::string& path, const Json& status)>& act) {
  int64_t n_silent = 0;
  for (const std::string& path : warm_paths()) try {
      if (std::optional<WarmGreeting> greeting = greet_warm(path, "status"))
        readable([&] { act(path, greeting->answer); });
    } catch (const Error& error) {
      ++n_silent;
      say(std::string("warm: ") + error.what());
    }
  return n_silent;
}

// Whether the process holds the model at this path; an empty path: any model.
bool holds(const Json& status, const std::string& model) {
  std::error_code error;
  const auto held = status.at("model").get<std::string>();
  return model.empty() || held == model || std::filesystem::equivalent(held, model, error);
}

// Waits for the end of the process, which closes the link. Throws WarmGone when the process hangs.
void await_end(WarmLink& link, const std::string& path) {
  std::string line;
  LineReader::Result result;
  auto received_at = std::chrono::steady_clock::now();
  while ((result = link.next_line(line, 1000)) != LineReader::Result::end) {
    if (result == LineReader::Result::line) received_at = std::chrono::steady_clock::now();
    if (seconds_since(received_at) > kWarmSilence)
      throw WarmGone("the warm process at " + visible(path) + " hangs");
  }
}

}  // namespace

int warm_start_command(const Options& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail(ErrorKind::io, "cannot make a pipe");
  OwnedFd reads(real_file_system(), ends[0]), writes(real_file_system(), ends[1]);
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::io, "cannot make a process");
  if (child == 0) {
    reads.reset();
    return hold(options, std::move(writes));
  }
  writes.reset();
  return await(child, std::move(reads), options.quiet);
}

int warm_status_command(const Options& options) {
  int64_t n = 0;
  const int64_t n_silent = for_each_process([&](const std::string&, const Json& status) {
    write_out((options.json ? shown_json(status) : status_line(status)) + "\n");
    ++n;
  });
  if (n + n_silent == 0) say("no warm process is running");
  return n > 0 ? 0 : 1;
}

int warm_stop_command(const Options& options) {
  std::error_code error;
  const std::string& named = options.engine.model_path;
  const std::string model =
      named.empty() ? "" : std::filesystem::absolute(find_model(options), error).string();
  int64_t n = 0;
  const int64_t n_silent = for_each_process([&](const std::string& path, const Json& status) {
    if (!holds(status, model)) return;
    ++n;
    if (std::optional<WarmGreeting> stopped = greet_warm(path, "stop")) await_end(stopped->link, path);
  });
  if (n == 0 && n_silent == 0) say("no warm process " + (model.empty() ? "is running" : "holds " + model));
  return n_silent > 0 || (n == 0 && !model.empty()) ? 1 : 0;
}

}  // namespace dsv32
