// The memory plan against what is really allocated, and what it chooses when memory is short.
#include <boost/test/unit_test.hpp>

#include <chrono>

#include "backend/expert_window.h"
#include "backend/link_share.h"
#include "base/error.h"
#include "engine/loop.h"
#include "engine/plan.h"
#include "engine/sequence.h"
#include "tests/support/apart_backend.h"
#include "tests/support/contains.h"
#include "tests/support/island_backend.h"
#include "tests/support/load_weights.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(plan)

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{});
  return model.path;
}

// A GPU of so many free bytes beside a large host. No weights of the model are experts.
Machine gpu(uint64_t n_free, uint64_t n_weight_bytes = 0) {
  ModelBytes weights;
  weights.embedding = n_weight_bytes;
  return {true, weights, {{n_free, n_free, 0}}, {512 * kGiB, 512 * kGiB, 0}};
}

// Two GPUs that can be a team.
Machine two_gpus_for(const ModelArgs& args) {
  Machine machine = gpu(80 * kGiB);
  machine.devices.push_back(machine.devices.front());
  machine.weights = model_bytes(args, {}), machine.can_team = true;
  return machine;
}

uint64_t bytes_of(const MemoryPlan& plan, const std::string& key) {
  for (const MemoryPlan::Item& item : plan.items())
    if (item.key == key) return item.n_bytes;
  return 0;
}

void refused(const std::function<void()>& act, ErrorKind kind, const std::vector<std::string>& parts) {
  BOOST_CHECK_EXCEPTION(act(), Error, [&](const Error& error) {
    const std::string text = std::string(error.what()) + " | " + error.hint();
    for (const std::string& part : parts) BOOST_TEST(contains(text, part), text << " names " << part);
    return error.kind() == kind;
  });
}

}  // namespace

// What the cache and the forward pass take of a backend is what the plan says, to the byte (of 16 for the
// frequencies), whether rows are resident, mirrored or streamed.
BOOST_AUTO_TEST_CASE(everything_that_is_allocated_is_planned) {
  const GgufFile file(tiny_path());
  for (const auto& [is_apart, n_rows, n_draft] : {std::tuple{false, kEveryRow, 0},
                                                  {false, 70, 0},
                                                  {true, kEveryRow, 0},
                                                  {true, 70, 0},
                                                  {false, kEveryRow, 1},
                                                  {false, 70, 1},
                                                  {true, kEveryRow, 1},
                                                  {true, 70, 1}}) {
    ModelArgs args = read_model_args(file);
    args.n_draft_layers = n_draft;
    ApartBackend backend(is_apart);
    const Weights weights = load_weights(file, args, backend);
    EngineOptions options;
    options.context = 1000, options.topk_buffer = n_rows, options.n_guesses = 2 * n_draft;
    const MemoryPlan plan =
        make_plan(args, options, {.is_apart = is_apart, .weights = model_bytes(file, args)});
    const uint64_t n_before = backend.memory_info(Place::host).n_bytes_used;
    const StageLayers stage{&backend, args.n_all_layers()};
    LatentCache cache({&stage, 1}, plan.cache);
    const Forward forward({&stage, 1}, args, std::span(&weights, 1), cache,
                          StageSizes{plan.chunk, plan.cache.max_context});
    RowSampler sampler(backend, plan.cache.max_step_tokens());
    sampler.mask_of(0, args.vocab_size);
    const std::unique_ptr<CachedSequence> sequence = cache.open();
    const uint64_t n_used = backend.memory_info(Place::host).n_bytes_used - n_before;
    const uint64_t n_planned = plan.n_bytes(Place::device) + plan.n_bytes(Place::host);
    const uint64_t n_frequency_bytes = static_cast<uint64_t>(args.qk_rope_head_dim / 2) * sizeof(float);
    BOOST_TEST(n_used == n_planned + n_frequency_bytes - (is_apart ? plan.n_weight_bytes : 0));
  }
}

BOOST_AUTO_TEST_CASE(a_limit_on_host_memory_holds) {
  const GgufFile file(tiny_path());
  EngineOptions options;
  options.backend = "cpu", options.context = 1000;
  options.host_mem = 64 << 20;
  const Engine engine(file, options);
  options.host_mem = 1 << 20;
  refused([&] { Engine(file, options); }, ErrorKind::memory, {"not enough memory for", "wanted", "free"});
  options.host_mem = 64 << 20, options.context.reset();
  const Engine fitted(file, options);
  BOOST_TEST(fitted.plan().n_bytes(Place::device) + fitted.plan().n_bytes(Place::host) <= 64u << 20);
  BOOST_TEST(fitted.plan().cache.max_context >= kPageTokens);
}

