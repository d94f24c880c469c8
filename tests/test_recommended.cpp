// cli/recommended: what a model's file recommends to draw by, and who wins over it.
#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "cli/options/options.h"
#include "tests/support/contains.h"
#include "tests/support/gguf_writer.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(recommended)

namespace {

// What is drawn by with these words on the command line and a file that says this.
SamplingOptions drawn_by(const std::vector<std::string>& words, const GgufWriter& writer) {
  const GgufImage image = writer.image();
  const GgufFile file(image.bytes, "a.gguf");
  return with_recommended(parse_options(Command::run, words), file).generation.sampling;
}

GgufWriter recommending(float temperature) {
  GgufWriter writer;
  writer.add("general.sampling.temp", temperature);
  return writer;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_file_sets_defaults) {
  GgufWriter writer = recommending(0.1f);
  writer.add("general.sampling.top_k", int32_t{40});
  writer.add("general.sampling.top_p", 0.9f);
  writer.add("general.sampling.min_p", 0.05f);
  const SamplingOptions sampling = drawn_by({"hi"}, writer);
  BOOST_TEST(sampling.temperature == 0.1f);
  BOOST_TEST(sampling.top_k == 40);
  BOOST_TEST(sampling.top_p == 0.9f);
  BOOST_TEST(sampling.min_p == 0.05f);
}

BOOST_AUTO_TEST_CASE(a_top_k_of_minus_one_is_all) {
  for (const int32_t top_k : {-1, 0}) {
    GgufWriter writer;
    writer.add("general.sampling.top_k", top_k);
    const SamplingOptions sampling = drawn_by({"hi"}, writer);
    BOOST_TEST(sampling.rule(0).top_k == 0);
    BOOST_TEST(sampling.top_k == top_k);
  }
  GgufWriter writer;
  writer.add("general.sampling.top_k", int32_t{-2});
  BOOST_CHECK_EXCEPTION(drawn_by({"hi"}, writer), Error,
                        [](const Error& error) { return contains(error.what(), "top_k is -2"); });
}

BOOST_AUTO_TEST_CASE(what_a_file_does_not_say_stays) {
  const SamplingOptions sampling = drawn_by({"hi"}, recommending(0));
  BOOST_TEST(sampling.temperature == 0);
  BOOST_TEST(sampling.top_p == SamplingOptions().top_p);
  BOOST_TEST(drawn_by({"hi"}, GgufWriter()).temperature == SamplingOptions().temperature);
}

BOOST_AUTO_TEST_CASE(the_command_line_wins) {
  BOOST_TEST(drawn_by({"--temp", "0.7", "hi"}, recommending(0)).temperature == 0.7f);
  BOOST_TEST(drawn_by({"--temp", "1", "hi"}, recommending(0)).temperature == 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_drawn_by_is_named) {
  try {
    drawn_by({"hi"}, recommending(-1));
    BOOST_ERROR("a temperature of -1 was taken");
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == ErrorKind::model));
    BOOST_TEST(contains(error.what(), "a.gguf recommends general.sampling.temp -1"));
    BOOST_TEST(contains(error.hint(), "--temp"));
  }
  BOOST_TEST(drawn_by({"--temp", "2", "hi"}, recommending(-1)).temperature == 2);
}

BOOST_AUTO_TEST_SUITE_END()
