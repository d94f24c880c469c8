// Prefixes where decode gives other bits than prefill, as on a GPU: what a prompt finds is what prefill would
// compute, wherever it leaves what is known, also behind answers.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <vector>

#include "backend/cpu_backend.h"
#include "tests/support/talk_on_disk.h"

using namespace dsv32;

namespace {

// The CPU, with a rounding of its own in decode.
class RolesApart : public CpuBackend {
 public:
  RolesApart() : CpuBackend(1) {}
  bool roles_agree() const override { return false; }
  void matmul(const Matmul& op) override {
    CpuBackend::matmul(op);
    if (op.role == Role::decode)
      for (int64_t i = 0; i < op.n_tokens * op.weight.n_rows; ++i) op.y[i] *= 1.001f;
  }
};

TalkOnDisk with_roles_apart() {
  return {.make_backend = [] { return std::make_unique<RolesApart>(); }};
}

TalkOnDisk with_roles_that_agree() {
  return {.make_backend = [] { return std::make_unique<CpuBackend>(1); }};
}

std::vector<int32_t> leaving(std::vector<int32_t> tokens, size_t n, int64_t n_others) {
  tokens.resize(n);
  for (const int32_t token : random_tokens(n_others, 9)) tokens.push_back(token);
  return tokens;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(roles_in_the_cache)

BOOST_AUTO_TEST_CASE(cold_and_cached_are_the_same_bits_at_random_places) {
  with_roles_apart().check_random_places(12);
  with_roles_that_agree().check_random_places(6);
}

// A talk goes on from the rows it has, answers among them; of these others find only what prefill would make.
BOOST_AUTO_TEST_CASE(answers_are_known_to_others_where_the_roles_agree) {
  for (const bool roles_agree : {false, true}) {
    const TalkOnDisk talk = roles_agree ? with_roles_that_agree() : with_roles_apart();
    const TalkOnDisk::Process process = talk.start(true);
    std::vector<int32_t> tokens = talk.ask(*process.session, 150, 90, 1);
    BOOST_TEST(process.n_pages_known() == (roles_agree ? 240 : 150) / kPageTokens);
    tokens.insert(tokens.end(), {1, 2, 3});
    BOOST_TEST(process.session->sync(tokens) == 240);
    talk.ask(*process.session, 60, 0, 2);
    BOOST_TEST(process.n_pages_known() == (roles_agree ? 303 : 150) / kPageTokens);
  }
}

// What decode made is forgotten with its tokens.
BOOST_AUTO_TEST_CASE(a_prompt_that_leaves_before_an_answer_is_known_to_others) {
  const TalkOnDisk talk = with_roles_apart();
  const TalkOnDisk::Process process = talk.start(true);
  const std::vector<int32_t> tokens = talk.ask(*process.session, 150, 90, 1);
  BOOST_TEST(process.session->sync(leaving(tokens, 155, 200)) == 155);
  BOOST_TEST(process.n_pages_known() == 150 / kPageTokens);
  BOOST_TEST(process.session->sync(leaving(tokens, 140, 200)) == 140);
  BOOST_TEST(process.n_pages_known() == 340 / kPageTokens);
}

BOOST_AUTO_TEST_SUITE_END()