BOOST_AUTO_TEST_CASE(a_pool_for_all_contexts_takes_what_the_memory_holds) {
  ModelArgs args = read_model_args(GgufFile(tiny_path()));
  EngineOptions options;
  options.context = 1000, options.max_seqs = 8, options.pool = kAllContexts;
  BOOST_TEST(make_plan(args, options, {}).cache.pool_tokens == 8000);
  args.index_head_dim = 32;  // a page of keys is rounded up
  int64_t n_pool_before = 1000;
  for (const uint64_t n_host : {52u << 20, 58u << 20, 64u << 20}) {
    options.host_mem = n_host;
    const Machine machine{.host = {n_host, n_host, 0}};
    const MemoryPlan plan = make_plan(args, options, machine);
    BOOST_TEST(plan.cache.pool_tokens > n_pool_before);
    // What samplers take is left.
    BOOST_TEST(plan.n_bytes(Place::device) + plan.n_bytes(Place::host) <= n_host - (8u << 20));
    n_pool_before = plan.cache.pool_tokens;
  }
  BOOST_TEST(n_pool_before < 8000);
}

BOOST_AUTO_TEST_CASE(a_request_of_128k_tokens_takes_what_the_design_says) {
  EngineOptions options;
  options.context = 131072, options.topk_buffer = 4096;
  const MemoryPlan plan = make_plan(full_size_args(61, 3), options, gpu(40 * kGiB));
  const uint64_t n_device = bytes_of(plan, "index_key_bytes") + bytes_of(plan, "topk_buffer_bytes") +
                            bytes_of(plan, "page_table_bytes");
  BOOST_TEST(n_device <= 1'300'000'000u);
  BOOST_TEST(bytes_of(plan, "index_key_bytes") >= 61u * 131072 * 136);
  BOOST_TEST(bytes_of(plan, "latent_row_bytes") == 61u * uint64_t{131072} * 640);
  BOOST_TEST(bytes_of(plan, "window_bytes") == 2u * 131072 * 640);
}

BOOST_AUTO_TEST_CASE(the_buffer_is_full_while_memory_lasts_and_shrinks_then) {
  const ModelArgs args = full_size_args(61, 3);
  EngineOptions options;
  options.context = 131072;
  const MemoryPlan full = make_plan(args, options, gpu(40 * kGiB));
  BOOST_TEST(full.cache.buffer_rows == 0);
  BOOST_TEST(bytes_of(full, "resident_row_bytes") == bytes_of(full, "latent_row_bytes"));

  const uint64_t n_full = full.n_bytes(Place::device);
  int64_t n_rows_before = 131072;
  for (const uint64_t n_less : {kGiB, 2 * kGiB, 4 * kGiB}) {
    const MemoryPlan less = make_plan(args, options, gpu(n_full - n_less));
    BOOST_TEST(less.cache.buffer_rows >= args.index_topk);
    BOOST_TEST(less.cache.buffer_rows < n_rows_before);
    BOOST_TEST(less.n_bytes(Place::device) <= n_full - n_less);
    BOOST_TEST(less.n_bytes(Place::device) >= n_full - n_less - (64u << 20));  // and is used
    n_rows_before = less.cache.buffer_rows;
  }
  options.topk_buffer = kEveryRow;
  const MemoryPlan shorter = make_plan(args, options, gpu(n_full - kGiB));  // steps make room for rows
  BOOST_TEST(shorter.chunk < full.chunk);
  BOOST_TEST(shorter.n_bytes(Place::device) <= n_full - kGiB);
  options.chunk = full.chunk;
  refused([&] { make_plan(args, options, gpu(n_full - kGiB)); }, ErrorKind::memory,
          {"the resident latent rows", "4.8 GiB wanted", "--topk-buffer"});
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_named_with_the_flag_that_helps) {
  const ModelArgs args = full_size_args(61, 3);
  EngineOptions options;
  options.context = 131072;
  refused([&] { make_plan(args, options, gpu(20 * kGiB, 300 * kGiB)); }, ErrorKind::memory,
          {"the weights", "300.0 GiB wanted", "20.0 GiB free", "--gpu-mem"});
  refused([&] { make_plan(args, options, gpu(301 * kGiB, 300 * kGiB)); }, ErrorKind::memory,
          {"the index keys and scales", "(-c)"});
  Machine small_host = gpu(80 * kGiB);
  small_host.host.n_bytes_free = kGiB;
  refused([&] { make_plan(args, options, small_host); }, ErrorKind::memory,
          {"the latent rows", "--host-mem"});
  options.context.reset();  // a context is chosen that both memories hold
  BOOST_TEST(make_plan(args, options, small_host).n_bytes(Place::host) <= kGiB);
  const MemoryPlan chosen = make_plan(args, options, gpu(302 * kGiB, 300 * kGiB));
  BOOST_TEST(chosen.n_bytes(Place::device) <= 302 * kGiB);
  BOOST_TEST(chosen.cache.max_context >= 2048);
}

// One more does not fit. What is not resident needs less of the device, a longer sequence more.
BOOST_AUTO_TEST_CASE(the_largest_batch_fits_and_one_more_does_not) {
  const ModelArgs args = full_size_args(6, 3);
  const Machine machine = gpu(40 * kGiB, 20 * kGiB);
  Machine without_slack = machine;  // which one more sequence may take
  without_slack.leave(kSlackBytes);
  int64_t n_before = std::numeric_limits<int64_t>::max();
  for (const int64_t context : {16384, 65536}) {
    int64_t n_resident = 0;
    for (const int64_t n_rows : {kEveryRow, int64_t{4096}}) {
      EngineOptions options;
      options.chunk = 2048;
      options.context = context, options.topk_buffer = n_rows;
      const int64_t n = largest_batch(args, options, machine);
      BOOST_TEST(n > 1);
      const MemoryPlan plan = make_plan(args, options_for_batch(args, options, n), machine);
      BOOST_TEST(plan.n_bytes(Place::device) <= 40 * kGiB);
      BOOST_TEST(plan.cache.pool_tokens == n * context);
      refused([&] { make_plan(args, options_for_batch(args, options, n + 1), without_slack); },
              ErrorKind::memory, {"--topk-buffer"});
      BOOST_TEST(n > n_resident);
      n_resident = n;
    }
    BOOST_TEST(n_resident < n_before);
    n_before = n_resident;
  }
}

BOOST_AUTO_TEST_CASE(a_step_is_as_large_as_a_batch_and_none_may_fit) {
  const ModelArgs args = full_size_args(6, 3);
  EngineOptions options;
  options.context = 16384, options.chunk = 64;
  BOOST_TEST(make_plan(args, options_for_batch(args, options, 128), gpu(400 * kGiB)).chunk == 128);
  BOOST_TEST(largest_batch(args, options, gpu(20 * kGiB, 300 * kGiB)) == 0);
  options.topk_buffer = 100;
  refused([&] { largest_batch(args, options, gpu(400 * kGiB)); }, ErrorKind::usage, {"--topk-buffer"});
}

// As many of a usual length as fit; all rows are resident only where all of them are.
BOOST_AUTO_TEST_CASE(a_batch_of_unsaid_size_suits_the_machine) {
  const ModelArgs args = full_size_args(61, 3);
  EngineOptions options;
  options.max_seqs = kAsManyAsSuit, options.pool = kAllContexts;
  int64_t n_before = 0;
  for (const uint64_t n_free : {8 * kGiB, 12 * kGiB, 16 * kGiB, 400 * kGiB}) {
    const MemoryPlan plan = make_plan(args, options, gpu(n_free));
    BOOST_TEST(plan.cache.pool_tokens == std::max(plan.cache.max_context, plan.cache.max_seqs * 16384));
    BOOST_TEST(plan.cache.has_buffers() == (n_free < 100 * kGiB));
    if (plan.cache.has_buffers()) {
      const int64_t n_slot_pages = plan.cache.n_slot_pages() / plan.cache.max_seqs;
      BOOST_TEST(plan.cache.buffer_pages() == pages_for(2 * args.index_topk + 1));
      BOOST_TEST(n_slot_pages >= least_buffer_pages(args));
      BOOST_TEST(n_slot_pages <= plan.cache.buffer_pages());
    }
    BOOST_TEST(plan.cache.max_seqs > n_before);
    n_before = plan.cache.max_seqs;
    if (n_before == 64) continue;
    EngineOptions more = options;
    more.context = plan.cache.max_context, more.chunk = plan.chunk, more.topk_buffer = plan.cache.buffer_rows;
    more.max_seqs = n_before + 1, more.pool = plan.cache.pool_tokens + 16384;
    more.slots = more.max_seqs * least_buffer_pages(args) * kPageTokens;
    refused([&] { make_plan(args, more, gpu(n_free)); }, ErrorKind::memory, {"--topk-buffer"});
  }
  BOOST_TEST(n_before == 64);
  BOOST_TEST(make_plan(args, options, {}).cache.max_seqs == 8);  // a host alone
  options.topk_buffer = 3000;
  for (const Machine& machine : {gpu(400 * kGiB), Machine{}})
    BOOST_TEST(make_plan(args, options, machine).cache.buffer_rows == 3000);
  options.topk_buffer = kEveryRow, options.context = 32768;
  const MemoryPlan full = make_plan(args, options, gpu(40 * kGiB));
  BOOST_TEST(full.cache.max_seqs > 1);
  BOOST_TEST(!full.cache.has_buffers());
  options = {}, options.max_seqs = 3;
  BOOST_TEST(make_plan(args, options, {}).cache.max_seqs == 3);
}

// More sequences at a time drive no expert from a device, and all is planned in a moment.
BOOST_AUTO_TEST_CASE(a_batch_leaves_experts_where_they_are_for_one) {
  const ModelArgs args = full_size_args(61, 3);
  Machine machine = gpu(140 * kGiB);
  machine.devices.push_back(machine.devices.front());
  machine.weights = model_bytes(args, {TensorType::q4_k, TensorType::q8_0});
  EngineOptions options;
  options.context = 65536;
  const MemoryPlan one = make_plan(args, options, machine);
  BOOST_TEST(one.stages.size() == 2u);
  BOOST_TEST(one.n_host_expert_layers() > 10);
  BOOST_TEST(one.chunk == 8192);
  options.max_seqs = kAsManyAsSuit, options.pool = kAllContexts;
  const auto start = std::chrono::steady_clock::now();
  const MemoryPlan batch = make_plan(args, options, machine);
  BOOST_TEST((kIsSanitized || std::chrono::steady_clock::now() - start < std::chrono::seconds(10)));
  BOOST_TEST(batch.cache.max_seqs > 1);
  BOOST_TEST(batch.n_host_expert_layers() <= one.n_host_expert_layers());
  BOOST_TEST(batch.n_device_bytes(0) <= 140 * kGiB);
  BOOST_TEST(batch.n_device_bytes(1) <= 140 * kGiB);
}

// The logits of a step of all sequences have their place in the plan.
BOOST_AUTO_TEST_CASE(logits_are_planned_for_a_step_of_all_sequences) {
  const GgufFile file(tiny_path());
  const ModelArgs args = read_model_args(file).without_draft();
  EngineOptions options;
  options.backend = "cpu", options.context = 64, options.max_seqs = 12, options.pool = 12 * 64;
  Engine engine(file, options);
  std::vector<std::unique_ptr<ByHand>> sequences;
  Step step{Role::decode, {}, std::vector<int32_t>(12, 7)};
  for (size_t i = 0; i < step.tokens.size(); ++i) {
    sequences.push_back(std::make_unique<ByHand>(engine));
    sequences.back()->sync(std::vector<int32_t>{1, 2, 3});
    step.sequences.push_back(&sequences.back()->cached());
  }
  engine.forward().run(step);
  engine.sampler().mask_of(0, args.vocab_size);  // the masks of all sequences are planned too
  const uint64_t n_planned = engine.plan().n_bytes(Place::device) + engine.plan().n_bytes(Place::host);
  const uint64_t n_frequency_bytes = static_cast<uint64_t>(args.qk_rope_head_dim / 2) * sizeof(float);
  CpuBackend bare(1);
  const Weights weights = load_weights(file, args, bare);
  const uint64_t n_weights = bare.memory_info(Place::host).n_bytes_used;
  BOOST_TEST(engine.backend().memory_info(Place::host).n_bytes_used - n_weights ==
             n_planned + n_frequency_bytes);
}

// The block for drafts is a layer more on the last device, of which a plain step reads nothing.
BOOST_AUTO_TEST_CASE(the_block_for_drafts_is_planned_as_a_layer_of_the_last_device) {
  ModelArgs args = full_size_args(61, 3);
  args.n_draft_layers = 1;
  Machine machine = gpu(140 * kGiB);
  machine.devices.push_back(machine.devices.front());
  machine.weights = model_bytes(args, {TensorType::q2_k, TensorType::q8_0});
  EngineOptions options;
  options.context = 32768, options.gpus = {0, 1}, options.n_guesses = 3;
  EngineOptions off = options;
  off.n_guesses = 0;
  const MemoryPlan with = make_plan(args, options, machine), without = make_plan(args, off, machine);
  BOOST_TEST(with.cache.n_layers == 62);
  BOOST_TEST(with.cache.n_draft_layers == 1);
  BOOST_TEST(with.cache.n_guesses == 3);
  BOOST_TEST(with.cache.max_step_tokens() == 4);
  BOOST_TEST(with.has_host_experts.size() == 62u);
  BOOST_TEST(with.stages.back().end_layer == 62);
  BOOST_TEST(with.n_bytes_read() == without.n_bytes_read());
  const ModelBytes& bytes = machine.weights;
  const uint64_t n_block = bytes.layers.back().core + bytes.draft;
  BOOST_TEST(n_block > uint64_t{3'700'000'000});  // 11.3 billion values of experts at 2.6 bits
  BOOST_TEST(with.n_weight_bytes == without.n_weight_bytes + n_block);
  const auto n_weights = [](const MemoryPlan& plan) {
    return plan.stages[0].n_weight_bytes + plan.stages[1].n_weight_bytes;
  };
  BOOST_TEST(n_weights(with) == n_weights(without) + n_block + bytes.embedding);  // its device's own
  BOOST_TEST(bytes_of(with, "index_key_bytes") * 61 == bytes_of(without, "index_key_bytes") * 62);
  BOOST_TEST(bytes_of(with, "latent_row_bytes") * 61 == bytes_of(without, "latent_row_bytes") * 62);
  const auto speed = [&](const MemoryPlan& plan) { return expected_speed(args, plan, machine); };
  BOOST_TEST(speed(with).decode_rate == speed(without).decode_rate);
  BOOST_TEST(without.cache.n_guesses == 0);
  BOOST_TEST(without.cache.max_step_tokens() == 1);
}

// A block for drafts that nobody asked for takes no room from anything else.
BOOST_AUTO_TEST_CASE(drafts_are_left_out_where_they_take_room_from_something_else) {
  ModelArgs args = full_size_args(61, 3);
  args.n_draft_layers = 1, args.max_seq_len = 65536;
  const ModelBytes bytes = model_bytes(args, {TensorType::q2_k, TensorType::q8_0});
  const auto has_drafts = [&](const EngineOptions& options, uint64_t n_free) {
    Machine machine = gpu(n_free);
    machine.weights = bytes;
    return make_plan(args, options, machine).cache.n_draft_layers > 0;
  };
  EngineOptions open;
  open.n_guesses = {};
  const uint64_t n_model = total_bytes(without_draft(bytes)), n_all = total_bytes(bytes);
  BOOST_TEST(has_drafts(open, n_all + 40 * kGiB));
  BOOST_TEST(!has_drafts(open, n_model + 4 * kGiB));  // experts would go to the host
  BOOST_TEST(!has_drafts(open, n_model - kGiB));      // they do already
  EngineOptions asked = open, off = open;
  asked.n_guesses = 2, off.n_guesses = 0;
  BOOST_TEST(has_drafts(asked, n_model - kGiB));
  BOOST_TEST(!has_drafts(off, n_all + 40 * kGiB));
  EngineOptions on_host = open;
  on_host.n_cpu_experts = 2;
  BOOST_TEST(!has_drafts(on_host, n_all + 40 * kGiB));
  // Between too little and enough there is one border, below which context or buffers would shrink.
  bool had = false;
  for (uint64_t n_free = n_all; n_free < n_all + 40 * kGiB; n_free += 2 * kGiB) {
    const bool has = has_drafts(open, n_free);
    BOOST_TEST((has || !had));
    had = has;
  }
  Machine machine = gpu(n_all + 8 * kGiB);
  machine.weights = bytes;
  EngineOptions many = open;
  many.max_seqs = kAsManyAsSuit, many.pool = kAllContexts;
  const MemoryPlan plain = make_plan(args.without_draft(), many, machine),
                   chosen = make_plan(args, many, machine);
  BOOST_TEST(chosen.cache.max_seqs == plain.cache.max_seqs);
  BOOST_CHECK_THROW(make_plan(args.without_draft(), asked, machine), Error);
}

// In decode a part of the host's experts comes through the same window: also when prompts need little of it.
// Each member takes what is planned for it; the rows in host memory are the first one's.
BOOST_AUTO_TEST_CASE(what_a_team_allocates_is_planned) {
  const GgufFile file(tiny_path());
  for (const int64_t n_rows : {kEveryRow, int64_t{70}}) {
    EngineOptions options;
    options.context = 1000, options.topk_buffer = n_rows, options.split = Split::rows, options.gpus = {0, 1};
    options.max_seqs = 3;
    for (int i = 0; i < 2; ++i) options.backends.push_back(std::make_shared<IslandBackend>());
    Engine engine(file, options);
    const MemoryPlan& plan = engine.plan();
    BOOST_TEST((plan.is_team && plan.n_members() == 2 && plan.n_stages() == 1));
    BOOST_TEST(plan.n_exchanges() == 4 * engine.args().n_layers + 1);
    engine.sampler().mask_of(0, engine.args().vocab_size);
    const uint64_t n_frequency_bytes =
        static_cast<uint64_t>(engine.args().qk_rope_head_dim / 2) * sizeof(float);
    for (size_t i = 0; i < 2; ++i) {
      const uint64_t n_planned = plan.n_device_bytes(i) + (i == 0 ? plan.n_bytes(Place::host) : 0);
      const uint64_t n_used = engine.backends()[i]->memory_info(Place::host).n_bytes_used - n_frequency_bytes;
      BOOST_TEST((n_used >= n_planned && n_used - n_planned < 32768),  // a matrix takes up to 128 bytes more
                 "member " << i << " with " << n_rows << " rows: " << n_used << ", " << n_planned);
    }
  }
}

// A team is chosen where devices reach each other and it is faster, and is refused with the reason.
BOOST_AUTO_TEST_CASE(a_team_is_chosen_where_it_can_be) {
  const ModelArgs args = full_size_args(12, 3);
  Machine machine = two_gpus_for(args);
  EngineOptions options;
  options.gpus = {0, 1}, options.context = 32768;
  const MemoryPlan team = make_plan(args, options, machine);
  BOOST_TEST((team.is_team && team.stages.size() == 2));
  options.split = Split::layers;
  const MemoryPlan layers = make_plan(args, options, machine);
  BOOST_TEST((!layers.is_team && layers.n_stages() == 2));
  BOOST_TEST(team.stages[0].n_bytes_read < 0.7 * static_cast<double>(layers.n_device_bytes_read()));
  BOOST_TEST(team.n_bytes(Place::host) == layers.n_bytes(Place::host));

  options.split = Split::automatic;
  options.max_seqs = 1000, options.pool = 1000 * 32768,
  options.topk_buffer = 4096;  // too much for every device
  BOOST_TEST(!make_plan(args, options, machine).is_team);
  options.split = Split::rows;
  refused([&] { make_plan(args, options, machine); }, ErrorKind::memory, {});
  options = {}, options.gpus = {0, 1};
  machine.can_team = false;
  BOOST_TEST(!make_plan(args, options, machine).is_team);
  options.split = Split::rows;
  refused([&] { make_plan(args, options, machine); }, ErrorKind::usage,
          {"--split rows", "cannot reach each other's memory", "--split layers"});
  machine.can_team = true, options.n_cpu_experts = 2;
  refused([&] { make_plan(args, options, machine); }, ErrorKind::usage, {"the host keeps experts"});
}

// GPUs and split are those that are fastest for what is asked: of eight H100, five would hold the model.
BOOST_AUTO_TEST_CASE(the_fastest_way_is_chosen) {
  ModelArgs args = full_size_args(61, 3);
  args.max_seq_len = 163840;
  Machine machine = gpu(78 * kGiB);
  machine.devices.resize(8, machine.devices.front());
  machine.gpus.assign(8, find_gpu("H100")), machine.can_team = true;
  machine.weights = model_bytes(args, {.mix = find_mix("Q4_K_M")});
  EngineOptions options;
  const MemoryPlan rows = make_plan(args, options, machine);
  BOOST_TEST((rows.is_team && rows.stages.size() == 8));
  BOOST_REQUIRE(rows.runner_up);
  BOOST_TEST((!rows.runner_up->is_team && rows.runner_up->stages.size() < 8));
  const double rate = expected_speed(args, rows, machine).decode_rate;
  BOOST_TEST(rate > 1.5 * expected_speed(args, *rows.runner_up, machine).decode_rate);
  options.split = Split::layers;
  const MemoryPlan layers = make_plan(args, options, machine);
  BOOST_TEST((!layers.is_team && layers.stages.size() == rows.runner_up->stages.size()));
  BOOST_TEST(!layers.runner_up);
  options.split = Split::automatic, machine.can_team = false;
  BOOST_TEST(make_plan(args, options, machine).stages.size() == layers.stages.size());
  // All answers together go faster on all, and only with the context that is asked for.
  options.is_for_all = true, options.max_seqs = kAsManyAsSuit;
  BOOST_TEST(make_plan(args, options, machine).stages.size() == 8u);
  machine.can_team = true;
  for (size_t i = 1; i < 8; ++i) machine.devices[i].n_bytes_free -= 24 * kGiB;  // no room for a team's share
  options.is_for_all = false, options.max_seqs = 1;
  BOOST_TEST(!make_plan(args, options, machine).is_team);
}

// Two H100 with 18 layers in Q2_K decode 8 sequences faster with layers of their own, 64 as a team.
BOOST_AUTO_TEST_CASE(the_number_of_sequences_decides_how_gpus_share) {
  const ModelArgs args = full_size_args(18, 3);
  Machine machine = two_gpus_for(args);
  machine.gpus.assign(2, find_gpu("H100"));
  machine.weights = model_bytes(args, {.matrices = TensorType::q2_k});
  EngineOptions options;
  options.gpus = {0, 1}, options.context = 4096, options.pool = kAllContexts, options.is_for_all = true;
  for (const int64_t n : {8, 64}) {
    options.max_seqs = n;
    BOOST_TEST(make_plan(args, options, machine).is_team == (n == 64), n << " sequences");
  }
}

// Sequences of an open number make a team, if that is faster.
BOOST_AUTO_TEST_CASE(a_batch_of_unsaid_size_may_suit_a_team) {
  const ModelArgs args = full_size_args(12, 3);
  Machine machine = two_gpus_for(args);
  EngineOptions options;
  options.gpus = {0, 1}, options.max_seqs = kAsManyAsSuit;
  const MemoryPlan batch = make_plan(args, options, machine);
  BOOST_TEST((batch.is_team && batch.cache.max_seqs == 64));
  machine.can_team = false;
  BOOST_TEST(!make_plan(args, options, machine).is_team);
}

BOOST_AUTO_TEST_CASE(the_links_share_of_host_experts_has_room_in_their_window) {
  const ModelArgs args = full_size_args(4, 1);
  for (const TensorType type : {TensorType::q2_k, TensorType::q4_k, TensorType::q8_0, TensorType::bf16})
    for (const int64_t chunk : {1, 512}) {
      const SyntheticTypes types{type, TensorType::q8_0};
      Machine machine = gpu(8 * kGiB);
      machine.weights = model_bytes(args, types);
      EngineOptions options;
      options.context = 4096, options.chunk = chunk, options.n_cpu_experts = 3;
      const MemoryPlan plan = make_plan(args, options, machine);
      const auto stack = [&](int64_t n_rows, int64_t n_cols) {
        return WeightMatrix{nullptr, type, n_rows, n_cols, args.n_routed_experts, row_bytes(type, n_cols)};
      };
      const WeightMatrix gate = stack(args.moe_inter_dim, args.dim);
      const ExpertStacks routed{gate, gate, stack(args.dim, args.moe_inter_dim)};
      const uint64_t n_link = link_window_bytes(routed), n_window = plan.stages[0].n_expert_window_bytes;
      const bool has_codes = type != TensorType::bf16;
      BOOST_TEST((n_link > 0) == has_codes);
      BOOST_TEST(n_window >= n_link + 4 * expert_ring_bytes(routed), type_name(type)
                                                                         << ", " << chunk << " tokens");
      BOOST_TEST(4 * plan.n_link_bytes_read == (has_codes ? plan.n_host_bytes_read : 0));
      machine.link_adds = false;
      BOOST_TEST(make_plan(args, options, machine).n_link_bytes_read == 0u);
    }
}

BOOST_AUTO_TEST_SUITE_END()
