// Files that go with a message of a chat: their text stands before it, each under its name.
//
// The one idea: @PATH names a file only where a person has typed it. An @ that came otherwise, pasted or from
// an editor, is another character, kTextAt, from there until the message is sent, whatever is made of it
// between: edited, or found again in the history.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dsv32 {

constexpr uint32_t kTextAt = 0xfdd0;     // no character of any text (Unicode keeps it for such uses)
std::string as_typed(std::string text);  // without it: U+FFFD in its place
std::string as_text(std::string text);   // every @ of it is text
std::string as_sent(std::string text);   // with @ for each

// With ~ for the home folder.
std::string attachment_path(std::string_view path);

// "PATH:", the text, and an empty line. Throws Error{usage} for what is no readable text, or too long.
std::string read_attachment(const std::string& path);

// The texts of the files that are named as @PATH, and behind them the message as_sent(). `note`: hears of
// each file, how long it is, and of words that look so and name none. Throws as read_attachment() does.
std::string with_attachments(const std::string& message, const std::function<void(const std::string&)>& note);

}  // namespace dsv32
