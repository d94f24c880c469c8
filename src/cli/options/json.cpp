// See json.h.
#include "cli/options/json.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// text[at] is a string's opening quotation mark. Returns the index after its closing mark.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

}  // namespace

std::string shown_json(const Json& json) { return visible(json_text(json), true); }

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
    const Json value = Json::parse(text.substr(at, end_of_string(text, at) - at), nullptr, false);
    if (!value.is_string()) return {};
    found = value.get<std::string>();
    at = end_of_string(text, at);
  }
  return found;
}

JsonFields::JsonFields(const Json& json, const std::string& name, std::string prefix)
    : json_(json), prefix_(std::move(prefix)) {
  if (!json.is_object()) fail(ErrorKind::usage, name + " is no JSON object");
}

void JsonFields::fail_type(const std::string& key, const std::string& expected, const Json& value) const {
  fail(ErrorKind::usage,
       format("%s is %s, expected %s", name_of(key).c_str(), shown(value).c_str(), expected.c_str()));
}

const Json* JsonFields::find(const std::string& key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonFields::needed(const std::string& key) {
  const Json* value = find(key);
  if (!value) fail(ErrorKind::usage, name_of(key) + " is missing");
  return *value;
}

std::optional<std::string> JsonFields::text(const std::string& key) {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_string()) fail_type(key, "a text", *value);
  return value->get<std::string>();
}

std::optional<bool> JsonFields::truth(const std::string& key) {
  const Json* value = find(key);
  if (!value) return {};
  if (!value->is_boolean()) fail_type(key, "true or false", *value);
  return value->get<bool>();
}

std::optional<double> JsonFields::number(const std::string& key, double least, double most) {
  const Json* value = find(key);
  if (!value) return {};
  const double found = value->is_number() ? value->get<double>() : least - 1;
  if (!(found >= least && found <= most)) fail_type(key, format("%.10g to %.10g", least, most), *value);
  return found;
}

std::optional<int64_t> JsonFields::integer(const std::string& key, int64_t least, int64_t most) {
  const Json* value = find(key);
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
  const Json* value = find(key);
  if (!value) return {};
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const double number = value->is_number_float() ? value->get<double>() : -1;
  if (!(std::trunc(number) == number && number >= 0 && number < 0x1p64))
    fail_type(key, "an integer from 0 to 18446744073709551615", *value);
  return static_cast<uint64_t>(number);
}

std::string JsonFields::shown(const Json& value) { return visible(json_text(value), false, 40); }

void JsonFields::refuse_unknown() const {
  for (const auto& field : json_.items())
    if (!known_.contains(field.key()) && !field.value().empty() && field.value() != "")
      fail(ErrorKind::usage, name_of(visible(field.key(), false, 80)) + " is not supported");
}

}  // namespace dsv32
