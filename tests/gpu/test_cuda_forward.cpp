// The whole forward pass on the GPU: against the golden files, against the CPU on the tiny model, and the
// equalities: within a role a token's bits follow from its own sequence alone.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "cuda/cuda_backend.h"
#include "engine/loop.h"
#include "engine/sequence.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/company.h"
#include "tests/support/golden.h"
#include "tests/support/same_bits.h"
#include "tests/support/scaled_model.h"
#include "tests/support/supported_types.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"
#include "text/tokenizer.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_forward, *boost::unit_test::precondition(needs_gpu))

namespace {

struct Run {
  const char* backend = "cuda";
  KvType kv_type = KvType::fp8;
  int64_t chunk = 512;
  bool decodes = false;  // every token is a decode step
  std::optional<int64_t> topk_buffer = {};
};

EngineOptions options_of(const Run& run, int64_t context) {
  EngineOptions options;
  options.backend = run.backend;
  options.kv_type = run.kv_type;
  options.chunk = run.chunk;
  options.topk_buffer = run.topk_buffer;
  options.context = context;
  return options;
}

std::vector<float> logits_of(const std::string& path, const Run& run, std::span<const int32_t> tokens,
                             Forward::BufferTally* tally = nullptr) {
  const GgufFile file(path);
  Engine engine(file, options_of(run, static_cast<int64_t>(tokens.size())));
  std::vector<float> logits = run_alone(engine, tokens, run.decodes ? 0 : std::ssize(tokens));
  if (tally) *tally = engine.forward().buffer_tally();
  return logits;
}

const std::string& tiny_path() {
  static const TempDir dir;
  static const std::string path = [] {
    const std::string name = dir.file("tiny.gguf");
    write_tiny_model(name, {});
    return name;
  }();
  return path;
}

// A model that chooses neither rows nor experts. types: what its matrices take in turn, or the usual ones.
void write_smooth_model(const std::string& path, const std::vector<TensorType>& types = {}) {
  TinyModel shape;
  shape.only_types = types;
  shape.index_topk = 4096;
  shape.n_routed_experts = shape.n_activated_experts = 4;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  write_tiny_model(path, shape);
}

// More than 32 heads, for which Hopper has a kernel of its own in prefill, and top-k of several blocks of
// rows.
const std::string& wide_path() {
  static const TempDir dir;
  static const std::string path = [] {
    const std::string name = dir.file("wide.gguf");
    TinyModel shape;
    shape.n_layers = 3, shape.n_dense_layers = 1, shape.n_heads = 40, shape.index_topk = 150;
    write_tiny_model(name, shape);
    return name;
  }();
  return path;
}

const char* role_name(bool decodes) { return decodes ? "decode" : "prefill"; }

// Each sequence of a company gets what it gets alone.
void check_company(const std::string& path, const Company& company, int64_t every = 1) {
  const GgufFile file(path);
  const std::unique_ptr<Backend> backend = make_cuda_backend(0, {});
  const CompanyLogits together = run_together(*backend, file, company);
  Engine engine(file, options_of({}, company.longest + company.n_decoded));
  for (int64_t s = 0; s < company.n_seqs; s += every)
    BOOST_TEST(same_bits(together.of[static_cast<size_t>(s)],
                         run_alone(engine, company.tokens(s), company.n_prompt(s))),
               "sequence " << s << " of " << company.n_seqs << ", buffer of " << company.buffer_rows);
  if (company.buffer_rows) BOOST_TEST(together.n_misses > 0);
}

// Rows whose deviation from the other's is below 2e-2 of the largest logit, as a share.
double share_of_close_rows(const std::vector<float>& ours, const std::vector<float>& others, size_t n_rows) {
  const size_t width = ours.size() / n_rows;
  float largest = 0;
  for (const float x : others) largest = std::max(largest, std::fabs(x));
  size_t n_close = 0;
  for (size_t r = 0; r < n_rows; ++r) {
    float worst = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      const float difference = std::fabs(ours[i] - others[i]);
      worst = std::max(worst, std::isfinite(difference) ? difference : INFINITY);
    }
    n_close += worst <= 2e-2f * largest;
  }
  return static_cast<double>(n_close) / static_cast<double>(n_rows);
}

}  // namespace

