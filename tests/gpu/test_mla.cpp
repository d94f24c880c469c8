// Sparse MLA on the GPU against the CPU backend: every kv type, sizes for the tensor cores and others, all
// ways of dealing rows out.
#include <cstring>

#include "tests/gpu/mla_scene.h"
#include "tests/gpu/products.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_mla, *boost::unit_test::precondition(needs_gpu))

using namespace mla_test;
using mla_test::Shape;  // not that of constraints

namespace {

// The tensor-core kernel rounds queries and weights to bf16: 2^-9 at most each, 2^-10.3 on average. With
// scores of standard deviation 1 to 2, as here, a weight errs by 0.1 to 0.2 % for the query's sake and as
// much again for its own; over rows that compete it averages out. The limit is for the worst of all heads.
constexpr double kTensorCoreError = 1e-2;

// In prefill on Hopper they are fp16: 2^-11 at most each, an eighth of the above. Scores err by 2e-4 of
// their standard deviation, weights by 2e-4 again; 4e-4 is expected of a head, this is for the worst.
constexpr double kPrefillError = 1.5e-3;

// Of prefill.
double prefill_error() {
  return cuda::card().family == KernelFamily::hopper ? kPrefillError : kTensorCoreError;
}

constexpr double kPlainError =
    1e-4;  // f32 throughout, other order of additions: 2^-24 times the root of 2048 rows, and expf

// The largest relative error of a head's output over the given tokens.
double worst_error(const Scene& scene, const std::vector<float>& ours, const std::vector<int64_t>& tokens) {
  const Shape& shape = scene.shape();
  double worst = 0;
  for (const int64_t t : tokens) {
    const std::vector<float> expected = scene.expected(t);
    for (int64_t h = 0; h < shape.n_heads; ++h) {
      const auto theirs = expected.begin() + h * shape.rank;
      const auto mine = ours.begin() + (t * shape.n_heads + h) * shape.rank;
      for (int64_t i = 0; i < shape.rank; ++i) BOOST_REQUIRE(std::isfinite(mine[i]));
      worst = std::max(worst, relative_error({mine, mine + shape.rank}, {theirs, theirs + shape.rank}));
    }
  }
  return worst;
}

// All tokens; of many every seventh, which meets every entry of n_selected.
std::vector<int64_t> tokens_to_check(const Shape& shape) {
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t<shape.n_tokens; t += shape.n_tokens> 16 ? 7 : 1) tokens.push_back(t);
  return tokens;
}

void check(const Shape& shape, double most, TestLaunch& launch) {
  const Scene scene(shape);
  const double worst = worst_error(scene, DeviceScene(scene).run(launch), tokens_to_check(shape));
  BOOST_TEST(worst < most, "attend: kv type " << static_cast<int>(shape.kv_type) << ", " << shape.n_heads
                                              << " heads, " << shape.n_tokens << " tokens, first with "
                                              << shape.n_selected[0] << " rows: error " << worst);
}

void print_time(const char* what, const Shape& shape) {
  const Scene scene(shape);
  const DeviceScene device(scene);
  TestLaunch launch;
  const Attend op = shape.role == Role::prefill ? device.attend_by_position() : device.attend();
  const double seconds = launch.seconds([&] { cuda::attend(op, launch.launch()); });
  const double n_pairs = static_cast<double>(shape.n_tokens * shape.n_heads) * shape.n_selected[0];
  const double n_row_bytes =
      static_cast<double>(shape.n_tokens) * shape.n_selected[0] *
      static_cast<double>(scene.attend(scene.host(), nullptr, 0, 1).cache.layout.row_bytes());
  std::printf("attend %-28s %9.1f us  %7.1f TFLOP/s  %7.1f GB/s of rows\n", what, seconds * 1e6,
              n_pairs * 2 * (2 * 512 + 64) / seconds / 1e12, n_row_bytes / seconds / 1e9);
  const double most = shape.role == Role::prefill ? prefill_error() : kTensorCoreError;
  BOOST_TEST(worst_error(scene, device.o_c().values(), {shape.n_tokens - 1}) < most);
}

}  // namespace

BOOST_AUTO_TEST_CASE(any_number_of_heads_and_kv_type) {
  TestLaunch launch;
  int n_cases = 0;
  for (const int64_t n_heads : {1, 3, 8, 16, 17, 32, 40, 64, 128})
    for (const bool has_slots : {false, true})
      for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
        if (is_left_out(n_cases, 5)) continue;
        check({.kv_type = kv_type,
               .n_heads = n_heads,
               .n_tokens = 2,
               .n_seqs = 2,
               .context = 400,
               .topk = 320,
               .n_selected = {300, 170},
               .has_slots = has_slots},
              kTensorCoreError, launch);
      }
}

