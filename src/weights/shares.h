// What a member of a team (backend/team.h) has of a model: all of a layer's attention, norms and router, the
// embedding and the block for drafts' eh_proj, but only its share of the rows of w1, w3 and w2 of the dense
// MLP, of the shared expert and of each routed expert, and of the head.
//
// Member m of n has rows [m * R / n, (m + 1) * R / n) of a matrix of R rows. So all members have equal bytes.
#pragma once

#include <cstdint>

#include "backend/matrix.h"

namespace dsv32 {

// Whether each member's share of so many rows is whole bands. A head that has other rows is whole on each
// member.
constexpr bool divides_rows(int64_t n_rows, int64_t n_members) {
  return n_rows % (n_members * kBandRows) == 0;
}

}  // namespace dsv32
