// Kinds of characters, a bit each: small letters, capital letters, digits, groups of characters that are not
// ASCII; every other character is a kind of its own. What a text may have in it is told in one word.
#pragma once

#include <array>
#include <cstdint>

namespace dsv32 {

using CharacterKinds = uint64_t;

// Characters that are not ASCII are grouped by their first byte in UTF-8.
struct CharacterGroup {
  uint32_t first, last;
  uint8_t first_byte, last_byte;
};
inline constexpr CharacterGroup kCharacterGroups[] = {
    {0x80, 0xbf, 0xc2, 0xc2},       {0xc0, 0x7ff, 0xc3, 0xdf},    {0x800, 0xfff, 0xe0, 0xe0},
    {0x1000, 0x1fff, 0xe1, 0xe1},   {0x2000, 0x2fff, 0xe2, 0xe2}, {0x3000, 0x3fff, 0xe3, 0xe3},
    {0x4000, 0xcfff, 0xe4, 0xec},   {0xd000, 0xefff, 0xed, 0xee}, {0xf000, 0xffff, 0xef, 0xef},
    {0x10000, 0x10ffff, 0xf0, 0xf4}};

// Of a character's first byte; control characters and further bytes have none.
inline CharacterKinds kind_of(uint8_t byte) {
  static constexpr auto kKinds = [] {
    std::array<CharacterKinds, 256> kinds{};
    int n = 3;
    for (int c = 0x20; c < 0x80; ++c) {
      const bool is_small = c >= 'a' && c <= 'z', is_capital = c >= 'A' && c <= 'Z';
      const bool is_digit = c >= '0' && c <= '9';
      const int bit = is_small ? 0 : is_capital ? 1 : is_digit ? 2 : n++;
      kinds[static_cast<size_t>(c)] = CharacterKinds{1} << bit;
    }
    for (const CharacterGroup& group : kCharacterGroups) {
      for (size_t c = group.first_byte; c <= group.last_byte; ++c) kinds[c] = CharacterKinds{1} << n;
      ++n;
    }
    return kinds;
  }();
  return kKinds[byte];
}

}  // namespace dsv32
