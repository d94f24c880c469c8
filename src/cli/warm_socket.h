// Where warm processes are found, and how one talks with them: UNIX sockets in a folder of the user's own,
// and lines over them.
//
// The one idea: a socket is named after all that decides an engine, so that whoever finds the name has found
// the right process, and a lock on the log beside it tells whether that process is alive. The folder is
// $XDG_RUNTIME_DIR/dsv32, else ~/.local/state/dsv32; it, and who is at the other end, must be this user's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "cli/options.h"
#include "gguf/gguf.h"

namespace dsv32 {

// The path of the socket for this model file, as it is now, with these flags of the groups Model and Prefix
// cache, and this build of the program. Throws Error{io} where no socket can be had.
std::string warm_path(const Options& options, const GgufFile& file);

// Those in the folder, whether anybody listens or not. Throws Error{io} when the folder is another's.
std::vector<std::string> warm_paths();

// "x.log" for "x.sock".
std::string warm_log(const std::string& path);

// The log, locked for as long as it is open, in a folder that is made if need be. Not open: a process that
// lives has it. Throws Error{io}.
OwnedFd lock_warm(const std::string& path);

// Takes the place of a stale one: call with the lock. Throws Error{io}.
OwnedFd listen_warm(const std::string& path);

// Not open: nobody listens. Throws Error{io} when another user does.
OwnedFd connect_warm(const std::string& path);

// The next one who asks; not open: nobody, or another user, who is left standing.
OwnedFd accept_warm(int listener);

// Lines over a socket, in both directions, bounded in both, and never waited for.
class WarmLink {
 public:
  // Of what is received and of what waits to be sent, so many bytes at most.
  WarmLink(OwnedFd socket, size_t most_received, size_t most_unsent)
      : socket_(std::move(socket)), most_received_(most_received), most_unsent_(most_unsent) {}

  int fd() const { return socket_.get(); }
  // Takes what is there, a block at most. False: the other end is gone, or its line is too long.
  bool receive();
  // Of what was received.
  std::optional<std::string> next_line();
  // `line`: without its end.
  void queue(std::string_view line);
  // As much as goes. False: the other end is gone, or takes too little.
  bool send();
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  OwnedFd socket_;
  size_t most_received_, most_unsent_;
  std::string received_, unsent_;
  size_t n_scanned_ = 0;  // of received_, without a line end
};

}  // namespace dsv32
