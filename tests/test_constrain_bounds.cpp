// Schemas that are built to explode: each is refused or works, within a second of the CPU and 256 MiB. What
// is deeper or larger than a schema may be is refused. No value of many is lost.
#include <boost/test/unit_test.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "tests/support/child_process.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/contains.h"
#include "tests/support/random_walk.h"
#include "tests/support/sanitized.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrain_bounds)

namespace {

using nlohmann::ordered_json;

std::string times(size_t n, const std::string& part, const std::string& separator = ",") {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += (i == 0 ? "" : separator) + replaced(part, "%", std::to_string(i));
  return all;
}

// Definitions each of which uses the next twice.
std::string doubling(const std::string& twice, size_t n, const std::string& last) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (size_t i = 0; i < n; ++i)
    schema += "\"d" + std::to_string(i) +
              "\":" + replaced(twice, "%", R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}") + ",";
  return schema + "\"d" + std::to_string(n) + "\":" + last + "}}";
}

std::string nested(size_t depth, const std::string& open, const std::string& inside,
                   const std::string& close) {
  return times(depth, open, "") + inside + times(depth, close, "");
}

std::string of_pattern(const std::string& pattern, const std::string& more = "") {
  return ordered_json{{"type", "string"}, {"pattern", pattern}}.dump().insert(1, more);
}

