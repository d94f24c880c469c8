// The fields of a JSON object from outside: each read with its type and bounds checked, the rest listed.
//
// null is the same as absent. Errors are Error{usage} that name the field.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/json.h"

namespace dsv32 {

// Of text from outside. Throws Error{usage} when it is no JSON or nests deeper: what nests a million times
// would take all memory. Never anything else.
ReadJson parse_outside_json(std::string_view text, int max_depth);

class JsonFields {
 public:
  // `json` must outlive the object. Throws when it is no object; `name` is what it is called then.
  JsonFields(const ReadJson& json, const std::string& name);

  // Null when it is absent.
  const ReadJson* find(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  std::optional<bool> truth(const std::string& key);
  std::optional<double> number(const std::string& key, double least, double most);
  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
  std::optional<uint64_t> seed(const std::string& key);

  // A value as it looks in a message.
  static std::string shown(const ReadJson& value);

  // Those that nobody asked for.
  std::vector<std::string> unknown() const;

 private:
  const ReadJson& json_;
  std::set<std::string> known_;
};

}  // namespace dsv32
