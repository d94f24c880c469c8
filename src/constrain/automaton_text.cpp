// How the automaton reads the characters of texts: bytes of UTF-8, and JSON's escapes within quotation marks.
#include "constrain/automaton.h"

#include <algorithm>

namespace dsv32 {
namespace {

constexpr uint32_t kFirstLow = 0xdc00, kLastLow = 0xdfff, kFirstHigh = 0xd800, kLastHigh = 0xdbff;

int hex_digit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  const int letter = byte | 0x20;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// A character's first byte: how many bytes it has, and which characters begin so.
struct Lead {
  int n_bytes;
  uint32_t first, last;
};
Lead lead_of(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {0, 0, 0};
  const int n = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
  const int n_bits = 6 * (n - 1);
  const uint32_t first = (byte & (0x7fu >> n)) << n_bits, last = first | ((1u << n_bits) - 1);
  if (n == 3 && byte == 0xed) return {n, first, kFirstHigh - 1};
  return {n,
          std::max(first, n == 3   ? 0x800u
                          : n == 4 ? 0x10000u
                                   : 0x80u),
          std::min(last, Terms::kLastCharacter)};
}

// Of characters beyond 16 bits: those that a range of high surrogates begins.
Terms::Range pairs(uint32_t first_high, uint32_t last_high) {
  return {0x10000 + ((first_high - kFirstHigh) << 10), 0x10000 + ((last_high - kFirstHigh) << 10) + 0x3ff};
}

// `b` of a cell within an escape. Stages: 0: behind the backslash; 1 to 4: behind u, before that digit; 5: a
// high surrogate is complete; 6: behind the second backslash; 7 to 10: before a digit of the low one.
struct Escape {
  int stage;
  uint32_t unit;  // the digits so far
  uint32_t high;  // the surrogate's ten bits

  int32_t packed() const {
    return static_cast<int32_t>(static_cast<uint32_t>(stage) | unit << 4 | high << 20);
  }
  static Escape of(int32_t b) {
    const auto bits = static_cast<uint32_t>(b);
    return {static_cast<int>(bits & 15), bits >> 4 & 0xffff, bits >> 20};
  }
};

// `b` of a cell before a character's missing bytes.
struct Partial {
  int n_bytes, n_missing;
  uint32_t bits;

  int32_t packed() const {
    return static_cast<int32_t>(bits | static_cast<uint32_t>(n_missing) << 21 |
                                static_cast<uint32_t>(n_bytes) << 23);
  }
  static Partial of(int32_t b) {
    const auto all = static_cast<uint32_t>(b);
    return {static_cast<int>(all >> 23), static_cast<int>(all >> 21 & 3), all & 0x1fffff};
  }
};

// `b` of a cell within a character whose missing bytes do not matter: all that it may become lead to the same
// term. How many bytes are missing, and the bounds of the next one.
int32_t within_of(int n_missing, uint32_t least, uint32_t most) {
  return static_cast<int32_t>(static_cast<uint32_t>(n_missing) | least << 8 | most << 16);
}

}  // namespace

// Appends what may be next when `byte` is read at a cell.
void Automaton::read(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  switch (at.kind) {
    case Cell::Kind::node: return read_node(at, byte, next);
    case Cell::Kind::quoted:
    case Cell::Kind::bare: return read_text(at, byte, next);
    case Cell::Kind::partial: return read_partial(at, byte, next);
    case Cell::Kind::escape: return read_escape(at, byte, next);
    case Cell::Kind::within: {
      const auto b = static_cast<uint32_t>(at.b);
      if (byte < (b >> 8 & 0xff) || byte > (b >> 16 & 0xff)) return;
      const int n_missing = static_cast<int>(b & 0xff) - 1;
      if (n_missing == 0) return next.push_back(text_cell(at.a, at.is_quoted, at.tail));
      return next.push_back(
          cell({Cell::Kind::within, at.is_quoted, at.a, within_of(n_missing, 0x80, 0xbf), at.tail}));
    }
  }
}

void Automaton::read_text(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  if (at.is_quoted && byte == '"') {
    if (terms_.takes_empty(at.a)) leave(at, next);
  } else if (at.is_quoted && byte == '\\') {
    if (terms_.is_possible_after(at.a, {0, Terms::kLastCharacter}))
      next.push_back(cell({Cell::Kind::escape, true, at.a, 0, at.tail}));
  } else if (byte >= 0x80) {
    read_lead(at, byte, next);
  } else if (!at.is_quoted || byte >= 0x20) {
    take(at, byte, next);
  }
}

void Automaton::take(const Cell& at, uint32_t character, std::vector<CellId>& next) {
  const Terms::Id term = terms_.after(at.a, character);
  if (terms_.is_possible(term)) next.push_back(text_cell(term, at.is_quoted, at.tail));
}

void Automaton::read_lead(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  const auto [n_bytes, first, last] = lead_of(byte);
  if (n_bytes == 0) return;
  if (!terms_.is_uniform(at.a, {first, last})) {
    const Partial partial{n_bytes, n_bytes - 1, byte & (0x7fu >> n_bytes)};
    if (terms_.is_possible_after(at.a, {first, last}))
      next.push_back(cell({Cell::Kind::partial, at.is_quoted, at.a, partial.packed(), at.tail}));
    return;
  }
  const Terms::Id term = terms_.after(at.a, first);
  if (!terms_.is_possible(term)) return;
  const int n_bits = 6 * (n_bytes - 2);  // behind the second byte
  const auto second = [&](uint32_t character) { return 0x80 | (character >> n_bits & 0x3f); };
  next.push_back(cell({Cell::Kind::within, at.is_quoted, term,
                       within_of(n_bytes - 1, second(first), second(last)), at.tail}));
}

void Automaton::read_partial(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  if (byte < 0x80 || byte > 0xbf) return;
  Partial partial = Partial::of(at.b);
  partial.bits = partial.bits << 6 | (byte & 0x3f);
  --partial.n_missing;
  const int n_bits = 6 * partial.n_missing;
  const uint32_t least = partial.n_bytes == 2 ? 0x80 : partial.n_bytes == 3 ? 0x800 : 0x10000;
  const uint32_t first = std::max(partial.bits << n_bits, least);
  const uint32_t last = std::min((partial.bits << n_bits) | ((1u << n_bits) - 1), Terms::kLastCharacter);
  if (first > last || (first >= kFirstHigh && first <= kLastLow)) return;
  if (partial.n_missing == 0) return take(at, first, next);
  if (terms_.is_possible_after(at.a, {first, last}))
    next.push_back(cell({Cell::Kind::partial, at.is_quoted, at.a, partial.packed(), at.tail}));
}

// Whether an escape of 16 bits in this range, perhaps the first of a pair, can stand for the next character.
bool Automaton::may_be_escaped(Terms::Id term, uint32_t first, uint32_t last) {
  const auto may = [&](uint32_t from, uint32_t to) {
    return from <= to && terms_.is_possible_after(term, {from, to});
  };
  if (may(first, std::min(last, kFirstHigh - 1)) || may(std::max(first, kLastLow + 1), last)) return true;
  const uint32_t from = std::max(first, kFirstHigh), to = std::min(last, kLastHigh);
  return from <= to && terms_.is_possible_after(term, pairs(from, to));
}

void Automaton::read_escape(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  Escape escape = Escape::of(at.b);
  const auto go_on = [&](int stage) {
    escape.stage = stage;
    next.push_back(cell({Cell::Kind::escape, true, at.a, escape.packed(), at.tail}));
  };
  if (escape.stage == 0) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t i = kLetters.find(static_cast<char>(byte)); i != std::string_view::npos)
      take(at, static_cast<uint8_t>(kMeant[i]), next);
    else if (byte == 'u')
      go_on(1);
    return;
  }
  if (escape.stage == 5 || escape.stage == 6) {
    if (byte == (escape.stage == 5 ? '\\' : 'u')) go_on(escape.stage + 1);
    return;
  }
  const int digit = hex_digit(byte), n_left = escape.stage <= 4 ? 4 - escape.stage : 10 - escape.stage;
  if (digit < 0) return;
  escape.unit = escape.unit << 4 | static_cast<uint32_t>(digit);
  uint32_t first = escape.unit << (4 * n_left), last = first | ((1u << (4 * n_left)) - 1);
  if (escape.stage <= 4) {
    if (!may_be_escaped(at.a, first, last)) return;
    if (n_left > 0) return go_on(escape.stage + 1);
    if (first < kFirstHigh || first > kLastHigh) return take(at, first, next);
    escape.high = first - kFirstHigh, escape.unit = 0;
    return go_on(5);
  }
  first = std::max(first, kFirstLow), last = std::min(last, kLastLow);
  const uint32_t base = 0x10000 + (escape.high << 10) - kFirstLow;
  if (first > last || !terms_.is_possible_after(at.a, {base + first, base + last})) return;
  if (n_left > 0) return go_on(escape.stage + 1);
  take(at, base + first, next);
}

