// One thing to be answered: a request, or why there is none, with the names it is known by.
//
// The digest is over the id, the request with every default filled in, and the model: a second run knows by
// it what was answered, and a shard what is its own. Its seed is the line's, else drawn from the command's by
// what the line asks and the id that it gives itself: neither its place in the file nor the company it has
// changes an answer. A line that wants one at random gets another in every run, and is the same line.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/sha256.h"
#include "cli/batch/batch_request.h"

namespace dsv32 {

using LineDigest = std::array<uint8_t, 16>;

struct LineDigestHash {
  size_t operator()(const LineDigest& digest) const;
};

struct BatchLine {
  int64_t number = 0;             // from 1
  std::optional<std::string> id;  // its own or its number; nothing: it cannot be told
  LineDigest digest{};
  std::variant<BatchRequest, Error> content;

  // What it is called where people read it.
  std::string name() const { return id.value_or(std::to_string(number)); }
  const Error* refusal() const { return std::get_if<Error>(&content); }
  // As text: 32 hexadecimal digits, and the way back, nothing for any other text.
  std::string digest_text() const;
};
std::optional<LineDigest> parse_line_digest(std::string_view text);

// Whether the line falls to the shard.
bool is_in(const Shard& shard, const LineDigest& digest);

// The beginning of the hash of these bytes.
LineDigest digest_of(std::string_view bytes);

// The same, with the line's number in front.
Error at_line(int64_t number, const Error& error);

// Makes lines for one model and one command.
class LineMaker {
 public:
  // `defaults`: the request of a line that says nothing; its seed is the one that others are drawn from.
  LineMaker(const Hash256& model, BatchRequest defaults, UnknownFields unknown)
      : model_(model), defaults_(std::move(defaults)), unknown_(std::move(unknown)) {}

  // What goes wrong is the line's refusal.
  BatchLine from_json(int64_t number, std::string_view json);
  // `id`: when it has one of its own. The prompt, or Error, is the user's.
  BatchLine from_text(int64_t number, std::string prompt, std::optional<std::string> id = {});
  // A line that cannot be answered: `bytes` are what is known of it.
  BatchLine refused(int64_t number, std::optional<std::string> id, std::string_view bytes,
                    const Error& why) const;

 private:
  BatchLine accepted(int64_t number, const std::optional<std::string>& own_id, BatchRequest request) const;

  Hash256 model_;
  BatchRequest defaults_;
  UnknownFields unknown_;
};

}  // namespace dsv32
