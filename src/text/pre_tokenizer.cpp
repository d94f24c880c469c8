// The three expressions and the PCRE2 calls.
//
// The expressions are those of tokenizer.json in the official repository, in PCRE2's spelling, with the
// characters that are too recent for PCRE2 added.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <span>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// clang-format off
// Letters, marks, numbers, signs and symbols of Unicode 15.0, 15.1 and 16.0, from the Unicode Character Database.
// The official tokenizer knows Unicode 16; PCRE2 10.42, which Debian 12 has, knows 14, and would cut a text around
// an emoji of 2022 in other places. With a later PCRE2 the ranges change nothing.
// Categories L and M.
#define ADDED_LETTERS_AND_MARKS \
  "\\x{897}\\x{cf3}\\x{ece}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}" \
  "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}\\x{10d69}-\\x{10d6d}\\x{10d6f}-\\x{10d85}" \
  "\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}\\x{1123f}-\\x{11241}\\x{11380}-\\x{11389}\\x{1138b}" \
  "\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}" \
  "\\x{113cc}-\\x{113d3}\\x{113e1}-\\x{113e2}\\x{11bc0}-\\x{11be0}\\x{11f00}-\\x{11f10}" \
  "\\x{11f12}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{1342f}\\x{13440}-\\x{13455}" \
  "\\x{13460}-\\x{143fa}\\x{16100}-\\x{1612f}\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}" \
  "\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e08f}\\x{1e4d0}-\\x{1e4ef}\\x{1e5d0}-\\x{1e5f0}" \
  "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

// Category N.
#define ADDED_NUMBERS \
  "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
  "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}" \
  "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"

// Categories P and S.
#define ADDED_SIGNS \
  "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}" \
  "\\x{10d6e}\\x{10d8e}-\\x{10d8f}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{11b00}-\\x{11b09}" \
  "\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}" \
  "\\x{1e5ff}\\x{1f6dc}\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}" \
  "\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}\\x{1faad}-\\x{1faaf}" \
  "\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}\\x{1fada}-\\x{1fadc}\\x{1fadf}" \
  "\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}\\x{1fbcb}-\\x{1fbef}"

// White space is listed: the original's \s is the property White_Space, while PCRE2's \s also has U+180E.
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SIGNS "\\p{P}\\p{S}" ADDED_SIGNS
#define LETTERS "\\p{L}\\p{M}" ADDED_LETTERS_AND_MARKS

constexpr const char* kOfDeepSeekV3[] = {
    // Digits in groups of up to three.
    "[\\p{N}" ADDED_NUMBERS "]{1,3}",
    // Runs of Chinese characters and kana.
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    // In this order: a sign with the ASCII letters after it; letters and marks with one character before
    // them; signs with a space before and line ends after; line ends; white space. (The one character is no
    // letter, but the match would be the same if it were, so the added letters are not excluded there.)
    "[!-/:-@\\[-`{-~][A-Za-z]+"
    "|[^\\r\\n\\p{L}" SIGNS "]?[" LETTERS "]+"
    "| ?[" SIGNS "]+[\\r\\n]*"
    "|[" SPACES "]*[\\r\\n]+"
    "|[" SPACES "]+(?![^" SPACES "])"
    "|[" SPACES "]+",
};
// clang-format on

struct Kind {
  const char* name;
  std::span<const char* const> expressions;
};
constexpr Kind kKinds[] = {{"deepseek-v3", kOfDeepSeekV3}};

const Kind& kind_of(std::string_view name) {
  std::string known;
  for (const Kind& kind : kKinds) {
    if (name.starts_with(kind.name)) return kind;
    known += format("%s\"%s\"", known.empty() ? "" : " or ", kind.name);
  }
  fail(ErrorKind::model,
       format("tokenizer.ggml.pre is \"%s\", expected %s", visible(name, false, 40).c_str(), known.c_str()),
       "this program reads the tokenizers of DeepSeek-V3.2 files");
}

std::shared_ptr<const pcre2_code> compile(const char* expression) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  if (code == nullptr)
    fail(ErrorKind::internal,
         format("PCRE2 refuses the splitting expression at %zu: error %d", place, error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where JIT is not allowed, the interpreter is used
  return {code, pcre2_code_free};
}

// One call's match state. The JIT stack grows up to 64 MiB (the default of 32 KiB is too small for words of a
// megabyte). If that is too little, the interpreter, which uses the heap, repeats the match.
class Matcher {
 public:
  Matcher() {
    if (!state_ || !context_ || !stack_)
      fail(ErrorKind::memory, "no memory for splitting the text into words");
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    pcre2_set_depth_limit(context_.get(), UINT32_MAX);
    pcre2_set_heap_limit(context_.get(), UINT32_MAX);
  }

  // Finds the first match in `piece` at or after `start`; returns whether there is one.
  bool find(const pcre2_code* code, std::string_view piece, size_t start, size_t* begin, size_t* end) {
    int n_groups = match(code, piece, start, 0);
    if (n_groups < 0 && n_groups != PCRE2_ERROR_NOMATCH) n_groups = match(code, piece, start, PCRE2_NO_JIT);
    if (n_groups == PCRE2_ERROR_NOMATCH) return false;
    if (n_groups < 0)
      fail(ErrorKind::memory,
           format("splitting %zu bytes of text into words failed: PCRE2 error %d", piece.size(), n_groups));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state_.get());
    *begin = bounds[0];
    *end = bounds[1];
    return true;
  }

 private:
  template <typename T, void (*kFree)(T*)>
  using Owned = std::unique_ptr<T, decltype([](T* object) { kFree(object); })>;

  int match(const pcre2_code* code, std::string_view piece, size_t start, uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), start,
                       PCRE2_NO_UTF_CHECK | options, state_.get(), context_.get());
  }

  Owned<pcre2_match_data, pcre2_match_data_free> state_{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context_{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack_{pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr)};
};

}  // namespace

void check_pre_tokenizer(std::string_view name) { kind_of(name); }

PreTokenizer::PreTokenizer(std::string_view name) {
  for (const char* expression : kind_of(name).expressions) expressions_.push_back(compile(expression));
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  Matcher matcher;
  std::vector<std::string_view> pieces{text}, cut;
  for (const auto& expression : expressions_) {
    cut.clear();
    for (const std::string_view piece : pieces) {
      size_t at = 0, begin = 0, end = 0;
      while (at < piece.size() && matcher.find(expression.get(), piece, at, &begin, &end)) {
        if (begin > at) cut.push_back(piece.substr(at, begin - at));
        cut.push_back(piece.substr(begin, end - begin));
        at = end;
      }
      if (at < piece.size()) cut.push_back(piece.substr(at));
    }
    pieces.swap(cut);
  }
  return pieces;
}

}  // namespace dsv32
