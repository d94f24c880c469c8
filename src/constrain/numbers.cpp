// |x| >= |a| of decimal numbers is decided by their digits: more digits before the point, or as many and the
// first that differs is larger, or all the same and then the fraction by its digits. Each of these cases is a
// term, and x <= b is what is not beyond b.
#include "constrain/numbers.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

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

// The terms that bounds are made of.
class NumberTerms {
 public:
  explicit NumberTerms(Terms& terms) : t_(terms) {}

  Id number(bool is_integer, int64_t most_digits, bool has_bound) {
    const Id sign = t_.optional(t_.literal("-"));
    const int64_t most_more = most_digits == Terms::kNoLimit ? most_digits : most_digits - 1;
    const Id whole = t_.either({t_.literal("0"), t_.sequence(digit('1', '9'), digits(0, most_more))});
    if (is_integer) return t_.sequence(sign, whole);
    const Id exponent = t_.sequence({t_.character({{'e', 'e'}, {'E', 'E'}}),
                                     t_.optional(t_.character({{'+', '+'}, {'-', '-'}})), digits(1, 2)});
    return t_.sequence({sign, whole, t_.optional(t_.sequence(t_.literal("."), digits(1, most_digits))),
                        has_bound ? Terms::kEmpty : t_.optional(exponent)});
  }

  // Bounds of numbers as number() writes them. Those at most b are all but those beyond it, and but -0, as
  // zero is written without a sign there.
  Id at_least(const NumberBound& bound) {
    const Decimal a = decimal_of(bound.number);
    if (!a.is_negative) return beyond(a, bound.is_exclusive);
    return t_.other_than(t_.sequence(t_.literal("-"), beyond(a, !bound.is_exclusive)));
  }
  Id at_most(const NumberBound& bound) {
    const Decimal b = decimal_of(bound.number);
    if (b.is_negative) return t_.sequence(t_.literal("-"), beyond(b, bound.is_exclusive));
    const Id zeros = t_.repeat(digit('0', '0'), 0, Terms::kNoLimit);
    const Id minus_zero = t_.sequence(t_.literal("-0"), t_.optional(t_.sequence(t_.literal("."), zeros)));
    return t_.other_than(t_.either({beyond(b, !bound.is_exclusive), minus_zero}));
  }

 private:
  Id digit(char first, char last) {
    if (first > last) return Terms::kNothing;
    return t_.character({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
  }
  Id digits(int64_t least, int64_t most) { return t_.repeat(digit('0', '9'), least, most); }
  Id any_digits() { return digits(0, Terms::kNoLimit); }
  Id any_fraction() { return t_.optional(t_.sequence(t_.literal("."), any_digits())); }

  // |x| >= |a|, without its sign; exclusive: not equal.
  Id beyond(const Decimal& a, bool is_exclusive) {
    const auto n = std::ssize(a.whole);
    return t_.either({t_.sequence({digit('1', '9'), digits(n, n), any_digits(), any_fraction()}),
                      t_.sequence(larger(a.whole, true), any_fraction()),
                      t_.sequence(t_.literal(a.whole), fraction(a.fraction, is_exclusive))});
  }

  // The fractions, with their point, that are at least f.
  Id fraction(const std::string& f, bool is_exclusive) {
    if (f.empty() && !is_exclusive) return any_fraction();
    const Id more = t_.sequence({any_digits(), digit('1', '9'), any_digits()});
    const Id same = t_.sequence(t_.literal(f), is_exclusive ? more : any_digits());
    return t_.sequence(t_.literal("."), t_.either({same, t_.sequence(larger(f, false), any_digits())}));
  }

  // Digits that are larger than these at the first place that differs; then as many as in `text`, or none.
  Id larger(const std::string& text, bool are_as_many) {
    std::vector<Id> cases;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto n_left = are_as_many ? std::ssize(text) - static_cast<int64_t>(i) - 1 : 0;
      cases.push_back(t_.sequence({t_.literal(text.substr(0, i)), digit(static_cast<char>(text[i] + 1), '9'),
                                   digits(n_left, n_left)}));
    }
    return t_.either(cases);
  }

  Terms& t_;
};

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
  NumberTerms of(terms);
  const bool has_bound = !bounds.least.empty() || !bounds.most.empty();
  std::vector<Id> all{of.number(is_integer, bounds.most_digits, has_bound)};
  for (const NumberBound& bound : bounds.least) all.push_back(of.at_least(bound));
  for (const NumberBound& bound : bounds.most) all.push_back(of.at_most(bound));
  return terms.both(all);
}

}  // namespace dsv32
