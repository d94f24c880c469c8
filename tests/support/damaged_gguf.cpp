// Each case overwrites one field of a sound file, adds one wrong thing to it, or cuts it short.
//
// The expected text names the field and the value found, so a case cannot pass because something else was
// refused.
#include "tests/support/damaged_gguf.h"

#include <functional>
#include <utility>

namespace dsv32 {
namespace {

class Cases {
 public:
  // The sound file with one field overwritten.
  template <typename T>
  void poke(const std::string& name, const std::string& field, T value, const std::string& expected) {
    GgufImage image = sound_gguf().image();
    image.poke(field, value);
    cases_.push_back({name, std::move(image.bytes), expected});
  }
  // The sound file with something added.
  void build(const std::string& name, const std::function<void(GgufWriter&)>& add,
             const std::string& expected) {
    GgufWriter writer = sound_gguf();
    add(writer);
    cases_.push_back({name, writer.image().bytes, expected});
  }
  // The first n_bytes of the sound file.
  void cut(const std::string& name, size_t n_bytes, const std::string& expected) {
    Bytes bytes = sound_gguf().image().bytes;
    bytes.resize(n_bytes);
    cases_.push_back({name, std::move(bytes), expected});
  }
  std::vector<DamagedGguf> take() { return std::move(cases_); }

