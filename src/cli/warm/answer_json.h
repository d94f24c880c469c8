// An answer in OpenAI's JSON: written whole or in chunks, and put together again from chunks, as a warm
// process sends them. Scripts rely on the names of its fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/options/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Facts for the JSON fields beside an answer.
struct AnswerFacts {
  std::string model_name = {};
  uint64_t seed = 0;
  std::optional<double> load_seconds = {};  // nothing in a batch, whose answers share load and top-k buffers
  bool thinking = false;                    // false: "reasoning_content" is null
  bool has_drafts = false;                  // usage has guesses
  bool is_text_completion = false;          // OpenAI's older form: a text in place of a message
  bool is_for_reader = false;               // for read_chunk()
};

// An answer as JSON, with seed and timings. Malformed UTF-8 becomes U+FFFD; the exact bytes of a token are in
// its "bytes". For read_chunk() a malformed piece has "bytes" too, and the last chunk the whole result.
class AnswerJson {
 public:
  // `tokenizer` must outlive the object.
  AnswerJson(AnswerFacts facts, const Tokenizer& tokenizer);

  // One object.
  Json whole(const GenerationResult& result) const;
  // Or objects of OpenAI's "chat.completion.chunk", each a line. `field`: "reasoning_content" or "content".
  // The first piece has the chunk with the role before it.
  std::string piece(const char* field, const std::string& text);
  // The calls, if there are any, in a chunk of their own; then the last chunk: finish_reason, usage, seed and
  // timings.
  std::string last(const GenerationResult& result);
  // How much of the prompt is read, for read_chunk().
  std::string progress(int64_t n_done, int64_t n_total, int64_t n_cached) const;

 private:
  Json object(const char* kind, Json choice) const;
  Json chunk(Json delta) const;
  Json end(Json json, const GenerationResult& result) const;
  std::string begin();

  const AnswerFacts facts_;
  const Tokenizer& tokenizer_;
  const int64_t created_;
  std::string id_;
  bool has_begun_ = false;
};

// Calls the listener with what a chunk has, and adds it to the result, in which a piece counts as a token
// until the last chunk brings the whole result. True: it was the last one. Throws Json::exception.
bool read_chunk(const Json& chunk, GenerationResult& result, Listener& listener);

}  // namespace dsv32