BOOST_AUTO_TEST_CASE(any_number_of_rows) {
  TestLaunch launch;
  const std::vector<int32_t> counts = {1, 5, 63, 64, 65, 128, 129, 2047, 2048};
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    for (const int32_t n : counts)
      if (!is_left_out(n_cases, 4))
        check({.kv_type = kv_type, .n_heads = 20, .n_selected = {n}}, kTensorCoreError, launch);
    check({.kv_type = kv_type,
           .n_heads = 64,
           .n_tokens = 9,
           .n_seqs = 3,
           .n_selected = counts,
           .has_slots = true},
          kTensorCoreError, launch);
  }
}

// Rows are not dealt out, and 64 heads share a CTA.
BOOST_AUTO_TEST_CASE(prefill) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const int64_t n_heads : {16, 100})
      if (!is_left_out(n_cases, 3))
        check({.kv_type = kv_type,
               .n_heads = n_heads,
               .n_tokens = 150,
               .n_seqs = 4,
               .context = 300,
               .topk = 192,
               .n_selected = {192, 1, 63, 64, 65, 190},
               .role = Role::prefill},
              prefill_error(), launch);
}

// Queries beyond fp16's range either way have units of their own. Latents have none: fp8 rows of 1e4 times
// the usual size just fit, and 1e-4 is what tiles are never scaled below.
BOOST_AUTO_TEST_CASE(queries_and_latents_of_any_magnitude) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const auto& [query_size, latent_size] :
         {std::pair{1e6f, 1.0f}, {1e-6f, 1.0f}, {1e15f, 1.0f}, {3.0f, 1e4f}, {3.0f, 1e-4f}})
      if (!is_left_out(n_cases, 7))
        check({.kv_type = kv_type,
               .n_heads = 100,
               .n_tokens = 100,
               .n_seqs = 2,
               .context = 300,
               .topk = 192,
               .n_selected = {192, 65, 100},
               .query_size = query_size,
               .latent_size = latent_size,
               .role = Role::prefill},
              prefill_error(), launch);
}

BOOST_AUTO_TEST_CASE(prefill_with_many_rows) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    if (!is_left_out(n_cases, 2))
      check({.kv_type = kv_type,
             .n_heads = 100,
             .n_tokens = 70,
             .n_seqs = 2,
             .n_selected = {2048, 65, 1, 2047, 5, 1000, 64, 129, 1985},
             .role = Role::prefill},
            prefill_error(), launch);
}

// A topk that no token comes near: a dense model selects every position of its context.
BOOST_AUTO_TEST_CASE(far_fewer_rows_than_could_be) {
  TestLaunch launch;
  for (const int64_t n_tokens : {1, 3, 140})
    check({.n_heads = 32, .n_tokens = n_tokens, .context = 900, .topk = 40000, .n_selected = {900, 70, 1}},
          kTensorCoreError, launch);
}

// One weight is nearly 1, scores reach thousands; it comes early for some heads and late for others.
BOOST_AUTO_TEST_CASE(one_row_dominates) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const int64_t n_tokens : {1, 140})
      if (!is_left_out(n_cases, 3))
        check({.kv_type = kv_type,
               .n_heads = 64,
               .n_tokens = n_tokens,
               .context = 700,
               .topk = 512,
               .n_selected = {512, 511},
               .is_dominated = true,
               .role = n_tokens == 140 ? Role::prefill : Role::decode},
              n_tokens == 140 ? prefill_error() : kTensorCoreError, launch);
}

BOOST_AUTO_TEST_CASE(other_sizes_take_the_plain_kernel) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32})
    for (const int64_t rank : {160, 37, 512})
      for (const int32_t n : {1, 32, 33, 200}) {
        if ((rank == 512 && kv_type != KvType::f32) || is_left_out(n_cases, 3)) continue;
        check({.kv_type = kv_type,
               .n_heads = 3,
               .n_tokens = 3,
               .n_seqs = 2,
               .context = 250,
               .topk = 210,
               .n_selected = {n, 210},
               .has_slots = n == 33,
               .rank = rank,
               .rope_dim = rank == 512 ? 64 : 32},
              kPlainError, launch);
      }
}

