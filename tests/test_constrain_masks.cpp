// The masks of src/constrain by brute force: at places that random walks reach, the mask allows exactly the
// tokens of text whose bytes take() takes, no special token, and those that end an answer exactly where the
// document is complete.
#include <boost/test/unit_test.hpp>

#include "tests/support/constrained_vocabulary.h"
#include "tests/support/golden_schemas.h"
#include "tests/support/random_walk.h"
#include "tests/support/sanitized.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrain_masks)

namespace {

// What take() and is_complete() say that the mask must be.
bool should_be_allowed(const Constraint& constraint, const ConstrainedVocabulary& vocabulary, int32_t id) {
  if (vocabulary.tokenizer().is_end_of_generation(id)) return constraint.is_complete();
  if (!vocabulary.is_text(id)) return false;
  Constraint after = constraint;
  return after.take(vocabulary.tokenizer().bytes_of(id));
}

// The first token whose bit is wrong; -1 if there is none.
int32_t wrong_bit(Constraint& constraint, const ConstrainedVocabulary& vocabulary) {
  const std::vector<uint32_t> mask = mask_of(constraint, vocabulary);
  for (int32_t id = 0; id < vocabulary.n_vocab(); ++id)
    if (is_allowed(mask, id) != should_be_allowed(constraint, vocabulary, id)) return id;
  return -1;
}

// Follows the document of a random walk byte by byte, so that it also comes between the tokens, and looks at
// one place in `every`, and at the last.
void check_masks_along(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary,
                       uint64_t seed, uint64_t every) {
  const std::string text = random_walk(grammar, vocabulary, seed, 24).text;
  Constraint constraint(grammar, vocabulary.trie());
  SplitMix64 random(seed);
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || random.below(every) == 0) {
      const int32_t wrong = wrong_bit(constraint, vocabulary);
      BOOST_TEST(wrong == -1, "token " << wrong << " after " << text.substr(0, at));
    }
    if (at < text.size()) BOOST_REQUIRE(constraint.take(text.substr(at, 1)));
  }
}

void check_masks(const ConstrainedVocabulary& vocabulary, uint64_t n_walks, uint64_t every) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      const std::shared_ptr<Grammar> grammar = compile_constraint(schema->constraint);
      for (uint64_t seed = 0; seed < n_walks; ++seed) check_masks_along(grammar, vocabulary, seed, every);
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(they_allow_what_can_be_taken_of_tokens_that_cross) {
  check_masks(crossing_vocabulary(), kIsSanitized ? 1 : 4, kIsSanitized ? 16 : 4);
}

BOOST_AUTO_TEST_CASE(they_allow_what_can_be_taken_of_the_demo_model) {
  check_masks(demo_vocabulary(), kIsSanitized ? 1 : 4, kIsSanitized ? 24 : 8);
}

// A mask is the same when it comes from the cache, from a grammar that is new, and after a push of one token
// or of its bytes.
BOOST_AUTO_TEST_CASE(they_do_not_depend_on_what_was_asked_before) {
  const ConstrainedVocabulary& vocabulary = crossing_vocabulary();
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      const std::shared_ptr<Grammar> used = compile_constraint(schema->constraint);
      const std::string text = random_walk(used, vocabulary, 3, 12).text;
      const std::shared_ptr<Grammar> fresh = compile_constraint(schema->constraint);
      Constraint by_token(used, vocabulary.trie()), by_byte(fresh, vocabulary.trie());
      for (const int32_t id : vocabulary.longest_tokens(text)) {
        BOOST_TEST(mask_of(by_token, vocabulary) == mask_of(by_byte, vocabulary));
        BOOST_TEST(mask_of(by_token, vocabulary) == mask_of(by_token, vocabulary));
        by_token.push(id);
        BOOST_REQUIRE(by_byte.take(vocabulary.tokenizer().bytes_of(id)));
      }
      BOOST_TEST(by_token.is_complete());
      BOOST_TEST(by_byte.is_complete());
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
