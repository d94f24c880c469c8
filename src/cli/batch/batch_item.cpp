#include "cli/batch/batch_item.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <utility>

#include "cli/options/flags.h"

namespace dsv32 {
namespace {

template <typename Part>
Part first_bytes(const Hash256& hash) {
  Part part;
  std::memcpy(&part, hash.data(), sizeof part);
  return part;
}

// Only where there are some, so that digests without them stay the same. Ids of calls change no answer.
void add_tools(Sha256& hash, const Message& message) {
  if (message.calls.empty() && message.tools.empty()) return;
  hash.add_field(message.tools);
  hash.add_number(message.calls.size());
  for (const ToolCall& call : message.calls) hash.add_field(call.name), hash.add_field(call.arguments);
  hash.add_field(message.calls_text);
}

void add_prompt(Sha256& hash, const ChatRequest& request) {
  hash.add_number(request.messages.size());
  for (const Message& message : request.messages) {
    hash.add_number(static_cast<uint64_t>(message.role));
    hash.add_field(message.content);
    hash.add_field(message.reasoning);
    add_tools(hash, message);
  }
  for (const int32_t id : request.ids) hash.add_number(static_cast<uint64_t>(id));
  hash.add_field(request.prompt.system);
  hash.add_field(request.prompt.user);
  if (!request.prompt.tools.empty()) hash.add_field(request.prompt.tools);
  hash.add_number(request.is_raw);
  hash.add_number(request.is_completion);
  if (request.chat_format) hash.add_field(request.chat_format->name);
}

void add_value(Sha256& hash, float value) { hash.add(&value, sizeof value); }
void add_value(Sha256& hash, uint64_t value) { hash.add_number(value); }
void add_value(Sha256& hash, int64_t value) { hash.add_number(static_cast<uint64_t>(value)); }
void add_value(Sha256& hash, bool value) { hash.add_number(value); }
void add_value(Sha256& hash, const std::string& text) { hash.add_field(text); }
void add_value(Sha256& hash, const std::vector<std::string>& texts) {
  hash.add_number(texts.size());
  for (const std::string& text : texts) hash.add_field(text);
}

// In a fixed order, so that digests stay the same; options that are added to the list follow, if they are not
// as by default.
void add_options(Sha256& hash, const ChatRequest& request) {
  constexpr std::string_view kFirst[] = {"temperature", "top_p",        "min_p",      "top_k",
                                         "seed",        "max_tokens",   "max_answer", "max_thinking",
                                         "thinking",    "top_logprobs", "stop"};
  GenerationOptions options = request.options, none;
  options.sampling.top_k = std::max<int64_t>(options.sampling.top_k, 0);
  std::vector<const GenerationOption*> rows;
  for (const GenerationOption& option : generation_options()) rows.push_back(&option);
  std::ranges::stable_sort(rows, {}, [&](const GenerationOption* row) {
    return std::ranges::find(kFirst, row->name) - std::begin(kFirst);
  });
  for (const GenerationOption* row : rows) {
    if (std::ranges::count(kFirst, row->name) == 0) {
      if (text_of(row->field(options)) == text_of(row->field(none))) continue;
      hash.add_field(row->name);
    }
    if (row->name == std::string_view("seed"))
      hash.add_number(request.has_random_seed ? 2 : request.has_seed);
    std::visit([&](const auto* field) { add_value(hash, *field); }, row->field(options));
  }
}

// A hash of the request's hash and one more text.
Hash256 hash_of(const Hash256& request, std::string_view purpose, const std::string& text) {
  Sha256 hash;
  hash.add(request.data(), request.size());
  hash.add_field(purpose);
  hash.add_field(text);
  return hash.finish();
}

}  // namespace

LineDigest digest_of(std::string_view bytes) { return first_bytes<LineDigest>(sha256(bytes)); }

std::optional<LineDigest> parse_line_digest(std::string_view text) {
  LineDigest digest{};
  if (text.size() != 2 * digest.size()) return {};
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    if (std::from_chars(at, at + 2, digest[i], 16).ptr != at + 2) return {};
  }
  return digest;
}

bool is_in(const Shard& shard, const LineDigest& digest) {
  uint64_t value;
  std::memcpy(&value, digest.data() + sizeof value, sizeof value);
  return value % shard.n_shards == shard.number;
}

int status_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return 400;
  return error.kind() == ErrorKind::context_full ? 413 : 500;
}

// As the lines of a file of prompts do not, even if they begin with a brace.
bool looks_like_object(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos || text[begin] != '{') return begin == text.npos;
  const size_t next = text.find_first_not_of(" \t", begin + 1);
  return next == text.npos || text[next] == '"' || text[next] == '}';
}

Error at_line(int64_t number, const Error& error) {
  return {error.kind(), format("line %lld: ", as_ll(number)) + error.what(), error.hint()};
}

BatchItem LineMaker::from_json(int64_t number, std::string_view json) const {
  std::optional<std::string> id;
  bool is_named = false;  // the line's own id, or the lack of one, has been read
  try {
    const Json root = parse_outside_json(json, kRequestDepth);
    JsonFields line(root, "the line");
    id = line.text("custom_id");
    if (id == "") fail(ErrorKind::usage, "custom_id is empty");
    is_named = true;
    return accepted(number, id, read_request(line, defaults_));
  } catch (...) {
    Error why = current_error();
    if (!looks_like_object(json))
      why = Error(why.kind(), why.what(), "dsv32 batch --lines takes each line as a prompt");
    if (!is_named) id = salvaged_text(json, "custom_id");
    if (id == "") id.reset();
    if (is_named && !id) id = std::to_string(number);
    return refused(number, std::move(id), json, at_line(number, why));
  }
}

BatchItem LineMaker::from_text(int64_t number, std::string prompt,
                               const std::optional<std::string>& id) const {
  ChatRequest request = defaults_;
  request.prompt.user = std::move(prompt);
  return accepted(number, id, std::move(request));
}

BatchItem LineMaker::refused(int64_t number, std::optional<std::string> id, std::string_view bytes,
                             const Error& why) const {
  Sha256 hash;
  hash.add(model_.data(), model_.size());
  hash.add_field("refused");
  hash.add_field(id.value_or(std::to_string(number)));
  hash.add_field(bytes);
  BatchItem item;
  item.number = number, item.id = std::move(id), item.error = why;
  item.digest = first_bytes<LineDigest>(hash.finish());
  return item;
}

BatchItem LineMaker::accepted(int64_t number, const std::optional<std::string>& own_id,
                              ChatRequest request) const {
  Sha256 hash;
  hash.add(model_.data(), model_.size());
  add_prompt(hash, request);
  add_options(hash, request);
  const Hash256 asked = hash.finish();
  if (request.has_random_seed)
    request.options.sampling.seed = std::random_device{}();
  else if (!request.has_seed)
    request.options.sampling.seed = first_bytes<uint64_t>(hash_of(asked, "seed", own_id.value_or("")));
  BatchItem item;
  item.number = number, item.id = own_id.value_or(std::to_string(number));
  item.digest = first_bytes<LineDigest>(hash_of(asked, "id", *item.id));
  item.request = std::move(request);
  return item;
}

}  // namespace dsv32
