// See warm_wire.h.
#include "cli/warm/warm_wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/options/json.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  fail(ErrorKind::io, format("cannot %s %s: %s", what, visible(path).c_str(), std::strerror(errno)));
}

// Only this user may look inside. False: it is not there.
bool is_folder_safe(const std::string& folder) {
  struct stat info {};
  if (folder.empty()) fail(ErrorKind::io, "neither XDG_RUNTIME_DIR nor HOME names a folder for sockets");
  if (lstat(folder.c_str(), &info) != 0) return false;
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0)
    fail(ErrorKind::io, format("%s is no folder of this user alone", visible(folder).c_str()),
         "chmod 700 makes one of your own so");
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    fail(ErrorKind::io,
         format("%s is too long for a socket, expected at most %zu bytes", visible(path).c_str(),
                sizeof address.sun_path - 1),
         "XDG_RUNTIME_DIR names another folder");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

OwnedFd make_socket(int flags) {
  OwnedFd made(real_file_system(), socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!made.is_open()) fail_io("a socket", "make");
  return made;
}

bool is_own_peer(int fd) {
  ucred peer{};
  socklen_t n_bytes = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n_bytes) == 0 && peer.uid == geteuid();
}

// Device and inode; zeros when there is none.
std::pair<uint64_t, uint64_t> file_at(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? std::pair<uint64_t, uint64_t>(info.st_dev, info.st_ino)
                                         : std::pair<uint64_t, uint64_t>();
}

bool is_at(int fd, const std::string& path) {
  const std::optional<FileStamp> own = stamp_of(fd);
  return own && std::pair(own->device, own->inode) == file_at(path);
}

// All flags that decide an engine and its prefixes, as they would be typed.
void add_engine(Sha256& hash, Options options) {
  options.engine.model_path.clear();  // the file itself is hashed
  std::error_code error;
  if (options.uses_cache)
    options.cache.directory = std::filesystem::absolute(cache_directory(options), error).string();
  else
    options.cache = {};
  for (const Flag& flag : engine_flags())
    if (flag.is_of(Command::warm_start)) hash.add_field(flag.text_in(options));
}

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

int64_t whole_number(const ReadJson& json, int64_t least) {
  const bool is_small = json.is_number_integer() &&
                        (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{kMostInt32});
  if (!is_small || json.get<int64_t>() < least)
    fail(ErrorKind::usage, JsonFields::shown(json) + " is no token or position");
  return json.get<int64_t>();
}

const ReadJson& list(JsonFields& fields, const std::string& key) {
  const ReadJson* found = fields.find(key);
  if (!found || !found->is_array()) fail(ErrorKind::usage, key + " is no list");
  return *found;
}

ReadJson runs_json(const std::vector<TokenRun>& runs) {
  ReadJson json = ReadJson::array();
  for (const TokenRun& run : runs) json.push_back({run.begin, run.end});
  return json;
}

// Ascending, and none empty.
std::vector<TokenRun> runs_of(const ReadJson& json) {
  std::vector<TokenRun> runs;
  for (const ReadJson& run : json) {
    if (!run.is_array() || run.size() != 2) fail(ErrorKind::usage, "a run is no pair");
    const int64_t begin = whole_number(run[0], runs.empty() ? 0 : runs.back().end);
    runs.push_back({begin, whole_number(run[1], begin + 1)});
  }
  return runs;
}

ReadJson warm_value(const std::vector<std::string>& texts) {
  ReadJson json = ReadJson::array();
  for (const std::string& text : texts) json.push_back(warm_text(text));
  return json;
}
template <typename T>
ReadJson warm_value(const T& value) {
  return value;
}

ReadJson options_json(GenerationOptions options) {
  ReadJson json;
  for (const GenerationOption& option : generation_options())
    json[option.name] =
        std::visit([](const auto* field) { return warm_value(*field); }, option.field(options));
  return json;
}

GenerationOptions options_of(const ReadJson& json) {
  JsonFields fields(json, "options");
  GenerationOptions options;
  for (const GenerationOption& option : generation_options()) {
    const GenerationOption::Field field = option.field(options);
    const auto texts = std::get_if<std::vector<std::string>*>(&field);
    if (!texts) fields.read(option, options);
    if (texts)
      for (const ReadJson& text : list(fields, option.name)) (*texts)->push_back(warm_bytes(text));
  }
  if (std::ranges::count(options.stops, "") > 0) fail(ErrorKind::usage, "a stop is empty");
  return options;
}

ReadJson logprobs_json(const std::vector<TokenRecord>& records) {
  ReadJson json = ReadJson::array();
  for (const TokenRecord& record : records) {
    ReadJson row = ReadJson::array({record.chosen.id, record.chosen.logprob});
    for (const TokenLogprob& other : record.top) row.push_back(other.id), row.push_back(other.logprob);
    json.push_back(std::move(row));
  }
  return json;
}

