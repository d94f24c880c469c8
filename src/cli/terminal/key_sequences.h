// Keys that a terminal sends as a sequence of bytes behind ESC: where one ends, and what it does.
//
// What the table does not name does nothing: function keys, the mouse, and whatever terminals come to send.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace dsv32 {

// What some keys do. Each row has a character of its own, of the C1 control characters, which no keyboard
// types: kFirstKey and the row's index.
struct KeySequences {
  const char* sequences;  // without the ESC, with spaces between them
  const char* command;    // its name in libedit
};
std::span<const KeySequences> key_sequences();
constexpr wchar_t kFirstKey = 0x80, kLastKey = 0x9f;

// The character of a sequence, given without its ESC; 0 for one that does nothing.
wchar_t character_of(std::string_view sequence);

// `input` begins with ESC and [ or O. The bytes of its first sequence; 0 when it goes on in what comes next.
// A byte that belongs to none ends it and is not counted: one that was cut takes nothing with it.
size_t sequence_length(std::string_view input);

}  // namespace dsv32
