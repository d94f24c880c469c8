// gguf/quant.h against tests/golden/quant_vectors.bin, which the Python package `gguf` computed.
//
// Every value must be equal bit for bit: both sides do the same f32 operations in the same order, and nothing
// is fused.
#include <boost/test/unit_test.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "gguf/quant.h"
#include "tests/support/supported_types.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(quant)

namespace {

struct Vector {
  TensorType type;
  std::string bytes;
  std::vector<float> values;
};

std::vector<Vector> load_vectors() {
  std::ifstream file("tests/golden/quant_vectors.bin", std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file, "tests/golden/quant_vectors.bin: run the tests from the repository's root");
  std::vector<Vector> vectors;
  uint32_t head[3];
  while (file.read(reinterpret_cast<char*>(head), 4) && head[0] != 0xffffffffu) {
    file.read(reinterpret_cast<char*>(head + 1), 8);
    Vector v{static_cast<TensorType>(head[0]), std::string(head[1], '\0'), std::vector<float>(head[2])};
    file.read(v.bytes.data(), head[1]);
    file.read(reinterpret_cast<char*>(v.values.data()), static_cast<std::streamsize>(4) * head[2]);
    BOOST_REQUIRE(file);
    vectors.push_back(std::move(v));
  }
  return vectors;
}

}  // namespace

BOOST_AUTO_TEST_CASE(values_are_those_of_the_python_package) {
  std::set<TensorType> seen;
  for (const Vector& v : load_vectors()) {
    BOOST_TEST_CONTEXT(type_name(v.type)) {
      const auto n = static_cast<int64_t>(v.values.size());
      BOOST_REQUIRE(row_bytes(v.type, n) == v.bytes.size());
      std::vector<float> out(v.values.size(), NAN);
      dequantize_row(v.type, v.bytes.data(), out.data(), n);
      size_t n_wrong = 0;
      for (size_t i = 0; i < out.size(); ++i)
        n_wrong += std::bit_cast<uint32_t>(out[i]) != std::bit_cast<uint32_t>(v.values[i]);
      BOOST_TEST(n_wrong == 0u);
      seen.insert(v.type);
    }
  }
  for (const TensorType type : supported_types()) BOOST_TEST(seen.count(type) == 1u, type_name(type));
  BOOST_TEST(seen.size() == 24u);
}

// Rows in a file are aligned to two bytes at best; a row that begins at an odd address must read the same.
BOOST_AUTO_TEST_CASE(rows_may_lie_at_any_address) {
  for (const Vector& v : load_vectors()) {
    std::string shifted = "x" + v.bytes;
    std::vector<float> out(v.values.size());
    dequantize_row(v.type, shifted.data() + 1, out.data(), static_cast<int64_t>(out.size()));
    BOOST_TEST(std::memcmp(out.data(), v.values.data(), out.size() * sizeof(float)) == 0, type_name(v.type));
  }
}

BOOST_AUTO_TEST_CASE(names_and_sizes) {
  BOOST_TEST(type_name(TensorType::q4_k) == std::string("Q4_K"));
  BOOST_TEST(type_name(static_cast<TensorType>(139)) == std::string("IQ4_K"));
  BOOST_TEST(type_name(static_cast<TensorType>(999)) == std::string("type 999"));
  BOOST_TEST(find_traits(static_cast<TensorType>(999)) == nullptr);
  BOOST_TEST(find_traits(static_cast<TensorType>(4)) == nullptr);  // a type that GGUF no longer defines
  BOOST_TEST(!find_traits(static_cast<TensorType>(34))->is_supported);
  BOOST_TEST(traits(TensorType::bf16).block_bytes == 2u);
  BOOST_TEST(row_bytes(TensorType::q6_k, 7168) == 7168u / 256 * 210);
  BOOST_TEST(row_bytes(TensorType::iq2_xxs, 256) == 66u);
  BOOST_TEST(row_bytes(TensorType::nvfp4, 7168) == 7168u / 64 * 36);
  BOOST_TEST(row_bytes(TensorType::f32, 0) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
