// tests/golden/json_schema.json: schemas with documents that they accept and reject. The script beside it
// says what a line holds.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace dsv32 {

struct GoldenSchema {
  std::string name;
  std::string constraint;  // {"schema": ...}
  // Path and keyword of what the refusal may name, one of them; empty for a schema that is supported.
  std::vector<std::pair<std::string, std::string>> refused;
  std::vector<std::vector<std::string>> valid;  // in each one document, written in one way or in two
  std::vector<std::string> invalid;
  std::map<std::string, std::string> walks;  // of how many random walks: the digest of their documents

  bool is_supported() const { return refused.empty(); }
};

const std::vector<GoldenSchema>& golden_schemas();
// Those without a place in `refused`.
std::vector<const GoldenSchema*> supported_schemas();
// Texts that are no document of any schema.
const std::vector<std::string>& golden_no_json();

}  // namespace dsv32
