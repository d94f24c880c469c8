// A grammar over bytes, and the automaton that reads by it.
//
// The grammar is a graph of nodes. What must follow at a place of a document is a list of cells, each a node
// or a text under way, and what follows it: a stack. Where a document may go on in several ways its place is
// a set of cells, a state. Two ways that meet in the same node are one cell with two tails, so that a state
// has no more cells than the grammar has nodes, however ambiguous the document's nesting is. A step from a
// state by a byte is computed once and kept in the state's table; states are forgotten all at once when they
// are too many.
//
// Texts that are given letter by letter are a tree in which they share their beginnings.
//
// Texts are Terms. Quoted, a text's characters may be escaped as JSON allows, and a quotation mark ends it;
// bare, it ends where its term allows and the grammar goes on.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "constrain/character_kinds.h"
#include "constrain/terms.h"
#include "constrain/work.h"

namespace dsv32 {

class Automaton {
 public:
  using NodeId = int32_t;
  using CellId = int32_t;
  using StateId = int32_t;

  explicit Automaton(Work& work) : work_(work), terms_(work) {}  // which must outlive it

  // --- Making the grammar

  NodeId one_of(std::vector<std::string> texts);
  NodeId literal(std::string bytes) { return one_of({std::move(bytes)}); }
  NodeId sequence(std::vector<NodeId> parts);
  NodeId choice(std::vector<NodeId> parts);  // of none: nothing
  NodeId quoted(Terms::Id text);             // with both quotation marks
  NodeId bare(Terms::Id text);
  // items[0], items[1], …, then any number of `rest`, with `separator` between them; `least` to `most` items.
  NodeId list(std::vector<NodeId> items, NodeId rest, NodeId separator, int64_t least, int64_t most);
  struct Member {
    NodeId node;
    bool is_required;
  };
  // The members in their order, those that are not required perhaps left out, then any number of `others`.
  NodeId members(std::vector<Member> members, NodeId others, NodeId separator);
  // Any text up to `mark` and the mark; the document may also end within the text.
  NodeId up_to(std::string mark);
  // A node that is set later, so that it may contain itself.
  NodeId placeholder();
  void set(NodeId placeholder, NodeId node);
  int64_t n_nodes() const { return std::ssize(nodes_); }
  Terms& terms() { return terms_; }
  Work& work() { return work_; }

  // Leaves out what no document can complete. Returns whether `root` has a document. Call before walking, and
  // again after adding nodes.
  bool prune(NodeId root);

  // --- Reading

  // The places where a document begins.
  std::vector<CellId> begin(NodeId root);
  StateId state_of(const std::vector<CellId>& places);
  const std::vector<CellId>& places(StateId state) const {
    return states_[static_cast<size_t>(state)]->places;
  }
  bool may_end(StateId state) const { return places(state).front() == kEnd; }
  // -1: no document goes on with the byte.
  StateId step(StateId state, uint8_t byte) {
    const int32_t next = states_[static_cast<size_t>(state)]->next[byte];
    return next != kUnknown ? next : find_step(state, byte);
  }
  // Kinds of characters of which any number may come, in any order. For texts in JSON strings; not all that
  // there are.
  CharacterKinds harmless(StateId state) {
    State& of = *states_[static_cast<size_t>(state)];
    if (!of.knows_harmless) of.harmless = find_harmless(of.places), of.knows_harmless = true;
    return of.harmless;
  }
  // The term of a place within a quoted text, before a whole character; else -1.
  Terms::Id quoted_text_at(CellId place) const;
  // The place, in a quoted text that only bounds its length with bounds over n as good as none and out of
  // reach.
  CellId with_length_to(CellId place, int64_t n);
  // The place in the same text with nothing behind it.
  CellId alone(CellId place);
  // Whether there are so many states that they should be forgotten before the next walk.
  int64_t n_state_bytes() const { return std::ssize(states_) * int64_t{sizeof(State)} + n_places_ * 8; }
  bool is_full() const { return std::ssize(states_) >= kMostStates || n_places_ >= kMostPlaces; }
  void forget_states();

  static constexpr CellId kEnd = 0;  // the place where the document is complete
  static constexpr int64_t kMostNodes = 10000, kMostStates = 5000;
  static constexpr int64_t kMostPlaces = 1 << 22;  // of all states together

 private:
  static constexpr int32_t kUnknown = -2;

