// How clients find warm processes, and the lines that they exchange over UNIX sockets.
//
// A socket's name is a digest of everything that decides an engine, so that it leads to the right process. A
// lock on the log beside the socket tells whether the process is alive. The folder is $XDG_RUNTIME_DIR/dsv32,
// else ~/.local/state/dsv32; it, and the process at the other end, must be this user's. Either file may be
// removed: a process without its log still answers at its socket; one without its socket ends, since nobody
// can find it.
//
// Each line is one JSON object:
//
//   client:   {"dsv32": 1, "want": "answers"}, or "status", or "stop"; then
//             {"custom_id": "7", "talk": false, "body": {...}}  and perhaps  {"cancel": "7"}
//   process:  {"dsv32": 1, "facts": {...}}, for status and stop {"dsv32": 1, "pid": ..., ...}; then
//             the answer's chunks, with the custom_id as their id, or
//             {"id": "7", "error": {...}}, with "ending" beside it: not begun, because the process is about
//             to end
//             {}: the process is alive, every second to a client that waits for an answer or for the end
//             {"error": {...}}: of the connection, which then ends; it also ends after a status
//
// So a client sends lines of a batch (cli/options/request_json.h), whose prompts are tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "cli/options/json.h"
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
  // The next client. Not open: there is none, or it was another user's and has been turned away.
  OwnedFd accept() const;

 private:
  std::string path_;
  OwnedFd socket_;
  std::pair<uint64_t, uint64_t> file_;  // device and inode
};

// Connects to a process, and waits for a place in its backlog. Not open: nobody listens. Throws Error{io}
// when another user listens, and WarmGone when no place was free in time.
OwnedFd connect_warm(const std::string& path);

// Lines over a socket, in both directions. The longest line bounds the bytes received; the owner bounds the
// unsent ones, by n_unsent().
class WarmLink {
 public:
  WarmLink(OwnedFd socket, size_t most_line_bytes)
      : socket_(std::move(socket)), most_line_bytes_(most_line_bytes) {}

  int fd() const { return socket_.get(); }
  // Reads what has arrived, a block at most. False: the other end is gone, or its line is too long.
  bool receive();
  // The next complete line that was received.
  std::optional<std::string> next_line();
  // `line`: without its end.
  void queue(std::string_view line);
  // Sends as much as the socket takes. False: the other end is gone.
  bool send();
  size_t n_unsent() const { return unsent_.size() - n_sent_; }
  // Sends queued lines, waits at most `wait_ms` until the socket can be read or take the rest, and reads a
  // block. False: as for receive() and send().
  bool exchange(int wait_ms);

 private:
  OwnedFd socket_;
  size_t most_line_bytes_;
  std::string received_, unsent_;
  size_t n_scanned_ = 0;  // of received_, without a line end
  size_t n_sent_ = 0;     // of unsent_
};

inline constexpr int kWarmVersion = 2;
// Of the process's lines: an answer's tokens with the log-probabilities of twenty others each.
inline constexpr size_t kMostToldBytes = size_t{1} << 30;
// Of a client's lines: a token takes up to seven digits and a comma, beside options, stops and a constraint.
constexpr size_t most_asked_bytes(int64_t context) {
  return 8 * static_cast<size_t>(context) + (size_t{3} << 20);
}

// An object of a line. Throws Error{usage} for a line that is no such object.
ReadJson warm_object(const std::string& line);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EngineFacts, vocab_size, context, max_seqs, pool_tokens, has_drafts,
                                   warnings)

// An Error in a line.
struct WarmError {
  ErrorKind kind = ErrorKind::internal;
  std::string message, hint;
  WarmError() = default;
  explicit WarmError(const Error& error) : kind(error.kind()), message(error.what()), hint(error.hint()) {}
  Error error() const { return {kind, message, hint}; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WarmError, kind, message, hint)

// For lines of the process, which is trusted: only a line that cannot be read is an error.
[[noreturn]] void fail_unread();  // throws WarmGone
template <typename Read>
auto readable(const Read& read) try {
  return read();
} catch (const ReadJson::exception&) {
  fail_unread();
}

}  // namespace dsv32
