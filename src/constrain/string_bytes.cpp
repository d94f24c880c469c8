// The bytes of a string in a document: its characters in UTF-8, and JSON's escapes within quotation marks.
//
// A character of several bytes is a number whose digits come one by one: after the first byte of UTF-8 each
// byte is a digit of six bits, in an escape \uXXXX each is one of four. A term of digits has the range
// of numbers that the digits so far leave.
#include <algorithm>

#include "constrain/terms.h"

namespace dsv32 {
namespace {

constexpr uint32_t kFirstHigh = 0xd800, kLastHigh = 0xdbff, kFirstLow = 0xdc00, kLastLow = 0xdfff;

int hex_digit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  const int letter = byte | 0x20;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

int utf8_digit(uint8_t byte) { return byte >= 0x80 && byte <= 0xbf ? byte & 0x3f : -1; }

// How many bytes follow a character's first one in UTF-8, and which characters begin so; 0: it is none.
struct Lead {
  int n_missing;
  Terms::Range range;
};
Lead lead_of(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {0, {}};
  const int n = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
  const int n_bits = 6 * (n - 1);
  const uint32_t first = (byte & (0x7fu >> n)) << n_bits, last = first | ((1u << n_bits) - 1);
  if (byte == 0xed) return {2, {first, kFirstHigh - 1}};
  const uint32_t least = n == 2 ? 0x80 : n == 3 ? 0x800 : 0x10000;
  return {n - 1, {std::max(first, least), std::min(last, Terms::kLastCharacter)}};
}

// What is added to the low half of a surrogate pair.
uint32_t base_of(uint32_t high) { return 0x10000 + ((high - kFirstHigh) << 10) - kFirstLow; }

}  // namespace

// `is_quoted`: what follows is still within quotation marks.
void Terms::derive_character(Id string, bool is_quoted, uint32_t character, std::vector<Id>& next) {
  const Id left = after(string, character);
  if (is_possible(left)) next.push_back(is_quoted ? alone(left) : bare(left));
}

// `more`: what is added to the number of the digits.
Terms::Id Terms::digits(Kind kind, Id string, int n_missing, Range range, int64_t more) {
  return make({.kind = kind, .parts = {string}, .ranges = {range}, .least = more, .most = n_missing});
}

void Terms::derive_string(const Node& node, uint8_t byte, std::vector<Id>& next) {
  const Id string = node.parts.front();
  const bool is_quoted = node.kind == Kind::quoted;
  if (node.kind == Kind::escape) return derive_escape(string, byte, next);
  if (!is_quoted && node.kind != Kind::bare) return derive_digit(node, byte, next);
  if (is_quoted && byte == '"') {
    if (takes_empty(string)) next.push_back(kEmpty);
  } else if (is_quoted && byte == '\\') {
    if (is_possible_after(string, {0, kLastCharacter}))
      next.push_back(make({.kind = Kind::escape, .parts = {string}}));
  } else if (byte >= 0x80) {
    derive_first(node, byte, next);
  } else if (!is_quoted || byte >= 0x20) {
    derive_character(string, is_quoted, byte, next);
  }
}

// The first of a character's several bytes. If what may follow is the same for all characters that begin with
// it, any bytes of theirs will do: else the beginnings of thousands of Chinese characters would be states.
void Terms::derive_first(const Node& node, uint8_t byte, std::vector<Id>& next) {
  const auto [n_missing, range] = lead_of(byte);
  const Id string = node.parts.front();
  if (n_missing == 0 || !may_come(string, range)) return;
  const bool is_quoted = node.kind == Kind::quoted;
  if (!is_uniform(string, range))
    return next.push_back(
        digits(is_quoted ? Kind::quoted_digits : Kind::bare_digits, string, n_missing, range));
  std::vector<Id> left;
  derive_character(string, is_quoted, range.first, left);
  const int n_bits = 6 * (n_missing - 1);
  const auto second = [&](uint32_t character) { return 0x80 | (character >> n_bits & 0x3f); };
  const Id others = repeat(character({{0x80, 0xbf}}), n_missing - 1, n_missing - 1);
  next.push_back(sequence({character({{second(range.first), second(range.last)}}), others, left.front()}));
}

// Whether a number in this range can stand for the next character, perhaps as the high half of a pair.
bool Terms::may_come(Id string, Range range) {
  const auto may = [&](uint32_t first, uint32_t last) {
    return first <= last && is_possible_after(string, {first, last});
  };
  if (may(range.first, std::min(range.last, kFirstHigh - 1)) ||
      may(std::max(range.first, kLastLow + 1), range.last))
    return true;
  const uint32_t first = std::max(range.first, kFirstHigh), last = std::min(range.last, kLastHigh);
  return first <= last && may(base_of(first) + kFirstLow, base_of(last) + kLastLow);
}

void Terms::derive_escape(Id string, uint8_t byte, std::vector<Id>& next) {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  if (byte == 'u')
    next.push_back(digits(Kind::hex_digits, string, 4, {0, 0xffff}));
  else if (const size_t i = kLetters.find(static_cast<char>(byte)); i != std::string_view::npos)
    derive_character(string, true, static_cast<uint8_t>(kMeant[i]), next);
}

void Terms::derive_digit(const Node& node, uint8_t byte, std::vector<Id>& next) {
  const Id string = node.parts.front();
  const auto more = static_cast<uint32_t>(node.least);
  const bool is_hex = node.kind == Kind::hex_digits;
  const int digit = is_hex ? hex_digit(byte) : utf8_digit(byte), width = is_hex ? 4 : 6;
  if (digit < 0) return;
  const int n_missing = static_cast<int>(node.most) - 1, n_bits = width * n_missing;
  const uint32_t first = (node.ranges[0].first >> (n_bits + width) << width | static_cast<uint32_t>(digit))
                         << n_bits;
  const Range left{std::max(first, node.ranges[0].first),
                   std::min(first + (1u << n_bits) - 1, node.ranges[0].last)};
  if (left.first > left.last || !may_come(string, {left.first + more, left.last + more})) return;
  if (n_missing > 0) return next.push_back(digits(node.kind, string, n_missing, left, more));
  const bool is_high = is_hex && more == 0 && first >= kFirstHigh && first <= kLastHigh;
  if (!is_high) return derive_character(string, node.kind != Kind::bare_digits, first + more, next);
  next.push_back(
      sequence(literal("\\u"), digits(Kind::hex_digits, string, 4, {kFirstLow, kLastLow}, base_of(first))));
}

}  // namespace dsv32
