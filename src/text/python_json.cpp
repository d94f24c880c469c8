// Reading is nlohmann's, through its events: its own values would lose the digits of large whole numbers.
#include "text/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxDepth = 128;

// repr() of a finite number: the shortest digits that give the same number, with an exponent below 1e-4 and
// from 1e16 on.
std::string python_float(double value) {
  const double size = std::fabs(value);
  const bool is_plain = value == 0 || (size >= 1e-4 && size < 1e16);
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits, end.ptr);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Receives nlohmann's events. Each returns whether to go on.
class PythonJsonBuilder {
 public:
  using Kind = PythonJson::Kind;

  bool null() { return add({Kind::other, "null"}); }
  bool boolean(bool value) { return add({Kind::other, value ? "true" : "false"}); }
  bool number_integer(int64_t value) { return add({Kind::other, std::to_string(value)}); }
  bool number_unsigned(uint64_t value) { return add({Kind::other, std::to_string(value)}); }
  // Whole numbers past 64 bits come here too.
  bool number_float(double value, const std::string& text) {
    const bool is_whole = text.find_first_of(".eE") == std::string::npos;
    return add({Kind::other, is_whole ? text : python_float(value)});
  }
  bool string(std::string& value) { return add({Kind::string, value}); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return open(Kind::object); }
  bool start_array(size_t) { return open(Kind::array); }
  bool key(std::string& key) { return open_.back().key = key, true; }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception& error) {
    // 406: a number that is out of range, at no place.
    why = error.id == 406 ? "a number is out of range" : format("it is no JSON at byte %zu", at);
    return false;
  }

  std::string why;  // the parse failed
  PythonJson root;

 private:
  bool open(Kind kind) {
    if (open_.size() == kMaxDepth) return why = "it is nested too deeply", false;
    open_.push_back({{kind}});
    return true;
  }

  bool close() {
    PythonJson value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(PythonJson value) {
    if (open_.empty()) return root = std::move(value), true;
    auto& [parent, key, places] = open_.back();
    if (parent.kind == Kind::object) {
      const auto [place, is_new] = places.emplace(key, parent.values.size());
      if (!is_new) return parent.values[place->second] = std::move(value), true;
      parent.keys.push_back(key);
    }
    parent.values.push_back(std::move(value));
    return true;
  }

  struct Open {
    PythonJson value;
    std::string key = {};                                 // of the next member
    std::unordered_map<std::string, size_t> places = {};  // of the keys in `value`
  };
  std::vector<Open> open_;  // the objects and arrays around the next value
};

}  // namespace

const PythonJson* PythonJson::find(std::string_view key) const {
  const auto found = std::ranges::find(keys, key);
  return found == keys.end() ? nullptr : &values[static_cast<size_t>(found - keys.begin())];
}

std::string PythonJson::dump() const {
  if (kind == Kind::string) return python_string(text);
  if (kind == Kind::other) return text;
  std::string dumped(1, kind == Kind::object ? '{' : '[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) dumped += ", ";
    if (kind == Kind::object) dumped += python_string(keys[i]) + ": ";
    dumped += values[i].dump();
  }
  return dumped + (kind == Kind::object ? '}' : ']');
}

PythonJson parse_python_json(std::string_view text, const std::string& name) {
  PythonJsonBuilder builder;
  if (!nlohmann::json::sax_parse(text, &builder))
    fail(ErrorKind::usage, format("%s cannot be read: %s", name.c_str(), builder.why.c_str()));
  return std::move(builder.root);
}

std::string python_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace dsv32
