// What a plan is reckoned to weigh and how fast it is said to be, beside published files and measured
// machines.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "base/error.h"
#include "engine/plan.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(plan_speed)

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// n GPUs of a kind beside a host with 30 threads and so much free memory.
Machine with_gpus(size_t n, const char* kind, uint64_t n_host_free, const SyntheticTypes& types) {
  const uint64_t n_total = find_gpu(kind)->n_bytes, n_free = n_total - (kGiB + (uint64_t{261} << 20));
  Machine machine{true, model_bytes(full_size_args(61, 3), types)};
  machine.devices.assign(n, {n_total, n_free, uint64_t{261} << 20});
  machine.gpus.assign(n, find_gpu(kind));
  machine.host = {n_host_free, n_host_free, 0};
  machine.link_adds = false;
  return machine;
}

ModelArgs real_args() {
  ModelArgs args = full_size_args(61, 3);
  args.max_seq_len = 163840;
  return args;
}

}  // namespace

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
  for (const Measured& row : {Measured{"H200", TensorType::q2_k, 8192, 150.2, 4610},
                              Measured{"H200", TensorType::q4_k, 32768, 31.7, 4537},
                              Measured{"H100", TensorType::q2_k, 8192, 32.7, 2478},
                              Measured{"H100", TensorType::q4_k, 32768, 13.3, 2615}}) {
    const Machine machine = with_gpus(2, row.gpu, 240 * kGiB, {.matrices = row.type});
    EngineOptions options;
    options.context = 65536;
    const MemoryPlan plan = make_plan(args, options, machine);
    const PlanSpeed speed = expected_speed(args, plan, machine, 1, row.n_prompt);
    const std::string name = row.gpu + std::string(", ") + type_name(row.type);
    BOOST_TEST(std::abs(speed.decode_rate / row.decode - 1) < 0.15, name << ": " << speed.decode_rate);
    BOOST_TEST(std::abs(speed.prompt_rate / row.prompt - 1) < 0.15, name << ": " << speed.prompt_rate);
  }
}

// 18 layers in Q2_K on H100s, sequences together: rows of docs/performance.md. Choices rest on their order.
BOOST_AUTO_TEST_CASE(expected_speeds_of_many_sequences_are_those_measured_within_25_percent) {
  struct Measured {
    size_t n_gpus;
    Split split;
    int64_t n_seqs;
    double decode;
    const char* gpu = "H100";
  };
  using enum Split;
  const ModelArgs args = full_size_args(18, 3);
  const SyntheticTypes types{.matrices = TensorType::q2_k};
  for (const Measured& row : {Measured{1, layers, 1, 346},
                              Measured{1, layers, 8, 726},
                              Measured{1, layers, 16, 887},
                              Measured{1, layers, 64, 1772},
                              Measured{1, layers, 128, 2698},
                              Measured{2, rows, 1, 488, "H200"},
                              Measured{2, rows, 8, 1081},
                              Measured{2, rows, 16, 1475},
                              Measured{2, rows, 64, 3046},
                              Measured{2, rows, 128, 4796},
                              Measured{2, rows, 8, 1199, "H200"},
                              Measured{4, rows, 8, 1484},
                              Measured{4, rows, 16, 2182},
                              Measured{4, rows, 64, 4730},
                              Measured{4, rows, 128, 7658},
                              Measured{2, layers, 1, 340},
                              Measured{2, layers, 8, 1402},
                              Measured{2, layers, 16, 1467},
                              Measured{2, layers, 64, 2453},
                              Measured{2, layers, 128, 3554},
                              Measured{1, layers, 1, 424, "H200"},
                              Measured{1, layers, 8, 813, "H200"},
                              Measured{1, layers, 16, 993, "H200"},
                              Measured{1, layers, 64, 1977, "H200"},
                              Measured{1, layers, 128, 2909, "H200"}}) {
    Machine machine = with_gpus(row.n_gpus, row.gpu, 240 * kGiB, types);
    machine.weights = model_bytes(args, types), machine.can_team = true;
    EngineOptions options;
    options.split = row.split, options.context = 4096, options.max_seqs = row.n_seqs;
    options.gpus.resize(row.n_gpus);
    const MemoryPlan plan = make_plan(args, options, machine);
    const double rate = expected_speed(args, plan, machine, row.n_seqs).decode_rate;
    BOOST_TEST(std::abs(rate / row.decode - 1) < 0.25,
               row.n_gpus << " GPUs, " << row.n_seqs << ": " << rate << " of " << row.decode);
  }
}

