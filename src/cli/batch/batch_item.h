// One line of a batch: what it asks, in OpenAI's form or a short one, or why it has no answer, and what came
// of it.
//
//   {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": …, …}}
//   {"messages": …, …}    {"prompt": …, …}
//
// Everything that would change an answer is honoured or refused; a field that is not known at all is passed
// over, and its name told once.
//
// Its digest is over the id, the request with every default filled in, and the model: by it a second run
// knows what was answered, and a shard what is its own. Its seed is the line's, else drawn from the
// command's, what the line asks and the id that it gives itself, so that neither its place in the file nor
// other lines change its answer. A line that wants a random seed gets another one in every run, and is the
// same line.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/options/inputs.h"
#include "cli/options/json.h"
#include "engine/request.h"
#include "text/chat_format.h"

namespace dsv32 {

struct BatchRequest {
  std::vector<Message> messages;  // or, when there are none:
  PromptText prompt;
  bool is_raw = false;           // the prompt is rendered already
  bool is_completion = false;    // for /v1/completions: the answer has that one's form
  GenerationOptions options;     // what the line leaves out is the command's
  bool has_seed = false;         // options.sampling.seed is the line's own
  bool has_random_seed = false;  // it wants one that nothing decides
};

// 400 what is asked for is wrong or not supported, 413 too long for the context, 500 everything else.
int status_of(const Error& error);

using LineDigest = std::array<uint8_t, 16>;
LineDigest digest_of(std::string_view bytes);
// Of 32 hexadecimal digits; nothing for any other text.
std::optional<LineDigest> parse_line_digest(std::string_view text);
bool is_in(const Shard& shard, const LineDigest& digest);

struct TokenCounts {
  int64_t n_prompt = 0, n_cached = 0, n_generated = 0;  // those from the cache are among the prompt's
  TokenCounts& operator+=(const TokenCounts& other) {
    n_prompt += other.n_prompt, n_cached += other.n_cached, n_generated += other.n_generated;
    return *this;
  }
};

// It listens to its own answer: a piece of text is a token, near enough for progress.
struct BatchItem : Listener {
  int64_t number = 0;             // of the line, from 1
  std::optional<std::string> id;  // its own or its number; nothing: it cannot be told
  LineDigest digest{};
  BatchRequest request;
  std::optional<Error> error;  // why there is no answer

  int64_t place = 0;  // among the lines that are answered in this run, from 0
  Prompt prompt;
  std::optional<int64_t> asked;  // its number at the answerer, if it was asked
  Listener* watcher = nullptr;   // hears of the prompt's progress and of delays
  TokenCounts counts;            // so far
  GenerationResult result;       // at the end
  std::string text;              // of the answer, as it is written

  // What it is called where people read it.
  std::string name() const { return id.value_or(std::to_string(number)); }
  std::string digest_text() const { return hex(digest); }  // 32 hexadecimal digits

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
    counts = {n_done, n_cached, 0};  // perhaps anew
    if (watcher) watcher->on_prefill(n_done, n_total, n_cached);
  }
  void on_notice(const std::string& line) override {
    if (watcher) watcher->on_notice(line);
  }
  void on_reasoning(const std::string& /*text*/) override { ++counts.n_generated; }
  void on_answer(const std::string& /*text*/) override { ++counts.n_generated; }
};

// The same, with the line's number in front.
Error at_line(int64_t number, const Error& error);

// Makes items for one model and one command.
class LineMaker {
 public:
  using Tell = std::function<void(const std::string& name)>;
  // `defaults`: the request of a line that says nothing; its seed is the one that others are drawn from.
  // `tell`: hears once of each field that no line should have; of the first ones, so that what is kept of
  // them is bounded.
  LineMaker(const Hash256& model, BatchRequest defaults, Tell tell)
      : model_(model), defaults_(std::move(defaults)), tell_(std::move(tell)) {}

  // What goes wrong is the item's error.
  BatchItem from_json(int64_t number, std::string_view json);
  // `id`: when it has one of its own. The prompt, or Error, is the user's.
  BatchItem from_text(int64_t number, std::string prompt, const std::optional<std::string>& id = {}) const;
  // A line that cannot be answered: `bytes` are what is known of it.
  BatchItem refused(int64_t number, std::optional<std::string> id, std::string_view bytes,
                    const Error& why) const;

 private:
  BatchItem accepted(int64_t number, const std::optional<std::string>& own_id, BatchRequest request) const;

  Hash256 model_;
  BatchRequest defaults_;
  Tell tell_;
  std::set<std::string> told_;
};

}  // namespace dsv32
