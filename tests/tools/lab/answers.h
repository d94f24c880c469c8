// `lab answers`: how many questions about long passages a model answers to the letter, and what it
// would answer if something else than its indexer chose the positions that it attends to.
//
// Each question of a file (asked_passages.h) is asked on its own, and answered greedily.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/tools/lab/asked_passages.h"
#include "tests/tools/lab/chosen_positions.h"

namespace dsv32 {

struct Asking {
  Chooser chooser = Chooser::indexer;
  bool thinks = false;  // before each answer; what it thinks is no part of the answer
};

struct AnswerTally {
  int64_t n_questions = 0, n_right = 0, n_prompt_tokens = 0;  // tokens: of the longest prompt
  int64_t n_guessed = 0, n_accepted = 0;                      // by the block for drafts; see --draft
  double seconds = 0;
  double accuracy() const {
    return n_questions > 0 ? static_cast<double>(n_right) / static_cast<double>(n_questions) : 0;
  }
};

// `answered`: told of every question. Throws what Engine and ByHand do.
using Answered = std::function<void(const AskedPassage::Question& question, const std::string& answer)>;
AnswerTally count_right_answers(const GgufFile& file, EngineOptions options, const Asking& asking,
                                const std::vector<AskedPassage>& passages, const Answered& answered = {});

// One of their names, or "all". Throws Error{usage} naming `flag`.
std::vector<Chooser> parse_choosers(const std::string& flag, const std::string& names);

// Prints to standard output and returns the exit code. Throws Error.
struct LabOptions;
int lab_answers(const LabOptions& options);

}  // namespace dsv32
