// Cuts text into the words that byte-level BPE works on, by the three regular expressions of "deepseek-v3".
//
// Each expression is applied to the pieces that the one before has left; what lies between two matches is a
// piece too, so no byte is lost. The end of a piece is the end of the text for a lookahead. Matching is
// PCRE2's; every call has its own match state, so threads may share an object.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace dsv32 {

class PreTokenizer {
 public:
  PreTokenizer();

  // The words of `text` (well-formed UTF-8) in order; together they are the text. Views into `text`.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::vector<std::unique_ptr<pcre2_real_code_8, FreeCode>> expressions_;
};

}  // namespace dsv32
