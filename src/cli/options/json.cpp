// See json.h.
#include "cli/options/json.h"

#include <cmath>

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

// text[at] is a string's opening quotation mark. Returns the index behind its closing mark.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

}  // namespace

std::string json_text(const Json& json) {
  return visible(json.dump(-1, ' ', false, Json::error_handler_t::replace), true);
}

template <typename Kind>
Kind parse_outside_json(std::string_view text, int max_depth) {
  constexpr int64_t kMostMembers =
      10000;  // where they keep their order, which takes the square of their number
  int64_t n_pairs = 0;
  std::vector<int64_t> n_members(static_cast<size_t>(max_depth) + 2);  // by depth
  const auto check_depth = [&](int depth, typename Kind::parse_event_t event, const Kind&) {
    if (depth > max_depth) fail(ErrorKind::usage, "the JSON is nested too deeply");
    if (event == Kind::parse_event_t::object_start) n_members[static_cast<size_t>(depth) + 1] = 0;
    if (event == Kind::parse_event_t::key) n_pairs += ++n_members[static_cast<size_t>(depth)];
    if (std::is_same_v<Kind, Json> && n_pairs > kMostMembers * kMostMembers / 2)
      fail(ErrorKind::usage, "it has an object, or several, with too many members: more than 10,000");
    return true;
  };
  try {
    return Kind::parse(text, check_depth);
  } catch (const ReadJson::parse_error& error) {
    const std::string cause = cause_of(text, error.byte, error.what());
    fail(ErrorKind::usage,
         format("invalid JSON at byte %zu%s%s", error.byte, cause.empty() ? "" : ": ", cause.c_str()));
  } catch (const ReadJson::out_of_range& error) {
    const std::string_view why = error.what(), number = why.substr(std::min(why.find('\''), why.size()));
    fail(ErrorKind::usage, "it holds a number that is out of range: " + visible(number, false, 40));
  }
}
template ReadJson parse_outside_json(std::string_view text, int max_depth);
template Json parse_outside_json(std::string_view text, int max_depth);

std::optional<std::string> salvaged_text(std::string_view text, std::string_view key) {
  const auto next = [&](size_t at) { return std::min(text.find_first_not_of(" \t\r\n", at), text.size()); };
  std::optional<std::string> found;
  int depth = 0;
  for (size_t at = next(0); at < text.size(); at = next(at)) {
    if (text[at] != '"') {
      depth += (text[at] == '{' || text[at] == '[') - (text[at] == '}' || text[at] == ']');
      ++at;
      continue;
    }
    const std::string_view name = text.substr(at, end_of_string(text, at) - at);
    at = next(at + name.size());
    const bool is_key = depth == 1 && at < text.size() && text[at] == ':';
    if (!is_key || name.size() != key.size() + 2 || name.substr(1, key.size()) != key) continue;
    at = next(at + 1);
    if (found || at >= text.size() || text[at] != '"') return {};
    const ReadJson value = ReadJson::parse(text.substr(at, end_of_string(text, at) - at), nullptr, false);
    if (!value.is_string()) return {};
    found = value.get<std::string>();
    at = end_of_string(text, at);
  }
  return found;
}

JsonFields::JsonFields(const ReadJson& json, const std::string& name, std::string prefix)
    : json_(json), prefix_(std::move(prefix)) {
  if (!json.is_object()) fail(ErrorKind::usage, name + " is no JSON object");
}

void JsonFields::fail_type(const std::string& key, const std::string& expected, const ReadJson& value) const {
  fail(ErrorKind::usage,
       format("%s is %s, expected %s", name_of(key).c_str(), shown(value).c_str(), expected.c_str()));
}

const ReadJson* JsonFields::find(const std::string& key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> JsonFields::text(const std::string& key) {
  const ReadJson* value = find(key);
  if (!value) return {};
  if (!value->is_string()) fail_type(key, "a text", *value);
  return value->get<std::string>();
}

std::optional<bool> JsonFields::truth(const std::string& key) {
  const ReadJson* value = find(key);
  if (!value) return {};
  if (!value->is_boolean()) fail_type(key, "true or false", *value);
  return value->get<bool>();
}

std::optional<double> JsonFields::number(const std::string& key, double least, double most) {
  const ReadJson* value = find(key);
  if (!value) return {};
  const double found = value->is_number() ? value->get<double>() : least - 1;
  if (!(found >= least && found <= most)) fail_type(key, format("%.10g to %.10g", least, most), *value);
  return found;
}

std::optional<int64_t> JsonFields::integer(const std::string& key, int64_t least, int64_t most) {
  const ReadJson* value = find(key);
  if (!value) return {};
  std::optional<int64_t> found;
  if (value->is_number_float()) {
    const auto number = value->get<double>();
    if (std::trunc(number) == number && std::abs(number) < 0x1p63) found = static_cast<int64_t>(number);
  } else if (value->is_number_integer() &&
             (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX})) {
    found = value->get<int64_t>();
  }
  if (!found || *found < least || *found > most)
    fail_type(key, format("an integer from %lld to %lld", as_ll(least), as_ll(most)), *value);
  return found;
}

std::optional<uint64_t> JsonFields::seed(const std::string& key) {
  const ReadJson* value = find(key);
  if (!value) return {};
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const double number = value->is_number_float() ? value->get<double>() : -1;
  if (!(std::trunc(number) == number && number >= 0 && number < 0x1p64))
    fail_type(key, "an integer from 0 to 18446744073709551615", *value);
  return static_cast<uint64_t>(number);
}

void JsonFields::read(const GenerationOption& option, GenerationOptions& options) {
  const auto read = [&](auto* value) {
    using T = std::remove_pointer_t<decltype(value)>;
    if constexpr (std::is_same_v<T, bool>)
      *value = truth(option.name).value_or(*value);
    else if constexpr (std::is_same_v<T, uint64_t>)
      *value = seed(option.name).value_or(*value);
    else if constexpr (std::is_same_v<T, float>)
      *value = static_cast<T>(number(option.name, option.least, option.most).value_or(double{*value}));
    else if constexpr (std::is_same_v<T, int64_t>)
      *value =
          integer(option.name, static_cast<T>(option.least), static_cast<T>(option.most)).value_or(*value);
  };
  std::visit(read, option.field(options));
}

std::string JsonFields::shown(const ReadJson& value) {
  return visible(value.dump(-1, ' ', false, ReadJson::error_handler_t::replace), false, 40);
}

std::vector<std::string> JsonFields::unknown() const {
  std::vector<std::string> names;
  for (const auto& field : json_.items())
    if (!known_.contains(field.key()) && !field.value().is_null()) names.push_back(name_of(field.key()));
  return names;
}

}  // namespace dsv32
