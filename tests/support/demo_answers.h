// The trained model and what it answers to the held-out questions in models/eval/.
#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tests/tools/lab/answers.h"

namespace dsv32 {

inline const GgufFile& demo_file() {
  static const GgufFile file("models/demo.gguf");
  return file;
}

// `name`: "1k" to "16k" (the tokens of each passage), "small" or "own_facts". n_most: 0 for all.
inline std::vector<AskedPassage> eval_passages(const std::string& name, int64_t n_most = 0) {
  return read_passages("models/eval/" + name + ".jsonl", n_most);
}

inline EngineOptions options_of_demo(const char* backend, std::optional<int64_t> topk_buffer = kEveryRow) {
  EngineOptions options;
  options.backend = backend;
  options.topk_buffer = topk_buffer;
  return options;
}

inline constexpr int64_t kTwiceTopk = 512;

struct Answers {
  AnswerTally tally;
  std::vector<std::string> texts;
};

inline Answers answers_of(const std::vector<AskedPassage>& passages, const EngineOptions& options,
                          const Asking& asking = {}) {
  Answers answers;
  answers.tally = count_right_answers(
      demo_file(), options, asking, passages,
      [&](const AskedPassage::Question&, const std::string& answer) { answers.texts.push_back(answer); });
  return answers;
}

inline void check_same(const Answers& answers, const Answers& expected) {
  BOOST_TEST(answers.texts == expected.texts, boost::test_tools::per_element());
}

}  // namespace dsv32