 private:
  std::vector<DamagedGguf> cases_;
};

constexpr uint64_t kAll = UINT64_MAX;

void add_header_cases(Cases& cases) {
  for (const size_t n_bytes : {1, 3, 4, 7, 8, 15, 16, 23})
    cases.cut("header_of_" + std::to_string(n_bytes), n_bytes,
              n_bytes < 4    ? "magic"
              : n_bytes < 8  ? "version"
              : n_bytes < 16 ? "number of tensors"
                             : "number of keys");
  cases.poke("magic", "magic", 'F' | 'U' << 8 | 'G' << 16 | 'G' << 24, "'FUGG'");
  for (const uint32_t version : {0u, 1u, 2u, 4u})
    cases.poke("version_" + std::to_string(version), "version", version,
               "version is " + std::to_string(version));
  cases.poke("version_swapped", "version", uint32_t{0x03000000}, "big-endian");
  for (const uint64_t count : {kAll, uint64_t{1} << 63, uint64_t{1000000000}, uint64_t{70000}}) {
    cases.poke("n_tensors_" + std::to_string(count), "n_tensors", count,
               "number of tensors is " + std::to_string(count));
    cases.poke("n_kv_" + std::to_string(count), "n_kv", count, "number of keys is " + std::to_string(count));
  }
}

void add_key_cases(Cases& cases) {
  for (const uint64_t length : {kAll, uint64_t{1} << 40, uint64_t{65536}})
    cases.poke("key_length_" + std::to_string(length), "key a.u32 length", length,
               "a key has a length of " + std::to_string(length));
  cases.poke("key_empty", "key a.u32 length", uint64_t{0}, "a key is empty");
  cases.poke("key_nul", "key a.u32", '\0', "\\x00");
  cases.poke("key_escape", "key a.u32", '\x1b', "\\e.u32");
  cases.poke("key_utf8", "key a.u32", '\xff', "\\xff.u32");
  cases.build(
      "key_twice", [](GgufWriter& w) { w.add("a.u32", uint32_t{1}); }, "key a.u32 stands twice");
  cases.poke("value_type_13", "key a.u32 type", uint32_t{13}, "key a.u32 has value type 13");
  cases.poke("value_type_all", "key a.u32 type", UINT32_MAX, "key a.u32 has value type 4294967295");
  cases.poke("element_type_13", "key a.u32s element type", uint32_t{13}, "key a.u32s has value type 13");
  cases.poke("bool_2", "key a.bool value", uint8_t{2}, "key a.bool holds a bool");
  for (const uint64_t length : {kAll, kAll - 7, uint64_t{1} << 40, uint64_t{5000}})
    cases.poke("string_length_" + std::to_string(length), "key a.string value", length,
               "key a.string has a length of " + std::to_string(length));
  cases.poke("element_length", "key a.strings value", uint64_t{1} << 62, "key a.strings has a length of");
  for (const uint64_t count : {uint64_t{1} << 61, (uint64_t{1} << 30) + 1, kAll, uint64_t{5000}}) {
    cases.poke("u64_count_" + std::to_string(count), "key a.u64s count", count,
               "the element count of key a.u64s is " + std::to_string(count));
    cases.poke("string_count_" + std::to_string(count), "key a.strings count", count,
               "the element count of key a.strings is " + std::to_string(count));
  }
  cases.poke("u64_count_short", "key a.u64s count", uint64_t{100}, "the file ends inside key a.u64s");
}

void add_array_cases(Cases& cases) {
  const auto nested = [](size_t depth) {
    return [depth](GgufWriter& w) {
      Bytes payload;
      for (size_t i = 0; i < depth; ++i)
        for (const uint8_t byte : {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}) payload.push_back(byte);
      w.add_raw_array("a.nested", ValueType::array, 1, std::move(payload));
    };
  };
  cases.build("nested_1", nested(1), "key a.nested is an array of arrays");
  cases.build("nested_500", nested(500), "key a.nested is an array of arrays");
  for (const uint32_t alignment : {0u, 3u, 4u, 48u, 1u << 21, 1u << 31})
    cases.build(
        "alignment_" + std::to_string(alignment),
        [=](GgufWriter& w) { w.add("general.alignment", alignment); },
        "key general.alignment is " + std::to_string(alignment));
  cases.build(
      "alignment_u64", [](GgufWriter& w) { w.add("general.alignment", uint64_t{32}); },
      "key general.alignment has type u64, expected u32");
  cases.build(
      "alignment_string", [](GgufWriter& w) { w.add("general.alignment", "32"); },
      "key general.alignment has type string, expected u32");
}

void add_tensor_cases(Cases& cases) {
  for (const uint64_t length : {kAll, uint64_t{1} << 40, uint64_t{64}})
    cases.poke("name_length_" + std::to_string(length), "tensor a length", length,
               "a tensor name has a length of " + std::to_string(length));
  cases.poke("name_empty", "tensor a length", uint64_t{0}, "a tensor name is empty");
  cases.poke("name_escape", "tensor a", '\x1b', "\\e");
  cases.build(
      "name_twice", [](GgufWriter& w) { w.add_tensor("a", TensorType::f32, {1}, Bytes(4)); },
      "tensor a stands twice");
  for (const uint32_t n_dims : {0u, 5u, UINT32_MAX})
    cases.poke("n_dims_" + std::to_string(n_dims), "tensor a n_dims", n_dims,
               "tensor a has n_dims " + std::to_string(n_dims));
  for (const uint64_t n : {uint64_t{0}, kAll, uint64_t{1} << 63})
    cases.poke("dim_" + std::to_string(n), "tensor q ne[1]", n, "tensor q has ne[1] = " + std::to_string(n));
  cases.poke("dim_far", "tensor q ne[1]", (uint64_t{1} << 42) + 1, "tensor q has");
  const auto shaped = [](std::vector<uint64_t> ne, TensorType type = TensorType::f32) {
    return [=](GgufWriter& w) { w.add_tensor("huge", type, ne, Bytes(4)); };
  };
  constexpr uint64_t k31 = uint64_t{1} << 31, k32 = uint64_t{1} << 32;
  cases.build("dims_32_32", shaped({k32, k32}), "tensor huge has ne[1] = 4294967296");
  cases.build("dims_product_63", shaped({uint64_t{1} << 62, 2}), "tensor huge has ne[1] = 2, expected");
  cases.build("dims_31_31_31", shaped({k31, k31, k31}), "tensor huge has ne[2] = 2147483648");
  cases.build("dims_bytes_wrap", shaped({uint64_t{1} << 62}), "tensor huge has 4611686018427387904 values");
  cases.build("dims_just_below", shaped({uint64_t{1} << 60, 3}),
              "tensor huge has 13835058055282163712 bytes");
  cases.build(
      "two_halves",
      [](GgufWriter& w) {
        w.add_tensor("half.0", TensorType::f16, {0x3fffffffffffffe0}, Bytes(32));
        w.add_tensor("half.1", TensorType::f16, {0x3fffffffffffffe0}, Bytes(32));
      },
      "tensor half.0 has 9223372036854775744 bytes");
}

void add_type_cases(Cases& cases) {
  cases.poke("row_not_whole", "tensor q ne[0]", uint64_t{65},
             "tensor q has ne[0] = 65, expected a multiple of 32");
}

void add_place_cases(Cases& cases) {
  const GgufImage sound = sound_gguf().image();
  const size_t n_bytes = sound.bytes.size(), data = sound.offset_of("data");
  for (const uint64_t offset : {kAll - 31, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{4096}})
    cases.poke("offset_" + std::to_string(offset), "tensor b offset", offset,
               "bytes from " + std::to_string(offset));
  cases.poke("offset_unaligned", "tensor b offset", uint64_t{33}, "tensor b has data offset 33");
  cases.poke("offset_overlap", "tensor b offset", uint64_t{0}, "the data of tensor");
  cases.cut("data_short_by_1", n_bytes - 1, "tensor b has 32 bytes");
  cases.cut("data_half", data + (n_bytes - data) / 2, "bytes of tensor data");
  cases.cut("data_absent", data, "but there are 0 bytes of tensor data");
  cases.cut("directory_cut", sound.offset_of("tensor b offset") + 3, "the file ends inside tensor b");
  cases.cut("value_cut", sound.offset_of("key a.u64s value") + 5, "the file ends inside key a.u64s");
}

}  // namespace

GgufWriter sound_gguf() {
  GgufWriter writer;
  writer.add("a.u32", uint32_t{7});
  writer.add("a.bool", true);
  writer.add("a.f32", 1.5f);
  writer.add("a.string", "text");
  writer.add_array("a.strings", std::vector<std::string>{"", "one", "two\n"});
  writer.add_array("a.u32s", std::vector<uint32_t>{1, 2, 3});
  writer.add_array("a.u64s", std::vector<uint64_t>{1, uint64_t{1} << 40});
  writer.add_tensor("a", TensorType::f32, {3}, Bytes(12, 1));
  writer.add_tensor("q", TensorType::q8_0, {64, 2}, Bytes(4 * 34, 2));
  writer.add_tensor("b", TensorType::f16, {2, 2, 2, 2}, Bytes(32, 3));
  return writer;
}

std::vector<DamagedGguf> damaged_ggufs() {
  Cases cases;
  add_header_cases(cases);
  add_key_cases(cases);
  add_array_cases(cases);
  add_tensor_cases(cases);
  add_type_cases(cases);
  add_place_cases(cases);
  return cases.take();
}

}  // namespace dsv32
