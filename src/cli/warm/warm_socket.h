// Where warm processes are found, and how one talks with them: UNIX sockets in a folder of the user's own,
// and lines over them.
//
// A socket is named after all that decides an engine, so that its name finds the right process, and a lock on
// the log beside it tells whether that process is alive. The folder is $XDG_RUNTIME_DIR/dsv32, else
// ~/.local/state/dsv32; it, and the process at the other end, must be this user's. Either file may be cleaned
// away: a process whose log is gone still answers at its socket, and one whose socket is gone knows that
// nobody finds it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"
#include "cli/options/options.h"
#include "gguf/gguf.h"

namespace dsv32 {

// The path of the socket for this model file, as it is now, with these flags of the groups Model and Prefix
// cache, and this build of the program. Throws Error{io} where no socket can be had.
std::string warm_path(const Options& options, const GgufFile& file);

// Those in the folder, whether anybody listens or not. Throws Error{io} when the folder is another's.
std::vector<std::string> warm_paths();

// "x.log" for "x.sock".
std::string warm_log(const std::string& path);

// A warm process that was there, or still is, and gives no answer: another may be asked.
class WarmGone : public Error {
 public:
  explicit WarmGone(const std::string& message, std::string hint = {})
      : Error(ErrorKind::io, message, std::move(hint)) {}
};

// For the first answer to whoever connects: a step may be under way.
inline constexpr int kWarmPatienceMs = 10000;

// The log, locked for as long as it is open, in a folder that is made if need be. Not open: a process that
// lives has it, or listens. Throws Error{io}.
OwnedFd lock_warm(const std::string& path);

// A socket where callers arrive. Its file goes with the object, unless another process has it by now.
class WarmListener {
 public:
  // Takes the place of a stale one: call with the lock. Throws Error{io}.
  explicit WarmListener(const std::string& path);
  ~WarmListener();
  WarmListener(WarmListener&&) = default;

  int fd() const { return socket_.get(); }
  // Whether callers find it by its path.
  bool is_there() const;
  // The next caller; not open: there is none, or it is another user's, which is turned away.
  OwnedFd accept() const;

 private:
  std::string path_;
  OwnedFd socket_;
  std::pair<uint64_t, uint64_t> file_;  // device and inode
};

// Not open: nobody listens. Waits for a place in the backlog. Throws Error{io} when another user listens, and
// WarmGone when there was no place in time.
OwnedFd connect_warm(const std::string& path);

// Lines over a socket, in both directions. What is received is bounded by the length of a line, what waits to
// be sent by the owner, who looks at n_unsent().
class WarmLink {
 public:
  WarmLink(OwnedFd socket, size_t most_line_bytes)
      : socket_(std::move(socket)), most_line_bytes_(most_line_bytes) {}

  int fd() const { return socket_.get(); }
  // Takes what is there, a block at most. False: the other end is gone, or its line is too long.
  bool receive();
  // Of what was received.
  std::optional<std::string> next_line();
  // `line`: without its end.
  void queue(std::string_view line);
  // As much as goes. False: the other end is gone.
  bool send();
  size_t n_unsent() const { return unsent_.size() - n_sent_; }
  // Sends what is queued, waits for so long at most until there is more to send or to receive, and takes a
  // block. False: as receive() and send() say.
  bool exchange(int wait_ms);

 private:
  OwnedFd socket_;
  size_t most_line_bytes_;
  std::string received_, unsent_;
  size_t n_scanned_ = 0;  // of received_, without a line end
  size_t n_sent_ = 0;     // of unsent_
};

}  // namespace dsv32
