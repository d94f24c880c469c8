// Random walks through the masks: each ends in a document that the schema accepts. An independent validator
// has said so of the documents whose digests tests/golden/json_schema.json has (make_json_schema_golden.py
// --walks); here the walks are made again and their digests compared.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <ctime>
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

BOOST_AUTO_TEST_SUITE(constrain_walks)

namespace {

namespace ut = boost::unit_test;

constexpr uint64_t kFew = 100, kMany = 1000;  // walks of each schema; the script has the same numbers

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

// Of this thread on the CPU, so that a busy machine does not matter much.
double microseconds_of(const std::function<void()>& action) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  action();
  return now() - begin;
}

// How long things took, in microseconds, and what each was.
struct Times {
  std::vector<std::pair<double, std::string>> all;

  void print(const char* name, size_t n_slowest) {
    std::sort(all.begin(), all.end());
    const auto at = [&](double part) {
      return all[static_cast<size_t>(part * static_cast<double>(all.size() - 1))].first;
    };
    std::printf("%s: %zu, median %.1f us, 99 %% %.1f us, 99.9 %% %.1f us, largest %.1f us\n", name,
                all.size(), at(0.5), at(0.99), at(0.999), at(1));
    for (size_t i = 1; i <= std::min(n_slowest, all.size()); ++i) {
      const auto& [time, what] = all[all.size() - i];
      std::printf("  %.1f us %s\n", time, what.c_str());
    }
  }
};

// Follows `text` with the tokenizer's tokens, the mask timed at each.
void time_masks_along(const GoldenSchema& schema, const std::shared_ptr<Grammar>& grammar,
                      const ConstrainedVocabulary& vocabulary, const std::string& text, Times& times) {
  Constraint constraint(grammar, vocabulary.trie());
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.n_vocab()) + 31) / 32);
  std::string read;
  for (const int32_t id : vocabulary.tokenizer().encode(text, false)) {
    const double time = microseconds_of([&] { constraint.write_mask(mask); });
    times.all.emplace_back(time, schema.name + ": " + read);
    if (!is_allowed(mask, id)) return;
    constraint.push(id);
    read += vocabulary.tokenizer().bytes_of(id);
  }
}

}  // namespace

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

// An answer of some thousand tokens: the first item of a golden list of at least one, often.
std::string long_document(const GoldenSchema& schema) {
  const auto list = nlohmann::ordered_json::parse(schema.valid.at(1).front());
  return nlohmann::ordered_json(std::vector(300, list.at(0))).dump();
}

// `build/unit_tests --run_test=constrain_walks/print_times -- VOCABULARY`: of each mask along the valid
// documents of the golden schemas, each schema with a new grammar, and along documents of random walks after
// these.
BOOST_AUTO_TEST_CASE(print_times, *ut::disabled()) {
  const ConstrainedVocabulary vocabulary = vocabulary_of(argument(1, "models/demo.gguf"));
  Times compiling, written, long_ones, walked;
  for (const GoldenSchema* schema : supported_schemas()) {
    std::shared_ptr<Grammar> grammar;
    compiling.all.emplace_back(microseconds_of([&] { grammar = compile_constraint(schema->constraint); }),
                               schema->name);
    for (const auto& texts : schema->valid)
      time_masks_along(*schema, grammar, vocabulary, texts.front(), written);
    if (schema->name == "people" || schema->name == "lists of mixed values")
      time_masks_along(*schema, grammar, vocabulary, long_document(*schema), long_ones);
    for (uint64_t seed = 0; seed < 4; ++seed)
      time_masks_along(*schema, grammar, vocabulary, random_walk(grammar, demo_vocabulary(), seed).text,
                       walked);
  }
  compiling.print("compiling", 4);
  written.print("masks of documents as people write them", 25);
  long_ones.print("masks of two long documents", 3);
  walked.print("masks of documents of random walks", 10);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