// Powers of two: in decode not a bit is another, and in a prompt fp16 rounds small values otherwise.
BOOST_AUTO_TEST_CASE(factors_beside_matrices_are_applied) {
  const TempDir dir;
  TinyModel shape;
  shape.only_types = {TensorType::nvfp4};
  shape.n_layers = 4, shape.index_topk = 4096, shape.moe_inter_dim = 1024;
  shape.n_routed_experts = shape.n_activated_experts = 4;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  GgufWriter model = tiny_model(shape);
  model.write(dir.file("plain.gguf"));
  take_out_powers(model);
  model.write(dir.file("scaled.gguf"));
  const std::vector<int32_t> tokens = random_tokens(60, 7);
  for (const bool decodes : {true, false})
    for (const int64_t n_cpu_experts : {0, 1}) {
      const auto logits = [&](const char* name) {
        const GgufFile file(dir.file(name));
        EngineOptions options = options_of({}, 64);
        options.n_cpu_experts = n_cpu_experts;
        Engine engine(file, options);
        return run_alone(engine, tokens, decodes ? 0 : std::ssize(tokens));
      };
      const std::vector<float> ours = logits("scaled.gguf"), expected = logits("plain.gguf");
      if (decodes) {
        BOOST_TEST(same_bits(ours, expected));
        continue;
      }
      float largest = 0, worst = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        largest = std::max(largest, std::fabs(expected[i]));
        const float difference = std::fabs(ours[i] - expected[i]);
        worst = std::max(worst, std::isfinite(difference) ? difference : INFINITY);
      }
      BOOST_TEST(worst <= 1e-2f * largest);
    }
}

// Random weights choose chaotically: one other row of top-k, or one other expert, and a logit is somewhere
// else. The golden tokens keep 1e-3 of distance from every such border. Products round activations to fp16,
// so a row of a prompt may choose otherwise, and the others must agree; of what is decoded all do.
BOOST_AUTO_TEST_CASE(unrounded_storage_agrees_with_the_golden_files) {
  int n_cases = 0;
  for (const char* name : {"small", "groups", "wide", "odd"})
    for (const bool decodes : {true, false}) {
      if (is_left_out(n_cases, 7)) continue;
      const std::string stem = std::string("tests/golden/forward_") + name;
      const Golden golden(stem + ".bin");
      const std::vector<float> logits =
          logits_of(stem + ".gguf", {.kv_type = KvType::f32, .decodes = decodes}, golden.ints("tokens"));
      const auto width = static_cast<int64_t>(logits.size() / golden.ints("tokens").size());
      std::vector<float> kept;
      for (const int32_t pos : golden.ints("positions"))
        kept.insert(kept.end(), logits.begin() + pos * width, logits.begin() + (pos + 1) * width);
      const auto expected = golden.values("logits");
      const double close =
          share_of_close_rows(kept, {expected.begin(), expected.end()}, golden.ints("positions").size());
      std::printf("%s, %s: %.1f %% of the rows within 2e-2 of the largest logit\n", name, role_name(decodes),
                  100 * close);
      BOOST_TEST(close >= (decodes ? 1.0 : 0.9));
    }
}

// With nothing to choose (top-k as large as the context, every expert active) the two backends agree in every
// row.
BOOST_AUTO_TEST_CASE(a_model_without_choices_agrees_with_the_cpu) {
  const TempDir dir;
  const std::string path = dir.file("smooth.gguf");
  write_smooth_model(path);
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    if (is_left_out(n_cases, 3)) continue;
    const std::vector<float> cpu = logits_of(path, {.backend = "cpu", .kv_type = kv_type}, tokens);
    for (const bool decodes : {true, false}) {
      const std::vector<float> gpu = logits_of(path, {.kv_type = kv_type, .decodes = decodes}, tokens);
      const double close = share_of_close_rows(gpu, cpu, tokens.size());
      std::printf("smooth model, kv type %d, %s: %.1f %% of the rows within 2e-2, distance %.2g\n",
                  static_cast<int>(kv_type), role_name(decodes), 100 * close, relative_error(gpu, cpu));
      if (kv_type == KvType::fp8)
        BOOST_TEST(relative_error(gpu, cpu) < 0.03);
      else
        BOOST_TEST(close == 1.0);
    }
  }
}

