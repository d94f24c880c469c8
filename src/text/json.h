// JSON whose whole numbers keep all their digits, and whose keys keep their order.
//
// nlohmann's own reader makes a double of a whole number past 64 bits. Here such a number is its text, as a
// binary value, of which JSON has none. Everything that reads JSON from outside reads it so.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace dsv32 {

using Json = nlohmann::ordered_json;  // keys stay in the order of writing

// A repeated key keeps its first place and its last value. Throws Error{usage} with the cause when `text` is
// no JSON or nests deeper than `max_depth`: a million levels would take all memory.
Json parse_outside_json(std::string_view text, size_t max_depth);

// A whole number past 64 bits.
Json large_number(const std::string& digits);
bool is_large_number(const Json& value);

// As short as can be. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(const Json& value);

// As Python writes it: json.dumps(value, ensure_ascii=False). DeepSeek's encoder puts JSON into prompts so,
// and the model was trained on this form: ", " and ": " between elements, floating-point numbers as repr()
// writes them.
std::string python_text(const Json& value);

}  // namespace dsv32
