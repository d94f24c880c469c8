#include "cli/json_fields.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/json.h"

namespace dsv32 {
namespace {

[[noreturn]] void fail_type(const std::string& key, const std::string& expected, const ReadJson& value) {
  fail(ErrorKind::usage,
       format("%s is %s, expected %s", key.c_str(), JsonFields::shown(value).c_str(), expected.c_str()));
}

}  // namespace

ReadJson parse_outside_json(std::string_view text, int max_depth) {
  const auto check_depth = [max_depth](int depth, ReadJson::parse_event_t, const ReadJson&) {
    if (depth > max_depth) fail(ErrorKind::usage, "it nests too deep");
    return true;
  };
  try {
    return ReadJson::parse(text, check_depth);
  } catch (const ReadJson::parse_error& error) {
    fail(ErrorKind::usage, format("it is no JSON from byte %zu on", error.byte));
  } catch (const ReadJson::exception&) {
    fail(ErrorKind::usage, "it holds a number that is out of range");
  }
}

JsonFields::JsonFields(const ReadJson& json, const std::string& name) : json_(json) {
  if (!json.is_object()) fail(ErrorKind::usage, name + " is no JSON object");
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
  if (!(found >= least && found <= most)) fail_type(key, format("%g to %g", least, most), *value);
  return found;
}

std::optional<int64_t> JsonFields::integer(const std::string& key, int64_t least, int64_t most) {
  const ReadJson* value = find(key);
  if (!value) return {};
  const bool is_small = value->is_number_integer() &&
                        (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
  const int64_t found = is_small ? value->get<int64_t>() : least - 1;
  if (found < least || found > most)
    fail_type(
        key,
        format("an integer from %lld to %lld", static_cast<long long>(least), static_cast<long long>(most)),
        *value);
  return found;
}

std::optional<uint64_t> JsonFields::seed(const std::string& key) {
  const ReadJson* value = find(key);
  if (!value) return {};
  if (!value->is_number_unsigned()) fail_type(key, "an integer from 0 to 18446744073709551615", *value);
  return value->get<uint64_t>();
}

std::string JsonFields::shown(const ReadJson& value) {
  return visible(value.dump(-1, ' ', false, ReadJson::error_handler_t::replace), false, 40);
}

std::vector<std::string> JsonFields::unknown() const {
  std::vector<std::string> names;
  for (const auto& field : json_.items())
    if (!known_.contains(field.key())) names.push_back(field.key());
  return names;
}

}  // namespace dsv32
