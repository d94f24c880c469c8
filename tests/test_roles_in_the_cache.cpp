// Prefixes where decode gives other bits than prefill, as on a GPU: what a prompt finds is what prefill would
// compute, wherever it leaves what is known, also behind answers; and a talk that is resumed finds its
// answers.
#include <boost/test/unit_test.hpp>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cpu_backend.h"
#include "tests/support/talk_on_disk.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(roles_in_the_cache)

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

using Runs = std::vector<TokenRun>;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

std::vector<int32_t> leaving(std::vector<int32_t> tokens, size_t n, int64_t n_others) {
  tokens.resize(n);
  for (const int32_t token : random_tokens(n_others, 9)) tokens.push_back(token);
  return tokens;
}

}  // namespace

BOOST_AUTO_TEST_CASE(cold_and_cached_are_the_same_bits_at_random_places) {
  with_roles_apart().check_random_places(12);
  with_roles_that_agree().check_random_places(6);
}

// A prompt that repeats what was said finds only what prefill would make.
BOOST_AUTO_TEST_CASE(answers_are_known_to_others_where_the_roles_agree) {
  for (const bool roles_agree : {false, true}) {
    const TalkOnDisk talk = roles_agree ? with_roles_that_agree() : with_roles_apart();
    TalkOnDisk::Process process = talk.start(true);
    const std::vector<int32_t> tokens = talk.ask(*process.sequence, 150, 90, 1);
    BOOST_TEST(process.n_pages_known() == 240 / kPageTokens);
    BOOST_TEST((process.sequence->decoded() == (roles_agree ? Runs{} : Runs{{150, 240}})));
    process.sequence.reset();
    BOOST_TEST(ByHand(*process.engine).hold(leaving(tokens, 240, 3)) == (roles_agree ? 192 : 150));
  }
}

// In another process too, if it says which tokens are answers; and it goes on with the bits of the first.
BOOST_AUTO_TEST_CASE(a_resumed_talk_finds_its_answers) {
  const TalkOnDisk talk = with_roles_apart();
  Runs decoded;
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  {
    const TalkOnDisk::Process first = talk.start(true);
    talk.ask(*first.sequence, 150, 90, 1);
    tokens = talk.ask(*first.sequence, 70, 80, 2);
    decoded = first.sequence->decoded();
    BOOST_TEST((decoded == Runs{{150, 240}, {310, 390}}));
    tokens.insert(tokens.end(), {1, 2, 3});
    first.sequence->sync(tokens);
    logits = first.sequence->logits();
  }
  const TalkOnDisk::Process resumed = talk.start(true), told_wrong = talk.start(true);
  BOOST_TEST(resumed.sequence->hold(tokens, kAll, decoded) == 384);
  while (resumed.sequence->tokens().size() < tokens.size())
    resumed.sequence->read_chunk(tokens, resumed.engine->plan().chunk);
  // Of the last answer six tokens lie in no whole page. They are read as a prompt here.
  BOOST_TEST((resumed.sequence->decoded() == Runs{{150, 240}, {310, 384}}));
  BOOST_TEST((resumed.sequence->logits() != logits));
  // Who names other tokens finds what comes before them, and loses nothing but time.
  BOOST_TEST(told_wrong.sequence->hold(tokens, kAll, Runs{{100, 240}}) == 64);
  BOOST_TEST(told_wrong.sequence->decoded().empty());
}

BOOST_AUTO_TEST_CASE(a_resumed_talk_goes_on_with_the_same_bits) { with_roles_apart().check_resumed(); }

BOOST_AUTO_TEST_SUITE_END()
