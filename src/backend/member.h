// A member of a team (team.h), as the operations know it: which part of the work is its own.
#pragma once

#include <cstdint>

namespace dsv32 {

class Team;

// One of a team; or a device that works alone.
struct Member {
  Team* team = nullptr;
  int64_t number = 0;

  int64_t n() const;  // team.cpp
  bool is_alone() const { return !team; }
  // Its part of n things: from begin up to end.
  int64_t begin(int64_t n_things) const { return n_things * number / n(); }
  int64_t end(int64_t n_things) const { return n_things * (number + 1) / n(); }
};

}  // namespace dsv32