Terms::Id Automaton::quoted_text_at(CellId place) const {
  const Cell& at = cells_[static_cast<size_t>(place)];
  return place != kEnd && at.kind == Cell::Kind::quoted ? at.a : -1;
}

Automaton::CellId Automaton::with_length_to(CellId place, int64_t n) {
  const Terms::Id term = quoted_text_at(place);
  const std::optional<Terms::Length> length = term < 0 ? std::nullopt : terms_.length(term);
  if (!length) return place;
  const Terms::Id alike =
      terms_.of_length({std::min(length->least, n + 1), length->most > n ? Terms::kNoLimit : length->most});
  return text_cell(alike, true, cells_[static_cast<size_t>(place)].tail);
}

Automaton::CellId Automaton::alone(CellId place) { return text_cell(quoted_text_at(place), true, kEnd); }

// Collects a few terms, and drops the kinds that lead to nothing or to further terms.
CharacterKinds Automaton::find_harmless(const std::vector<CellId>& places) {
  constexpr size_t kMostTerms = 4;
  std::vector<Terms::Id> terms{places.size() == 1 ? quoted_text_at(places.front()) : -1};
  if (terms[0] < 0) return 0;
  const Terms::Id one_on = terms_.after(terms[0], 'e'), two_on = terms_.after(one_on, 'e');
  if (two_on != one_on && two_on != terms[0]) return 0;  // a quick answer for texts that count
  CharacterKinds harmless = ~CharacterKinds{0};
  const auto look_at = [&](Terms::Id after, uint8_t byte) {
    if (std::ranges::count(terms, after) > 0) return;
    if (terms.size() < kMostTerms && terms_.is_possible(after))
      terms.push_back(after);
    else
      harmless &= ~kind_of(byte);
  };
  for (size_t i = 0; i < terms.size(); ++i) {
    for (uint8_t c = 0x20; c < 0x80; ++c)
      if (harmless & kind_of(c)) look_at(terms_.after(terms[i], c), c);
    for (const CharacterGroup& group : kCharacterGroups) {
      if (!terms_.is_uniform(terms[i], {group.first, group.last})) harmless &= ~kind_of(group.first_byte);
      if (harmless & kind_of(group.first_byte))
        look_at(terms_.after(terms[i], group.first), group.first_byte);
    }
  }
  return harmless;
}

}  // namespace dsv32