BOOST_AUTO_TEST_CASE(slots_and_resident_rows_give_the_same_bits) {
  TestLaunch launch;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32})
    for (const auto& [role, n_tokens] :
         {std::pair{Role::decode, 1}, {Role::decode, 5}, {Role::prefill, 1}, {Role::prefill, 140}}) {
      if (is_left_out(n_cases, 4)) continue;
      const Scene scene({.kv_type = kv_type,
                         .n_heads = 33,
                         .n_tokens = n_tokens,
                         .n_seqs = 2,
                         .context = 500,
                         .topk = 256,
                         .n_selected = {256, 100},
                         .has_slots = true,
                         .role = role});
      const DeviceScene device(scene);
      const std::vector<float> first = device.run(launch), again = device.run(launch);
      BOOST_TEST(std::equal(first.begin(), first.end(), again.begin()));
      const DeviceArray<int64_t> resident_ids(scene.resident_ids());
      Attend op = device.attend();
      op.cache.slots = device.rows(), op.row_ids = resident_ids.data();
      cuda::attend(op, launch.launch());
      const std::vector<float> resident = device.o_c().values();
      BOOST_TEST(std::equal(first.begin(), first.end(), resident.begin()));
    }
}

// Rows of a prompt that many tokens share are widened once, those that few do by each token: the same bits.
BOOST_AUTO_TEST_CASE(rows_widened_ahead_give_the_same_bits) {
  TestLaunch launch;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    const Scene scene({.kv_type = kv_type,
                       .n_heads = 100,
                       .n_tokens = 40,
                       .context = 2300,
                       .topk = 2240,
                       .n_selected = {2240, 65, 1, 2047, 2048, 2049, 700, 64, 129},
                       .role = Role::prefill});
    const DeviceScene device(scene);
    const std::vector<float> apart = device.run(launch);
    const std::vector<float> ahead = device.run(device.attend_by_position(), launch);
    BOOST_TEST(std::memcmp(apart.data(), ahead.data(), apart.size() * sizeof(float)) == 0);
  }
}

// What attention leaves to the product with W_UV as fp16 is what that product makes of f32 outputs.
BOOST_AUTO_TEST_CASE(rounded_outputs_are_the_next_products_activations) {
  TestLaunch launch;
  constexpr int64_t kHeads = 100, kTokens = 300, kRows = 64;
  const TestWeights weights(TensorType::q8_0, kHeads, kRows, 512, 4);
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    const Scene scene({.kv_type = kv_type,
                       .n_heads = kHeads,
                       .n_tokens = kTokens,
                       .context = 300,
                       .topk = 192,
                       .n_selected = {192, 1, 63, 64, 65, 190},
                       .role = Role::prefill});
    const DeviceScene device(scene);
    const Attend op = device.attend_by_position();
    BOOST_TEST(cuda::attends_rounded(op) == (prefill_error() == kPrefillError));
    const auto outputs = [&](bool is_rounded) {
      cuda::attend(op, launch.launch(), is_rounded);
      const DeviceArray<float> y(static_cast<size_t>(kTokens * kHeads * kRows));
      cuda::matmul_heads_prefill({weights.on_device(), op.o_c, kHeads * 512, 512, y.data(), kTokens},
                                 launch.launch(), is_rounded);
      return y.values();
    };
    const std::vector<float> plain = outputs(false), rounded = outputs(cuda::attends_rounded(op));
    BOOST_TEST(std::memcmp(plain.data(), rounded.data(), plain.size() * sizeof(float)) == 0);
  }
}

// Alone, beside others, at any place among them, and with a top-k that leaves more room: the same bits. 70
// tokens of 128 heads want more scratch memory than there is, so that they are computed in groups.
BOOST_AUTO_TEST_CASE(a_tokens_bits_do_not_depend_on_the_others) {
  TestLaunch launch(size_t{32} << 20);
  struct Case {
    KvType kv_type;
    Role role;
    int64_t n_heads, n_tokens;
  };
  int n_cases = 0;
  for (const Case& c : {Case{KvType::fp8, Role::decode, 128, 70},
                        {KvType::fp8, Role::prefill, 128, 70},
                        {KvType::bf16, Role::decode, 40, 9},
                        {KvType::bf16, Role::prefill, 40, 200},
                        {KvType::fp8, Role::decode, 16, 150},
                        {KvType::fp8, Role::prefill, 16, 30},
                        {KvType::f32, Role::decode, 3, 20},
                        {KvType::f32, Role::prefill, 3, 20}}) {
    if (is_left_out(n_cases, 5)) continue;
    const Scene scene({.kv_type = c.kv_type,
                       .n_heads = c.n_heads,
                       .n_tokens = c.n_tokens,
                       .n_seqs = 3,
                       .context = 2300,
                       .topk = 2240,
                       .n_selected = {2240, 65, 1, 2047, 2048, 2049, 700, 64, 129},
                       .role = c.role});
    const DeviceScene device(scene);
    const std::vector<float> together = device.run(launch);
    const auto width = static_cast<size_t>(c.n_heads * scene.shape().rank);
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 1},
                                   {1, 1},
                                   {3, 5},
                                   {5, 1},
                                   {6, 3},
                                   {c.n_tokens - 1, 1},
                                   {c.n_tokens / 2, 4},
                                   {2, std::min(c.n_tokens - 2, int64_t{20})}}) {
      cuda::attend(device.attend(first, n), launch.launch());
      const std::vector<float> apart = device.o_c().values();
      BOOST_TEST(std::memcmp(apart.data(), together.data() + static_cast<size_t>(first) * width,
                             static_cast<size_t>(n) * width * sizeof(float)) == 0,
                 "tokens from " << first << ", " << n << " of " << c.n_tokens << ", " << c.n_heads
                                << " heads, kv type " << static_cast<int>(c.kv_type) << ", "
                                << (c.role == Role::decode ? "decode" : "prefill"));
    }
  }
}

