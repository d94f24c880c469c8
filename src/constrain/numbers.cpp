// x >= a of decimal numbers is decided by their digits: more digits before the point, or as many and the
// first that differs is larger, or all the same and then the fraction by its digits. Each of these cases is a
// term.
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

  Id at_least(const NumberBound& bound) {
    const Decimal a = decimal_of(bound.number);
    if (!a.is_negative) return beyond(a, true, bound.is_exclusive);
    return t_.either({positive(), t_.sequence(t_.literal("-"), beyond(a, false, bound.is_exclusive))});
  }
  Id at_most(const NumberBound& bound) {
    const Decimal b = decimal_of(bound.number);
    if (b.is_negative) return t_.sequence(t_.literal("-"), beyond(b, true, bound.is_exclusive));
    return t_.either({negative(), beyond(b, false, bound.is_exclusive)});
  }

 private:
  Id digit(char first, char last) {
    if (first > last) return Terms::kNothing;
    return t_.character({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
  }
  Id digits(int64_t least, int64_t most) {
    return most < least ? Terms::kNothing : t_.repeat(digit('0', '9'), least, most);
  }
  Id any_digits() { return t_.repeat(digit('0', '9'), 0, Terms::kNoLimit); }
  Id any_fraction() { return t_.optional(t_.sequence({t_.literal("."), digit('0', '9'), any_digits()})); }
  Id positive() { return t_.sequence({digit('0', '9'), any_digits(), any_fraction()}); }
  // Zero is written without a sign.
  Id negative() {
    const Id some = digit('1', '9'), point = t_.literal(".");
    const Id below_one = t_.sequence({t_.literal("0"), point, any_digits(), some, any_digits()});
    return t_.sequence(t_.literal("-"),
                       t_.either({below_one, t_.sequence({some, any_digits(), any_fraction()})}));
  }

  // Digits as many as in `text` that are larger (smaller) than these at the first place that differs.
  // `least`: the smallest first digit.
  Id differing(const std::string& text, bool is_larger, char least, Id behind) {
    std::vector<Id> cases;
    for (size_t i = 0; i < text.size(); ++i) {
      const char lowest = i == 0 ? least : '0';
      const Id other = is_larger ? digit(static_cast<char>(text[i] + 1), '9')
                                 : digit(lowest, static_cast<char>(text[i] - 1));
      const auto n_left = std::ssize(text) - static_cast<int64_t>(i) - 1;
      cases.push_back(t_.sequence({t_.literal(text.substr(0, i)), other, digits(n_left, n_left), behind}));
    }
    return t_.either(cases);
  }

  // |x| >= a or |x| <= a, without its sign; exclusive: not equal.
  Id beyond(const Decimal& a, bool is_larger, bool is_exclusive) {
    const auto n = std::ssize(a.whole);
    const Id first = digit('1', '9');
    std::vector<Id> cases{differing(a.whole, is_larger, n > 1 ? '1' : '0', any_fraction()),
                          t_.sequence(t_.literal(a.whole), fraction(a.fraction, is_larger, is_exclusive))};
    if (is_larger)
      cases.push_back(t_.sequence({first, digits(n, n), any_digits(), any_fraction()}));
    else if (n > 1)
      cases.push_back(
          t_.sequence(t_.either({t_.literal("0"), t_.sequence(first, digits(0, n - 2))}), any_fraction()));
    return t_.either(cases);
  }

  // The fractions, with their point, that are at least (at most) f.
  Id fraction(const std::string& f, bool is_larger, bool is_exclusive) {
    const Id point = t_.literal("."), zeros = t_.repeat(t_.literal("0"), 0, Terms::kNoLimit);
    const Id more = t_.sequence({zeros, digit('1', '9'), any_digits()});  // digits that are not all zero
    const Id differs = f.empty() ? Terms::kNothing : differing_fraction(f, is_larger);
    std::vector<Id> behind{differs};  // the point
    if (!f.empty()) behind.push_back(t_.sequence(t_.literal(f), is_larger ? more : Terms::kNothing));
    if (!f.empty() && !is_exclusive) behind.push_back(t_.sequence(t_.literal(f), zeros));
    if (f.empty() && is_larger) behind.push_back(more);
    if (f.empty() && !is_exclusive) behind.push_back(t_.sequence(t_.literal("0"), zeros));
    if (!f.empty() && !is_larger)  // what ends before f does is smaller
      for (size_t i = 1; i < f.size(); ++i) behind.push_back(t_.literal(f.substr(0, i)));
    const bool may_lack = f.empty() ? !is_exclusive : !is_larger;
    return t_.either({t_.sequence(point, t_.either(behind)), may_lack ? Terms::kEmpty : Terms::kNothing});
  }
  Id differing_fraction(const std::string& f, bool is_larger) {
    std::vector<Id> cases;
    for (size_t i = 0; i < f.size(); ++i) {
      const Id other =
          is_larger ? digit(static_cast<char>(f[i] + 1), '9') : digit('0', static_cast<char>(f[i] - 1));
      cases.push_back(t_.sequence({t_.literal(f.substr(0, i)), other, any_digits()}));
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

Terms::Id number_term(Terms& terms, const NumberKind& kind) {
  NumberTerms of(terms);
  const bool has_bound = !kind.least.empty() || !kind.most.empty();
  std::vector<Id> all{of.number(kind.is_integer, kind.most_digits, has_bound)};
  for (const NumberBound& bound : kind.least) all.push_back(of.at_least(bound));
  for (const NumberBound& bound : kind.most) all.push_back(of.at_most(bound));
  return terms.both(all);
}

}  // namespace dsv32
