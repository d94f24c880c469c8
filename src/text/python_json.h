// JSON values as Python writes them: json.dumps(value, ensure_ascii=False).
//
// DeepSeek's encoder puts JSON into prompts with it, so the model was trained on this form: ", " and ": "
// between elements, keys in their order (a repeated key keeps its first place and its last value), whole
// numbers of any size, floating-point numbers as repr() writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

struct PythonJson {
  enum class Kind { string, object, array, other };  // other: a number, true, false, null
  Kind kind = Kind::other;
  std::string text = {};                // of a string: its characters; of the others: as Python writes them
  std::vector<std::string> keys = {};   // of an object
  std::vector<PythonJson> values = {};  // of an object or array

  // Null when an object has no such member.
  const PythonJson* find(std::string_view key) const;
  std::string dump() const;
};

// Throws Error{usage} that calls the text `name` when it is no JSON or nests deeper than 128 levels.
PythonJson parse_python_json(std::string_view text, const std::string& name);

// A string with its quotes. Malformed bytes become U+FFFD, because JSON cannot carry them.
std::string python_string(std::string_view text);

}  // namespace dsv32