// One to four tokens are cut finer than many, whether their rows lie by position or not: the same bits.
BOOST_AUTO_TEST_CASE(few_tokens_have_the_bits_of_many) {
  TestLaunch launch;
  constexpr int64_t kTokens = 14;
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const int64_t n_heads : {128, 64, 33}) {
      if (is_left_out(n_cases, 3)) continue;
      const Scene scene({.kv_type = kv_type,
                         .n_heads = n_heads,
                         .n_tokens = kTokens,
                         .n_seqs = 3,
                         .n_selected = {2048, 65, 1, 2047, 5, 1000, 64, 129, 1985, 1024, 1025, 63}});
      const DeviceScene device(scene);
      const std::vector<float> many = device.run(launch);
      const auto width = static_cast<size_t>(n_heads * scene.shape().rank);
      for (int64_t first = 0; first < kTokens; ++first)
        for (const int64_t n : {1, 2, 3, 4})
          for (const bool is_by_position : {false, true}) {
            if (first + n > kTokens) continue;
            Attend op = device.attend(first, n);
            if (is_by_position) op = device.by_position(op);
            const std::vector<float> few = device.run(op, launch);
            BOOST_TEST(std::memcmp(few.data(), many.data() + static_cast<size_t>(first) * width,
                                   static_cast<size_t>(n) * width * sizeof(float)) == 0,
                       "tokens from " << first << ", " << n << " of " << n_heads << " heads, kv type "
                                      << static_cast<int>(kv_type)
                                      << (is_by_position ? ", by position" : ""));
          }
    }
}

BOOST_AUTO_TEST_CASE(a_captured_step_replays) {
  TestLaunch launch;
  const Scene scene({.n_heads = 128, .context = 400, .topk = 320, .n_selected = {300}});
  const DeviceScene device(scene);
  const std::vector<float> direct = device.run(launch);
  CUDA_CHECK(cudaMemset(device.o_c().data(), 0xff, device.o_c().size() * sizeof(float)));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_CHECK(cudaStreamBeginCapture(launch.stream(), cudaStreamCaptureModeThreadLocal));
  cuda::attend(device.attend(), launch.launch());
  CUDA_CHECK(cudaStreamEndCapture(launch.stream(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(executable, launch.stream()));
  const std::vector<float> replayed = device.o_c().values();
  BOOST_TEST(std::equal(direct.begin(), direct.end(), replayed.begin()));
  CUDA_CHECK(cudaGraphExecDestroy(executable));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::label("timing")) {
  print_time("fp8, 1 token", {.context = 8192});
  print_time("bf16, 1 token", {.kv_type = KvType::bf16, .context = 8192});
  print_time("fp8, 1 token, 16 heads", {.n_heads = 16, .context = 8192});
  for (const int64_t n_tokens : {2, 3, 4, 8, 16, 32, 64, 128})
    print_time(format("fp8, %lld tokens", static_cast<long long>(n_tokens)).c_str(),
               {.n_tokens = n_tokens, .context = 8192, .n_queries = 32});
  print_time("fp8, prefill, 1 token", {.context = 8192, .role = Role::prefill});
  print_time("fp8, prefill, 64 tokens", {.n_tokens = 64, .context = 8192, .role = Role::prefill});
  print_time("fp8, prefill, 2048 tokens",
             {.n_tokens = 2048, .context = 8192, .n_queries = 32, .role = Role::prefill});
  print_time(
      "bf16, prefill, 2048 tokens",
      {.kv_type = KvType::bf16, .n_tokens = 2048, .context = 8192, .n_queries = 32, .role = Role::prefill});
}

BOOST_AUTO_TEST_SUITE_END()
