// A mask is the tokens whose bytes the automaton takes from the answer's state: both trees of tokens are
// walked with it, a subtree only where its first byte is taken. Masks are kept by state, and for texts in
// JSON strings by term, as the plain tokens that a text takes are the same wherever it stands.
#include "constrain/constraint.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "constrain/automaton.h"
#include "constrain/schema.h"
#include "constrain/tools.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr size_t kMostMasks = 128;  // that are kept, of states and of strings each

void clear(std::span<uint32_t> words, int32_t id) {
  words[static_cast<size_t>(id) / 32] &= ~(1u << static_cast<uint32_t>(id) % 32);
}

}  // namespace

class Grammar {
 public:
  using Words = TokenTrie::Words;
  using State = Automaton::State;

  Grammar(std::string_view text, const Work& work) try : work_(work), terms_(work_), automaton_(terms_) {
    const Json spec = parse_bounded_json(text);
    has_marks_ = spec.contains("tools");
    const Terms::Id root =
        has_marks_ ? tools_term(terms_, spec) : SchemaReader(terms_, spec.at("schema")).document();
    terms_.prune();
    begin_ = terms_.joined({root});
    if (begin_.empty()) fail(ErrorKind::usage, "the schema accepts no document");
    work_.end();
  } catch (const Json::exception&) {
    fail(ErrorKind::usage, "the constraint is none, expected an object with schema, or tools");
  }

  int64_t n_bytes() const {
    const size_t n_masks = masks_.size() + others_masks_.size() + string_masks_.size();
    const size_t n_words = trie_ ? trie_->n_words() : 0;
    return work_.n_bytes() + automaton_.n_bytes() +
           static_cast<int64_t>(n_masks * n_words * sizeof(uint32_t));
  }
  const State& begin() const { return begin_; }
  bool may_end(const State& state) const { return automaton_.may_end(state); }
  State after(const State& state, std::string_view bytes) { return automaton_.after(state, bytes); }

  // Before a walk: forgets states when they are too many, and the masks of another vocabulary.
  void tidy(const TokenTrie* trie) {
    const bool is_full = automaton_.is_full();
    if (trie != trie_) string_masks_.clear();
    if (trie != trie_ || is_full) masks_.clear(), others_masks_.clear();
    if (is_full) automaton_.forget();
    trie_ = trie;
  }

  const Words& mask(const TokenTrie& trie, const State& state) {
    return kept(masks_, automaton_.id_of(state), [&] { return find_mask(trie, state); });
  }

 private:
  template <typename Find>
  const Words& kept(std::unordered_map<int32_t, Words>& masks, int32_t id, const Find& find) {
    const auto known = masks.find(id);
    if (known != masks.end()) return known->second;
    if (masks.size() >= kMostMasks) masks.clear();
    Words words = find();
    return masks[id] = std::move(words);
  }

  Words find_mask(const TokenTrie& trie, const State& state) {
    Words words = others_mask(trie, state);
    State not_in_strings;
    for (const Terms::Id term : state)
      if (const std::optional<Terms::Id> string = terms_.string_at(term))
        TokenTrie::add(words, string_mask(trie, *string));
      else
        not_in_strings.push_back(term);
    if (!not_in_strings.empty()) walk(trie.plain(), trie, not_in_strings, words);
    for (const int32_t id : trie.marks())
      if (!has_marks_ || trie.bytes_of(id) != marks::kDsml) clear(words, id);
    if (may_end(state))
      for (const int32_t id : trie.ends()) TokenTrie::set(words, id);
    if (std::ranges::count(words, 0u) == std::ssize(words))
      fail(ErrorKind::internal, "the answer has come to where the schema has no way on");
    return words;
  }

  // The tokens that are not plain. Lengths beyond what such a token can reach make no difference to them, so
  // the masks of a string that bounds its length are nearly all the same.
  const Words& others_mask(const TokenTrie& trie, const State& state) {
    const int64_t n = trie.n_most_in_string();
    State alike;
    for (const Terms::Id term : state) {
      const std::optional<Terms::Id> string = terms_.string_at(term);
      const std::optional<Terms::Length> length = string ? terms_.length(*string) : std::nullopt;
      alike.push_back(!length
                          ? term
                          : terms_.with_string(
                                term, terms_.of_length({std::min(length->least, n + 1),
                                                        length->most > n ? Terms::kNoLimit : length->most})));
    }
    alike = terms_.joined(std::move(alike));
    return kept(others_masks_, automaton_.id_of(alike), [&] {
      Words words(trie.n_words());
      walk(trie.others(), trie, alike, words);
      return words;
    });
  }

  // The plain tokens that a string in JSON takes.
  const Words& string_mask(const TokenTrie& trie, Terms::Id string) {
    if (const std::optional<Terms::Length> length = terms_.length(string))
      return trie.plain_up_to(length->most);
    return kept(string_masks_, string, [&] {
      Words words(trie.n_words());
      walk(trie.plain(), trie, {terms_.alone(string)}, words);
      return words;
    });
  }

