// Prefixes that come from the disk layer by layer, while the layers before are computed: the bits are those
// of a prompt that is computed, each layer waits for its own slab and no other, and a slab that does not come
// costs time and never an answer.
#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/keep_forever.h"
#include "base/stopwatch.h"
#include "tests/support/apart_backend.h"
#include "tests/support/disk_options.h"
#include "tests/support/sanitized.h"
#include "tests/support/slab_gate.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

using namespace dsv32;

namespace {

constexpr int64_t kLayers = 3, kPages = 3, kBase = kPages * kPageTokens;

constexpr int kRandomSplits = kIsSanitized ? 1 : 5;

struct Tiny {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  Tiny() {
    TinyModel shape;
    shape.n_layers = kLayers, shape.n_dense_layers = 1, shape.index_topk = 32;
    shape.n_routed_experts = 8, shape.n_heads = 2, shape.inter_dim = 256;
    write_tiny_model(path, shape);
  }
};

const std::string& tiny_path() {
  static const Tiny tiny;
  return tiny.path;
}

const std::vector<int32_t>& base() {
  static const std::vector<int32_t> tokens = random_tokens(kBase, 1);
  return tokens;
}

// The first n tokens of the known prompt, and some that it does not have.
std::vector<int32_t> leaving_at(int64_t n, int64_t n_others = 3, int32_t first_other = 250) {
  std::vector<int32_t> tokens(base().begin(), base().begin() + n);
  for (int64_t i = 0; i < n_others; ++i) tokens.push_back(i == 0 ? first_other : 252);
  return tokens;
}

EngineOptions cold_options(KvType kv_type = KvType::fp8) {
  EngineOptions options;
  options.context = 1024;
  options.n_threads = 2;
  options.kv_type = kv_type;
  return options;
}

EngineOptions options_in(const std::string& directory, KvType kv_type = KvType::fp8) {
  EngineOptions options = with_disk(cold_options(kv_type), directory);
  options.cache->layers_per_slab = 1;
  return options;
}

struct Opened : TinySession {
  explicit Opened(const EngineOptions& options) : TinySession(tiny_path(), options) {}
  // Called when a layer begins, before anything of what is remembered is read.
  void on_layer(const std::function<void(int64_t layer)>& visit) {
    engine->forward().set_observer([visit](const Observation& seen) {
      if (std::strcmp(seen.stage, "attn_norm") == 0) visit(seen.layer);
    });
  }
};

// What a segment of all of base() is like.
SegmentInfo segment_of(const CachePlan& plan) {
  SegmentInfo segment;
  segment.n_pages = kPages, segment.n_layers = plan.n_layers, segment.layers_per_slab = 1;
  segment.rows_page_bytes = kPageTokens * plan.layout.row_bytes();
  segment.keys_page_bytes = plan.layout.key_page_bytes();
  return segment;
}

// base() on disk, in one segment, and a disk that gives out its later slabs when it is told to.
struct LayeredFixture {
  TempDir dir;
  KvType kv_type;
  std::shared_ptr<SlabGate> gate;  // shared: a read that hangs may outlive the test

  explicit LayeredFixture(KvType kv_type_ = KvType::fp8) : kv_type(kv_type_) {
    Opened first(options_in(dir.file("cache"), kv_type));
    first.session->sync(base());
    gate = std::make_shared<SlabGate>(segment_of(first.engine->cache().plan()));
  }
  EngineOptions options() const {
    EngineOptions gated = options_in(dir.file("cache"), kv_type);
    gated.cache->files = gate.get();
    gated.cache->write = WritePolicy::write_back;
    return gated;
  }
  std::filesystem::path segment() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.file("cache")))
      if (entry.path().extension() == ".kvs") return entry.path();
    return {};
  }
};

void check_same(Opened& warm, Session& warm_session, Opened& cold, const std::vector<int32_t>& tokens) {
  cold.session->sync(tokens);
  BOOST_TEST((warm_session.logits() == cold.session->logits()));
  BOOST_TEST((remembered(*warm.engine, warm_session) == remembered(*cold.engine, *cold.session)));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layered_restore)