std::vector<TokenRecord> logprobs_of(const ReadJson& json) {
  std::vector<TokenRecord> records;
  for (const ReadJson& row : json) {
    TokenRecord record;
    for (size_t i = 0; i + 1 < row.size(); i += 2) {
      const TokenLogprob token{row.at(i).get<int32_t>(), row.at(i + 1).get<float>()};
      i == 0 ? void(record.chosen = token) : record.top.push_back(token);
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

std::string warm_path(const Options& options, const GgufFile& file) {
  constexpr size_t kNameBytes = 8;
  Sha256 hash;
  hash.add_field(version_text());
  for (const MappedFile& part : file.files()) {
    const FileStamp& stamp = part.stamp();
    for (const uint64_t number :
         {stamp.device, stamp.inode, stamp.n_bytes, static_cast<uint64_t>(stamp.written_ns),
          static_cast<uint64_t>(stamp.changed_ns)})
      hash.add_number(number);
  }
  add_engine(hash, options);
  const Hash256 digest = hash.finish();
  std::string path = user_folder(UserFolder::runtime) + "/warm-";
  for (size_t i = 0; i < kNameBytes; ++i) path += format("%02x", digest[i]);
  return path + ".sock";
}

std::vector<std::string> warm_paths() {
  std::vector<std::string> paths;
  const std::string folder = user_folder(UserFolder::runtime);
  if (!is_folder_safe(folder)) return paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("warm-") && name.ends_with(".sock"))
      paths.push_back(entry.path().string());
  return paths;
}

std::string warm_log(const std::string& path) { return path.substr(0, path.rfind('.')) + ".log"; }

OwnedFd lock_warm(const std::string& path) {
  if (!is_folder_safe(make_user_folder(UserFolder::runtime)))
    fail_io(user_folder(UserFolder::runtime), "make the folder");
  address_of(path);  // or it fails when everything is loaded
  const std::string log = warm_log(path);
  OwnedFd file;
  do {
    file = OwnedFd(real_file_system(),
                   open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.is_open()) fail_io(log, "open");
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail_io(log, "lock");
      return {};
    }
  } while (!is_at(file.get(), log));                  // or the one that was locked has been removed meanwhile
  const bool is_held = connect_warm(path).is_open();  // by a process whose log was removed
  return is_held ? OwnedFd() : std::move(file);
}

WarmListener::WarmListener(const std::string& path) : path_(path), socket_(make_socket(SOCK_NONBLOCK)) {
  constexpr int kMostWaiting = 1024;
  const sockaddr_un address = address_of(path);
  unlink(path.c_str());
  if (bind(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(fd(), kMostWaiting) != 0)
    fail_io(path, "listen at");
  file_ = file_at(path);
}

WarmListener::~WarmListener() {
  if (socket_.is_open() && is_there()) unlink(path_.c_str());
}

bool WarmListener::is_there() const { return file_at(path_) == file_; }

OwnedFd WarmListener::accept() const {
  OwnedFd socket(real_file_system(), accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open() && !is_own_peer(socket.get())) socket.reset();
  return socket;
}

OwnedFd connect_warm(const std::string& path) {
  if (!is_folder_safe(std::filesystem::path(path).parent_path().string())) return {};
  const sockaddr_un address = address_of(path);
  OwnedFd socket = make_socket(0);
  const timeval patience{kWarmPatienceMs / 1000, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED) return {};
    if (errno == EAGAIN) throw WarmGone("the warm process at " + visible(path) + " has no room for callers");
    fail_io(path, "connect to");
  }
  if (!is_own_peer(socket.get()))
    fail(ErrorKind::io, format("the socket %s is another user's", visible(path).c_str()));
  return socket;
}

bool WarmLink::receive() {
  char block[1 << 16];
  const ssize_t n = recv(socket_.get(), block, sizeof block, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  received_.append(block, static_cast<size_t>(n));
  const bool has_line = received_.find('\n', n_scanned_) != std::string::npos;
  return n > 0 && (has_line || received_.size() <= most_line_bytes_);
}

std::optional<std::string> WarmLink::next_line() {
  const size_t end = received_.find('\n', n_scanned_);
  n_scanned_ = end == std::string::npos ? received_.size() : 0;
  if (end == std::string::npos) return std::nullopt;
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

void WarmLink::queue(std::string_view line) {
  unsent_ += line;
  unsent_ += '\n';
}

bool WarmLink::send() {
  while (n_unsent() > 0) {
    const ssize_t n =
        ::send(socket_.get(), unsent_.data() + n_sent_, n_unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    n_sent_ += static_cast<size_t>(n);
    if (2 * n_sent_ < unsent_.size()) continue;  // few moves of much
    unsent_ = unsent_.substr(n_sent_);
    n_sent_ = 0;
  }
  return true;
}

bool WarmLink::exchange(int wait_ms) {
  const bool is_there = send();
  pollfd ready{fd(), static_cast<short>(POLLIN | (n_unsent() > 0 ? POLLOUT : 0)), 0};
  poll(&ready, 1, wait_ms);
  return receive() && is_there;
}

std::string warm_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, static_cast<uint8_t>(byte));
  return text;
}

std::string warm_bytes(const ReadJson& json) {
  if (!json.is_string()) fail(ErrorKind::usage, JsonFields::shown(json) + " is no text");
  const auto& text = json.get_ref<const std::string&>();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    uint32_t character = 0;
    const int n = decode_utf8(text, at, &character);
    if (n == 0 || character > 0xff) fail(ErrorKind::usage, "a text holds a character beyond U+00FF");
    bytes += static_cast<char>(character);
    at += static_cast<size_t>(n);
  }
  return bytes;
}

ReadJson warm_json(const Request& request) {
  return {{"prompt", request.prompt},
          {"decoded", runs_json(request.decoded)},
          {"options", options_json(request.options)},
          {"is_talk", request.talk != 0}};
}

Request warm_request(const ReadJson& json) {
  JsonFields fields(json, "request");
  Request request;
  for (const ReadJson& token : list(fields, "prompt"))
    request.prompt.push_back(static_cast<int32_t>(whole_number(token, 0)));
  request.decoded = runs_of(list(fields, "decoded"));
  const ReadJson* options = fields.find("options");
  if (!options) fail(ErrorKind::usage, "options are missing");
  request.options = options_of(*options);
  request.talk = fields.truth("is_talk").value_or(false);
  return request;
}

void fail_unread() { throw WarmGone("a warm process said what cannot be understood"); }

ReadJson warm_json(const GenerationResult& result) {
  return {{"reasoning", warm_text(result.completion.reasoning)},
          {"content", warm_text(result.completion.content)},
          {"thinking_closed", result.completion.thinking_closed},
          {"finish", static_cast<int>(result.finish_reason)},
          {"n_prompt", result.n_prompt_tokens},
          {"n_cached", result.n_cached_tokens},
          {"n_completion", result.n_completion_tokens},
          {"n_thinking", result.n_thinking_tokens},
          {"why_none_cached", warm_text(result.why_none_cached)},
          {"prefill_seconds", result.prefill_seconds},
          {"decode_seconds", result.decode_seconds},
          {"logprobs", logprobs_json(result.logprobs)},
          {"decoded", runs_json(result.decoded)},
          {"n_held", result.n_held_tokens},
          {"buffer", {result.buffer_tally.n_rows, result.buffer_tally.n_misses}}};
}

GenerationResult warm_result(const ReadJson& json) {
  GenerationResult result;
  result.completion = {warm_bytes(json.at("reasoning")), warm_bytes(json.at("content")),
                       json.at("thinking_closed").get<bool>()};
  result.finish_reason = static_cast<FinishReason>(json.at("finish").get<int>());
  json.at("n_prompt").get_to(result.n_prompt_tokens);
  json.at("n_cached").get_to(result.n_cached_tokens);
  json.at("n_completion").get_to(result.n_completion_tokens);
  json.at("n_thinking").get_to(result.n_thinking_tokens);
  result.why_none_cached = warm_bytes(json.at("why_none_cached"));
  json.at("prefill_seconds").get_to(result.prefill_seconds);
  json.at("decode_seconds").get_to(result.decode_seconds);
  result.logprobs = logprobs_of(json.at("logprobs"));
  result.decoded = runs_of(json.at("decoded"));
  json.at("n_held").get_to(result.n_held_tokens);
  result.buffer_tally = {json.at("buffer").at(0).get<int64_t>(), json.at("buffer").at(1).get<int64_t>()};
  return result;
}

ReadJson warm_json(const Error& error) {
  return {{"kind", static_cast<int>(error.kind())},
          {"message", warm_text(error.what())},
          {"hint", warm_text(error.hint())}};
}

Error warm_error(const ReadJson& json) {
  return {static_cast<ErrorKind>(json.at("kind").get<int>()), warm_bytes(json.at("message")),
          warm_bytes(json.at("hint"))};
}

ReadJson warm_json(const EngineFacts& facts) {
  return {{"vocab_size", facts.vocab_size},
          {"context", facts.context},
          {"max_seqs", facts.max_seqs},
          {"pool_tokens", facts.pool_tokens},
          {"warnings", warm_value(facts.warnings)}};
}

EngineFacts warm_facts(const ReadJson& json) {
  EngineFacts facts;
  json.at("vocab_size").get_to(facts.vocab_size);
  json.at("context").get_to(facts.context);
  json.at("max_seqs").get_to(facts.max_seqs);
  json.at("pool_tokens").get_to(facts.pool_tokens);
  if (facts.vocab_size < 1 || facts.context < 1 || facts.max_seqs < 1) fail_unread();
  for (const ReadJson& warning : json.at("warnings")) facts.warnings.push_back(warm_bytes(warning));
  return facts;
}

}  // namespace dsv32