  // Adds the tokens of a tree that the automaton takes from `start`.
  void walk(const TokenTrie::Tree& tree, const TokenTrie& trie, const State& start, Words& words) {
    std::vector<Automaton::StateId> at(trie.n_most_bytes() + 1);  // by depth
    at[0] = automaton_.id_of(start);
    for (size_t i = 0; i < tree.size();) {
      const TokenTrie::Node& node = tree[i];
      const Automaton::StateId state = automaton_.step(at[node.depth - 1u], node.byte);
      at[node.depth] = state;
      if (state >= 0 && node.token >= 0) TokenTrie::set(words, node.token);
      i = state >= 0 ? i + 1 : static_cast<size_t>(node.next);
    }
  }

  Work work_;
  Terms terms_;
  Automaton automaton_;
  State begin_;
  bool has_marks_ = false;  // the mark of calls may come, which may be a special token
  const TokenTrie* trie_ = nullptr;
  std::unordered_map<int32_t, Words> masks_, others_masks_;  // by ids of states
  std::unordered_map<int32_t, Words> string_masks_;          // by strings
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
    : grammar_(std::move(grammar)), trie_(std::move(trie)), state_(grammar_->begin()) {}

void Constraint::write_mask(std::span<uint32_t> words, bool has_begun) {
  if (!has_begun) {
    std::ranges::fill(words, ~0u);
    for (const int32_t id : trie_->ends()) clear(words, id);
    return;
  }
  grammar_->tidy(trie_.get());
  const std::vector<uint32_t>& mask = grammar_->mask(*trie_, state_);
  if (words.size() < mask.size())
    fail(ErrorKind::internal, format("a mask of %zu words has room for %zu", mask.size(), words.size()));
  std::fill(std::ranges::copy(mask, words.begin()).out, words.end(), 0);
}

void Constraint::push(int32_t id) {
  if (trie_->is_end(id)) return;
  if (!take(trie_->bytes_of(id)))
    fail(ErrorKind::internal, format("token %d came, which the constraint does not allow", id));
}

bool Constraint::take(std::string_view bytes) {
  grammar_->tidy(trie_.get());
  std::vector<int32_t> after = grammar_->after(state_, bytes);
  if (after.empty()) return false;
  state_ = std::move(after);
  return true;
}

bool Constraint::is_complete() const { return grammar_->may_end(state_); }

void Compiled::compile(const std::atomic<bool>& is_ending) {
  try {
    grammar = compile_constraint(text, &is_ending);
  } catch (...) {
    error = std::current_exception();
  }
  is_done = true;
}

int64_t Compiled::n_bytes() const { return std::ssize(text) + (is_done && grammar ? grammar->n_bytes() : 0); }

// One thread compiles, so that only one constraint takes its memory at a time.
Constraints::Constraints(int n_threads, int64_t most_kept)
    : most_kept_(most_kept), compiler_(Offload::make(1)), workers_(n_threads) {}

std::shared_ptr<Compiled> Constraints::ask(const std::string& text) {
  std::shared_ptr<Compiled> asked = known_[text].lock();
  if (!asked) {
    std::erase_if(known_, [](const auto& row) { return row.second.expired(); });
    asked = std::make_shared<Compiled>(text);
    known_[text] = asked;
    const auto compile = [wanted = std::weak_ptr(asked), &is_ending = compiler_->is_ending()] {
      if (const std::shared_ptr<Compiled> still = wanted.lock()) still->compile(is_ending);
    };
    if (!compiler_->run(compile)) compile();  // the system gives no thread
  }
  std::erase(kept_, asked);
  kept_.push_back(asked);
  drop_old();
  return asked;
}

void Constraints::wait() const {
  const auto n_done = [this] {
    return std::ranges::count_if(known_, [](const auto& row) {
      const std::shared_ptr<Compiled> asked = row.second.lock();
      return asked && asked->is_done;
    });
  };
  compiler_->wait(Offload::Clock::now() + std::chrono::milliseconds(10),
                  [&, n_before = n_done()] { return n_done() != n_before; });
}

// They grow while masks are made.
void Constraints::drop_old() {
  int64_t n = 0;
  for (const auto& compiled : kept_) n += compiled->n_bytes();
  for (; n > most_kept_; kept_.pop_front()) n -= kept_.front()->n_bytes();
}

std::unique_ptr<Constraint> Constraints::begin(const std::shared_ptr<Compiled>& compiled,
                                               const Tokenizer& tokenizer) {
  if (compiled->error) std::rethrow_exception(compiled->error);
  if (!trie_) trie_ = std::make_shared<const TokenTrie>(tokenizer);
  return std::make_unique<Constraint>(std::shared_ptr<Grammar>(compiled, compiled->grammar.get()), trie_);
}

void Constraints::write(std::span<WantedMask> masks) {
  std::map<const Grammar*, std::vector<WantedMask*>> by_grammar;
  for (WantedMask& mask : masks) by_grammar[mask.constraint->grammar()].push_back(&mask);
  std::vector<std::vector<WantedMask*>> groups;
  for (auto& [grammar, group] : by_grammar) groups.push_back(std::move(group));
  workers_.parallel_for(std::ssize(groups), groups.size() > 1, [&](int64_t i) {
    for (WantedMask* mask : groups[static_cast<size_t>(i)]) try {
        mask->constraint->write_mask(mask->words, mask->has_begun);
      } catch (...) {
        *mask->error = std::current_exception();
      }
  });
  drop_old();
}

}  // namespace dsv32
