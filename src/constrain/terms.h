// Sets of texts, written as regular expressions, with intersection, complement and recursion.
//
// A term is an id; equal terms have equal ids, since each is made once and in a normal form. What may follow
// a symbol in the texts of a term is a term again (Brzozowski's derivative), or several of which one must
// follow (Antimirov's), so a term is also a state of an automaton that is made as it is walked. One thread
// at a time.
//
// There are terms of two kinds of texts. The symbols of strings are characters, Unicode's without surrogates.
// The symbols of documents are bytes; a string in a document is a term of its bytes, made of the string's
// term. Only terms of documents contain themselves, by placeholders, and no intersection or complement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
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
  static constexpr Id kNothing = 0, kEmpty = 1;  // no text; the text without symbols
  static constexpr int64_t kNoLimit = INT64_MAX;
  // How many characters of any kind, or items.
  struct Length {
    int64_t least = 0, most = kNoLimit;
    bool operator==(const Length&) const = default;
  };
  static constexpr uint32_t kLastCharacter = 0x10ffff;
  static constexpr Range kSurrogates{0xd800, 0xdfff};  // are no characters
  static bool is_character(uint32_t code) {
    return code <= kLastCharacter && (code < kSurrogates.first || code > kSurrogates.last);
  }

  explicit Terms(Work& work);  // which must outlive it
  Terms(const Terms&) = delete;
  Work& work() { return work_; }

  // --- Making terms

  // One symbol of these ranges, or one character of all others.
  Id character(std::vector<Range> ranges);
  Id character_but(std::vector<Range> ranges) { return character(others_than(std::move(ranges))); }
  static std::vector<Range> others_than(std::vector<Range> ranges);
  Id any() const { return any_; }  // all strings
  // Texts without `mark`.
  Id without(const std::u32string& mark);
  Id of_length(Length length) { return repeat(any_character_, length.least, length.most); }
  // One of these strings, or of these documents.
  Id one_of(std::vector<std::u32string> texts);
  Id one_of(const std::vector<std::string>& documents);
  Id literal(std::string_view document) { return one_of(std::vector{std::string(document)}); }
  Id sequence(Id a, Id b);
  Id sequence(const std::vector<Id>& parts);
  Id either(std::vector<Id> terms);
  Id both(std::vector<Id> terms);
  Id other_than(Id a);
  Id repeat(Id a, int64_t least, int64_t most);
  Id optional(Id a) { return either({a, kEmpty}); }

  // --- Making terms of documents

  // items[0], items[1], …, then any number of `rest`, with `separator` between them; `least` to `most` items.
  Id list(std::vector<Id> items, Id rest, Id separator, int64_t least, int64_t most);
  struct Member {
    Id term;
    bool is_required;
  };
  // The members in their order, those that are not required perhaps left out, then any number of `others`.
  Id members(const std::vector<Member>& members, Id others, Id separator);
  // A string in JSON, with its quotation marks; one as it is, in UTF-8. Both throw as is_possible() does.
  Id quoted(Id string);
  Id bare(Id string);
  // A term that is set later, so that it may contain itself. It never takes the empty text.
  Id placeholder();
  void set(Id placeholder, Id term) { nodes_[at(placeholder)].parts = {term}; }
  // Finds which of all terms so far have no document: is_nothing(). Placeholders must have been set.
  void prune();
  bool is_nothing(Id term) const { return nodes_[at(term)].is_nothing; }

  // --- As an automaton

  // Appends the terms of which one must follow `symbol`.
  void derive(Id term, uint32_t symbol, std::vector<Id>& next);
  // The same of a string, as one term.
  Id after(Id term, uint32_t character);
  // Terms of which one must follow: apart from each other, ascending, none twice. Terms that begin alike
  // become one.
  std::vector<Id> joined(std::vector<Id> terms);
  bool takes_empty(Id term) const { return nodes_[at(term)].takes_empty; }
  // Whether a string's term has a text. Throws Error{usage} as Work does; never once the work is over.
  bool is_possible(Id term);
  // Whether after() is the same for all characters of the range.
  bool is_uniform(Id term, Range range);
  // Whether after() is possible for some character of the range.
  bool is_possible_after(Id term, Range range);
  // Whether a string's text, or those of all strings that were asked about, may keep so many ways to read it
  // open that a mask takes long: by the terms that the next characters lead to.
  bool is_ambiguous(Id string);
  // Of a term that asks for a number of characters and for nothing else.
  std::optional<Length> length(Id term) const;
  // Of a term that begins within quotation marks, before a whole character: the string that must follow.
  std::optional<Id> string_at(Id term) const;
  // Such a term with another string; with nothing after it.
  Id with_string(Id term, Id string);
  Id alone(Id string) { return make({.kind = Kind::quoted, .parts = {string}}); }

 private:
  enum class Kind : uint8_t {
    nothing,
    empty,
    character,
    one_of,
    sequence,
    either,
    both,
    other_than,
    repeat,
    without,
    placeholder,
    quoted,  // the rest of a string, then its quotation mark
    bare,
    escape,         // as `quoted`, after a backslash
    quoted_digits,  // as `quoted`, within a character's bytes of UTF-8
    bare_digits,
    hex_digits,  // as `quoted`, within an escape \uXXXX
  };
  struct Node {
    Kind kind;
    bool takes_empty = false;
    bool has_filter = false;     // an intersection or a complement is in it, so it may have no text
    bool is_finite = true;       // it has a finite number of texts, for certain
    bool is_nothing = false;     // it has no text, for certain
    std::vector<Id> parts = {};  // `either` and `both`: ascending; `sequence`: two, the first is no sequence
    // `one_of`: which texts of its list; digits: what may still come.
    std::vector<Range> ranges = {};
    // `repeat`: how often. `one_of`: its list; `without`: that of its mark; and how many symbols have come.
    // Digits: what is added to their number, and how many are missing.
    int64_t least = 0, most = 0;
  };
  struct ByNode {  // hashes and compares what ids stand for
    const std::deque<Node>* nodes;
    size_t operator()(Id id) const;
    bool operator()(Id a, Id b) const;
  };

  static size_t at(Id term) { return static_cast<size_t>(term); }
  Id make(Node node);
  int64_t list_of(std::vector<std::u32string> texts);
  const std::vector<std::u32string>& list_at(int64_t id) const { return *lists_[static_cast<size_t>(id)]; }
  Id made_one_of(int64_t list, Range texts, int64_t n_symbols);
  Id boxed(Id term);
  std::vector<Id> flat(Kind kind, const std::vector<Id>& terms) const;
  bool has_document(const Node& node) const;
  const std::vector<uint32_t>& borders(Id term);
  void explore(Id term);
  int64_t n_open(Id term);
  std::vector<uint32_t> representatives(Id term, size_t n_most = SIZE_MAX);
  Id most_open(Id string);
  int64_t n_open_ahead(Id string, int64_t n_most);
  Id after_of_one_of(const Node& node, uint32_t symbol);
  // string_bytes.cpp
  Id digits(Kind kind, Id string, int n_missing, Range range, int64_t more = 0);
  void derive_string(const Node& node, uint8_t byte, std::vector<Id>& next);
  void derive_first(const Node& node, uint8_t byte, std::vector<Id>& next);
  void derive_escape(Id string, uint8_t byte, std::vector<Id>& next);
  void derive_digit(const Node& node, uint8_t byte, std::vector<Id>& next);
  void derive_character(Id string, bool is_quoted, uint32_t character, std::vector<Id>& next);
  bool may_come(Id string, Range range);

  Work& work_;
  std::deque<Node> nodes_;  // which stay where they are
  std::unordered_set<Id, ByNode, ByNode> ids_;
  std::map<std::vector<std::u32string>, int64_t> list_ids_;  // of `one_of` and `without`
  std::vector<const std::vector<std::u32string>*> lists_;
  std::unordered_map<uint64_t, Id> after_;                 // by term << 32 | character
  std::unordered_map<Id, std::vector<uint32_t>> borders_;  // where ranges of a term begin or have ended
  std::unordered_map<Id, bool> is_possible_;               // of terms with filters
  Id any_character_ = kNothing, any_ = kNothing;
  std::unordered_map<Id, int64_t> n_ahead_;  // of strings that is_ambiguous() was asked about
  int64_t n_open_together_ = 0;              // of all of them
};

template <typename T>
void sort_and_unite(std::vector<T>& list) {
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

// The symbols of a string, which is well-formed UTF-8, and those of a document.
std::u32string characters_of(std::string_view utf8);
std::u32string bytes_of(std::string_view document);

}  // namespace dsv32
