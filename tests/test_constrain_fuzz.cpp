// Schemas that nobody means: mutated ones, and ones that are built to explode. Each either is refused with
// one line or gives grammars whose masks are never empty; none takes long or much memory. `make fuzz` has a
// fuzzer for more.
#include <boost/test/unit_test.hpp>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/golden_schemas.h"
#include "tests/support/random_walk.h"
#include "tests/support/sanitized.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrain_fuzz)

namespace {

using nlohmann::ordered_json;

// The grammar, or null when the constraint is refused as it should be.
std::shared_ptr<Grammar> grammar_or_refusal(const std::string& constraint) {
  try {
    return compile_constraint(constraint);
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == ErrorKind::usage), error.what());
    BOOST_TEST(visible(error.what()) == error.what());
    BOOST_TEST(std::string(error.what()).size() < 1000U);
    return nullptr;
  }
}

// Changes a schema as a tree: a part of another schema, another keyword, a value of another kind or size.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutated() {
    ordered_json schema = random_schema();
    for (uint64_t i = random_.below(3) + 1; i > 0; --i) change(schema);
    std::string text = schema.dump();
    if (random_.below(8) == 0) change_bytes(text);
    return text;
  }

 private:
  ordered_json random_schema() {
    const auto& schemas = golden_schemas();
    return ordered_json::parse(schemas[random_.below(schemas.size())].constraint);
  }

  // Some value inside, of an object or an array; null if there is none.
  ordered_json* random_place(ordered_json& tree) {
    std::vector<ordered_json*> places;
    const std::function<void(ordered_json&)> visit = [&](ordered_json& value) {
      for (ordered_json& inner : value) {
        places.push_back(&inner);
        if (inner.is_structured()) visit(inner);
      }
    };
    visit(tree["schema"]);
    return places.empty() ? nullptr : places[random_.below(places.size())];
  }

  ordered_json odd_value() {
    static const char* const kValues[] = {"null",
                                          "true",
                                          "false",
                                          "0",
                                          "-1",
                                          "1",
                                          "2",
                                          "0.5",
                                          "1e308",
                                          "-1e308",
                                          "1e-300",
                                          "4294967296",
                                          "9223372036854775807",
                                          "18446744073709551615",
                                          "\"\"",
                                          "\"a\"",
                                          "\"#\"",
                                          "\"#/$defs/a\"",
                                          "\"^a+$\"",
                                          "\"date\"",
                                          "[]",
                                          "{}",
                                          "[1]",
                                          "{\"a\":1}",
                                          "\"integer\"",
                                          "\"object\"",
                                          "[\"string\",\"null\"]"};
    return ordered_json::parse(kValues[random_.below(std::size(kValues))]);
  }

  std::string keyword() {
    static const char* const kKeywords[] = {"type",
                                            "properties",
                                            "required",
                                            "additionalProperties",
                                            "enum",
                                            "const",
                                            "items",
                                            "prefixItems",
                                            "minItems",
                                            "maxItems",
                                            "minLength",
                                            "maxLength",
                                            "pattern",
                                            "format",
                                            "minimum",
                                            "maximum",
                                            "exclusiveMinimum",
                                            "exclusiveMaximum",
                                            "anyOf",
                                            "oneOf",
                                            "allOf",
                                            "$ref",
                                            "$defs",
                                            "not",
                                            "x-y"};
    return kKeywords[random_.below(std::size(kKeywords))];
  }

  void change(ordered_json& tree) {
    ordered_json* place = random_place(tree);
    if (!place) return;
    ordered_json other = random_schema();
    ordered_json* from = random_place(other);
    switch (random_.below(5)) {
      case 0: *place = odd_value(); return;
      case 1: *place = from ? *from : other["schema"]; return;
      case 2: *place = other["schema"]; return;
      case 3:
        if (place->is_object()) (*place)[keyword()] = from ? *from : odd_value();
        return;
      default:
        if (place->is_object() && !place->empty())
          place->erase(place->begin());
        else if (place->is_array())
          place->push_back(from ? *from : odd_value());
    }
  }

  void change_bytes(std::string& text) {
    const size_t at = random_.below(text.size());
    switch (random_.below(3)) {
      case 0: text[at] = static_cast<char>(random_.below(256)); return;
      case 1: text.erase(at, random_.below(8)); return;
      default: text.insert(at, text.substr(random_.below(text.size()), 16));
    }
  }

  SplitMix64 random_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(mutated_schemas_are_refused_or_work) {
  int n_compiled = 0;
  const uint64_t n_schemas = kIsSanitized ? 500 : 4000;
  for (uint64_t seed = 0; seed < n_schemas; ++seed) {
    const std::string constraint = Mutator(seed).mutated();
    BOOST_TEST_CONTEXT(seed << ": " << visible(constraint)) {
      const std::shared_ptr<Grammar> grammar = grammar_or_refusal(constraint);
      if (!grammar) continue;
      ++n_compiled;
      const Walk walk = random_walk(grammar, demo_vocabulary(), seed, 12);
      BOOST_TEST(!walk.is_stuck, "after " << walk.text);
    }
  }
  BOOST_TEST(n_compiled > static_cast<int>(n_schemas / 10));
  BOOST_TEST(n_compiled < static_cast<int>(n_schemas * 9 / 10));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
