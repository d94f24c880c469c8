// Text without a model: escaping of untrusted bytes, UTF-8, byte counts for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

// `bytes` fit to be shown in a message or at a terminal: printable UTF-8 passes, every control character (C0,
// DEL, C1), bidirectional override and malformed byte becomes \n, \t, \e, \xNN or \uNNNN. With `keep_layout`,
// newline and tab pass too (for the answer on a terminal). Names longer than `max_chars` are cut and end in
// "...". Escaped text stays as it is; JSON, whose C0 characters are escaped already, keeps its meaning.
std::string visible(std::string_view bytes, bool keep_layout = false, size_t max_chars = SIZE_MAX);

// Decodes the code point that begins at `bytes[at]`. Returns its length in bytes 1..4, or 0 when the bytes
// are not well-formed UTF-8 (overlong forms, surrogates and values past U+10FFFF included).
int decode_utf8(std::string_view bytes, size_t at, uint32_t* code_point);

// Appends `code_point` as UTF-8.
void append_utf8(std::string& text, uint32_t code_point);

// How many bytes at the end of `bytes` begin a character that is not complete yet (0..3).
size_t incomplete_utf8_tail(std::string_view bytes);

// Malformed bytes become U+FFFD (for JSON, which cannot carry them).
std::string sanitize_utf8(std::string_view bytes);

// Text from outside without a byte order mark. Throws Error{usage} naming `name` when it is no text: as
// check_text_head() does, and for bytes that are no UTF-8.
std::string_view plain_text(std::string_view text, const std::string& name);
// `head`: the beginning of a text, of which kTextHead bytes are looked at. Throws Error{usage} when it begins
// like UTF-16 or UTF-32, or has a NUL.
inline constexpr size_t kTextHead = 8192;
void check_text_head(std::string_view head, const std::string& name);

// The parts between the separators: one more than there are separators.
std::vector<std::string> split(const std::string& text, char separator);

// Changes ASCII letters only.
std::string upper_case(std::string text);

// "386.0 GiB"
std::string human_bytes(uint64_t n_bytes);

// "512M", "1.5G", "1048576", "0": suffixes K M G T are powers of 1024, of which up to six decimals are read,
// and a part of a byte is dropped. Error{usage} naming `flag` otherwise, and for "24": whoever leaves the
// suffix out of so small a number does not mean bytes.
uint64_t parse_bytes(const std::string& text, const char* flag);

// The parts with `separator` between them.
std::string joined(const std::vector<std::string>& parts, const char* separator = " ");

// `text` with each `from` replaced by `to`.
std::string replaced(std::string text, std::string_view from, std::string_view to);

// Edit distance, for "did you mean".
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace dsv32
