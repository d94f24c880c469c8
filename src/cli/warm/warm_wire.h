// Where warm processes are found, and what they and their clients say to each other over UNIX sockets.
//
// A socket is named after all that decides an engine, so that its name finds the right process, and a lock on
// the log beside it tells whether that process is alive. The folder is $XDG_RUNTIME_DIR/dsv32, else
// ~/.local/state/dsv32; it, and the process at the other end, must be this user's. Either file may be cleaned
// away: a process whose log is gone still answers at its socket, and one whose socket is gone knows that
// nobody finds it.
//
// What is said is one JSON object a line:
//
//   asks:   {"dsv32": 1, "want": "answers"}, or "status", or "stop"; then
//           {"ask": 7, "request": {...}}  and perhaps  {"cancel": 7}
//   tells:  {"dsv32": 1, "facts": {...}}, of a status or stop what it is; then
//           {"of": 7, "prefill": [n_done, n_total, n_cached]}  {"of": 7, "thinking": "..."}
//           {"of": 7, "text": "..."}, from the first text on once more when another prefill follows, and at
//           the end  {"of": 7, "result": {...}}  or  {"of": 7, "error": {...}}  or  {"of": 7, "ending":
//           true}: not begun, as the process is about to end
//           {}: it is alive, every second to a client that waits for an answer or for the end
//           {"error": {...}}: of the connection, which ends, as it does when a status has been told
//
// Texts are bytes, which JSON does not carry: each goes as the character of its number, U+0000 to U+00FF.
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
#include "engine/request.h"
#include "gguf/gguf.h"

namespace dsv32 {

// The path of the socket for this model file, as it is now, with these flags of the groups Model and Prefix
// cache, and this build of the program. Throws Error{io} where no socket can be had.
std::string warm_path(const Options& options, const GgufFile& file);

// The sockets in the folder, whether anybody listens or not. Throws Error{io} when the folder is another's.
std::vector<std::string> warm_paths();

// "x.log" for "x.sock".
std::string warm_log(const std::string& path);

// A warm process that was there, or still is, and gives no answer: another may be asked.
class WarmGone : public Error {
 public:
  explicit WarmGone(const std::string& message, std::string hint = {})
      : Error(ErrorKind::io, message, std::move(hint)) {}
};

// For the first answer to a client: a step may be under way.
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

inline constexpr int kWarmVersion = 1;
// Of a line that tells: an answer's tokens with log-probabilities of twenty others each.
inline constexpr size_t kMostToldBytes = size_t{1} << 30;
// Of a line that asks: a token takes up to seven digits and a comma, beside options and stops.
constexpr size_t most_asked_bytes(int64_t context) {
  return 8 * static_cast<size_t>(context) + (size_t{256} << 10);
}

// A line without its end; texts become characters. And back: throws Error{usage} for what is no such object.
std::string warm_line(ReadJson json);
ReadJson warm_object(const std::string& line);

// --- What lines hold: each structure has one list of its fields. What does not fit is a ReadJson::exception.

void to_json(ReadJson& json, const TokenRun& run);
void from_json(const ReadJson& json, TokenRun& run);
void to_json(ReadJson& json, const GenerationOptions& options);
void from_json(const ReadJson& json, GenerationOptions& options);  // in no bounds yet

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Request, prompt, decoded, options, talk)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Completion, reasoning, content, thinking_closed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenLogprob, id, logprob)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenRecord, chosen, top)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Forward::BufferTally, n_rows, n_misses)
NLOHMANN_JSON_SERIALIZE_ENUM(FinishReason, {{FinishReason::stop, "stop"},
                                            {FinishReason::length, "length"},
                                            {FinishReason::interrupted, "interrupted"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GenerationResult, completion, finish_reason, n_prompt_tokens,
                                   n_cached_tokens, n_completion_tokens, n_thinking_tokens, why_none_cached,
                                   prefill_seconds, decode_seconds, logprobs, decoded, n_held_tokens,
                                   buffer_tally)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EngineFacts, vocab_size, context, max_seqs, pool_tokens, warnings)

// An Error, as it travels.
struct WarmError {
  ErrorKind kind = ErrorKind::internal;
  std::string message, hint;
  WarmError() = default;
  explicit WarmError(const Error& error) : kind(error.kind()), message(error.what()), hint(error.hint()) {}
  Error error() const { return {kind, message, hint}; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WarmError, kind, message, hint)

// What a client says is checked: nothing of it is read as something else. Without sequence and tokenizer.
// Throws Error{usage}.
Request warm_request(const ReadJson& json);

// What the process tells is believed, as far as it can be read.
[[noreturn]] void fail_unread();  // throws WarmGone
template <typename Read>
auto readable(const Read& read) try {
  return read();
} catch (const ReadJson::exception&) {
  fail_unread();
}

}  // namespace dsv32
