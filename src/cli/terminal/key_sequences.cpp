// See key_sequences.h.
#include "cli/terminal/key_sequences.h"

namespace dsv32 {
namespace {

constexpr KeySequences kKeySequences[] = {
    {"[A OA [1;2A", "ed-prev-history"},
    {"[B OB [1;2B", "ed-next-history"},
    {"[C OC [1;2C", "ed-next-char"},
    {"[D OD [1;2D", "ed-prev-char"},
    {"[H OH [1~ [7~ [1;2H", "ed-move-to-beg"},
    {"[F OF [4~ [8~ [1;2F", "ed-move-to-end"},
    {"[3~", "ed-delete-next-char"},
    {"[1;5C [1;3C [5C O5C Oc", "em-next-word"},
    {"[1;5D [1;3D [5D O5D Od", "ed-prev-word"},
    {"[3;5~ [3;3~ [3^", "em-delete-next-word"},
    {"[200~", "take-paste"},
};
static_assert(std::size(kKeySequences) <= kLastKey - kFirstKey + 1);

}  // namespace

std::span<const KeySequences> key_sequences() { return kKeySequences; }

wchar_t character_of(std::string_view sequence) {
  for (size_t i = 0; i < std::size(kKeySequences); ++i) {
    std::string_view rest = kKeySequences[i].sequences;
    while (!rest.empty()) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      if (word == sequence) return kFirstKey + static_cast<wchar_t>(i);
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    }
  }
  return 0;
}

size_t sequence_length(std::string_view input) {
  constexpr size_t kMouseBytes = 3;                    // behind ESC [ M, in the old way: button, column, row
  size_t at = input.substr(0, 3) == "\x1b[[" ? 3 : 2;  // a Linux console's function keys have two brackets
  while (at < input.size() && input[at] >= ' ' && input[at] <= '?') ++at;
  if (at >= input.size()) return 0;
  const bool is_cut = input[at] < '@' || input[at] > '~';  // bytes of UTF-8 are negative
  const size_t n = at + !is_cut + (input.substr(0, 3) == "\x1b[M" ? kMouseBytes : 0);
  return n <= input.size() ? n : 0;
}

}  // namespace dsv32
