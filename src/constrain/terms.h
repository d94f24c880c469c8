// Sets of texts, written as regular expressions over characters, with intersection and complement.
//
// A term is an id; equal terms have equal ids, since each is made once and in a normal form. after(t, c) is
// what may follow the character c in the texts of t (Brzozowski's derivative), so a term is also a state of
// an automaton that is made as it is walked. Characters are Unicode's without surrogates. One thread at a
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "constrain/work.h"

namespace dsv32 {

class Terms {
 public:
  using Id = int32_t;
  struct Range {
    uint32_t first, last;
    auto operator<=>(const Range&) const = default;
  };
  // How many characters, of any kind.
  struct Length {
    int64_t least, most;
  };
  static constexpr Id kNothing = 0, kEmpty = 1;  // no text; the text without characters
  static constexpr int64_t kNoLimit = INT64_MAX;
  static constexpr uint32_t kLastCharacter = 0x10ffff;

  explicit Terms(Work& work);  // which must outlive it
  Work& work() { return work_; }

  // --- Making terms

  // One character of these ranges, or of all others.
  Id character(std::vector<Range> ranges);
  Id character_but(std::vector<Range> ranges) { return character(others_than(std::move(ranges))); }
  static std::vector<Range> others_than(std::vector<Range> ranges);
  Id any() const { return any_; }  // all texts
  // Texts without `mark`, which is well-formed.
  Id without(std::string_view mark);
  Id of_length(Length length) { return repeat(any_character_, length.least, length.most); }
  // This text; `utf8` is well-formed. Throws Error{usage} when it has more than kMostLiteralBytes.
  Id literal(std::string_view utf8) { return one_of({utf8}); }
  // One of these, which share their beginnings.
  Id one_of(std::vector<std::string_view> utf8);
  Id sequence(Id a, Id b);
  Id sequence(std::span<const Id> parts);
  Id sequence(std::initializer_list<Id> parts) { return sequence(std::span(parts.begin(), parts.size())); }
  Id either(std::vector<Id> terms);
  Id both(std::vector<Id> terms);
  Id other_than(Id a);
  Id repeat(Id a, int64_t least, int64_t most);
  Id optional(Id a) { return either({a, kEmpty}); }

  // --- As an automaton

  Id after(Id term, uint32_t character);
  bool takes_empty(Id term) const { return nodes_[at(term)].takes_empty; }
  // Whether the term has a text. Throws Error{usage} when terms with intersections have more than
  // kMostExplored states together; never once the work is over.
  bool is_possible(Id term);
  // Whether after() is the same for all characters of the range.
  bool is_uniform(Id term, Range range);
  // Whether after() is possible for some character of the range.
  bool is_possible_after(Id term, Range range);
  // Of a term that asks for a number of characters and for nothing else.
  std::optional<Length> length(Id term) const;

  static constexpr int64_t kMostExplored = 50000, kMostDerived = 1000000;
  static constexpr size_t kMostLiteralBytes = 1000;

 private:
  enum class Kind : uint8_t {
    nothing,
    empty,
    character,
    sequence,
    either,
    both,
    other_than,
    repeat,
    without
  };
  struct Node {
    Kind kind;
    bool takes_empty = false;
    bool has_filter = false;     // an intersection or a complement is in it, so it may have no text
    bool is_finite = true;       // it has a finite number of texts, for certain
    std::vector<Id> parts = {};  // `either` and `both`: ascending; `sequence`: two, the first is no sequence
    std::vector<Range> ranges = {};  // of `without`: the characters of its mark
    int64_t least = 0, most = 0;     // of `repeat`; of `without`: least characters of the mark have come
  };
  using Key = std::tuple<Kind, std::vector<Id>, std::vector<Range>, int64_t, int64_t>;

  static size_t at(Id term) { return static_cast<size_t>(term); }
  Id make(Node node);
  Id derive(Id term, uint32_t character);
  std::vector<Id> flat(Kind kind, const std::vector<Id>& terms) const;
  const std::vector<uint32_t>& borders(Id term);
  void explore(Id term);

  Id one_of(std::span<const std::u32string> texts, size_t depth);

  Work& work_;
  std::deque<Node> nodes_;  // which stay where they are
  std::map<Key, Id> ids_;
  std::unordered_map<uint64_t, Id> after_;                 // by term << 32 | character
  std::unordered_map<Id, std::vector<uint32_t>> borders_;  // where ranges of a term begin or have ended
  std::unordered_map<Id, bool> is_possible_;               // of terms with filters
  int64_t n_explored_ = 0, n_derived_ = 0;
  Id any_character_ = kNothing, any_ = kNothing;
};

}  // namespace dsv32
