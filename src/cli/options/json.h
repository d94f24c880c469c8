// JSON: the two kinds of values, and objects from outside, each field read with its type and bounds checked.
//
// In an object from outside null is the same as absent, and a number that has no fraction is an integer
// however it is written (7.0). Errors are Error{usage} that name the field, one of an object in an object by
// both names.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/request.h"

namespace dsv32 {

// nlohmann's, which read and write the same text.
using ReadJson = nlohmann::json;      // finds a key among however many there are
using Json = nlohmann::ordered_json;  // keys keep the order in which they were written

// Throws Error{usage} that says why when it is no JSON or nests deeper: what nests a million times would take
// all memory.
ReadJson parse_outside_json(std::string_view text, int max_depth);

// The text of this field in an object that cannot be read as a whole, because of what stands elsewhere in it.
// Nothing when it has none, or more than one.
std::optional<std::string> salvaged_text(std::string_view broken_json, std::string_view key);

class JsonFields {
 public:
  // `json` must outlive the object. Throws when it is no object; `name` is what it is called then. `prefix`
  // stands before the names of its fields.
  JsonFields(const ReadJson& json, const std::string& name, std::string prefix = "");

  // Null when it is absent.
  const ReadJson* find(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  std::optional<bool> truth(const std::string& key);
  std::optional<double> number(const std::string& key, double least, double most);
  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
  std::optional<uint64_t> seed(const std::string& key);
  // The field of the option's name, which is no list; absent, the option stays as it is.
  void read(const GenerationOption& option, GenerationOptions& options);

  // As it is named in a message.
  std::string name_of(const std::string& key) const { return prefix_ + key; }
  // A value as it looks in a message.
  static std::string shown(const ReadJson& value);

  // Somebody asked for it, whether or not it is there.
  bool is_known(const std::string& key) const { return known_.contains(key); }
  // Those that nobody asked for, as they are named in a message.
  std::vector<std::string> unknown() const;

 private:
  [[noreturn]] void fail_type(const std::string& key, const std::string& expected,
                              const ReadJson& value) const;

  const ReadJson& json_;
  const std::string prefix_;
  std::set<std::string> known_;
};

}  // namespace dsv32