  // Of a tree of texts: the byte that leads here, and the branches that go on, ascending by their bytes.
  struct Branch {
    uint8_t byte = 0;
    bool may_end = false;
    int32_t first = 0, n = 0;
  };
  struct Node {
    enum class Kind : uint8_t { one_of, sequence, choice, quoted, bare, list, members, up_to, placeholder };
    Kind kind;
    std::string bytes = {};           // of `up_to`
    std::vector<Branch> tree = {};    // of `one_of`, the root first
    std::vector<NodeId> parts = {};   // children, of `members` in order
    std::vector<bool> required = {};  // of `members`, for each part
    Terms::Id text = 0;
    NodeId rest = -1, separator = -1;  // of `list` and `members`; rest -1: none
    int64_t least = 0, most = 0;
    bool has_document = false;
  };
  // A cell, or ~ a list of several.
  using Tail = int32_t;
  // What is next at a place, and what follows it.
  struct Cell {
    enum class Kind : uint8_t {
      node,     // a: the node; b: how much of it is done, of `one_of` the branch
      quoted,   // a: the term of what may follow, before a whole character
      bare,     // the same outside quotation marks
      within,   // a: the term behind a character; b: its missing bytes, and bounds of the next
      partial,  // a: the term before a character; b: its bits so far
      escape,   // a: the term before a character; b: what is known of its escape
    };
    Kind kind;
    bool is_quoted;  // of `within` and `partial`
    int32_t a, b;
    Tail tail;
    auto operator<=>(const Cell&) const = default;
  };
  // A cell of which not all tails are known yet.
  struct Opening {
    Cell head;     // its tail is not used
    bool is_next;  // else it follows others
    CellId made = -1;
    std::vector<Tail> tails = {};        // cells, or ~ openings
    std::vector<size_t> followers = {};  // openings that have these tails as well
  };
  struct CellHash {
    size_t operator()(const Cell& cell) const;
  };
  struct State {
    std::vector<CellId> places;  // ascending, at least one
    std::array<StateId, 256> next;
    CharacterKinds harmless = 0;
    bool knows_harmless = false;
  };

  NodeId add(Node node);
  bool has_document(const Node& node) const;
  void cut(Node& node) const;
  CellId cell(const Cell& wanted);
  CellId text_cell(Terms::Id term, bool is_quoted, Tail tail);
  std::span<const CellId> cells_of(const Tail& tail) const;
  Tail tail_of(std::vector<CellId> cells);
  std::vector<CellId> opened(const std::vector<CellId>& cells);
  size_t next_at(const Cell& head);
  size_t behind(const Cell& head, size_t like);
  void enter(Tail tail);
  void follow(size_t follower, size_t opening);
  void add_tail(size_t opening, Tail tail);
  void open(size_t opening);
  void open_item(size_t opening, NodeId item, NodeId separator, int32_t b);
  bool is_reading(const Cell& at) const;
  bool may_pass(const Cell& at) const;
  CellId made(size_t opening);
  StateId find_step(StateId state, uint8_t byte);
  CharacterKinds find_harmless(const std::vector<CellId>& places);
  void read_node(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void leave(const Cell& at, std::vector<CellId>& next) const;
  // automaton_text.cpp
  void read(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void read_text(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void read_lead(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void read_partial(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void read_escape(const Cell& at, uint8_t byte, std::vector<CellId>& next);
  void take(const Cell& at, uint32_t character, std::vector<CellId>& next);
  bool may_be_escaped(Terms::Id term, uint32_t first, uint32_t last);

  Work& work_;
  Terms terms_;
  std::deque<Node> nodes_;
  std::vector<Cell> cells_{{}};
  std::unordered_map<Cell, CellId, CellHash> cell_ids_;
  std::vector<std::unique_ptr<State>> states_;
  std::map<std::vector<CellId>, StateId> state_ids_;
  int64_t n_places_ = 0;                       // of all states
  std::map<std::vector<CellId>, Tail> tails_;  // of several cells
  std::vector<const std::vector<CellId>*> tail_cells_;
  // Of opened():
  std::vector<Opening> openings_;
  std::unordered_map<Cell, size_t, CellHash> next_;            // openings, by their heads
  std::vector<std::pair<size_t, std::optional<Tail>>> to_do_;  // openings to open, or their new tails
  bool may_end_ = false;
};

}  // namespace dsv32
