// Sequences of different lengths that are opened, extended, cut back and closed at random in common steps;
// each is compared with itself alone.
//
// A token's role follows from its position: up to its sequence's prompt length it is prefilled, after that
// decoded. So each sequence has one true result, which is computed first, without the others.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/loop.h"
#include "gguf/random_weights.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

class ManySequences {
 public:
  static constexpr int64_t kMostTokens = 200, kMostPrompt = 150;

  // `options` with room for so many sequences. Each is computed alone by the same engine or by one with the
  // options `of_truth`.
  ManySequences(const std::string& path, const EngineOptions& options, size_t n_sequences = 8,
                const EngineOptions* of_truth = nullptr)
      : file_(path) {
    for (size_t i = 0; i < n_sequences; ++i)
      lives_.push_back({random_tokens(kMostTokens, 100 + i),
                        static_cast<int64_t>(10 + rng_.next() % (kMostPrompt - 10)),
                        {},
                        {}});
    open(of_truth ? *of_truth : options);
    for (Life& life : lives_) life.truth = alone(life);
    if (of_truth) open(options);
  }

  // Takes n_steps random steps; compares every row of logits.
  void run(int64_t n_steps) {
    for (int64_t step = 0; step < n_steps; ++step) {
      change_one();
      is_decode_ = !is_decode_;
      std::vector<size_t> who;
      for (size_t i = 0; i < lives_.size(); ++i)
        if (lives_[i].sequence && may_join(lives_[i]) && rng_.next() % 4 != 0) who.push_back(i);
      if (!is_decode_ && who.size() > 1) who.resize(1);  // prompts are read one at a time
      if (!who.empty()) take_step(who);
    }
    BOOST_TEST(n_compared_ > n_steps);
    BOOST_TEST(n_different_ == 0, n_different_ << " of " << n_compared_ << " rows of logits");
  }

 private:
  struct Life {
    std::vector<int32_t> tokens;
    int64_t n_prompt = 0;
    std::vector<float> truth;  // [kMostTokens, vocab_size]
    std::unique_ptr<ByHand> sequence;
    int64_t n_held() const { return sequence->cached().n_tokens(); }
  };

  void open(EngineOptions options) {
    const auto n = static_cast<int64_t>(lives_.size());
    options.context = 256, options.max_seqs = n, options.pool = 256 * n;
    engine_.reset();
    engine_ = std::make_unique<Engine>(file_, options);
  }

  std::vector<float> alone(const Life& life) {
    ByHand sequence(*engine_);
    std::vector<float> rows =
        sequence.all_logits(std::span(life.tokens).first(static_cast<size_t>(life.n_prompt)));
    for (int64_t i = life.n_prompt; i < kMostTokens; ++i) {
      sequence.step(life.tokens[static_cast<size_t>(i)]);
      rows.insert(rows.end(), sequence.logits().begin(), sequence.logits().end());
    }
    return rows;
  }

  // Opens a random sequence if it is closed; else now and then closes it or cuts it back.
  void change_one() {
    Life& life = lives_[rng_.next() % lives_.size()];
    const uint64_t dice = rng_.next() % 40;
    if (!life.sequence)
      life.sequence = std::make_unique<ByHand>(*engine_);
    else if (dice == 0 || life.n_held() == kMostTokens)
      life.sequence.reset();
    else if (dice == 1)
      engine_->cache().truncate(life.sequence->cached(),
                                static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(life.n_held() + 1)));
  }

  bool may_join(const Life& life) const {
    return life.n_held() < kMostTokens && (life.n_held() >= life.n_prompt) == is_decode_;
  }

  void take_step(const std::vector<size_t>& who) {
    Step step{is_decode_ ? Role::decode : Role::prefill, {}, {}};
    std::vector<std::pair<size_t, int64_t>> rows;  // life, pos
    for (const size_t i : who) {
      Life& life = lives_[i];
      const int64_t most = is_decode_ ? 1 : std::min(engine_->plan().chunk, life.n_prompt - life.n_held());
      const int64_t n = 1 + static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(most));
      step.n_logits = is_decode_ ? 1 : static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(n + 1));
      const auto first = life.tokens.begin() + life.n_held();
      step.sequences.push_back(&life.sequence->cached());
      step.tokens.insert(step.tokens.end(), first, first + n);
      for (int64_t k = n - step.n_logits; k < n; ++k) rows.emplace_back(i, life.n_held() + k);
    }
    engine_->forward().run(step);
    const std::vector<float> logits = engine_->forward().logits();
    const auto width = static_cast<size_t>(engine_->args().vocab_size);
    BOOST_REQUIRE(logits.size() == rows.size() * width);
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* expected =
          lives_[rows[r].first].truth.data() + static_cast<size_t>(rows[r].second) * width;
      n_different_ += std::memcmp(logits.data() + r * width, expected, width * sizeof(float)) != 0;
      ++n_compared_;
    }
  }

  GgufFile file_;
  Rng rng_{7};
  std::unique_ptr<Engine> engine_;
  std::vector<Life> lives_;
  bool is_decode_ = false;
  int64_t n_compared_ = 0, n_different_ = 0;
};

}  // namespace dsv32