// Each layer's slab is given out only once that layer has begun: so nothing waits for more than it needs.
BOOST_AUTO_TEST_CASE(each_layer_waits_for_its_own_slab_at_every_split) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    const LayeredFixture disk(kv_type);
    Opened cold(cold_options(kv_type));
    std::set<int64_t> splits{1, 64, 65, 127, kBase};
    if (kv_type == KvType::fp8) splits.insert({63, 128, 129, kBase - 1});
    Rng rng(5);
    for (int i = 0; i < kRandomSplits; ++i) splits.insert(static_cast<int64_t>(rng.next() % kBase));
    for (const int64_t split : splits) {
      BOOST_TEST_INFO("split at " << split);
      disk.gate->close();
      disk.gate->free_page = split % kPageTokens != 0 ? split / kPageTokens : -1;
      Opened warm(disk.options());
      int64_t n_too_early = 0;
      warm.on_layer([&](int64_t layer) {
        if (split >= kPageTokens) n_too_early += disk.gate->n_given_out() > std::max<int64_t>(layer, 1);
        disk.gate->open(layer + 1);
      });
      const std::vector<int32_t> tokens = leaving_at(split);
      BOOST_TEST(warm.session->sync(tokens) == split);
      check_same(warm, *warm.session, cold, tokens);
      BOOST_TEST(n_too_early == 0);
      BOOST_TEST(warm.warnings.empty());
      // What came is in the tree, and whole, for the next one to use.
      if (split >= kPageTokens && split < kBase) {
        warm.engine->forward().set_observer({});
        const std::vector<int32_t> again = leaving_at(split / kPageTokens * kPageTokens, 5, 251);
        BOOST_TEST(warm.session->sync(again) == split / kPageTokens * kPageTokens);
        check_same(warm, *warm.session, cold, again);
      }
    }
  }
}