std::vector<std::pair<const char*, std::string>> explosive_schemas() {
  const std::string object_of = R"({"type":"object","properties":{)";
  return {
      {"a product of unions",
       R"({"allOf":[)" +
           times(
               12,
               R"({"anyOf":[{"minLength":1%},{"maxLength":2%},{"type":"null"},{"type":"integer","minimum":%}]})") +
           "]}"},
      {"a product of unions of objects",
       R"({"allOf":[)" +
           times(
               12,
               R"({"anyOf":[{"properties":{"a%":{"type":"integer"}},"required":["a%"]},{"properties":{"b%":{"type":"integer"}},"required":["b%"]}]})") +
           "]}"},
      {"unions in unions", nested(30, R"({"anyOf":[{"type":"null"},{"type":"array","items":)",
                                  R"({"anyOf":[{"type":"string"},{"const":1}]})", "}]}")},
      {"doubled unions", doubling(R"({"anyOf":[%,%]})", 40, R"({"type":"integer"})")},
      {"doubled merges", doubling(R"({"allOf":[%,%]})", 40, R"({"type":"integer"})")},
      {"doubled properties", doubling(R"({"type":"object","properties":{"a":%,"b":%},"required":["a"]})", 40,
                                      R"({"type":"integer"})")},
      {"doubled items", doubling(R"({"type":"array","prefixItems":[%,%]})", 40, R"({"type":"integer"})")},
      {"doubled required properties",
       doubling(R"({"type":"object","properties":{"a":%,"b":%},"required":["a","b"]})", 40,
                R"({"type":"integer"})")},
      {"merges of unions by reference",
       doubling(R"({"allOf":[{"anyOf":[%,{"type":"string"}]},{"anyOf":[{"type":"null"},%]}]})", 20,
                R"({"type":"integer"})")},
      {"a merge with itself",
       R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})"},
      {"a union with itself",
       R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"})"},
      {"merges that grow",
       R"({"$defs":{"a":{"type":"object","properties":{"x":{"allOf":[{"$ref":"#/$defs/a"},{"properties":{"x":{"properties":{"y":{"$ref":"#/$defs/a"}}}}}]}}}},"$ref":"#/$defs/a"})"},
      {"a chain of references",
       R"({"$ref":"#/$defs/d0","$defs":{)" + times(9999, R"("d%":{"$ref":"#/$defs/e%"})") + "}}"},
      {"a long chain of references", doubling("%", 9000, "true")},
      {"a very long string", R"({"type":"string","minLength":1000000000,"maxLength":1000000000})"},
      {"a string that may be very long", R"({"type":"string","maxLength":1000000000})"},
      {"a length beyond all numbers", R"({"type":"string","maxLength":1e300})"},
      {"very many items",
       R"({"type":"array","items":{"type":"integer"},"minItems":1000000,"maxItems":1000000})"},
      {"perhaps very many items", R"({"type":"array","items":{"type":"integer"},"maxItems":1000000})"},
      {"very many items of strings",
       R"({"type":"array","items":{"type":"string","maxLength":100000},"minItems":1000,"maxItems":100000})"},
      {"arrays in arrays of many",
       nested(20, R"({"type":"array","minItems":1000,"maxItems":1000,"items":)", "{}", "}")},
      {"counts of counts", of_pattern("^(a{1,1000}){1,1000}$")},
      {"counts of counts of counts", of_pattern("^(((a{1,100}){1,100}){1,100}){1,100}$")},
      {"a count beyond all numbers", of_pattern("^a{1,99999999999999999999}$")},
      {"a pattern of exponential states", of_pattern("^(a|b)*a(a|b){40}$")},
      {"a pattern of exponential states with lengths",
       of_pattern("^(a|b)*a(a|b){14}$", R"("minLength":20,"maxLength":2000,)")},
      {"a pattern that is not anchored", of_pattern("a.{60}b")},
      {"perhaps and then", of_pattern("^(a?){300}a{300}$")},
      {"stars of stars", of_pattern("^((((a*)*)*)*b*)*$")},
      {"nothing, often", of_pattern("^(()*|()+|(){1,1000})*$")},
      {"nested groups", of_pattern(nested(5000, "(", "a", ")"))},
      {"a long alternation", of_pattern("^(" + times(5000, "w%x", "|") + ")$")},
      {"long classes", of_pattern("^[" + times(2000, "\\u0%", "").substr(0, 11990) + "]{50}$")},
      {"all of patterns",
       R"({"type":"string","allOf":[)" + times(12, R"({"pattern":"(a|b|%)[0-9]{%}c"})") + "]}"},
      {"a large enum", R"({"enum":[)" + times(20000, "\"value number %\"") + "]}"},
      {"a large enum of numbers", R"({"enum":[)" + times(50000, "%") + "]}"},
      {"a long constant", R"({"const":")" + std::string(500000, 'x') + "\"}"},
      {"a deep constant", R"({"const":)" + nested(5000, "[", "1", "]") + "}"},
      {"a long name", object_of + "\"" + std::string(300000, 'x') + "\":{}}}"},
      {"many long names",
       object_of + times(300, "\"" + std::string(60, 'x') + "%" + std::string(60, 'y') + "\":{}") + "}}"},
      {"many optional properties", object_of + times(4000, R"("p%":{"type":"integer"})") + "}}"},
      {"many optional properties and no others",
       object_of + times(4000, R"("p%":{"type":"integer"})") + R"(},"additionalProperties":false})"},
      {"many required properties", object_of + R"(},"required":[)" + times(4000, "\"p%\"") + "]}"},
      {"many branches of objects",
       R"({"anyOf":[)" +
           times(
               1000,
               R"({"type":"object","properties":{"kind":{"type":"string"},"p%":{"type":"integer"}},"required":["kind"]})") +
           "]}"},
      {"many discriminated branches",
       R"({"oneOf":[)" +
           times(
               1000,
               R"({"type":"object","properties":{"kind":{"const":"k%"},"p%":{"type":"integer"}},"required":["kind"],"additionalProperties":false})") +
           "]}"},
      {"many merged objects",
       R"({"allOf":[)" +
           times(1000, R"({"type":"object","properties":{"p%":{"type":"integer"}},"required":["p%"]})") +
           "]}"},
      {"many unions of strings",
       R"({"anyOf":[)" +
           times(300, R"({"type":"string","minLength":%,"maxLength":1%,"pattern":"^[a-z]*%?$"})") + "]}"},
      {"a range of huge numbers", R"({"type":"integer","minimum":-1e308,"maximum":1e308})"},
      {"a range of tiny numbers", R"({"type":"number","exclusiveMinimum":0,"maximum":1e-300})"},
      {"a bound of many digits",
       R"({"type":"integer","minimum":123456789012345678901234567890123456789012345678901234567890})"},
      {"long patterns",
       object_of +
           times(8, "\"p%\":{\"pattern\":\"^" + times(1990, "abcdefghij", "").substr(0, 1985) + "%$\"}") +
           "}}"},
      {"an enum beside many branches",
       R"({"enum":[)" + times(100000, "0") + R"(],"anyOf":[)" + times(5000, "{}") + "]}"},
      {"an enum beside many bounds",
       R"({"enum":[)" + times(100000, "%") + R"(],"anyOf":[)" + times(5000, R"({"minimum":%})") + "]}"},
      {"all of two enums of objects", R"({"allOf":[{"enum":[)" + times(8000, R"({"a":%,"b":"v"})") +
                                          R"(]},{"enum":[)" + times(8000, R"({"b":"v","a":%})") + "]}]}"},
      {"one of many constant objects", R"({"oneOf":[)" + times(5000, R"({"const":{"a":%,"b":"v"}})") + "]}"},
      {"one of many objects that do not differ",
       R"({"oneOf":[)" + times(5000, R"({"type":"object","title":"%"})") + "]}"},
      {"one of many objects",
       R"({"oneOf":[)" +
           times(5000, R"({"type":"object","properties":{"kind":{"const":%}},"required":["kind"]})") + "]}"},
      {"an enum in many merges", R"({"$defs":{"e":{"enum":[)" + times(9000, "\"value %\"") +
                                     R"(]}},"properties":{)" +
                                     times(3000, R"("p%":{"$ref":"#/$defs/e","maxLength":%})") + "}}"},
      {"very many properties", object_of + times(60000, R"("p%":true)") + "}}"},
      {"very many members of a default", R"({"default":{)" + times(90000, R"("p%":0)") + "}}"},
      {"very many required properties", R"({"required":[)" + times(100000, "\"p%\"") + "]}"},
      {"a long key above many values",
       R"({"default":{")" + std::string(400000, 'x') + "\":[" + times(200000, "0") + "]}}"},
      {"64 deep", nested(30, R"({"type":"array","items":)", "{}", "}")},
      {"65 deep", nested(65, R"({"type":"array","items":)", "{}", "}")},
      {"very deep", nested(100000, R"({"items":)", "{}", "}")},
      {"very deep brackets", nested(400000, "[", "", "]")},
      {"no end to the brackets", std::string(900000, '[')},
  };
}

enum Outcome : int { kCompiled = 10, kRefused, kOtherError, kEmptyMask, kSlow };

void limit_memory() {
  if (kIsSanitized) return;  // a sanitizer takes terabytes of addresses
  int64_t n_pages = 0;
  std::ifstream("/proc/self/statm") >> n_pages;
  const rlimit limit = {static_cast<rlim_t>(n_pages * sysconf(_SC_PAGESIZE) + (256 << 20)), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}

// Reads `beginning` as far as it can be read, then draws some tokens at random.
Outcome outcome_of_drawing(const std::shared_ptr<Grammar>& grammar, std::string_view beginning) {
  Constraint constraint(grammar, demo_vocabulary().trie());
  for (size_t at = 0; at < beginning.size() && constraint.take(beginning.substr(at, 1));) ++at;
  SplitMix64 random(1);
  for (int i = 0; i < 64; ++i) {
    const std::vector<uint32_t> mask = mask_of(constraint, demo_vocabulary());
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < demo_vocabulary().n_vocab(); ++id)
      if (is_allowed(mask, id)) ids.push_back(id);
    if (ids.empty()) return kEmptyMask;
    const int32_t id = ids[random.below(ids.size())];
    if (demo_vocabulary().tokenizer().is_end_of_generation(id)) break;
    constraint.push(id);
  }
  return kCompiled;
}

Outcome outcome_here(const std::string& schema, std::string_view beginning) {
  try {
    return outcome_of_drawing(compile_constraint("{\"schema\":" + schema + "}"), beginning);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? kRefused : kOtherError;
  }
}

// In a process of its own, because what it takes is limited.
int outcome_of(const std::string& schema, std::string_view beginning = {}) {
  demo_vocabulary();
  return wait_for(fork_child([&] {
    limit_memory();
    const rlimit limit = {60, 60};  // seconds of CPU time: neighbours of this core do not count
    setrlimit(RLIMIT_CPU, &limit);
    const std::clock_t begin = std::clock();
    const Outcome outcome = outcome_here(schema, beginning);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    return seconds > (kIsSanitized ? 20 : 2) ? kSlow : outcome;  // a second, and the neighbours of this core
  }));
}

}  // namespace

