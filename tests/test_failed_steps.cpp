// Steps that fail in their midst: the next one begins as if they had not been.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "tests/support/forward_scene.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(failed_steps)

namespace {

// Has fetches under way between its operations, as a device has, and attends only as often as it is told to.
class FailingBackend : public CpuBackend {
 public:
  FailingBackend() : CpuBackend(1) {}
  int n_fetches = 0, n_most_fetches = 0, n_begun = 0, n_attends = 1 << 30;

  void begin_step() override { n_fetches = 0, ++n_begun; }
  void fetch_latents(const FetchLatents& op) override {
    n_most_fetches = std::max(n_most_fetches, ++n_fetches);
    CpuBackend::fetch_latents(op);
  }
  void attend(const Attend& op) override {
    if (n_attends-- == 0) fail(ErrorKind::device, "a test");
    if (op.row_ids) --n_fetches;
    CpuBackend::attend(op);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_next_step_begins_anew) {
  FailingBackend backend;
  CpuBackend plain(1);
  ForwardScene scene(backend, ForwardScene::kTopk + 8), expected(plain, ForwardScene::kTopk + 8);
  while (scene.sequence->n_tokens() < ForwardScene::kPrompt + 20) {  // it outgrows its slots on the way
    const auto token = static_cast<int32_t>(scene.sequence->n_tokens());
    for (int n = 0; n < scene.args.n_layers; ++n) {
      backend.n_attends = n;
      BOOST_CHECK_THROW(scene.step(token), Error);
    }
    backend.n_attends = 1 << 30;
    const int n_before = backend.n_begun;
    BOOST_TEST((scene.step(token) == expected.step(token)));
    BOOST_TEST(backend.n_begun == n_before + 1);
  }
  BOOST_TEST(backend.n_most_fetches == 1);
}

BOOST_AUTO_TEST_SUITE_END()
