// See attachment.h.
#include "cli/attachment.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMostAttachedBytes = size_t{16} << 20;
constexpr std::string_view kSpaces = " \t\n";

}  // namespace

std::string attachment_path(std::string_view path) {
  const char* home = std::getenv("HOME");
  if (path.starts_with("~/") && home) return home + std::string(path.substr(1));
  return std::string(path);
}

std::string read_attachment(const std::string& path) {
  const std::string real = attachment_path(path);
  std::error_code error;
  if (!std::filesystem::is_regular_file(real, error))  // a pipe would be waited for
    fail(ErrorKind::usage, format("%s is no file", visible(path).c_str()));
  std::string text = read_text(real, kMostAttachedBytes);
  if (text.find('\0') != std::string::npos)
    fail(ErrorKind::usage, format("%s is no text: it has NUL bytes", visible(path).c_str()));
  if (!text.ends_with('\n')) text += '\n';
  return path + ":\n" + text + "\n";
}

std::string with_attachments(const std::string& message,
                             const std::function<void(const std::string&)>& note) {
  std::string files;
  for (size_t at = message.find('@'); at != std::string::npos; at = message.find('@', at + 1)) {
    if (at > 0 && kSpaces.find(message[at - 1]) == std::string_view::npos) continue;
    const size_t end = message.find_first_of(kSpaces, at);
    const std::string path = message.substr(at + 1, end == std::string::npos ? end : end - at - 1);
    std::error_code error;
    if (std::filesystem::is_regular_file(attachment_path(path), error))
      files += read_attachment(path);
    else if (path.find_first_of("./") != std::string::npos)
      note(format("note: there is no file %s; @%s is sent as it is", path.c_str(), path.c_str()));
  }
  return files + message;
}

}  // namespace dsv32
