#include "tests/support/golden_schemas.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace dsv32 {

namespace {

using nlohmann::ordered_json;  // the order of properties matters

const ordered_json& golden_lines() {
  static const ordered_json lines = [] {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path().parent_path() /
                       "golden/json_schema.json");
    return ordered_json::parse(file);
  }();
  return lines;
}

std::vector<std::string> spellings(const ordered_json& valid) {
  if (valid.is_string()) return {valid.get<std::string>()};
  return valid.get<std::vector<std::string>>();
}

GoldenSchema schema_of(const ordered_json& line) {
  GoldenSchema schema;
  schema.name = line["name"];
  schema.constraint = ordered_json{{"schema", line["schema"]}}.dump();
  for (const auto& place : line.value("refused", ordered_json::array()))
    schema.refused.emplace_back(place[0], place[1]);
  for (const auto& valid : line.value("valid", ordered_json::array()))
    schema.valid.push_back(spellings(valid));
  schema.invalid = line.value("invalid", std::vector<std::string>());
  schema.walks = line.value("walks", std::map<std::string, std::string>());
  return schema;
}

}  // namespace

const std::vector<GoldenSchema>& golden_schemas() {
  static const std::vector<GoldenSchema> schemas = [] {
    std::vector<GoldenSchema> read;
    for (const auto& line : golden_lines())
      if (line.contains("schema")) read.push_back(schema_of(line));
    return read;
  }();
  return schemas;
}

std::vector<const GoldenSchema*> supported_schemas() {
  std::vector<const GoldenSchema*> supported;
  for (const GoldenSchema& schema : golden_schemas())
    if (schema.is_supported()) supported.push_back(&schema);
  return supported;
}

const std::vector<std::string>& golden_no_json() {
  static const auto texts = golden_lines().back()["no_json"].get<std::vector<std::string>>();
  return texts;
}

}  // namespace dsv32
