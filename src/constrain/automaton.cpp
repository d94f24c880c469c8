#include "constrain/automaton.h"

#include <algorithm>

namespace dsv32 {

Automaton::StateId Automaton::id_of(const State& state) {
  const auto [found, is_new] = ids_.try_emplace(state, static_cast<StateId>(rows_.size()));
  if (!is_new) return found->second;
  Row& row = *rows_.emplace_back(std::make_unique<Row>());
  row.state = state;
  row.next.fill(kUnknown);
  n_terms_ += std::ssize(state);
  return found->second;
}

bool Automaton::may_end(const State& state) const {
  return std::ranges::any_of(state, [this](Terms::Id term) { return terms_.takes_empty(term); });
}

Automaton::StateId Automaton::find_step(StateId id, uint8_t byte) {
  std::vector<Terms::Id> next;
  for (const Terms::Id term : state(id)) terms_.derive(term, byte, next);
  const State reached = terms_.joined(std::move(next));
  const StateId found = reached.empty() ? -1 : id_of(reached);
  return rows_[static_cast<size_t>(id)]->next[byte] = found;
}

Automaton::State Automaton::after(const State& from, std::string_view bytes) {
  StateId id = id_of(from);
  for (size_t i = 0; i < bytes.size() && id >= 0; ++i) id = step(id, static_cast<uint8_t>(bytes[i]));
  return id < 0 ? State{} : state(id);
}

void Automaton::forget() {
  rows_.clear();
  ids_.clear();
  n_terms_ = 0;
}

int64_t Automaton::n_bytes() const {
  return std::ssize(rows_) * static_cast<int64_t>(sizeof(Row) + 100) +
         2 * n_terms_ * static_cast<int64_t>(sizeof(Terms::Id));
}

}  // namespace dsv32
