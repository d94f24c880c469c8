// A mask is the tokens whose bytes the automaton takes from the answer's state: both trees of tokens are
// walked with it, a subtree only where its first byte is taken. Masks are kept by state, and for texts in
// JSON strings by term, as the plain tokens that a text takes are the same wherever it stands.
#include "constrain/constraint.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "base/thread.h"
#include "constrain/automaton.h"
#include "constrain/schema.h"
#include "constrain/token_trie.h"
#include "constrain/tools.h"

namespace dsv32 {
namespace {

constexpr size_t kLargeSubtree = 16;  // nodes, from which on it is asked whether it need be walked
constexpr size_t kMostMasks = 128;    // that are kept, of states and of terms each

void add(TokenTrie::Words& words, const TokenTrie::Words& more) {
  for (size_t i = 0; i < words.size(); ++i) words[i] |= more[i];
}
void clear(std::span<uint32_t> words, int32_t id) {
  words[static_cast<size_t>(id) / 32] &= ~(1u << static_cast<uint32_t>(id) % 32);
}

}  // namespace

class Grammar {
 public:
  using Words = TokenTrie::Words;

  Grammar(std::string_view text, const Work& work) try : work_(work), automaton_(work_) {
    const Json spec = parse_bounded_json(text, "the constraint");
    has_marks_ = spec.contains("tools");
    root_ =
        has_marks_ ? tools_node(automaton_, spec) : SchemaReader(automaton_, spec.at("schema")).document();
    if (!automaton_.prune(root_)) fail(ErrorKind::usage, "the schema accepts no document");
    work_.end();
  } catch (const Json::exception&) {
    fail(ErrorKind::usage, "the constraint is none, expected an object with schema, or tools");
  }

  Automaton& automaton() { return automaton_; }
  int64_t n_bytes() const {
    const size_t n_masks = masks_.size() + others_masks_.size() + term_masks_.size();
    const size_t n_words = trie_ ? trie_->n_words() : 0;
    return work_.n_bytes() + automaton_.n_state_bytes() +
           static_cast<int64_t>(n_masks * n_words * sizeof(uint32_t));
  }
  std::vector<Automaton::CellId> begin() { return automaton_.begin(root_); }

  // Before a walk: forgets states when they are too many, and the masks of another vocabulary.
  void tidy(const TokenTrie* trie) {
    const bool is_full = automaton_.is_full();
    if (trie != trie_) term_masks_.clear();
    if (trie != trie_ || is_full) masks_.clear(), others_masks_.clear();
    if (is_full) automaton_.forget_states();
    trie_ = trie;
  }

  const Words& mask(const TokenTrie& trie, const std::vector<Automaton::CellId>& places) {
    const Automaton::StateId state = automaton_.state_of(places);
    const auto known = masks_.find(state);
    if (known != masks_.end()) return known->second;
    if (masks_.size() >= kMostMasks) masks_.clear();
    Words words = find_mask(trie, state);
    return masks_[state] = std::move(words);
  }

 private:
  Words find_mask(const TokenTrie& trie, Automaton::StateId state) {
    Words words = others_mask(trie, state);
    std::vector<Automaton::CellId> not_texts;
    for (const Automaton::CellId place : std::vector(automaton_.places(state)))
      if (automaton_.quoted_text_at(place) < 0)
        not_texts.push_back(place);
      else
        add(words, text_mask(trie, place));
    if (!not_texts.empty()) walk(trie.plain(), trie, automaton_.state_of(not_texts), words);
    for (const int32_t id : trie.marks())
      if (!has_marks_ || trie.bytes_of(id) != "｜DSML｜") clear(words, id);
    if (automaton_.may_end(state))
      for (const int32_t id : trie.ends()) TokenTrie::set(words, id);
    if (std::ranges::count(words, 0u) == std::ssize(words))
      fail(ErrorKind::internal, "the answer has come to where the schema has no way on");
    return words;
  }