BOOST_AUTO_TEST_CASE(schemas_built_to_explode_do_not) {
  for (const auto& [name, schema] : explosive_schemas())
    BOOST_TEST_CONTEXT(name << ": " << schema.substr(0, 300)) {
      const int outcome = outcome_of(schema);
      BOOST_TEST((outcome == kCompiled || outcome == kRefused), "outcome " << outcome);
    }
}

// A text of such a pattern keeps hundreds of ways to read it open, and each character of the answer would ask
// all of them: refused by keyword and path, before anything runs. Patterns that people write are not.
BOOST_AUTO_TEST_CASE(patterns_that_leave_too_much_open_are_refused_by_name) {
  const auto schema_of = [](const std::string& pattern) {
    return R"({"schema":{"type":"object","properties":{"a":{"type":"string","pattern":")" + pattern +
           R"("}}}})";
  };
  std::string many;
  for (int i = 0; i < 40; ++i)
    many += format("%s[a-z ]*%c[a-z ]{%d}", many.empty() ? "" : "|", 'a' + i % 26, i + 2);
  for (const std::string& pattern :
       {std::string("^.*[aeiou].{0,500}$"), std::string("^[a-z ]*a[a-z ]{1900}$"), "^(" + many + ")$"})
    BOOST_CHECK_EXCEPTION(compile_constraint(schema_of(pattern)), Error, [&](const Error& error) {
      BOOST_TEST(contains(error.what(), "/properties/a"), error.what());
      BOOST_TEST(contains(error.what(), "pattern keeps too many ways to read a text open"), error.what());
      return error.kind() == ErrorKind::usage;
    });
  std::string branches;
  for (int i = 0; i < 200; ++i)
    branches += format(R"(%s{"type":"string","pattern":"^[a-z ]*%c[a-z ]{%d}$"})", i > 0 ? "," : "",
                       'a' + i % 26, i % 30 + 2);
  BOOST_CHECK_THROW(compile_constraint(R"({"schema":{"anyOf":[)" + branches + "]}}"), Error);
  std::string words = "item0";
  for (int i = 1; i < 100; ++i) words += "|item" + std::to_string(i);
  for (const std::string& pattern :
       {std::string("^.{1,300}$"), std::string("[a-z]{3}"),
        std::string("^[a-z0-9._%+-]+@[a-z0-9.-]+[.][a-z]{2,}$"), std::string("^(.*,){3}.*$"),
        std::string("^.*foo.*bar.*$"), std::string("^.*a.{0,20}$"), std::string("[a-z]{1,64}@[a-z]{1,64}"),
        words})
    BOOST_CHECK_NO_THROW(compile_constraint(schema_of(pattern)));
}

