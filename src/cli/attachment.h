// Files that go with a message of a chat: their text stands before it, each under its name.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dsv32 {

// With ~ for the home folder.
std::string attachment_path(std::string_view path);

// "PATH:", the text, and an empty line. Throws Error{usage} for what is no readable text, or too long.
std::string read_attachment(const std::string& path);

// The texts of the files that are named as @PATH, and behind them the message as it is. `note`: hears of
// words that look so and are no files. Throws as read_attachment() does.
std::string with_attachments(const std::string& message, const std::function<void(const std::string&)>& note);

}  // namespace dsv32
