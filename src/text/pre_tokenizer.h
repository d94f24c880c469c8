// Cuts text into the words that byte-level BPE works on, by the regular expressions of the model's tokenizer:
// a row of the table in pre_tokenizer.cpp.
//
// Each expression cuts the pieces of the previous expression further: into matches and the text between them,
// so no byte is lost. For a lookahead, the end of a piece is the end of the text. PCRE2 does the matching;
// every call has its own match state, so threads may share an object.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace dsv32 {

// Throws Error{model} unless there is a row for a tokenizer of that name (tokenizer.ggml.pre). Names begin
// with the row's: deepseek-v3.1 is one of deepseek-v3.
void check_pre_tokenizer(std::string_view name);

class PreTokenizer {
 public:
  // As check_pre_tokenizer().
  explicit PreTokenizer(std::string_view name);

  // The words of `text` (well-formed UTF-8) in order; together they are the text. Views into `text`.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  std::vector<std::shared_ptr<const pcre2_real_code_8>> expressions_;
};

}  // namespace dsv32