// Fewer threads read less; without a GPU nothing is known of prompts, and of other shapes nothing at all.
BOOST_AUTO_TEST_CASE(what_was_not_timed_is_not_reckoned) {
  const ModelArgs args = full_size_args(61, 3), small = full_size_args(6, 3);
  Machine host{.weights = model_bytes(args, {})};
  EngineOptions options;
  options.context = 4096;
  const MemoryPlan plan = make_plan(args, options, host);
  const PlanSpeed all = expected_speed(args, plan, host);
  host.n_threads = 2;
  const PlanSpeed few = expected_speed(args, plan, host);
  BOOST_TEST(few.decode_rate < all.decode_rate / 5);
  BOOST_TEST(all.prompt_rate == 0);
  const Machine other{.weights = model_bytes(small, {})};
  BOOST_TEST(!has_known_speed(small));
}

// Machines that people have: the whole context, long steps, what does not fit on the host, and speeds between
// what the host's memory, the link and the tensor cores allow.
BOOST_AUTO_TEST_CASE(plans_for_small_cards_are_sensible) {
  struct Row {
    size_t n;
    const char* gpu;
    uint64_t n_host_gib;
    const char* mix;
    int64_t n_least_on_gpus;  // layers whose experts need not lie on the host
  };
  const ModelArgs args = real_args();
  for (const Row& row : {Row{1, "RTX3090", 256, "Q2_K", 1}, Row{1, "RTX4090", 256, "Q2_K", 1},
                         Row{2, "RTX3090", 384, "Q2_K", 6}, Row{2, "RTX4090", 384, "Q4_K_M", 3},
                         Row{1, "RTX5090", 512, "Q2_K", 4}, Row{1, "RTX5090", 512, "Q4_K_M", 2},
                         Row{4, "RTX3090", 768, "Q2_K", 16}, Row{4, "RTX4090", 768, "Q4_K_M", 8},
                         Row{1, "RTXPRO6000", 512, "Q2_K", 20}, Row{1, "RTXPRO6000", 512, "Q4_K_M", 11}}) {
    const std::string name = format("%zux%s, %s: ", row.n, row.gpu, row.mix);
    const Machine machine =
        with_gpus(row.n, row.gpu, (row.n_host_gib - 2) * kGiB, {.mix = find_mix(row.mix)});
    const MemoryPlan plan = make_plan(args, {}, machine);
    BOOST_TEST(plan.cache.max_context == args.max_seq_len, name << plan.cache.max_context);
    BOOST_TEST(plan.chunk == 8192, name << plan.chunk);
    BOOST_TEST((plan.cache.buffer_rows == 0 || plan.cache.buffer_rows >= 2 * args.index_topk),
               name << plan.cache.buffer_rows);
    BOOST_TEST(plan.cache.buffer_rows < args.max_seq_len, name << "a buffer for every row");
    BOOST_TEST(58 - plan.n_host_expert_layers() >= row.n_least_on_gpus, name << plan.n_host_expert_layers());
    BOOST_TEST(plan.n_bytes(Place::host) <= machine.host.n_bytes_free, name);
    const PlanSpeed speed = expected_speed(args, plan, machine);
    BOOST_TEST(speed.gpu == find_gpu(row.gpu));
    const double host_alone = kHostRate / static_cast<double>(plan.n_host_bytes_read);
    BOOST_TEST(speed.decode_rate < host_alone, name << speed.decode_rate);
    BOOST_TEST(speed.decode_rate > 0.6 * host_alone, name << speed.decode_rate);
    const double n_gpus = static_cast<double>(row.n) * 1.001;                     // and what rounding takes
    const double chunks = 8192. / static_cast<double>(plan.n_host_expert_bytes);  // tokens a byte of links
    BOOST_TEST(speed.prompt_rate > 200, name << speed.prompt_rate);
    BOOST_TEST(speed.prompt_rate < n_gpus * speed.rates.prompt, name);
    BOOST_TEST(speed.prompt_rate < n_gpus * speed.rates.link * chunks, name);
  }
  // With 16 GiB steps are shorter, but not much: a prompt waits for the experts of each.
  Machine less = with_gpus(1, "RTX3090", 510 * kGiB, {.mix = find_mix("Q4_K_M")});
  less.devices[0].n_bytes_free -= 8 * kGiB;
  const MemoryPlan shorter = make_plan(args, {}, less);
  BOOST_TEST(shorter.chunk == 4096);
  BOOST_TEST(shorter.cache.max_context >= args.max_seq_len / 2);
  const Machine small = with_gpus(1, "RTX4090", 254 * kGiB, {.mix = find_mix("Q4_K_M")});
  BOOST_CHECK_EXCEPTION(make_plan(args, {}, small), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::memory; });
}

