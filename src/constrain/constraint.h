// Which answers a request allows, and which tokens may come next in one answer.
//
// A constraint is a text, so that it travels with a request's other options. It is a JSON object of one of
// two forms:
//
//   {"schema": S}    the answer is one JSON document that the JSON schema S accepts (schema.h)
//   {"tools": [{"name": N, "parameters": S, "strict": true}, ...], "choice": "auto", "parallel": true}
//
// With tools the answer may call them. "choice" is "auto", "required" or a tool's name: "required" and a name
// make the answer a block of calls and nothing else. "parallel" false: one call at most. Arguments of a
// strict tool are what its schema accepts; those of others are any.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread.h"
#include "base/worker_pool.h"
#include "constrain/token_trie.h"
#include "text/tokenizer.h"

namespace dsv32 {

class Grammar;  // a compiled constraint

// Throws Error{usage} that names the path and the keyword, for text that is no constraint, for schemas with
// keywords that are not supported, that no document satisfies, or that are too large: none takes more than
// about 200 MB and 2 s. Throws Interrupted when it is stopped.
std::shared_ptr<Grammar> compile_constraint(std::string_view text,
                                            const std::atomic<bool>* is_stopped = nullptr);
// Throws the same, but only what is found in some milliseconds: for a thread that has other work.
void check_constraint(std::string_view text);

// One answer under a constraint. One thread at a time, also for the answers that share a grammar.
class Constraint {
 public:
  Constraint(std::shared_ptr<Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  // words [ceil(n_vocab / 32)]: bit id % 32 of word id / 32 says whether the token may come next. At least
  // one may. Those that end an answer may where the document is complete. While the document has not begun:
  // all tokens but those that end an answer.
  void write_mask(std::span<uint32_t> words, bool has_begun = true);
  // Takes the next token, which the mask allows.
  void push(int32_t id);
  // Takes the bytes; false if no document goes on with them, and then nothing is taken.
  bool take(std::string_view bytes);
  // Whether the document is complete here.
  bool is_complete() const;
  // Answers with the same grammar take turns.
  const Grammar* grammar() const { return grammar_.get(); }

 private:
  std::shared_ptr<Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> state_;  // of the grammar's automaton
};

// The mask of one answer's next token.
struct WantedMask {
  Constraint* constraint;
  bool has_begun;  // the document
  std::span<uint32_t> words;
  std::exception_ptr* error;  // set if it could not be written
};

// A constraint that another thread compiles.
struct Compiled {
  explicit Compiled(std::string constraint) : text(std::move(constraint)) {}

  const std::string text;
  std::atomic<bool> is_done = false;  // then the rest is set
  std::shared_ptr<Grammar> grammar = {};
  std::exception_ptr error = {};

  void compile(const std::atomic<bool>& is_ending);  // which breaks it off
  int64_t n_bytes() const;                           // that it takes by now
};

// The constraints of the requests to one model: equal ones are compiled once, by a thread of their own, and
// some stay for later requests.
class Constraints {
 public:
  // n_threads 0: one for each core. most_kept: bytes of constraints that stay.
  explicit Constraints(int n_threads, int64_t most_kept = 256 << 20);

  // The constraint that is or will be compiled, unless nobody holds it any more before its turn.
  std::shared_ptr<Compiled> ask(const std::string& text);
  // Waits some milliseconds, less if a constraint is done.
  void wait() const;
  // The constraint of a new answer, of one that is done. Always the same tokenizer, which must outlive the
  // object. Throws as compile_constraint() does.
  std::unique_ptr<Constraint> begin(const std::shared_ptr<Compiled>& compiled, const Tokenizer& tokenizer);
  // Writes masks, those of answers with different constraints side by side.
  void write(std::span<WantedMask> masks);

 private:
  void drop_old();

  std::map<std::string, std::weak_ptr<Compiled>> known_;  // by their texts
  std::deque<std::shared_ptr<Compiled>> kept_;            // the last one asked for is the last
  const int64_t most_kept_;
  std::shared_ptr<Offload> compiler_;
  std::shared_ptr<const TokenTrie> trie_;
  WorkerPool workers_;
};

}  // namespace dsv32
