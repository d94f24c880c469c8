// Golden records: the arrays that tests/golden/make_*_golden.py wrote, by name.
//
// File: "DSVGOLD1", u32 number of records, then per record u32 length of the name, the name, u32 type (0 f32,
// 1 i32), u32 number of dimensions, u64 per dimension (outermost first), the values. Little-endian, nothing
// padded, nothing after the last record. Which records exist and what they mean: tests/golden/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

struct GoldenRecord {
  std::vector<int64_t> shape;  // outermost first
  std::vector<float> values;   // of an f32 record, or
  std::vector<int32_t> ints;   // of an i32 record
};

class Golden {
 public:
  // Throws Error{io} when the file cannot be read, Error{model} naming the offset when it is damaged.
  explicit Golden(const std::string& path);

  bool has(std::string_view name) const { return records_.find(name) != records_.end(); }
  // These throw Error{model} naming the record when it is absent or of the other type.
  const GoldenRecord& record(std::string_view name) const;
  std::span<const float> values(std::string_view name) const;
  std::span<const int32_t> ints(std::string_view name) const;

 private:
  std::string path_;
  std::map<std::string, GoldenRecord, std::less<>> records_;
};

}  // namespace dsv32
