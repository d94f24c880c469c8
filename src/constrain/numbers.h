// Terms of the numbers between two bounds, as JSON writes them.
#pragma once

#include <optional>
#include <string>

#include "constrain/terms.h"

namespace dsv32 {

// A bound of a number, exact.
struct NumberBound {
  std::string number;  // as JSON writes it
  bool is_exclusive = false;
};

// Integers have no fraction and no exponent. Other numbers have up to 20 digits on either side of the point,
// and an exponent of up to two digits; with a bound they have no exponent.
struct NumberKind {
  bool is_integer = false;
  std::vector<NumberBound> least, most;  // all of them hold
};

Terms::Id number_term(Terms& terms, const NumberKind& kind);

}  // namespace dsv32
