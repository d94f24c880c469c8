// A finished completion as one JSON object of OpenAI's form, with the seed and timings beside it.
//
// Text that is not UTF-8 gets U+FFFD in its place, since JSON cannot carry it; the bytes of a token are in
// its "bytes". Scripts rely on these names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/loop.h"
#include "model/forward.h"

namespace dsv32 {

struct CompletionContext {
  std::string model_name;
  uint64_t seed = 0;
  std::optional<double> load_seconds;  // nothing: of several answers, which share top-k buffers' figures
  bool thinking = false;               // else "reasoning_content" is null
  bool is_text_completion = false;     // of OpenAI's older form: a text in place of a message
};

// One line without a newline at its end.
std::string completion_json(const GenerationResult& result, const Tokenizer& tokenizer,
                            const CompletionContext& context);

// The same answer piece by piece, as lines of OpenAI's "chat.completion.chunk": who speaks, each piece of
// thinking and answer, and at the end why it ended, with usage, seed and timings.
class CompletionChunks {
 public:
  explicit CompletionChunks(const std::string& model_name);

  std::string first() const;
  std::string reasoning(const std::string& text) const;
  std::string answer(const std::string& text) const;
  std::string last(const GenerationResult& result, const Tokenizer& tokenizer,
                   const CompletionContext& context) const;

 private:
  const std::string id_, model_name_;
  const int64_t created_;
};

}  // namespace dsv32