// The matrices of a layer may be of as many types as there are.
BOOST_AUTO_TEST_CASE(a_model_of_all_types_agrees_with_the_cpu) {
  const TempDir dir;
  const std::string path = dir.file("mixed.gguf");
  write_smooth_model(path, supported_types());
  const std::vector<int32_t> tokens = random_tokens(100, 1);
  const std::vector<float> cpu = logits_of(path, {.backend = "cpu", .kv_type = KvType::f32}, tokens);
  for (const bool decodes : {true, false}) {
    const std::vector<float> gpu = logits_of(path, {.kv_type = KvType::f32, .decodes = decodes}, tokens);
    BOOST_TEST(share_of_close_rows(gpu, cpu, tokens.size()) == 1.0, role_name(decodes));
  }
}

// The prompt decoded too, with nothing rounded: what the arg-max of random weights can bear.
BOOST_AUTO_TEST_CASE(greedy_text_equals_the_cpus) {
  const TempDir dir;
  const std::string path = dir.file("smooth.gguf");
  write_smooth_model(path);
  const GgufFile file(path);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const auto text = [&](const char* backend, const char* prompt) {
    Engine engine(file, options_of({.backend = backend, .kv_type = KvType::f32}, 256));
    ByHand sequence(engine);
    std::vector<int32_t> ids = tokenizer->encode(prompt, false);
    for (const int32_t id : ids) sequence.step(id);
    for (int i = 0; i < 40; ++i) {
      const std::vector<float>& logits = sequence.logits();
      ids.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
      sequence.step(ids.back());
    }
    return ids;
  };
  int n_cases = 0;
  for (const char* prompt : {"What is a latent row?", "one two three", "The key is"}) {
    if (is_left_out(n_cases, 3)) continue;
    BOOST_TEST(text("cuda", prompt) == text("cpu", prompt), boost::test_tools::per_element());
  }
}

// The tiny model chooses among near ties all the time: where rows are not rounded, four in ten stay, and the
// rest is printed.
BOOST_AUTO_TEST_CASE(the_tiny_model_stays_near_the_cpu) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::f32}) {
    if (is_left_out(n_cases, 2)) continue;
    const std::vector<float> cpu = logits_of(tiny_path(), {.backend = "cpu", .kv_type = kv_type}, tokens);
    for (const bool decodes : {true, false}) {
      const double close = share_of_close_rows(
          logits_of(tiny_path(), {.kv_type = kv_type, .decodes = decodes}, tokens), cpu, tokens.size());
      std::printf("tiny model, kv type %d, %s: %.1f %% of the rows within 2e-2 of the largest logit\n",
                  static_cast<int>(kv_type), role_name(decodes), 100 * close);
      if (kv_type == KvType::f32) BOOST_TEST(close >= 0.4);
    }
  }
}

// However a prompt is cut, down to single tokens, with every row resident or streamed through windows.
BOOST_AUTO_TEST_CASE(prefill_gives_the_same_bits_however_it_is_cut) {
  const std::vector<int32_t> tokens = random_tokens(700, 1);
  int n_cases = 0;
  for (const std::string& path : {tiny_path(), wide_path()})
    for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
      const std::vector<float> whole = logits_of(path, {.kv_type = kv_type, .chunk = 2048}, tokens);
      for (const int64_t chunk : {64, 512, 699}) {
        if (is_left_out(n_cases, 7)) continue;
        const std::optional<int64_t> buffer = chunk == 512 ? std::nullopt : std::optional<int64_t>(256);
        BOOST_TEST(
            same_bits(logits_of(path, {.kv_type = kv_type, .chunk = chunk, .topk_buffer = buffer}, tokens),
                      whole),
            "chunk " << chunk << ", kv type " << static_cast<int>(kv_type));
      }
    }
  const std::vector<int32_t> some(tokens.begin(), tokens.begin() + 200);
  for (const std::string& path : {tiny_path(), wide_path()})
    if (!is_left_out(n_cases, 2))
      BOOST_TEST(same_bits(logits_of(path, {.chunk = 1}, some), logits_of(path, {}, some)), "single tokens");
}