// Documents that a grammar can read in more ways with every level, and one that is only deep.
BOOST_AUTO_TEST_CASE(deep_documents_take_no_long_time) {
  const char* const ambiguous =
      R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/a"}},
      {"type":"array","items":{"$ref":"#/$defs/a"},"maxItems":5},{"type":"null"}]}}})";
  BOOST_TEST(outcome_of(ambiguous, std::string(60, '[')) == kCompiled);
  BOOST_TEST(outcome_of("true", std::string(20000, '[')) == kCompiled);
}

// Of 10,000 values each can be written and none gets lost, alone and beside others, in a list and in an
// object; nothing else can be written.
BOOST_AUTO_TEST_CASE(all_of_many_values_are_accepted) {
  const std::string words = times(10000, "\"% Reed\""),
                    consts = times(10000, R"({"const":"% Reed","title":"%"})");
  const auto list_of = [](const std::string& items) { return R"({"type":"array","items":)" + items + "}"; };
  const std::string values = R"({"enum":[)" + words + "]}";
  const struct {
    std::string schema, before, behind;
  } cases[] = {
      {values, "", ""},
      {R"({"enum":[null,)" + words + "]}", "", ""},
      {R"({"anyOf":[)" + values + R"(,{"type":"null"}]})", "", ""},
      {R"({"anyOf":[{"type":"null"},)" + list_of(values) + "]}", "[null,", "]"},
      {R"({"anyOf":[)" + consts + R"(,{"type":"null"}]})", "", ""},
      {R"({"oneOf":[)" + consts + "]}", "", ""},
      {R"({"type":"object","properties":{"cook":)" + values + R"(},"required":["cook"]})", R"({"cook":)",
       "}"},
      {values.substr(0, values.size() - 1) + R"(,"maxLength":9})", "", ""},
  };
  for (const auto& [schema, before, behind] : cases) BOOST_TEST_CONTEXT(schema.substr(0, 60)) {
      const bool is_list = behind == "]";
      const auto grammar = compile_constraint("{\"schema\":" + schema + "}");
      const auto takes = [&](const std::string& value) {
        Constraint constraint(grammar, demo_vocabulary().trie());
        return constraint.take((is_list ? "[\"0 Reed\"," : before) + value + behind) &&
               constraint.is_complete();
      };
      int n_lost = 0;
      for (int i = 0; i < 10000; ++i) n_lost += takes("\"" + std::to_string(i) + " Reed\"") ? 0 : 1;
      BOOST_TEST(n_lost == 0);
      for (const char* other : {"\"10000 Reed\"", "\"1 Ree\"", "\" Reed\"", "1"})
        BOOST_TEST(!takes(other), other);
    }
  const auto numbers = compile_constraint(R"({"schema":{"enum":[)" + times(10000, "%") + "]}}");
  for (const char* number : {"0", "7", "9999", "10000", "00", "-1"}) {
    Constraint constraint(numbers, demo_vocabulary().trie());
    BOOST_TEST((constraint.take(number) && constraint.is_complete()) ==
                   (std::atoi(number) < 10000 && number[0] != '-' && std::string(number) != "00"),
               number);
  }
}

