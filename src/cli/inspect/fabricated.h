// Sequences that nobody computed, for measuring steps behind them without hours of prefill, and a tokenizer
// for models that have none.
//
// The sequences' keys are random, so that scores have a realistic spread; their latent rows are zero, on
// which no operation's time depends.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/by_hand.h"
#include "text/tokenizer.h"

namespace dsv32 {

// n sessions of the same n_tokens random tokens, and of the same keys in pages of their own. Throws as
// LatentCache::open() and reserve() do.
std::vector<std::unique_ptr<ByHand>> fabricate_sessions(Engine& engine, int64_t n, int64_t n_tokens);

// Token i is written " i". None of the n_vocab ids ends an answer.
std::unique_ptr<Tokenizer> fabricate_tokenizer(int64_t n_vocab);

}  // namespace dsv32