  // The tokens that are not plain. Lengths beyond what such a token can reach make no difference to them, so
  // the masks of a text that bounds its length are nearly all the same.
  Words others_mask(const TokenTrie& trie, Automaton::StateId state) {
    std::vector<Automaton::CellId> places = automaton_.places(state);
    for (Automaton::CellId& place : places) place = automaton_.with_length_to(place, trie.n_most_in_string());
    std::ranges::sort(places);
    const Automaton::StateId alike = automaton_.state_of(places);
    const auto known = others_masks_.find(alike);
    if (known != others_masks_.end()) return known->second;
    if (others_masks_.size() >= kMostMasks) others_masks_.clear();
    Words words(trie.n_words());
    walk(trie.others(), trie, alike, words);
    return others_masks_[alike] = std::move(words);
  }

  // The plain tokens that a text in a JSON string takes.
  const Words& text_mask(const TokenTrie& trie, Automaton::CellId place) {
    const Terms::Id term = automaton_.quoted_text_at(place);
    if (const std::optional<Terms::Length> length = automaton_.terms().length(term))
      return trie.plain_up_to(length->most);
    const auto known = term_masks_.find(term);
    if (known != term_masks_.end()) return known->second;
    if (term_masks_.size() >= kMostMasks) term_masks_.clear();
    Words words(trie.n_words());
    walk(trie.plain(), trie, automaton_.state_of({automaton_.alone(place)}), words);
    return term_masks_[term] = std::move(words);
  }

  // Adds the tokens of a tree that the automaton takes from `start`. Below a node whose characters are
  // harmless to the state, these are all.
  void walk(const TokenTrie::Tree& tree, const TokenTrie& trie, Automaton::StateId start, Words& words) {
    std::vector<Automaton::StateId> at(trie.n_most_bytes() + 1);  // by depth
    at[0] = start;
    for (size_t i = 0; i < tree.nodes.size();) {
      const TokenTrie::Node& node = tree.nodes[i];
      const Automaton::StateId state = automaton_.step(at[node.depth - 1u], node.byte);
      at[node.depth] = state;
      const auto next = static_cast<size_t>(node.next);
      const bool is_large = next - i >= kLargeSubtree && node.below != 0;
      if (state >= 0 && is_large && (node.below & ~automaton_.harmless(state)) == 0) {
        for (const int32_t id : tree.tokens_from(node)) TokenTrie::set(words, id);
        i = next;
        continue;
      }
      if (state >= 0 && node.token >= 0) TokenTrie::set(words, node.token);
      i = state >= 0 ? i + 1 : next;
    }
  }

  Work work_;
  Automaton automaton_;
  Automaton::NodeId root_ = -1;
  bool has_marks_ = false;  // the mark of calls may come, which may be a special token
  const TokenTrie* trie_ = nullptr;
  std::unordered_map<Automaton::StateId, Words> masks_, others_masks_;
  std::unordered_map<Terms::Id, Words> term_masks_;
};

std::shared_ptr<Grammar> compile_constraint(std::string_view text, const std::atomic<bool>* is_stopped) {
  return std::make_shared<Grammar>(text, Work(is_stopped));
}

void check_constraint(std::string_view text) try {
  constexpr int64_t kMostWork = 1'000'000;
  Grammar(text, Work(nullptr, kMostWork));
} catch (const Interrupted&) {
}

Constraint::Constraint(std::shared_ptr<Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)), places_(grammar_->begin()) {}

void Constraint::write_mask(std::span<uint32_t> words) {
  grammar_->tidy(trie_.get());
  const std::vector<uint32_t>& mask = grammar_->mask(*trie_, places_);
  if (words.size() < mask.size())
    fail(ErrorKind::internal, format("a mask of %zu words has room for %zu", mask.size(), words.size()));
  std::fill(std::ranges::copy(mask, words.begin()).out, words.end(), 0);
}

void Constraint::write_mask_before(std::span<uint32_t> words) const {
  std::ranges::fill(words, ~0u);
  for (const int32_t id : trie_->ends()) clear(words, id);
}

void Constraint::push(int32_t id) {
  if (trie_->is_end(id)) return;
  if (!take(trie_->bytes_of(id)))
    fail(ErrorKind::internal, format("token %d came, which the constraint does not allow", id));
}