// Each level of nesting can be read in twice as many ways: all of them stay open.
BOOST_AUTO_TEST_CASE(ambiguous_nesting_loses_nothing) {
  const auto grammar = compile_constraint(
      R"({"schema":{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/a"},"maxItems":1},
      {"type":"array","items":{"$ref":"#/$defs/a"},"minItems":2,"maxItems":2},{"const":1}]}}}})");
  const auto takes = [&](const std::string& text) {
    Constraint constraint(grammar, demo_vocabulary().trie());
    return constraint.take(text) && constraint.is_complete();
  };
  const std::string open(40, '['), close(40, ']');
  BOOST_TEST(takes(open + close));
  BOOST_TEST(takes(open + "1,1" + close));
  BOOST_TEST(!takes(open + "1,1,1" + close));
  BOOST_TEST(takes(open + "1" + nested(40, "]", "", "").substr(0, 39) + ",[1,1]]"));
  BOOST_TEST(!takes(open + "1" + nested(40, "]", "", "").substr(0, 39) + ",1,1]"));
}

// What is too large is refused by its keyword and path.
BOOST_AUTO_TEST_CASE(what_is_too_large_is_refused_by_name) {
  const auto message = [](const std::string& schema) -> std::string {
    try {
      compile_constraint("{\"schema\":" + schema + "}");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto names = [&](const std::string& schema, const std::string& path, const std::string& keyword) {
    const std::string said = message(R"({"properties":{"a":)" + schema + "}}");
    BOOST_TEST((contains(said, path) && contains(said, keyword)), said);
  };
  names(R"({"enum":[)" + times(50000, "%") + R"(],"anyOf":[)" + times(5000, R"({"minimum":%})") + "]}",
        "/properties/a", "enum, anyOf");
  names(R"({"oneOf":[)" + times(500, R"({"type":"object","title":"%"})") + "]}", "/properties/a/oneOf",
        "oneOf");
  names(R"({"anyOf":[)" + times(16000, R"({"properties":{"p%":{}},"required":["p%"]})") + "]}",
        "/properties/a", "anyOf");
  names(R"({"required":[)" + times(100000, "\"p%\"") + "]}", "/properties/a", "required");
}

BOOST_AUTO_TEST_CASE(too_deep_or_too_large_is_refused) {
  const auto refused = [](const std::string& schema) { return outcome_of(schema) == kRefused; };
  BOOST_TEST(refused(nested(65, R"({"type":"array","items":)", "{}", "}")));
  BOOST_TEST(refused("{\"const\":\"" + std::string((1 << 20) + 1, 'x') + "\"}"));
  BOOST_TEST(!refused(nested(30, R"({"type":"array","items":)", "{}", "}")));
  BOOST_TEST(!refused("{\"const\":\"" + std::string(1000, 'x') + "\"}"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