// What the same plan expects of other GPUs, formats, hosts and links.
BOOST_AUTO_TEST_CASE(better_rates_make_better_speeds) {
  const ModelArgs args = real_args();
  const auto speed_of = [&](const Machine& machine) {
    return expected_speed(args, make_plan(args, {}, machine), machine);
  };
  Machine machine = with_gpus(1, "RTX4090", 510 * kGiB, {.mix = find_mix("Q4_K_M")});
  PlanSpeed before;
  for (const char* gpu : {"RTX3090", "RTX4090", "RTX5090", "RTXPRO6000"}) {
    machine.gpus = {find_gpu(gpu)};
    const PlanSpeed speed = speed_of(machine);
    BOOST_TEST(speed.decode_rate >= before.decode_rate, gpu);
    BOOST_TEST(speed.prompt_rate >= before.prompt_rate, gpu);
    BOOST_TEST(speed.rates.bytes < speed.gpu->memory_rate, gpu);
    before = speed;
  }
  Machine smaller = machine;
  smaller.weights = model_bytes(args, {.mix = find_mix("Q2_K")});
  BOOST_TEST(speed_of(smaller).decode_rate > before.decode_rate);
  machine.host_rate = kHostRate / 2;
  BOOST_TEST(speed_of(machine).host_seconds > 1.99 * before.host_seconds);
  machine.host_rate = 10 * kHostRate, machine.link_adds = true;  // the CPU waits for the link
  const MemoryPlan plan = make_plan(args, {}, machine);
  BOOST_TEST(plan.n_link_bytes_read > 0u);
  BOOST_TEST(speed_of(machine).host_seconds >=
             static_cast<double>(plan.n_link_bytes_read) / machine.gpus[0]->link_rate);
}

BOOST_AUTO_TEST_CASE(a_device_is_known_by_its_name_or_its_memory) {
  const auto like = [](const char* name, uint64_t n_mib) {
    return std::string(gpu_like(name, n_mib << 20).name);
  };
  for (const GpuKind& kind : gpu_kinds()) BOOST_TEST(&gpu_like(kind.name, kind.n_bytes) == &kind);
  BOOST_TEST(like("NVIDIA GeForce RTX 4090", 24210) == "RTX4090");
  BOOST_TEST(like("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97247) == "RTXPRO6000");
  BOOST_TEST(like("NVIDIA H100 80GB HBM3", 81079) == "H100");
  BOOST_TEST(like("NVIDIA H200", 143167) == "H200");
  BOOST_TEST(like("NVIDIA GeForce RTX 4090 Laptop GPU", 16376) == "RTX3090");  // the slowest
  BOOST_TEST(like("", 24 << 10) == "RTX3090");
  BOOST_TEST(like("", 32 << 10) == "RTX5090");
  BOOST_TEST(like("", 48 << 10) == "RTX3090");
  BOOST_TEST(like("", 80 << 10) == "A100");
  BOOST_TEST(like("", 96 << 10) == "RTXPRO6000");
  BOOST_TEST(like("", 141 << 10) == "H200");
  BOOST_TEST(find_gpu("rtx pro 6000") == find_gpu("RTXPRO6000"));
  BOOST_TEST(find_gpu("4090") == find_gpu("RTX4090"));
  BOOST_TEST(!find_gpu("RTX"));
  BOOST_TEST(!find_gpu(""));
}

BOOST_AUTO_TEST_SUITE_END()
