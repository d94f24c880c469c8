// See attachment.h.
#include "cli/terminal/attachment.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/terminal/terminal.h"

namespace dsv32 {
namespace {

constexpr size_t kMostAttachedBytes = size_t{16} << 20;
constexpr std::string_view kSpaces = " \t\n", kTextAtBytes = "\ufdd0";

bool is_file(const std::string& path) {
  std::error_code error;
  return path.find('\0') == std::string::npos &&
         std::filesystem::is_regular_file(attachment_path(path), error);
}

}  // namespace

std::string as_typed(std::string text) { return replaced(std::move(text), kTextAtBytes, "\ufffd"); }
std::string as_text(std::string text) { return replaced(as_typed(std::move(text)), "@", kTextAtBytes); }
std::string as_sent(std::string text) { return replaced(std::move(text), kTextAtBytes, "@"); }

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
  std::vector<std::string> notes;
  for (size_t at = 0, end = 0; at < message.size(); at = end + 1) {
    end = std::min(message.find_first_of(kSpaces, at), message.size());
    const std::string word = message.substr(at, end - at), name = as_sent(word);
    if (!name.starts_with('@')) continue;
    const std::string path = name.substr(1);
    const bool is_there = is_file(path), is_typed = word[0] == '@';
    if (is_there && is_typed) {
      const std::string file = read_attachment(path);
      notes.push_back(format("%s, %s bytes, goes with the message", path.c_str(),
                             with_thousands(static_cast<int64_t>(file.size())).c_str()));
      files += file;
    } else if (is_there) {
      notes.push_back(
          format("note: @%s was not typed and is sent as it is; /file adds the file", path.c_str()));
    } else if (is_typed && path.find_first_of("./") != std::string::npos) {
      notes.push_back(format("note: there is no file %s; @%s is sent as it is", path.c_str(), path.c_str()));
    }
  }
  for (const std::string& line : notes) note(line);
  return files + as_sent(message);
}

}  // namespace dsv32
