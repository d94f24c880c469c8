// The automaton of a document's term, made as it is walked, a byte at a time.
//
// A state is a set of terms of which one must follow. Terms that begin alike are one term, so that a state
// has no more terms than there are beginnings, however ambiguous the document's nesting is. A step from a
// state by a byte is computed once and kept in the state's table; states are forgotten all at once when they
// are too many.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "constrain/terms.h"

namespace dsv32 {

class Automaton {
 public:
  using StateId = int32_t;
  using State = std::vector<Terms::Id>;  // as Terms::joined() leaves them, at least one

  explicit Automaton(Terms& terms) : terms_(terms) {}  // which must outlive it

  StateId id_of(const State& state);
  const State& state(StateId id) const { return rows_[static_cast<size_t>(id)]->state; }
  bool may_end(const State& state) const;
  // -1: no document goes on with the byte.
  StateId step(StateId id, uint8_t byte) {
    const StateId next = rows_[static_cast<size_t>(id)]->next[byte];
    return next == kUnknown ? find_step(id, byte) : next;
  }
  // Where the bytes lead to; empty: no document goes on with them.
  State after(const State& state, std::string_view bytes);

  // Whether the states should be forgotten; ids of states end with that.
  bool is_full() const { return std::ssize(rows_) > kMostStates || n_terms_ > kMostTerms; }
  void forget();
  int64_t n_bytes() const;

 private:
  static constexpr StateId kUnknown = -2;
  static constexpr int64_t kMostStates = 5000, kMostTerms = 1 << 22;  // of all states together

  struct Row {
    State state;
    std::array<StateId, 256> next;
  };

  StateId find_step(StateId id, uint8_t byte);

  Terms& terms_;
  std::vector<std::unique_ptr<Row>> rows_;
  std::map<State, StateId> ids_;
  int64_t n_terms_ = 0;
};

}  // namespace dsv32
