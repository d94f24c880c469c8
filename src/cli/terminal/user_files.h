// The user's files: the program's folders by the rules of XDG, the history of typed lines, the files that are
// attached to a chat's message, and a text written in the user's own editor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_system.h"

namespace dsv32 {

enum class UserFolder { config, cache, data, state, runtime };

// $XDG_CONFIG_HOME/dsv32, else ~/.config/dsv32; the others likewise in .cache, .local/share and .local/state,
// and `runtime` without $XDG_RUNTIME_DIR also in .local/state. Empty when the variable is no absolute path
// and there is no home folder.
std::string user_folder(UserFolder folder);

// Makes the folder and its parents, for their owner alone. Throws Error{io} with the folder that cannot be
// made, and the reason.
std::string make_user_folder(UserFolder folder);

// The typed lines, kept for the next chat in a file that libedit can load:
//
//   _HiStOrY_V2_
//   hello\040world       an entry: the backslash and every byte that is no printable ASCII as \ooo
//
// An entry is appended when it is typed, so that chats side by side keep each other's lines and a killed one
// keeps its own. The file is shortened when a chat begins. Both hold the folder's lock, because shortening
// replaces the file. Failures are ignored: history is a convenience. One thread, any number of processes.
class HistoryFile {
 public:
  static constexpr size_t kMaxLines = 1000, kMaxBytes = size_t{4} << 20;  // when shortened

  // Follows links in `path`. The file is for its owner alone. An empty `path`: nothing is kept.
  explicit HistoryFile(const std::string& path, FileSystem& fs = real_file_system());

  // Keeps the last entries. False when there is no file to load.
  bool shorten() const;

  // `entry` may have several lines.
  void append(const std::string& entry) const;

  const std::string& path() const { return path_; }

 private:
  FileSystem* fs_;
  std::string path_, folder_, name_;
};

// The history's path in the folder for state, which is made; empty when that fails.
std::string history_path();

// @PATH in a message names a file only if a person has typed it. A pasted @, or one from an editor, is
// another character, kTextAt, until the message is sent, also in the history and when the line is edited.
constexpr uint32_t kTextAt = 0xfdd0;     // a noncharacter of Unicode: in no text
std::string as_typed(std::string text);  // kTextAt becomes U+FFFD
std::string as_text(std::string text);   // every @ becomes kTextAt
std::string as_sent(std::string text);   // kTextAt becomes @

// With ~ for the home folder.
std::string attachment_path(std::string_view path);

// "PATH:", the text, and an empty line. Throws Error{usage} for a file that is not text, cannot be read or is
// too long.
std::string read_attachment(const std::string& path);
// "PATH, 1,024 bytes, goes with "
std::string attachment_note(const std::string& path, const std::string& text);

// The texts of the files named as @PATH, and after them the message as_sent(). Says the name and length of
// each file, and which words look like @PATH but name no file. Throws as read_attachment() does.
std::string with_attachments(const std::string& message);

// $VISUAL, else $EDITOR, else vi.
std::string editor_command();

// Lets the user edit `text` in a temporary file. A last line end is dropped. False when the editor fails.
// Throws Error{io} when the file cannot be written, Error{usage} when it cannot be read.
bool edit_text(std::string& text);

}  // namespace dsv32
