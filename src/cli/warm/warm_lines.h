// What a warm process and its clients say to each other: one JSON object a line.
//
//   asks:   {"dsv32": 1, "want": "answers"}, or "status", or "stop"; then
//           {"ask": 7, "request": {...}}  and perhaps  {"cancel": 7}
//   tells:  {"dsv32": 1, "facts": {...}}, of a status or stop what it is; then
//           {"of": 7, "prefill": [n_done, n_total, n_cached]}  {"of": 7, "thinking": "..."}
//           {"of": 7, "text": "..."}, from the first text on once more when another prefill follows, and at
//           the end  {"of": 7, "result": {...}}  or  {"of": 7, "error": {...}}  or  {"of": 7, "ending":
//           true}: not begun, as the process is about to end
//           {}: it is alive, every second to a client that waits for an answer or for the end
//           {"error": {...}}: of the connection, which ends, as it does when a status has been told
//
// Texts are bytes, which JSON does not carry: each goes as the character of its number, U+0000 to U+00FF.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/options/json.h"
#include "cli/warm/model.h"
#include "engine/request.h"

namespace dsv32 {

inline constexpr int kWarmVersion = 1;
// Of a line that tells: an answer's tokens with log-probabilities of twenty others each.
inline constexpr size_t kMostToldBytes = size_t{1} << 30;
// Of a line that asks: a token takes up to seven digits and a comma, beside options and stops.
constexpr size_t most_asked_bytes(int64_t context) {
  return 8 * static_cast<size_t>(context) + (size_t{256} << 10);
}

std::string warm_text(std::string_view bytes);
std::string warm_bytes(const ReadJson& text);  // throws Error{usage}

// What comes from who asks is checked, and Error{usage} for what cannot be; without session and tokenizer.
ReadJson warm_json(const Request& request);
Request warm_request(const ReadJson& json);

// What the process tells is believed, as far as it can be read.
[[noreturn]] void fail_unread();  // throws WarmGone
template <typename Read>
auto readable(const Read& read) try {
  return read();
} catch (const ReadJson::exception&) {
  fail_unread();
}

// Inside of readable().
ReadJson warm_json(const GenerationResult& result);
GenerationResult warm_result(const ReadJson& json);
ReadJson warm_json(const Error& error);
Error warm_error(const ReadJson& json);
ReadJson warm_json(const EngineFacts& facts);
EngineFacts warm_facts(const ReadJson& json);

}  // namespace dsv32
