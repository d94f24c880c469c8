// See json.h. Reading is nlohmann's, through its events.
#include "text/json.h"

#include <charconv>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// The cause of a parse error at byte `at`, in words; "" when none is known.
std::string cause_of(std::string_view text, size_t at, std::string_view why) {
  why = why.substr(0, why.find("; last read"));  // the rest quotes the text itself
  const auto says = [&](std::string_view words) { return why.find(words) != std::string_view::npos; };
  if (says("surrogate")) return "a text has one half of a character, \\ud800 to \\udfff, without the other";
  if (says("ill-formed UTF-8")) return "a text has bytes that are no UTF-8";
  if (says("control character")) return "a text has a control character, expected \\n, \\t or \\u00XX for it";
  if (at > text.size()) return "it ends too early";
  const std::string_view rest = text.substr(std::min(text.find_last_of(",:[ \t", at - 1) + 1, at));
  for (const std::string_view word : {"NaN", "nan", "-NaN", "Infinity", "-Infinity", "inf", "-inf"})
    if (rest.starts_with(word)) return std::string(word) + " is no number of JSON";
  return "";
}

// Receives nlohmann's events. Each returns whether to go on.
class Builder {
 public:
  Builder(std::string_view text, size_t max_depth) : text_(text), max_depth_(max_depth) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  // Whole numbers past 64 bits come here too.
  bool number_float(double value, const std::string& text) {
    const bool is_whole = text.find_first_of(".eE") == std::string::npos;
    return add(is_whole ? large_number(text) : Json(value));
  }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool key(std::string& key) { return open_.back().key = std::move(key), true; }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(size_t at, const std::string& last, const nlohmann::json::exception& error) {
    if (dynamic_cast<const nlohmann::json::out_of_range*>(&error))
      fail(ErrorKind::usage, "it holds a number that is out of range: '" + visible(last, false, 40) + "'");
    const std::string cause = cause_of(text_, at, error.what());
    fail(ErrorKind::usage,
         format("invalid JSON at byte %zu%s%s", at, cause.empty() ? "" : ": ", cause.c_str()));
  }

  Json root;

 private:
  struct Open {
    Json value;
    std::string key = {};                                 // of the next member
    std::unordered_map<std::string, size_t> places = {};  // of the keys in `value`
  };

  bool open(Json value) {
    if (open_.size() == max_depth_)
      fail(ErrorKind::usage, format("the JSON is nested too deeply, in more than %zu levels", max_depth_));
    open_.push_back({std::move(value)});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty()) return root = std::move(value), true;
    Json& parent = open_.back().value;
    if (parent.is_array())
      parent.push_back(std::move(value));
    else
      add_member(open_.back(), std::move(value));
    return true;
  }

  // An ordered object would look for the key among all others.
  static void add_member(Open& parent, Json value) {
    Json::object_t& object = parent.value.get_ref<Json::object_t&>();
    const auto [place, is_new] = parent.places.emplace(parent.key, object.size());
    if (is_new)
      object.emplace_back(std::move(parent.key), std::move(value));
    else
      std::next(object.begin(), static_cast<int64_t>(place->second))->second = std::move(value);
  }

  const std::string_view text_;
  const size_t max_depth_;
  std::vector<Open> open_;  // the objects and arrays around the next value
};

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

// `space`: after a comma or colon.
void write(const Json& value, const std::string& space, std::string& text) {
  if (is_large_number(value))
    return static_cast<void>(text.append(value.get_binary().begin(), value.get_binary().end()));
  if (value.is_number_float() && !space.empty())
    return static_cast<void>(text += python_float(value.get<double>()));
  if (!value.is_structured())
    return static_cast<void>(text += value.dump(-1, ' ', false, Json::error_handler_t::replace));
  text += value.is_object() ? '{' : '[';
  const size_t begin = text.size();
  for (const auto& [key, part] : value.items()) {
    if (text.size() > begin) text += ',' + space;
    if (value.is_object()) write(key, space, text), text += ':' + space;
    write(part, space, text);
  }
  text += value.is_object() ? '}' : ']';
}

}  // namespace

Json parse_outside_json(std::string_view text, size_t max_depth) {
  Builder builder(text, max_depth);
  nlohmann::json::sax_parse(text, &builder);
  return std::move(builder.root);
}

Json large_number(const std::string& digits) { return Json::binary({digits.begin(), digits.end()}); }
bool is_large_number(const Json& value) { return value.is_binary(); }

std::string json_text(const Json& value) {
  std::string text;
  write(value, "", text);
  return text;
}

std::string python_text(const Json& value) {
  std::string text;
  write(value, " ", text);
  return text;
}

}  // namespace dsv32
