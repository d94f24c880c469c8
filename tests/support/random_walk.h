// Documents that come of drawing at random among the tokens that a constraint allows.
//
// A walk draws freely for a while and is then led to an end. Free draws are of four kinds, by turns of the
// seed: among all allowed tokens alike; among the first bytes that are allowed and then among the tokens with
// that byte (so structure is met as often as letters); and both of these with steps towards an end between.
// Of each kind every second begins with a bracket, where one is allowed. A walk depends on the grammar, the
// vocabulary and the seed, so its document can be compared by digest.
#pragma once

#include <memory>
#include <string>

#include "tests/support/constrained_vocabulary.h"

namespace dsv32 {

// Small, and the same everywhere.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // 0 .. n - 1, n > 0.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }

 private:
  uint64_t state_;
};

struct Walk {
  std::string text;
  bool is_cut = false;    // it had no end after very many tokens
  bool is_stuck = false;  // a mask was empty, which must not be
  int64_t n_tokens = 0;
};

// `most_free`: free draws at most.
Walk random_walk(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary,
                 uint64_t seed, uint64_t most_free = 48);

}  // namespace dsv32