bool Constraint::take(std::string_view bytes) {
  grammar_->tidy(trie_.get());
  Automaton& automaton = grammar_->automaton();
  Automaton::StateId state = automaton.state_of(places_);
  for (size_t i = 0; i < bytes.size() && state >= 0; ++i)
    state = automaton.step(state, static_cast<uint8_t>(bytes[i]));
  if (state < 0) return false;
  places_ = automaton.places(state);
  return true;
}

// Compiles one constraint after the other, so that only one takes its memory at a time.
class Constraints::Compiler : public Offload {
 public:
  void add(const std::shared_ptr<Compiled>& asked) {
    const Lock lock(mutex_);
    if (n_running_ == 0 && start(1) == 0) return compile(*asked);  // the system gives no thread
    waiting_.push_back(asked);
    changed_.notify_all();
  }
  void wait() {
    Lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(10));
  }

 private:
  void compile(Compiled& asked) const {
    try {
      asked.grammar = compile_constraint(asked.text, &is_ending_);
    } catch (...) {
      asked.error = std::current_exception();
    }
    asked.is_done = true;
  }

  void work(Lock& lock) override {
    while (!is_ending_) {
      if (waiting_.empty()) {
        changed_.wait(lock);
        continue;
      }
      std::shared_ptr<Compiled> asked = waiting_.front().lock();
      waiting_.pop_front();
      lock.unlock();
      if (asked) compile(*asked);
      asked.reset();
      lock.lock();
      changed_.notify_all();
    }
  }

  std::deque<std::weak_ptr<Compiled>> waiting_;
};

int64_t Compiled::n_bytes() const { return std::ssize(text) + (is_done && grammar ? grammar->n_bytes() : 0); }

Constraints::Constraints(int n_threads, int64_t most_kept)
    : most_kept_(most_kept), compiler_(offloaded<Compiler>()), workers_(n_threads) {}

std::shared_ptr<Compiled> Constraints::ask(const std::string& text) {
  std::shared_ptr<Compiled> asked = known_[text].lock();
  if (!asked) {
    std::erase_if(known_, [](const auto& row) { return row.second.expired(); });
    asked = std::make_shared<Compiled>(text);
    known_[text] = asked;
    compiler_->add(asked);
  }
  std::erase(kept_, asked);
  kept_.push_back(asked);
  drop_old();
  return asked;
}

void Constraints::wait() const { compiler_->wait(); }

// They grow while masks are made.
void Constraints::drop_old() {
  int64_t n = 0;
  for (const auto& compiled : kept_) n += compiled->n_bytes();
  for (; n > most_kept_; kept_.pop_front()) n -= kept_.front()->n_bytes();
}

std::unique_ptr<Constraint> Constraints::begin(const std::shared_ptr<Compiled>& compiled,
                                               const Tokenizer& tokenizer) {
  if (compiled->error) std::rethrow_exception(compiled->error);
  if (!trie_) trie_ = make_token_trie(tokenizer);
  return std::make_unique<Constraint>(std::shared_ptr<Grammar>(compiled, compiled->grammar.get()), trie_);
}

void Constraints::write(std::span<WantedMask> masks) {
  std::map<const Grammar*, std::vector<WantedMask*>> by_grammar;
  for (WantedMask& mask : masks) by_grammar[mask.constraint->grammar()].push_back(&mask);
  std::vector<std::vector<WantedMask*>> groups;
  for (auto& [grammar, group] : by_grammar) groups.push_back(std::move(group));
  workers_.parallel_for(std::ssize(groups), groups.size() > 1, [&](int64_t i) {
    for (WantedMask* mask : groups[static_cast<size_t>(i)]) try {
        mask->has_begun ? mask->constraint->write_mask(mask->words)
                        : mask->constraint->write_mask_before(mask->words);
      } catch (...) {
        mask->error = std::current_exception();
      }
  });
  drop_old();
}

bool Constraint::is_complete() const { return places_.front() == Automaton::kEnd; }

}  // namespace dsv32
