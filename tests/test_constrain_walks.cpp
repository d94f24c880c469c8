// Random walks through the masks: each ends in a document that the schema accepts. An independent validator
// has said so of the documents whose digests tests/golden/json_schema.json has (make_json_schema_golden.py
// --walks); here the walks are made again and their digests compared.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "gguf/gguf.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/golden_schemas.h"
#include "tests/support/random_walk.h"
#include "tests/support/sanitized.h"

namespace dsv32 {

namespace {

namespace ut = boost::unit_test;

constexpr uint64_t kFew = 20, kMany = 1000;  // walks of each schema; the script has the same numbers

// Of the documents of `n_walks` walks, a newline after each; a walk that was cut has an empty one.
std::string digest_of_walks(const GoldenSchema& schema, uint64_t n_walks) {
  const std::shared_ptr<Grammar> grammar = compile_constraint(schema.constraint);
  std::string documents;
  for (uint64_t seed = 0; seed < n_walks; ++seed) {
    const Walk walk = random_walk(grammar, demo_vocabulary(), seed);
    BOOST_TEST(!walk.is_stuck, "no token is allowed after " << walk.text);
    documents += (walk.is_cut ? "" : walk.text) + "\n";
  }
  return hex(sha256(documents));
}

void check_digests(uint64_t n_walks) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      BOOST_TEST(digest_of_walks(*schema, n_walks) == schema->walks.at(std::to_string(n_walks)));
    }
}

// The arguments behind "--" of the command line.
std::string argument(int index, const char* otherwise = "") {
  const auto& suite = ut::framework::master_test_suite();
  return index < suite.argc ? suite.argv[index] : otherwise;
}

ConstrainedVocabulary vocabulary_of(const std::string& path) {
  return ConstrainedVocabulary(load_vocabulary(GgufFile(path)));
}

boost::test_tools::assertion_result takes_no_minutes(ut::test_unit_id) {
  boost::test_tools::assertion_result result(!kIsSanitized);
  result.message() << "it takes too long under the sanitizers";
  return result;
}

struct Times {
  std::vector<double> masks, compiling;  // microseconds
  void print(const char* name) {
    std::sort(masks.begin(), masks.end());
    std::sort(compiling.begin(), compiling.end());
    const auto at = [](const std::vector<double>& times, double part) {
      return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))];
    };
    std::printf(
        "%s: %zu masks: median %.1f us, 99 %% %.1f us, 99.9 %% %.1f us, largest %.1f us; compiling: median "
        "%.1f us, largest %.1f us\n",
        name, masks.size(), at(masks, 0.5), at(masks, 0.99), at(masks, 0.999), masks.back(),
        at(compiling, 0.5), compiling.back());
  }
};

double microseconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Follows `text` with the tokenizer's tokens, the mask timed at each.
void time_masks_along(Constraint& constraint, const ConstrainedVocabulary& vocabulary,
                      const std::string& text, Times& times) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.n_vocab()) + 31) / 32);
  for (const int32_t id : vocabulary.tokenizer().encode(text, false)) {
    times.masks.push_back(microseconds_of([&] { constraint.write_mask(mask); }));
    if (!is_allowed(mask, id)) return;
    constraint.push(id);
  }
  times.masks.push_back(microseconds_of([&] { constraint.write_mask(mask); }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(constrain_walks)

BOOST_AUTO_TEST_CASE(their_documents_are_those_that_were_validated, *ut::precondition(takes_no_minutes)) {
  check_digests(kFew);
}

BOOST_AUTO_TEST_CASE(many_documents_are_those_that_were_validated, *ut::label("long") * ut::disabled()) {
  check_digests(kMany);
}

// What the script validates: `build/unit_tests --run_test=constrain_walks/write_walks -- FILE [VOCABULARY]
// [WALKS]`.
BOOST_AUTO_TEST_CASE(write_walks, *ut::disabled()) {
  std::ofstream out(argument(1));
  BOOST_REQUIRE(out.good());
  const ConstrainedVocabulary vocabulary = vocabulary_of(argument(2, "models/demo.gguf"));
  const uint64_t n_walks = std::stoull(argument(3, std::to_string(kMany).c_str()));
  for (const GoldenSchema* schema : supported_schemas()) {
    const std::shared_ptr<Grammar> grammar = compile_constraint(schema->constraint);
    for (uint64_t seed = 0; seed < n_walks; ++seed) {
      const Walk walk = random_walk(grammar, vocabulary, seed);
      BOOST_TEST(!walk.is_stuck, schema->name << ": no token is allowed after " << walk.text);
      const bool is_whole = !walk.is_cut && !walk.is_stuck;
      out << nlohmann::json{{"name", schema->name},
                            {"is_cut", !is_whole},
                            {"text", is_whole ? walk.text : ""}}
                 .dump()
          << "\n";
    }
  }
}

// `build/unit_tests --run_test=constrain_walks/print_times -- VOCABULARY`: of each mask along the valid
// documents of the golden schemas, and along the documents of random walks; each schema with a new grammar.
BOOST_AUTO_TEST_CASE(print_times, *ut::disabled()) {
  const ConstrainedVocabulary vocabulary = vocabulary_of(argument(1, "models/demo.gguf"));
  Times written, walked;
  std::vector<std::pair<double, std::string>> slowest;
  for (const GoldenSchema* schema : supported_schemas()) {
    std::shared_ptr<Grammar> grammar;
    const double compiling = microseconds_of([&] { grammar = compile_constraint(schema->constraint); });
    written.compiling.push_back(compiling), walked.compiling.push_back(compiling);
    const size_t n_before = written.masks.size();
    for (const auto& texts : schema->valid) {
      Constraint constraint(grammar, vocabulary.trie());
      time_masks_along(constraint, vocabulary, texts.front(), written);
    }
    for (size_t i = n_before; i < written.masks.size(); ++i)
      slowest.emplace_back(written.masks[i], schema->name);
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::string text = random_walk(grammar, vocabulary, seed).text;
      const std::shared_ptr<Grammar> fresh = seed == 0 ? compile_constraint(schema->constraint) : grammar;
      Constraint constraint(fresh, vocabulary.trie());
      time_masks_along(constraint, vocabulary, text, walked);
    }
  }
  written.print("documents as people write them");
  walked.print("documents of random walks");
  std::sort(slowest.rbegin(), slowest.rend());
  for (size_t i = 0; i < 12 && i < slowest.size(); ++i)
    std::printf("  %.1f us %s\n", slowest[i].first, slowest[i].second.c_str());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
