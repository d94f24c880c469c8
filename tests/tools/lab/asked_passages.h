// Passages with questions, as the bench commands read them: a line for each passage,
// {"passage": "...", "questions": [{"ask": "...", "answer": "..."}, ...]}. Each question is asked as
// {passage}\n{ask}, or as it is where the passage is empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace dsv32 {

struct AskedPassage {
  std::string text;
  struct Question {
    std::string ask, answer;  // answer: empty where the file has none
  };
  std::vector<Question> questions;  // one or more
};

// Those of the first n_most lines that are not blank, or of all when n_most is 0. Throws Error{usage} naming
// the line that is something else.
std::vector<AskedPassage> read_passages(const std::string& path, int64_t n_most);

// A conversation's first turn, up to where the reasoning or the answer begins.
std::vector<int32_t> first_turn(const Tokenizer& tokenizer, const std::string& text, bool thinks = false);
// The same that asks about a passage, if it has one.
std::vector<int32_t> first_turn(const Tokenizer& tokenizer, const AskedPassage& passage,
                                const AskedPassage::Question& question, bool thinks = false);

}  // namespace dsv32
