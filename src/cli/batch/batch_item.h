// One line of a batch: its request, in OpenAI's form or a short one, or why it is refused; and its outcome.
//
//   {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": …, …}}
//   {"messages": …, …}    {"prompt": …, …}
//
// The digest covers the id, the request with every default filled in, and the model. By the digest a later
// run finds answered lines, and a shard finds its own. The seed is the line's, else it is derived from the
// command's seed, the request and the line's own id, so that neither the place in the file nor other lines
// change the answer. A line that asks for a random seed gets another one in every run, but keeps its digest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/options/options.h"
#include "cli/options/request_json.h"
#include "engine/request.h"

namespace dsv32 {

// 400: the request is wrong or not supported; 413: it is too long for the context; 500: any other error.
int status_of(const Error& error);

using LineDigest = std::array<uint8_t, 16>;
LineDigest digest_of(std::string_view bytes);
// The digest of 32 hexadecimal digits; nothing for any other text.
std::optional<LineDigest> parse_line_digest(std::string_view text);
bool is_in(const Shard& shard, const LineDigest& digest);

struct TokenCounts {
  int64_t n_prompt = 0, n_cached = 0, n_generated = 0;  // n_cached is a part of n_prompt
  TokenCounts& operator+=(const TokenCounts& other) {
    n_prompt += other.n_prompt, n_cached += other.n_cached, n_generated += other.n_generated;
    return *this;
  }
};

// An item listens to its own answer, to show progress: a piece of text counts as a token.
struct BatchItem : Listener {
  int64_t number = 0;             // of the line, from 1
  std::optional<std::string> id;  // the line's own, or its number; nothing: it cannot be read
  LineDigest digest{};
  ChatRequest request;
  std::optional<Error> error;  // why there is no answer

  int64_t place = 0;  // among the lines that are answered in this run, from 0
  Prompt prompt;
  std::optional<int64_t> asked;  // its number at the answerer, if it was asked
  bool is_lost = false;          // its warm process has ended: it is to be asked again
  Listener* watcher = nullptr;   // hears on_prefill() too
  TokenCounts counts;            // so far
  GenerationResult result;       // at the end
  std::string text;              // of the answer, as it is written

  // The item's name in messages.
  std::string name() const { return id.value_or(std::to_string(number)); }
  std::string digest_text() const { return hex(digest); }  // 32 hexadecimal digits

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
    counts = {n_done, n_cached, 0};  // another prefill begins anew
    if (watcher) watcher->on_prefill(n_done, n_total, n_cached);
  }
  void on_reasoning(const std::string& /*text*/) override { ++counts.n_generated; }
  void on_answer(const std::string& /*text*/) override { ++counts.n_generated; }
};

// The error with the line's number in front.
Error at_line(int64_t number, const Error& error);

// Makes items for one model and one command.
class LineMaker {
 public:
  // `defaults`: the request of a line without fields; lines' seeds are derived from its seed.
  LineMaker(const Hash256& model, ChatRequest defaults) : model_(model), defaults_(std::move(defaults)) {}

  // An error becomes the item's.
  BatchItem from_json(int64_t number, std::string_view json) const;
  // `id`: the line's own, if it has one. `prompt`: the user's text.
  BatchItem from_text(int64_t number, std::string prompt, const std::optional<std::string>& id = {}) const;
  // A line that cannot be answered. `bytes`: what is known of it, for the digest.
  BatchItem refused(int64_t number, std::optional<std::string> id, std::string_view bytes,
                    const Error& why) const;

 private:
  BatchItem accepted(int64_t number, const std::optional<std::string>& own_id, ChatRequest request) const;

  Hash256 model_;
  ChatRequest defaults_;
};

}  // namespace dsv32
