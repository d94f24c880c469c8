// The three expressions and the PCRE2 calls.
//
// The expressions are those of tokenizer.json in the official repository, in PCRE2's spelling and with the
// characters that PCRE2 does not know yet. A limit that PCRE2 runs into is never the user's problem: see
// Matcher.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <string>

#include "base/error.h"
#include "text/unicode_additions.h"

namespace dsv32 {
namespace {

// clang-format off
// White space is spelt out: the original means the Unicode property White_Space, and PCRE2's \s has U+180E
// besides.
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SIGNS "\\p{P}\\p{S}" ADDED_SIGNS
#define LETTERS "\\p{L}\\p{M}" ADDED_LETTERS_AND_MARKS

constexpr const char* kExpressions[] = {
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

pcre2_code* compile(const char* expression) {
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  if (code == nullptr)
    fail(ErrorKind::internal,
         format("PCRE2 refuses the splitting expression at %zu: error %d", place, error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where this is not allowed, the interpreter does the work
  return code;
}

// One call's match state. The machine code gets a stack that grows up to 64 MiB (the default of 32 KiB is too
// small for words of a megabyte); should it still run out, the interpreter, which works on the heap, repeats
// that match.
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

  // The first match in `piece` at or after `start`: whether there is one, and where.
  bool find(const pcre2_code* code, std::string_view piece, size_t start, size_t* begin, size_t* end) {
    int n_groups = match(code, piece, start, 0);
    if (n_groups < 0 && n_groups != PCRE2_ERROR_NOMATCH) n_groups = match(code, piece, start, PCRE2_NO_JIT);
    if (n_groups == PCRE2_ERROR_NOMATCH) return false;
    if (n_groups < 0) {
      fail(ErrorKind::memory,
           format("splitting %zu bytes of text into words failed: PCRE2 error %d", piece.size(), n_groups));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state_.get());
    *begin = bounds[0];
    *end = bounds[1];
    return true;
  }

 private:
  template <typename T, void (*kFree)(T*)>
  struct Free {
    void operator()(T* object) const { kFree(object); }
  };
  template <typename T, void (*kFree)(T*)>
  using Owned = std::unique_ptr<T, Free<T, kFree>>;

  int match(const pcre2_code* code, std::string_view piece, size_t start, uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), start,
                       PCRE2_NO_UTF_CHECK | options, state_.get(), context_.get());
  }

  Owned<pcre2_match_data, pcre2_match_data_free> state_{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context_{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack_{pcre2_jit_stack_create(32 << 10, 64 << 20, nullptr)};
};

}  // namespace

void PreTokenizer::FreeCode::operator()(pcre2_code* code) const { pcre2_code_free(code); }

PreTokenizer::PreTokenizer() {
  for (const char* expression : kExpressions) expressions_.emplace_back(compile(expression));
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
