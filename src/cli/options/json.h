// A reader of untrusted JSON objects that checks each field's type and bounds.
//
// In an untrusted object null is the same as absent, and 7.0 is an integer. Errors are Error{usage} that name
// the field, in a nested object with the outer field's name before it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/json.h"

namespace dsv32 {

// Levels of nested JSON in a request: a schema of 64 in a tool in a body.
inline constexpr int kRequestDepth = 80;

// For output. Characters that a terminal obeys or that hide text are escaped, which leaves it the
// same JSON; so are bytes that are no UTF-8, by U+FFFD.
std::string shown_json(const Json& json);

// The text of the field `key` in an object with an error elsewhere. Nothing when the field is missing, is no
// text, or is there twice.
std::optional<std::string> salvaged_text(std::string_view broken_json, std::string_view key);

// What `make` returns. An error of it is told as one of `name`.
template <typename Make>
auto naming(const std::string& name, Make make) try {
  return make();
} catch (const Error& error) {
  throw Error(error.kind(), name + ": " + error.what(), error.hint());
}

class JsonFields {
 public:
  // `json` must outlive this reader. Throws when `json` is no object; the message calls it `name`. `prefix`
  // stands before its fields' names in messages.
  JsonFields(const Json& json, const std::string& name, std::string prefix = "");

  // Null when it is absent.
  const Json* find(const std::string& key);
  const Json& needed(const std::string& key);  // throws when it is absent
  std::optional<std::string> text(const std::string& key);
  std::optional<bool> truth(const std::string& key);
  std::optional<double> number(const std::string& key, double least, double most);
  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
  std::optional<uint64_t> seed(const std::string& key);

  // The field's name in messages.
  std::string name_of(const std::string& key) const { return prefix_ + key; }
  // A value in messages.
  static std::string shown(const Json& value);

  // The fields that were ever asked for, present or absent.
  const std::set<std::string>& known() const { return known_; }
  // Throws for a field that was never asked for, unless it is null or empty and so asks for nothing.
  void refuse_unknown() const;

 private:
  [[noreturn]] void fail_type(const std::string& key, const std::string& expected, const Json& value) const;

  const Json& json_;
  const std::string prefix_;
  std::set<std::string> known_;
};

}  // namespace dsv32
