// How clients find warm processes, and the lines that they exchange over UNIX sockets.
//
// A socket's name is a digest of everything that decides an engine, so that it leads to the right process. A
// lock on the log beside the socket shows that the process is alive. The folder is $XDG_RUNTIME_DIR/dsv32,
// else ~/.local/state/dsv32; it must be this user's, and closed to others. Either file may be removed: a
// process without its log still answers at its socket; one without its socket ends, since nobody can find it.
//
// A client has one connection as long as it lives, and one more for each request. Each line is a JSON object:
//
//   client:   {"want": "facts"}, the first connection; or "status", or "stop"; or a request,
//             {"talk": 3, "body": {...}}, which ends early when the client closes its side of the connection
//   process:  {"facts": {...}, "talk": 3}; for status and stop {"pid": ..., ...}; for a request the answer's
//             chunks, or {"error": [KIND, MESSAGE, HINT]}
//             {}: the process is alive, every second to those who wait for an answer or for the end
//
// The process closes a connection after an answer, an error and a status; after a stop when it has ended.
// One that it closes without an answer has come too late: the process is about to end.
//
// So a client sends lines of a batch (cli/options/request_json.h), whose prompts are tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "gguf/gguf.h"

namespace dsv32 {

// The path of the socket for this model file in its present state, these flags of the groups Model and Prefix
// cache, and this build of the program. Throws Error{io} when the environment names no folder for it.
std::string warm_path(const Options& options, const GgufFile& file);

// The sockets in the folder, stale ones too. Throws Error{io} when the folder is not this user's alone.
std::vector<std::string> warm_paths();

// "x.log" for "x.sock".
std::string warm_log(const std::string& path);

// How long a client waits for the first line; the process may be in the middle of a step.
inline constexpr int kWarmPatienceMs = 10000;

// Makes the folder, opens the log and locks it until it is closed. Not open: a living process holds the lock,
// or listens. Throws Error{io}.
OwnedFd lock_warm(const std::string& path);

// The socket to which clients connect. The destructor removes its file, unless that is another process's now.
class WarmListener {
 public:
  // Replaces a stale socket: call with the lock held. Throws Error{io}.
  explicit WarmListener(const std::string& path);
  ~WarmListener();
  WarmListener(WarmListener&&) = default;

  int fd() const { return socket_.get(); }
  // Whether the path still leads to this socket.
  bool is_there() const;
  // The next client. Not open: there is none.
  OwnedFd accept() const;

 private:
  std::string path_;
  OwnedFd socket_;
  FileStamp file_;
};

// Connects to a process. Not open: nobody listens, or no place in its backlog was free in time. Throws
// Error{io}.
OwnedFd connect_warm(const std::string& path);

// The longest line: an answer's tokens with the log-probabilities of twenty others each.
inline constexpr size_t kMostLineBytes = size_t{1} << 30;

// Lines over a socket, in both directions.
class WarmLink {
 public:
  explicit WarmLink(OwnedFd socket)
      : socket_(std::move(socket)), lines_(socket_.get(), "the socket", kMostLineBytes) {}

  int fd() const { return socket_.get(); }
  // The next line. `later`: none came within wait_ms. `end`: the other end sends no more, or its line is too
  // long.
  LineReader::Result next_line(std::string& line, int wait_ms);
  // `line`: without its end.
  void queue(std::string_view line);
  // Sends as much as the socket takes. False: the other end is gone.
  bool send();
  size_t n_unsent() const { return unsent_.size() - n_sent_; }
  short events() const;  // what poll() is to wait for

 private:
  OwnedFd socket_;
  LineReader lines_;
  std::string unsent_;
  size_t n_sent_ = 0;  // of unsent_
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EngineFacts, vocab_size, context, max_seqs, pool_tokens, has_drafts,
                                   warnings)

// For lines of the process, which is trusted: only a line that cannot be read is an error.
[[noreturn]] void fail_unread();  // throws WarmGone
template <typename Read>
auto readable(const Read& read) try {
  return read();
} catch (const Json::exception&) {
  fail_unread();
}

}  // namespace dsv32