// A step of one token is like those that a backend records: it does not begin before all is there.
BOOST_AUTO_TEST_CASE(a_step_of_one_token_waits_for_everything) {
  LayeredFixture disk;
  Opened warm(disk.options()), cold(cold_options());
  std::atomic<bool> is_open = false;
  bool has_waited = false;
  warm.on_layer([&](int64_t layer) {
    if (layer == 0) has_waited = is_open;
  });
  std::thread opener([&] {
    while (!disk.gate->is_waited_for()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_open = true;
    disk.gate->open(kLayers);
  });
  const std::vector<int32_t> tokens = leaving_at(kBase, 1);
  BOOST_TEST(warm.session->sync(tokens) == kBase);
  opener.join();
  BOOST_TEST(has_waited);
  check_same(warm, *warm.session, cold, tokens);
}

// A later slab is damaged, or cannot be read: the step that has begun is given up, and the prompt computed.
BOOST_AUTO_TEST_CASE(a_slab_that_fails_is_computed_again) {
  constexpr int kDamage = 0;
  Opened cold(cold_options());
  for (const int64_t split : {kBase, kPageTokens + 17})
    for (const int result : {kDamage, -EIO, -ENOMEM}) {
      if (split != kBase && result != kDamage) continue;
      LayeredFixture disk;
      disk.gate->free_page = split % kPageTokens != 0 ? split / kPageTokens : -1;
      if (result == kDamage) {
        std::fstream bytes(disk.segment(), std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekp(
            static_cast<std::streamoff>(segment_of(cold.engine->cache().plan()).slab_offset(2) + 1000));
        bytes.put('x').put('y');
      } else {
        disk.gate->fail(2, result);
      }
      const std::vector<int32_t> tokens = leaving_at(split, 50);
      {
        EngineOptions options = disk.options();
        options.cache->write = WritePolicy::write_through;
        Opened warm(options);
        std::vector<int64_t> begun;
        warm.on_layer([&](int64_t layer) {
          begun.push_back(layer);
          disk.gate->open(layer + 1);
        });
        std::vector<int64_t> told;
        BOOST_TEST(warm.session->sync(tokens, [&](int64_t n_done, int64_t, int64_t n_held) {
          told.push_back(n_done), told.push_back(n_held);
          return true;
        }) == 0);
        BOOST_TEST((begun == std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
        BOOST_TEST((told == std::vector<int64_t>{std::ssize(tokens), 0}));
        check_same(warm, *warm.session, cold, tokens);
        BOOST_TEST(warm.warnings.size() == 1u);
      }
      Opened healed(options_in(disk.dir.file("cache")));
      const int64_t n_stored = std::ssize(tokens) / kPageTokens * kPageTokens;
      BOOST_TEST(healed.session->sync(tokens) == n_stored);
      check_same(healed, *healed.session, cold, tokens);
      BOOST_TEST(healed.warnings.empty());
    }
}

// A later slab does not come: after some time the prompt is computed. Nobody meets the half that came.
BOOST_AUTO_TEST_CASE(a_slab_that_hangs_is_not_waited_for) {
  LayeredFixture disk;
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::timeout;
  options.max_seqs = 2;
  Opened cold(cold_options());
  Opened warm(options);
  const std::vector<int32_t> tokens = leaving_at(kBase, 40), other_tokens = leaving_at(kBase, 50);
  BOOST_TEST(warm.session->sync(tokens) == 0);
  check_same(warm, *warm.session, cold, tokens);
  Session other(*warm.engine);
  BOOST_TEST(other.sync(other_tokens) == kBase);
  check_same(warm, other, cold, other_tokens);
  disk.gate->open(kLayers);
}

// Without waiting, pages are taken only if all of them is there.
BOOST_AUTO_TEST_CASE(best_effort_takes_no_half_pages) {
  LayeredFixture disk;
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::best_effort;
  Opened cold(cold_options());
  const std::vector<int32_t> tokens = leaving_at(kBase);
  const GgufFile file(tiny_path());
  Engine engine(file, options, [&](PrefixCache& prefixes) {
    prefixes.prefetch(tokens);
    while (!disk.gate->is_waited_for()) std::this_thread::yield();
  });
  Session session(engine);
  BOOST_TEST(session.sync(tokens) == 0);
  cold.session->sync(tokens);
  BOOST_TEST((session.logits() == cold.session->logits()));
  disk.gate->open(kLayers);
}

// What was read for one prompt serves another that leaves it earlier, in the middle of a page or not.
BOOST_AUTO_TEST_CASE(a_prefetch_for_another_prompt_is_taken_as_far_as_it_goes) {
  for (const int64_t split : {int64_t{10}, kPageTokens, 2 * kPageTokens + 9}) {
    LayeredFixture disk;
    Opened cold(cold_options());
    const GgufFile file(tiny_path());
    Engine engine(file, disk.options(), [&](PrefixCache& prefixes) { prefixes.prefetch(leaving_at(kBase)); });
    Session session(engine);
    engine.forward().set_observer([&](const Observation&) { disk.gate->open(kLayers); });
    const std::vector<int32_t> tokens = leaving_at(split, 9);
    BOOST_TEST(session.sync(tokens) == split / kPageTokens * kPageTokens);
    cold.session->sync(tokens);
    BOOST_TEST((session.logits() == cold.session->logits()));
    engine.forward().set_observer({});
    BOOST_TEST(session.sync(leaving_at(kBase)) >= kPageTokens);
    cold.session->sync(leaving_at(kBase));
    BOOST_TEST((session.logits() == cold.session->logits()));
  }
}

// A read that hangs when the engine goes is left behind, with the memory that it writes to.
BOOST_AUTO_TEST_CASE(a_read_that_hangs_does_not_keep_the_program) {
  LayeredFixture disk;
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::best_effort;
  const auto engine = std::make_unique<Opened>(options);
  engine->engine->prefix_cache()->prefetch(leaving_at(kBase));
  while (!disk.gate->is_waited_for()) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  engine->session.reset(), engine->engine.reset();
  const double seconds = seconds_since(start);
  BOOST_TEST(seconds >= 1.9);
  BOOST_TEST(seconds < 20);
  keep_forever(disk.gate);
  disk.gate->open(kLayers);
  while (disk.gate->is_waited_for()) std::this_thread::yield();
}

// The cache's side of it, where rows lie in the host's memory alone, are mirrored on the device, or come
// through windows: what a layer reads is asked for before it is read.
BOOST_AUTO_TEST_CASE(rows_that_come_late_are_seen_wherever_they_are_read) {
  const GgufFile file(tiny_path());
  const ModelArgs args = read_model_args(file);
  for (const auto& [is_apart, buffer_rows] : {std::pair{false, 0}, {true, 0}, {true, 40}}) {
    ApartBackend backend(is_apart);
    const Weights weights = load_weights(file, args, backend);
    const CachePlan plan{{KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim},
                         is_apart,
                         args.n_layers,
                         600,
                         2,
                         buffer_rows};
    LatentCache cache(backend, plan);
    Forward forward(backend, args, weights, cache, 300, 600);
    const auto run = [&](Sequence& sequence, int64_t begin, int64_t end) {
      Step step;
      step.sequences = {&sequence};
      for (int64_t i = begin; i < end; ++i) {
        step.tokens.push_back(base()[static_cast<size_t>(i)]);
        step.pos.push_back(static_cast<int32_t>(i)), step.seq.push_back(0);
      }
      cache.reserve(sequence, end);
      forward.run(step);
      cache.set_length(sequence, end);
      return forward.logits();
    };
    const auto first = cache.open(), second = cache.open();
    constexpr int64_t n_held = 2 * kPageTokens, n_all = n_held + 20;
    run(*first, 0, n_held);
    std::vector<PoolPage> from, to;
    for (int64_t i = 0; i < 2; ++i) from.push_back(cache.page(*first, i)), to.push_back(*cache.take_page());
    const std::vector<std::vector<uint8_t>> keys = cache.download_keys(from);
    int64_t n_there = 0, n_most = 0;
    const auto wait = [&](int64_t layer) {
      for (n_most = std::max(n_most, layer + 1); n_there <= layer; ++n_there) {
        std::vector<std::vector<uint8_t>> part;
        const int64_t n = plan.layout.key_page_bytes();
        for (size_t i = 0; i < 2; ++i) {
          part.emplace_back(keys[i].begin() + n_there * n, keys[i].begin() + (n_there + 1) * n);
          std::memcpy(cache.page_rows(to[i], n_there), cache.page_rows(from[i], n_there),
                      static_cast<size_t>(kPageTokens * plan.layout.row_bytes()));
        }
        cache.publish(to, n_there, 1, part);
      }
    };
    const std::vector<float> expected = run(*first, n_held, n_all);
    for (const bool is_one_token : {false, true}) {
      const std::vector<std::vector<uint8_t>> garbage(
          2, std::vector<uint8_t>(static_cast<size_t>(plan.n_layers * plan.layout.key_page_bytes()), 0x11));
      for (const PoolPage& page : to)
        for (int64_t layer = 0; layer < plan.n_layers; ++layer)
          std::memset(cache.page_rows(page, layer), 0x11,
                      static_cast<size_t>(kPageTokens * plan.layout.row_bytes()));
      cache.publish(to, 0, plan.n_layers, garbage);
      n_there = n_most = 0;
      wait(0);  // as a sequence that takes pages has it
      cache.adopt(*second, to, n_held);
      cache.set_wait_for_layer(wait);
      if (is_one_token) {
        const std::vector<float> one = run(*second, n_held, n_held + 1);
        BOOST_TEST((one == std::vector<float>(expected.begin(), expected.begin() + args.vocab_size)));
      } else {
        BOOST_TEST((run(*second, n_held, n_all) == expected));
      }
      cache.set_wait_for_layer({});
      BOOST_TEST(n_most == plan.n_layers);
    }
    cache.close(*first), cache.close(*second);
  }
}

BOOST_AUTO_TEST_SUITE_END()