// What the sequence holds of the prompt already, cut at random and once with a single token left, changes
// neither the last token's logits nor those of the steps behind it.
BOOST_AUTO_TEST_CASE(a_held_beginning_changes_nothing) {
  const std::vector<int32_t> tokens = random_tokens(500, 1), others = random_tokens(500, 2);
  const GgufFile file(wide_path());
  int n_cases = 0;
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(256)}) {
    if (is_left_out(n_cases, 2)) continue;
    Engine engine(file, options_of({.topk_buffer = topk_buffer}, 600));
    const auto answer = [&](ByHand& sequence) {
      sequence.sync(tokens);
      std::vector<float> logits = sequence.logits();
      for (int32_t i = 0; i < 3; ++i) {
        sequence.step(i);
        logits.insert(logits.end(), sequence.logits().begin(), sequence.logits().end());
      }
      return logits;
    };
    std::vector<float> cold;
    {
      ByHand sequence(engine);
      cold = answer(sequence);
    }
    ByHand sequence(engine);
    Rng rng(3);
    for (int i = 0; i < 8; ++i) {
      const auto n = static_cast<int64_t>(i == 0 ? 499 : 1 + rng.next() % 499);
      std::vector<int32_t> mixed(tokens.begin(), tokens.begin() + n);
      mixed.insert(mixed.end(), others.begin(), others.begin() + static_cast<int64_t>(rng.next() % 40));
      sequence.sync(mixed);
      BOOST_TEST(same_bits(answer(sequence), cold), n << " tokens held");
    }
  }
}

// Prompts prefilled in the same steps, cut at random, then decoded in the same steps: each as if alone. 70
// are more than the products of decode take at once.
BOOST_AUTO_TEST_CASE(a_sequence_among_others_equals_itself_alone) {
  check_company(tiny_path(), {.n_seqs = 8, .is_apart = true});
  check_company(
      wide_path(),
      {.n_seqs = 8, .n_decoded = 20, .shortest = 1, .longest = 300, .buffer_rows = 160, .is_apart = true});
  if (has_argument("brief")) return;
  check_company(tiny_path(), {.n_seqs = 70, .n_decoded = 5, .shortest = 1, .longest = 150, .is_apart = true},
                9);
  check_company(
      wide_path(),
      {.n_seqs = 70, .n_decoded = 5, .shortest = 1, .longest = 200, .buffer_rows = 151, .is_apart = true},
      23);
}

// Rows streamed back through the windows are the rows that stayed: the same bits.
BOOST_AUTO_TEST_CASE(prefill_through_windows_equals_resident_prefill) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  for (const int64_t chunk : {64, 100}) {
    const std::vector<float> resident = logits_of(tiny_path(), {.chunk = chunk}, tokens);
    const std::vector<float> streamed = logits_of(tiny_path(), {.chunk = chunk, .topk_buffer = 64}, tokens);
    BOOST_TEST(std::memcmp(resident.data(), streamed.data(), resident.size() * sizeof(float)) == 0);
  }
}

// Decode reads the same rows in the same order wherever they lie: the same bits.
BOOST_AUTO_TEST_CASE(any_topk_buffer_equals_full_residency_bit_for_bit) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    if (is_left_out(n_cases, 2)) continue;
    const std::vector<float> full = logits_of(tiny_path(), {.kv_type = kv_type, .decodes = true}, tokens);
    for (const int64_t n_rows : {64, 65, 100, 200}) {
      Forward::BufferTally tally;
      const std::vector<float> buffered = logits_of(
          tiny_path(), {.kv_type = kv_type, .decodes = true, .topk_buffer = n_rows}, tokens, &tally);
      BOOST_TEST(std::memcmp(full.data(), buffered.data(), full.size() * sizeof(float)) == 0,
                 "buffer of " << n_rows);
      BOOST_TEST(tally.n_rows > 0);
      if (n_rows <= 100) BOOST_TEST(tally.n_misses > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_same_run_gives_the_same_bits) {
  const std::vector<int32_t> tokens = random_tokens(200, 1);
  int n_cases = 0;
  for (const bool decodes : {true, false})
    if (!is_left_out(n_cases, 2))
      BOOST_TEST(logits_of(tiny_path(), {.decodes = decodes}, tokens) ==
                 logits_of(tiny_path(), {.decodes = decodes}, tokens));
}

BOOST_AUTO_TEST_SUITE_END()
