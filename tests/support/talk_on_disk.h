// A talk whose pages are kept on disk. Prompts that leave it at random positions, also within its answers,
// must get the same bits with and without the cache, whatever decode stored. The resumed talk must find its
// answers.
#pragma once

#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/disk_options.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

struct TalkOnDisk {
  std::function<std::unique_ptr<Backend>()> make_backend;
  int64_t topk = 32;
  EngineOptions options{};
  TempDir dir{};
  GgufFile file{write_model(dir, topk)};

  static std::string write_model(const TempDir& dir, int64_t topk) {
    TinyModel shape;
    shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = topk;
    write_tiny_model(dir.file("tiny.gguf"), shape);
    return dir.file("tiny.gguf");
  }

  // An engine and a sequence, as a process has them.
  struct Process {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<ByHand> sequence;
    int64_t n_pages_known() const { return engine->prefix_cache()->tree().n_pages(); }
  };
  Process start(bool has_cache, std::optional<int64_t> chunk = {}, std::optional<int64_t> buffer = {}) const {
    EngineOptions of_process = options;
    of_process.context = 512, of_process.chunk = chunk, of_process.topk_buffer = buffer;
    if (has_cache) of_process = with_disk(of_process, dir.file("cache"));
    of_process.backends = {make_backend()};
    auto engine = std::make_unique<Engine>(file, of_process);
    auto sequence = std::make_unique<ByHand>(*engine);
    return {std::move(engine), std::move(sequence)};
  }

  // Adds a turn to the sequence: a prompt, and an answer token by token. Returns all of its tokens.
  static std::vector<int32_t> ask(ByHand& sequence, int64_t n_question, int64_t n_answer, uint64_t seed) {
    std::vector<int32_t> tokens = sequence.tokens();
    const std::vector<int32_t> question = random_tokens(n_question, seed);
    tokens.insert(tokens.end(), question.begin(), question.end());
    sequence.sync(tokens);
    for (const int32_t token : random_tokens(n_answer, seed + 50)) sequence.step(token);
    sequence.save_prefix();
    return sequence.tokens();
  }

  // The answer ends where a page ends. A sequence that resumes the talk and knows which tokens were decoded
  // gets the bits of the first sequence; one that does not know finds the pages before the answer.
  void check_resumed() const {
    std::vector<int32_t> tokens;
    std::vector<float> logits;
    std::vector<TokenRun> decoded;
    {
      const Process first = start(true);
      tokens = ask(*first.sequence, 150, 106, 1);
      decoded = first.sequence->decoded();
      BOOST_TEST((decoded == std::vector<TokenRun>{{150, 256}}));
      tokens.insert(tokens.end(), {1, 2, 3});
      first.sequence->sync(tokens);
      logits = first.sequence->logits();
    }
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    for (const bool is_told : {true, false}) {
      if (!is_told) decoded.clear();
      const Process resumed = start(true);
      BOOST_TEST(resumed.sequence->hold(tokens, kAll, decoded) == (is_told ? 256 : 128));
      while (resumed.sequence->tokens().size() < tokens.size())
        resumed.sequence->read_chunk(tokens, resumed.engine->plan().chunk);
      BOOST_TEST((resumed.sequence->logits() == logits) == is_told);
    }
  }

  void check_random_places(int n_places) const {
    std::vector<int32_t> talk;
    {
      const Process first = start(true);
      ask(*first.sequence, 150, 90, 1);
      talk = ask(*first.sequence, 70, 80, 2);
    }
    Rng rng(5);
    const std::optional<int64_t> chunks[] = {std::nullopt, 64, 100}, buffers[] = {std::nullopt, topk + 8};
    int n_cached = 0;
    for (int i = 0; i < n_places; ++i) {
      const auto split = static_cast<int64_t>(rng.next() % talk.size());
      std::vector<int32_t> prompt(talk.begin(), talk.begin() + split);
      for (const int32_t other : random_tokens(1 + static_cast<int64_t>(rng.next() % 30), rng.next()))
        prompt.push_back(other);
      const Process cold = start(false, chunks[rng.next() % 3], buffers[rng.next() % 2]);
      const Process cached = start(true, chunks[rng.next() % 3], buffers[rng.next() % 2]);
      BOOST_TEST_INFO("split at " << split << ", " << prompt.size() << " tokens");
      BOOST_TEST(cold.sequence->sync(prompt) == 0);
      n_cached += cached.sequence->sync(prompt) > 0;
      BOOST_TEST((cached.sequence->logits() == cold.sequence->logits()));
      BOOST_TEST((remembered(*cached.engine, *cached.sequence) == remembered(*cold.engine, *cold.sequence)));
      // A decoded token after it gets the same bits too.
      cold.sequence->step(7), cached.sequence->step(7);
      BOOST_TEST((cached.sequence->logits() == cold.sequence->logits()));
    }
    BOOST_TEST(n_cached > n_places / 2);
  }
};

}  // namespace dsv32
