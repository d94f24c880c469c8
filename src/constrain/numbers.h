// Terms of the numbers between two bounds, as JSON writes them.
#pragma once

#include <string>

#include "constrain/terms.h"

namespace dsv32 {

// A bound of a number, exact.
struct NumberBound {
  std::string number;  // as JSON writes it
  bool is_exclusive = false;
  bool is_long() const;  // it has more than 20 digits on a side of the point
};

struct NumberBounds {
  int64_t most_digits = 20;              // on either side of the point
  std::vector<NumberBound> least, most;  // all of them hold
};

// A number that JSON writes with an exponent, without it; other text as it is.
std::string without_exponent(const std::string& json);

// Integers have no fraction and no exponent. Other numbers have an exponent of up to two digits; with a bound
// they have none.
Terms::Id number_term(Terms& terms, const NumberBounds& bounds, bool is_integer);

}  // namespace dsv32
