#include "cli/batch/batch_item.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "cli/options/json.h"
#include "prefix/fingerprint.h"

namespace dsv32 {
namespace {

constexpr int kLineDepth = 64;  // of nested JSON

template <typename Part>
Part first_bytes(const Hash256& hash) {
  Part part;
  std::memcpy(&part, hash.data(), sizeof part);
  return part;
}

void add_prompt(Sha256& hash, const BatchRequest& request) {
  hash.add_number(request.messages.size());
  for (const Message& message : request.messages) {
    hash.add_number(static_cast<uint64_t>(message.role));
    hash.add_field(message.content);
    hash.add_field(message.reasoning);
  }
  hash.add_field(request.prompt.system);
  hash.add_field(request.prompt.user);
  hash.add_number(request.is_raw);
  hash.add_number(request.is_completion);
}

void add_value(Sha256& hash, float value) { hash.add(&value, sizeof value); }
void add_value(Sha256& hash, uint64_t value) { hash.add_number(value); }
void add_value(Sha256& hash, int64_t value) { hash.add_number(static_cast<uint64_t>(value)); }
void add_value(Sha256& hash, bool value) { hash.add_number(value); }
void add_value(Sha256& hash, const std::vector<std::string>& texts) {
  hash.add_number(texts.size());
  for (const std::string& text : texts) hash.add_field(text);
}

// In the order that digests have always had; options that are new to the list follow.
void add_options(Sha256& hash, const BatchRequest& request) {
  constexpr std::string_view kFirst[] = {"temperature", "top_p",        "min_p",      "top_k",
                                         "seed",        "max_tokens",   "max_answer", "max_thinking",
                                         "thinking",    "top_logprobs", "stops"};
  GenerationOptions options = request.options;
  options.sampling.top_k = std::max<int64_t>(options.sampling.top_k, 0);
  std::vector<const GenerationOption*> rows;
  for (const GenerationOption& option : generation_options()) rows.push_back(&option);
  std::ranges::stable_sort(rows, {}, [&](const GenerationOption* row) {
    return std::ranges::find(kFirst, row->name) - std::begin(kFirst);
  });
  for (const GenerationOption* row : rows) {
    if (row->name == std::string_view("seed"))
      hash.add_number(request.has_random_seed ? 2 : request.has_seed);
    std::visit([&](const auto* field) { add_value(hash, *field); }, row->field(options));
  }
}

// Of what is asked and one more text.
Hash256 hash_of(const Hash256& request, std::string_view purpose, const std::string& text) {
  Sha256 hash;
  hash.add(request.data(), request.size());
  hash.add_field(purpose);
  hash.add_field(text);
  return hash.finish();
}

}  // namespace

size_t LineDigestHash::operator()(const LineDigest& digest) const {
  size_t value;
  std::memcpy(&value, digest.data(), sizeof value);
  return value;
}

LineDigest digest_of(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return first_bytes<LineDigest>(hash.finish());
}

std::string BatchItem::digest_text() const { return hex(digest); }

std::optional<LineDigest> parse_line_digest(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  LineDigest digest{};
  if (text.size() != 2 * digest.size()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return {};
    digest[i / 2] = static_cast<uint8_t>(digest[i / 2] << 4 | digit);
  }
  return digest;
}

bool is_in(const Shard& shard, const LineDigest& digest) {
  uint64_t value;
  std::memcpy(&value, digest.data() + sizeof value, sizeof value);
  return value % shard.n_shards == shard.number;
}

Error at_line(int64_t number, const Error& error) {
  return {error.kind(), format("line %lld: ", as_ll(number)) + error.what(), error.hint()};
}

BatchItem LineMaker::from_json(int64_t number, std::string_view json) {
  std::optional<std::string> id;
  bool is_named = false;  // by its id or its number
  try {
    const ReadJson root = parse_outside_json(json, kLineDepth);
    JsonFields line(root, "the line");
    id = custom_id_of(line);
    is_named = true;
    return accepted(number, id, read_request(line, defaults_, unknown_));
  } catch (...) {
    const Error why = current_error();
    if (!is_named) id = salvaged_text(json, "custom_id");
    if (id == "") id.reset();
    if (is_named && !id) id = std::to_string(number);
    return refused(number, std::move(id), json, at_line(number, why));
  }
}

BatchItem LineMaker::from_text(int64_t number, std::string prompt,
                               const std::optional<std::string>& id) const {
  BatchRequest request = defaults_;
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
                              BatchRequest request) const {
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
