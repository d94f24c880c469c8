#include "constrain/pattern.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

using Ranges = std::vector<Terms::Range>;

const Ranges kDigits{{'0', '9'}};
const Ranges kWordCharacters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces{{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                     {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
// With those that are spaces to ECMA-262 or to Python alone, which neither \s nor \S takes.
const Ranges kPerhapsSpaces{{9, 13},          {0x1c, ' '},      {0x85, 0x85},     {0xa0, 0xa0},
                            {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                            {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const Ranges kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// Reads a pattern from its beginning to its end.
class PatternReader {
 public:
  PatternReader(Terms& terms, std::string_view pattern) : terms_(terms), text_(pattern) {}

  Terms::Id read() {
    const Branches branches = read_branches(0);
    if (at_ < text_.size()) fail_at("a ) without its (");
    std::vector<Terms::Id> all;
    for (const Branch& branch : branches)
      all.push_back(terms_.sequence({branch.is_begin ? Terms::kEmpty : terms_.any(), branch.term,
                                     branch.is_end ? Terms::kEmpty : terms_.any()}));
    return terms_.either(all);
  }

 private:
  // One alternative, whether ^ begins it and $ ends it, and how many states it may need.
  struct Branch {
    Terms::Id term = Terms::kEmpty;
    bool is_begin = false, is_end = false;
    int64_t n_states = 1;
  };
  using Branches = std::vector<Branch>;
  static constexpr int kMostDepth = 64;

  [[noreturn]] void fail_at(const std::string& fault) const {
    fail(ErrorKind::usage,
         format("pattern '%s', at byte %zu: %s", visible(text_, false, 80).c_str(), at_, fault.c_str()));
  }
  bool has(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool skip(std::string_view text) {
    const bool is_there = text_.substr(at_).starts_with(text);
    if (is_there) at_ += text.size();
    return is_there;
  }
  uint32_t next_character() {
    uint32_t code = 0;
    const int n = decode_utf8(text_, at_, &code);
    if (n == 0) fail_at("it ends too early");
    at_ += static_cast<size_t>(n);
    return code;
  }

  Branches read_branches(int depth) {
    if (depth > kMostDepth) fail_at("more than 64 groups in each other");
    Branches branches{read_branch(depth)};
    while (skip("|")) branches.push_back(read_branch(depth));
    return branches;
  }

  // A group that is all of its branch may have anchors inside.
  Branch read_branch(int depth) {
    Branch all;
    std::vector<Terms::Id> parts;
    while (at_ < text_.size() && !has('|') && !has(')')) {
      if (all.is_end) fail_at("$ amid the pattern is not supported");
      if (skip("^")) {
        if (!parts.empty()) fail_at("^ amid the pattern is not supported");
        all.is_begin = true;
      } else if (skip("$")) {
        all.is_end = true;
      } else {
        const Branch part = read_repeated(depth);
        add(all, part, parts.empty());
        parts.push_back(part.term);
      }
    }
    all.term = terms_.sequence(parts);  // from its end: each end of it is made once
    return all;
  }

  void add(Branch& all, const Branch& part, bool is_first) {
    const bool is_alone = at_ == text_.size() || has('|') || has(')');
    if ((part.is_begin && (!is_first || all.is_begin)) || (part.is_end && !is_alone) ||
        (part.is_begin && part.is_end && !is_first))
      fail_at("^ or $ in a group amid the pattern is not supported");
    all.is_begin |= part.is_begin, all.is_end |= part.is_end;
    all.n_states += part.n_states;
    if (all.n_states > kMostPatternStates)
      fail_at(format("it needs more than %lld states", as_ll(kMostPatternStates)));
  }

  Branch read_repeated(int depth) {
    Branch part = read_atom(depth);
    for (bool is_repeated = false;; is_repeated = true) {
      int64_t least = 0, most = Terms::kNoLimit;
      if (skip("+"))
        least = 1;
      else if (skip("?"))
        most = 1;
      else if (!skip("*") && !read_bounds(least, most))
        return part;
      if (is_repeated) fail_at("a repetition of nothing");
      if (part.is_begin || part.is_end) fail_at("a repeated ^ or $ is not supported");
      skip("?");  // a lazy repetition has the same texts
      part.term = terms_.repeat(part.term, least, most);
      part.n_states *= std::max<int64_t>(most == Terms::kNoLimit ? least : most, 1);
      if (part.n_states > kMostPatternStates)
        fail_at(format("it needs more than %lld states", as_ll(kMostPatternStates)));
    }
  }

  // {n}, {n,} or {n,m}; false: there is none.
  bool read_bounds(int64_t& least, int64_t& most) {
    if (!skip("{")) return false;
    least = most = read_count();
    if (skip(",")) most = has('}') ? Terms::kNoLimit : read_count();
    if (!skip("}")) fail_at("a } is missing");
    if (least > most) fail_at("the bounds of a repetition are in the wrong order");
    return true;
  }
  int64_t read_count() {
    int64_t n = 0;
    if (at_ >= text_.size() || text_[at_] < '0' || text_[at_] > '9') fail_at("a number is missing");
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      n = std::min<int64_t>(10 * n + (text_[at_] - '0'), kMostPatternStates + 1);
    return n;
  }

  Branch read_atom(int depth) {
    if (has('*') || has('+') || has('?') || has('{')) fail_at("a repetition of nothing");
    if (skip("(")) return read_group(depth);
    if (skip("[")) return {read_class()};
    if (skip(".")) return {terms_.character_but(kLineEnds)};
    if (skip("\\")) return {terms_.character(read_escape(false, false))};
    const uint32_t code = next_character();
    return {terms_.character({{code, code}})};
  }

  Branch read_group(int depth) {
    const bool has_name = skip("?<");
    if (has_name ? has('=') || has('!') : !skip("?:") && has('?'))
      fail_at("lookaround and flags are not supported");
    if (has_name) at_ = std::min(text_.find('>', at_), text_.size());
    if (has_name && !skip(">")) fail_at("a > is missing");
    const Branches branches = read_branches(depth + 1);
    if (!skip(")")) fail_at("a ) is missing");
    Branch all = branches.front();
    std::vector<Terms::Id> terms;
    all.n_states = 0;
    for (const Branch& branch : branches) {
      if (branch.is_begin != all.is_begin || branch.is_end != all.is_end)
        fail_at("a group with ^ or $ in some of its branches is not supported");
      terms.push_back(branch.term);
      all.n_states += branch.n_states;
    }
    all.term = terms_.either(terms);
    return all;
  }

  Terms::Id read_class() {
    const bool is_negated = skip("^");
    Ranges ranges;
    while (!skip("]")) {
      const Ranges first = read_class_part(is_negated);
      ranges.insert(ranges.end(), first.begin(), first.end());
      if (!has('-') || text_.substr(at_).starts_with("-]")) continue;
      ++at_;
      const Ranges last = read_class_part(is_negated);
      const auto is_one = [](const Ranges& part) {
        return part.size() == 1 && part[0].first == part[0].last;
      };
      if (!is_one(first) || !is_one(last)) {  // a hyphen beside a class is itself
        ranges.push_back({'-', '-'});
        ranges.insert(ranges.end(), last.begin(), last.end());
        continue;
      }
      if (first[0].first > last[0].first) fail_at("a range in a class has no right bounds");
      ranges.push_back({first[0].first, last[0].first});
    }
    return is_negated ? terms_.character_but(ranges) : terms_.character(ranges);
  }
  Ranges read_class_part(bool is_negated) {
    if (at_ >= text_.size()) fail_at("a ] is missing");
    if (skip("\\")) return read_escape(true, is_negated);
    const uint32_t code = next_character();
    return {{code, code}};
  }

  // Behind the backslash; `is_negated`: in a class of what must not come.
  Ranges read_escape(bool is_in_class, bool is_negated) {
    const uint32_t code = next_character();
    switch (code) {
      case 'd': return kDigits;
      case 'D': return Terms::others_than(kDigits);
      case 'w': return kWordCharacters;
      case 'W': return Terms::others_than(kWordCharacters);
      case 's': return is_negated ? kPerhapsSpaces : kSpaces;
      case 'S': return Terms::others_than(is_negated ? kSpaces : kPerhapsSpaces);
      case 't': return {{'\t', '\t'}};
      case 'n': return {{'\n', '\n'}};
      case 'r': return {{'\r', '\r'}};
      case 'f': return {{'\f', '\f'}};
      case 'v': return {{'\v', '\v'}};
      case '0': return {{0, 0}};
      case 'b':
        if (is_in_class) return {{'\b', '\b'}};
        break;
      case 'x': return read_hex(2);
      case 'u': return skip("{") ? read_hex(0) : read_hex(4);
      default: break;
    }
    const bool is_letter = (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    if (is_letter || (code >= '1' && code <= '9'))
      fail_at(format("\\%c is not supported", static_cast<char>(code)));
    return {{code, code}};
  }
  // n_digits 0: one to six, and a }.
  Ranges read_hex(size_t n_digits) {
    const std::string_view digits = text_.substr(at_, n_digits > 0 ? n_digits : 6);
    uint32_t code = 0;
    const char* const end = std::from_chars(digits.begin(), digits.end(), code, 16).ptr;
    const auto n = static_cast<size_t>(end - digits.begin());
    at_ += n;
    if (n_digits > 0 ? n < n_digits : !skip("}")) fail_at("an escape lacks its digits");
    if (n == 0 || !Terms::is_character(code)) fail_at("an escape names no character");
    return {{code, code}};
  }

  Terms& terms_;
  const std::string_view text_;
  size_t at_ = 0;
};

constexpr const char* kYear = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
constexpr const char* kDayOfYear =
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
// Of two digits: a multiple of four that is not 00.
constexpr const char* kFourth = "(0[48]|[2468][048]|[13579][26])";
constexpr const char* kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kUuid = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";

std::string date_pattern() {
  const std::string leap = format("([0-9]{2}%s|%s00)", kFourth, kFourth);
  return format("(%s-%s|%s-02-29)", kYear, kDayOfYear, leap.c_str());
}

}  // namespace

Terms::Id pattern_term(Terms& terms, std::string_view pattern) {
  return PatternReader(terms, pattern).read();
}

std::optional<Terms::Id> format_term(Terms& terms, std::string_view format) {
  const auto whole = [&](const std::string& pattern) { return pattern_term(terms, "^" + pattern + "$"); };
  if (format == "date") return whole(date_pattern());
  if (format == "time") return whole(kTime);
  if (format == "date-time") return whole(date_pattern() + "T" + kTime);
  if (format == "uuid") return whole(kUuid);
  return std::nullopt;
}

}  // namespace dsv32
