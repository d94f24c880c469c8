// What a plan is reckoned to weigh and how fast it is said to be, beside published files and measured
// machines.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "engine/plan.h"
#include "weights/synthetic.h"

using namespace dsv32;

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Two GPUs of a kind, 240 GiB of the host given to the program.
Machine two(const char* kind, const SyntheticTypes& types) {
  const uint64_t n_total = find_gpu(kind)->n_bytes, n_free = n_total - (kGiB + (uint64_t{261} << 20));
  const MemoryInfo gpu{n_total, n_free, uint64_t{261} << 20};
  return {true, model_bytes(full_size_args(61, 3), types), {gpu, gpu}, {256 * kGiB, 240 * kGiB, 0}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_speed)

// Files of V3 on Hugging Face (mradermacher/DeepSeek-V3-GGUF and -i1-GGUF), GB. They have no indexer, 0.13 %
// of the weights; Q2_K_L is unsloth's 228 GiB; the last line is V3.2's own.
BOOST_AUTO_TEST_CASE(mixes_weigh_what_published_files_do) {
  struct Published {
    const char* name;
    double size;
  };
  for (const Published& file : std::initializer_list<Published>{
           {"IQ1_S", 133.7},  {"IQ1_M", 149.0},  {"IQ2_XXS", 174.5}, {"IQ2_XS", 195.2}, {"IQ2_S", 197.1},
           {"IQ2_M", 217.5},  {"Q2_K_S", 224.8}, {"Q2_K", 244.1},    {"Q2_K_L", 244.8}, {"IQ3_XXS", 258.0},
           {"IQ3_XS", 272.9}, {"IQ3_S", 289.2},  {"IQ3_M", 292.2},   {"Q3_K_S", 289.2}, {"Q3_K_M", 319.3},
           {"Q3_K_L", 347.5}, {"IQ4_XS", 357.2}, {"Q4_0", 379.1},    {"Q4_1", 420.0},   {"Q4_K_S", 380.1},
           {"Q5_K_S", 461.9}, {"Q5_K_M", 475.5}, {"Q6_K", 550.9},    {"Q8_0", 713.4},   {"Q4_K_M", 404.5},
           {"q4_k_m", 404.0}, {"q8_0", 713.9}}) {
    const QuantMix* mix = find_mix(file.name);
    BOOST_REQUIRE_MESSAGE(mix, file.name);
    const double size =
        static_cast<double>(total_bytes(model_bytes(full_size_args(61, 3), {.mix = mix}))) / 1e9;
    BOOST_TEST(std::abs(size / file.size - 1) < 0.01, file.name << ": " << size << " of " << file.size);
  }
  BOOST_TEST(!find_mix("Q4_K"));
}

// Rows of docs/performance.md, 61 layers over several memories: tokens a second at 4 096 tokens.
BOOST_AUTO_TEST_CASE(expected_speeds_are_those_measured_within_15_percent) {
  struct Measured {
    const char* gpu;
    TensorType type;
    int64_t n_prompt;
    double decode, prompt;
  };
  const ModelArgs args = full_size_args(61, 3);
  for (const Measured& row : {Measured{"H200", TensorType::q2_k, 8192, 109.1, 4610},
                              Measured{"H200", TensorType::q4_k, 32768, 31.7, 4537},
                              Measured{"H100", TensorType::q2_k, 8192, 32.7, 2478},
                              Measured{"H100", TensorType::q4_k, 32768, 13.3, 2615}}) {
    const Machine machine = two(row.gpu, {.matrices = row.type});
    EngineOptions options;
    options.context = 65536;
    const MemoryPlan plan = make_plan(args, options, machine);
    const auto speed = expected_speed(args, plan, machine, kServerThreads, row.n_prompt);
    BOOST_REQUIRE(speed);
    const std::string name = row.gpu + std::string(", ") + type_name(row.type);
    BOOST_TEST(std::abs(speed->decode_rate / row.decode - 1) < 0.15, name << ": " << speed->decode_rate);
    BOOST_TEST(std::abs(speed->prompt_rate / row.prompt - 1) < 0.15, name << ": " << speed->prompt_rate);
  }
}

// Fewer threads read less; without a GPU nothing is known of prompts, and of other shapes nothing at all.
BOOST_AUTO_TEST_CASE(what_was_not_timed_is_not_reckoned) {
  const ModelArgs args = full_size_args(61, 3), small = full_size_args(6, 3);
  const Machine host{.weights = model_bytes(args, {})};
  EngineOptions options;
  options.context = 4096;
  const MemoryPlan plan = make_plan(args, options, host);
  const auto all = expected_speed(args, plan, host), few = expected_speed(args, plan, host, 2);
  BOOST_REQUIRE((all && few));
  BOOST_TEST(few->decode_rate < all->decode_rate / 5);
  BOOST_TEST(all->prompt_rate == 0);
  const Machine other{.weights = model_bytes(small, {})};
  BOOST_TEST(!expected_speed(small, make_plan(small, options, other), other));
}

BOOST_AUTO_TEST_SUITE_END()
