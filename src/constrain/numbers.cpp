// |x| >= |a| of decimal numbers is decided by their digits: more digits before the point, or as many and the
// first that differs is larger, or all the same and then the fraction by its digits. Each of these cases is a
// term, and x <= b is what is not beyond b.
#include "constrain/numbers.h"

#include <algorithm>
#include <charconv>

namespace dsv32 {
namespace {

using Id = Terms::Id;

// |x|, without zeros at the outer ends; 0 is "0" and "".
struct Decimal {
  bool is_negative = false;
  std::string whole, fraction;
};

// `number`: as JSON writes it, perhaps with an exponent.
Decimal decimal_of(std::string number) {
  Decimal decimal;
  if (number.starts_with('-')) decimal.is_negative = true, number.erase(0, 1);
  int exponent = 0;
  if (const size_t e = number.find_first_of("eE"); e != std::string::npos) {
    const size_t from = e + 1 + (number[e + 1] == '+');
    std::from_chars(number.data() + from, number.data() + number.size(), exponent);
    number.resize(e);
  }
  const size_t point = std::min(number.find('.'), number.size());
  std::string digits = number.substr(0, point);
  if (point < number.size()) digits += number.substr(point + 1);
  int64_t n_whole = static_cast<int64_t>(point) + exponent;
  if (n_whole < 0) digits.insert(0, static_cast<size_t>(-n_whole), '0'), n_whole = 0;
  if (n_whole > std::ssize(digits)) digits.append(static_cast<size_t>(n_whole) - digits.size(), '0');
  decimal.whole = digits.substr(0, static_cast<size_t>(n_whole));
  decimal.fraction = digits.substr(static_cast<size_t>(n_whole));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole = "0";
  decimal.fraction.resize(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.whole == "0" && decimal.fraction.empty()) decimal.is_negative = false;
  return decimal;
}

Id digit(Terms& t, char first, char last) {
  if (first > last) return Terms::kNothing;
  return t.character({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
}
Id digits(Terms& t, int64_t least, int64_t most) { return t.repeat(digit(t, '0', '9'), least, most); }
Id any_digits(Terms& t) { return digits(t, 0, Terms::kNoLimit); }
Id any_fraction(Terms& t) { return t.optional(t.sequence(t.literal("."), any_digits(t))); }

// Digits that are larger than these at the first place that differs; then as many as in `text`, or none.
Id larger(Terms& t, const std::string& text, bool are_as_many) {
  std::vector<Id> cases;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto n_left = are_as_many ? std::ssize(text) - static_cast<int64_t>(i) - 1 : 0;
    cases.push_back(t.sequence({t.literal(text.substr(0, i)), digit(t, static_cast<char>(text[i] + 1), '9'),
                                digits(t, n_left, n_left)}));
  }
  return t.either(cases);
}

// The fractions, with their point, that are at least f.
Id fraction_beyond(Terms& t, const std::string& f, bool is_exclusive) {
  if (f.empty() && !is_exclusive) return any_fraction(t);
  const Id more = t.sequence({any_digits(t), digit(t, '1', '9'), any_digits(t)});
  const Id same = t.sequence(t.literal(f), is_exclusive ? more : any_digits(t));
  return t.sequence(t.literal("."), t.either({same, t.sequence(larger(t, f, false), any_digits(t))}));
}

// |x| >= |a|, without its sign; exclusive: not equal.
Id beyond(Terms& t, const Decimal& a, bool is_exclusive) {
  const auto n = std::ssize(a.whole);
  return t.either({t.sequence({digit(t, '1', '9'), digits(t, n, n), any_digits(t), any_fraction(t)}),
                   t.sequence(larger(t, a.whole, true), any_fraction(t)),
                   t.sequence(t.literal(a.whole), fraction_beyond(t, a.fraction, is_exclusive))});
}

// Bounds of numbers as number_term() writes them. Those at most b are all but those beyond it, and but -0, as
// zero is written without a sign there.
Id at_least(Terms& t, const NumberBound& bound) {
  const Decimal a = decimal_of(bound.number);
  if (!a.is_negative) return beyond(t, a, bound.is_exclusive);
  return t.other_than(t.sequence(t.literal("-"), beyond(t, a, !bound.is_exclusive)));
}
Id at_most(Terms& t, const NumberBound& bound) {
  const Decimal b = decimal_of(bound.number);
  if (b.is_negative) return t.sequence(t.literal("-"), beyond(t, b, bound.is_exclusive));
  const Id zeros = t.repeat(digit(t, '0', '0'), 0, Terms::kNoLimit);
  const Id minus_zero = t.sequence(t.literal("-0"), t.optional(t.sequence(t.literal("."), zeros)));
  return t.other_than(t.either({beyond(t, b, !bound.is_exclusive), minus_zero}));
}

// Without bounds; `has_bound`: it will have some.
Id unbounded(Terms& t, int64_t most_digits, bool is_integer, bool has_bound) {
  const int64_t most_more = most_digits == Terms::kNoLimit ? most_digits : most_digits - 1;
  const Id sign = t.optional(t.literal("-"));
  const Id whole = t.either({t.literal("0"), t.sequence(digit(t, '1', '9'), digits(t, 0, most_more))});
  if (is_integer) return t.sequence(sign, whole);
  const Id exponent = t.sequence({t.character({{'e', 'e'}, {'E', 'E'}}),
                                  t.optional(t.character({{'+', '+'}, {'-', '-'}})), digits(t, 1, 2)});
  return t.sequence({sign, whole, t.optional(t.sequence(t.literal("."), digits(t, 1, most_digits))),
                     has_bound ? Terms::kEmpty : t.optional(exponent)});
}

}  // namespace

bool NumberBound::is_long() const {
  const Decimal decimal = decimal_of(number);
  return std::max(decimal.whole.size(), decimal.fraction.size()) > 20;
}

std::string without_exponent(const std::string& json) {
  const bool is_number = json.front() == '-' || (json.front() >= '0' && json.front() <= '9');
  if (!is_number || json.find_first_of("eE") == std::string::npos) return json;
  const Decimal decimal = decimal_of(json);
  return (decimal.is_negative ? "-" : "") + decimal.whole +
         (decimal.fraction.empty() ? "" : "." + decimal.fraction);
}

Terms::Id number_term(Terms& terms, const NumberBounds& bounds, bool is_integer) {
  const bool has_bound = !bounds.least.empty() || !bounds.most.empty();
  std::vector<Id> all{unbounded(terms, bounds.most_digits, is_integer, has_bound)};
  for (const NumberBound& bound : bounds.least) all.push_back(at_least(terms, bound));
  for (const NumberBound& bound : bounds.most) all.push_back(at_most(terms, bound));
  return terms.both(all);
}

}  // namespace dsv32
