// Prefixes that outlive their session and their engine: what is restored is what would be computed, bit for
// bit, wherever a prompt leaves the known one; and every fault is a miss.
#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/loop.h"
#include "prefix/fingerprint.h"
#include "prefix/model_digest.h"
#include "prefix/prefix_store.h"
#include "tests/support/disk_options.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"
#include "text/chat_format.h"

using namespace dsv32;

namespace {

struct Tiny {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  Tiny() {
    TinyModel shape;
    shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = 32;
    write_tiny_model(path, shape);
  }
};

const std::string& tiny_path() {
  static const Tiny tiny;
  return tiny.path;
}

constexpr int kRandomSplits = kIsSanitized ? 5 : 200;

constexpr int64_t kBase = 5 * kPageTokens + 20;  // tokens of the prompt that is known

const std::vector<int32_t>& base() {
  static const std::vector<int32_t> tokens = random_tokens(kBase, 1);
  return tokens;
}

// The first n tokens of the known prompt, and three others.
std::vector<int32_t> leaving_at(int64_t n) {
  std::vector<int32_t> tokens(base().begin(), base().begin() + n);
  for (const int32_t other : {251, 252, 253}) tokens.push_back(other);
  return tokens;
}

EngineOptions options_in(const std::string& directory) {
  EngineOptions options;
  options.context = 512;
  options.n_threads = 2;
  return with_disk(options, directory);
}

struct Opened : TinySession {
  explicit Opened(const EngineOptions& options) : TinySession(tiny_path(), options) {}
};

void fill(const std::string& directory, KvType kv_type = KvType::fp8) {
  EngineOptions options = options_in(directory);
  options.kv_type = kv_type;
  Opened first(options);
  BOOST_TEST(first.session->sync(base()) == 0);
}

// The store that an engine with such options has.
PrefixStoreOptions store_options_of(const EngineOptions& options) {
  EngineOptions without = options;
  without.cache.reset();
  const Opened opened(without);
  const CachePlan& plan = opened.engine->cache().plan();
  PrefixStoreOptions store;
  store.directory = options.cache->directory;
  const ModelDigest model(opened.file.files(), {.most_hashed_first = UINT64_MAX});
  store.fingerprint = fingerprint(*model.value(), plan.layout, opened.engine->backend().numerics());
  store.n_layers = plan.n_layers;
  store.rows_page_bytes = kPageTokens * plan.layout.row_bytes();
  store.keys_page_bytes = plan.layout.key_page_bytes();
  return store;
}

std::unique_ptr<PrefixStore> store_of(const EngineOptions& options) {
  std::unique_ptr<PrefixStore> store =
      PrefixStore::open(store_options_of(options), real_file_system(), [](const std::string&) {});
  BOOST_REQUIRE(store);
  return store;
}

// A session that computes everything itself.
struct Cold {
  Opened opened;
  explicit Cold(KvType kv_type) : opened(options_without_cache(kv_type)) {}
  static EngineOptions options_without_cache(KvType kv_type) {
    EngineOptions options = options_in("");
    options.cache.reset();
    options.kv_type = kv_type;
    return options;
  }
};

// Swaps pieces of 256 bytes of each stack of experts, away from its beginning, middle and end.
void permute_experts(const std::string& path) {
  std::vector<uint64_t> places;
  {
    const GgufFile file(path);
    for (const GgufTensor& tensor : file.tensors())
      if (tensor.name.find("_exps") != std::string::npos)
        places.push_back(tensor.offset + tensor.n_bytes / 4);
  }
  BOOST_REQUIRE(places.size() >= 3u);
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string pieces(512, '\0');
  for (const uint64_t at : places) {
    bytes.seekg(static_cast<std::streamoff>(at)).read(pieces.data(), 512);
    std::swap_ranges(pieces.begin(), pieces.begin() + 256, pieces.begin() + 256);
    bytes.seekp(static_cast<std::streamoff>(at)).write(pieces.data(), 512);
  }
}

void check_restored(Opened& warm, Cold& cold, const std::vector<int32_t>& tokens, int64_t n_expected) {
  BOOST_TEST(warm.session->sync(tokens) == n_expected);
  cold.opened.session->sync(tokens);
  BOOST_TEST((warm.session->logits() == cold.opened.session->logits()));
  BOOST_TEST(
      (remembered(*warm.engine, *warm.session) == remembered(*cold.opened.engine, *cold.opened.session)));
}

std::string greedy(Session& session, const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                   int64_t* n_cached = nullptr, bool thinking = false) {
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = 100;
  options.thinking = thinking;
  Listener silent;
  const GenerationResult result = generate(session, tokenizer, prompt, options, silent);
  if (n_cached) *n_cached = result.n_cached_tokens;
  return result.completion.reasoning + "|" + result.completion.content;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(prefix_cache)

// Another engine, as another process would: what it reads from disk is what it would have computed.
BOOST_AUTO_TEST_CASE(restored_is_recomputed_at_every_split) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    const TempDir dir;
    fill(dir.file("cache"), kv_type);
    Cold cold(kv_type);
    std::set<int64_t> splits;
    for (const int64_t page : {1, 2, 4, 5}) {
      if (kIsSanitized && page != 2) continue;
      for (const int64_t offset : {-64, -63, -1, 0, 1, 63, 64})
        splits.insert(std::min(page * kPageTokens + offset, kBase));
    }
    Rng rng(3);
    const int n_random = kv_type == KvType::fp8 ? kRandomSplits : kRandomSplits / 20;
    for (int i = 0; i < n_random; ++i) splits.insert(static_cast<int64_t>(rng.next() % kBase));
    EngineOptions options = options_in(dir.file("cache"));
    options.kv_type = kv_type;
    options.cache->write = WritePolicy::write_back;
    for (const int64_t split : splits) {
      Opened warm(options);
      const int64_t n_stored = kBase / kPageTokens * kPageTokens;
      BOOST_TEST_INFO("split at " << split);
      check_restored(warm, cold, leaving_at(split), std::min(split, n_stored));
      BOOST_TEST(warm.warnings.empty());
      warm.engine->prefix_cache()->forget(warm.session->timeline());
    }
  }
}

// A question whose prompt and answer are some pages long, asked in two processes, and the next turn after it.
BOOST_AUTO_TEST_CASE(turns_of_a_conversation_go_on_from_disk) {
  for (const bool thinking : {false, true}) {
    const TempDir dir;
    const GgufFile file(tiny_path());
    const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
    const ChatFormat format(*tokenizer);
    std::vector<Message> messages{{Message::Role::user, std::string(200, 'a') + " what is a row?", {}}};
    const std::vector<int32_t> question = format.encode(messages, thinking);
    Cold cold(KvType::fp8);
    const std::string expected = greedy(*cold.opened.session, *tokenizer, question, nullptr, thinking);
    int64_t n_cached = -1;
    {
      Opened first(options_in(dir.file("cache")));
      BOOST_TEST(greedy(*first.session, *tokenizer, question, &n_cached, thinking) == expected);
      BOOST_TEST(n_cached == 0);
    }
    Opened again(options_in(dir.file("cache")));
    BOOST_TEST(greedy(*again.session, *tokenizer, question, &n_cached, thinking) == expected);
    BOOST_TEST(n_cached >= std::ssize(question) / kPageTokens * kPageTokens - (thinking ? kPageTokens : 0));
    // In thinking mode nothing from the last <｜Assistant｜> on is kept.
    const int64_t n_pages = again.engine->prefix_cache()->tree().n_pages();
    const int64_t n_turn = std::ssize(question) / kPageTokens;
    BOOST_TEST((n_pages <= n_turn) == thinking);

    messages.push_back({Message::Role::assistant, expected.substr(expected.find('|') + 1), "dropped"});
    messages.push_back({Message::Role::user, "and a page?", {}});
    const std::vector<int32_t> next = format.encode(messages, thinking);
    greedy(*again.session, *tokenizer, next, &n_cached, thinking);
    BOOST_TEST(n_cached >= std::ssize(question) - 2 - (thinking ? kPageTokens : 0));
    BOOST_TEST(n_cached < std::ssize(next));
  }
}

// Two sessions of one engine: the second computes nothing that the first has, and takes nothing from it.
BOOST_AUTO_TEST_CASE(sessions_share_pages_in_memory) {
  EngineOptions options = options_in("");
  options.max_seqs = 2;
  Opened opened(options);
  Cold cold(KvType::fp8);
  opened.session->sync(base());
  const std::vector<uint8_t> before = remembered(*opened.engine, *opened.session);
  Session other(*opened.engine);
  const int64_t split = 3 * kPageTokens + 17;
  BOOST_TEST(other.sync(leaving_at(split)) == split);
  cold.opened.session->sync(leaving_at(split));
  BOOST_TEST((other.logits() == cold.opened.session->logits()));
  BOOST_TEST((remembered(*opened.engine, *opened.session) == before));
  for (int64_t i = 0; i < 3; ++i)
    BOOST_TEST((other.timeline().page(i) == opened.session->timeline().page(i)));
  BOOST_TEST((other.timeline().page(3) != opened.session->timeline().page(3)));
}

// The pool holds eight pages: what is remembered gives way, up to a prompt that fills the context.
BOOST_AUTO_TEST_CASE(remembered_pages_give_way) {
  const TempDir dir;
  for (const WritePolicy policy : {WritePolicy::write_through, WritePolicy::write_back}) {
    EngineOptions options = options_in(dir.file(policy == WritePolicy::write_back ? "back" : "through"));
    options.cache->write = policy;
    Opened opened(options);
    Cold cold(KvType::fp8);
    for (const uint64_t seed : {2, 3, 2, 4, 2}) {
      const std::vector<int32_t> tokens = random_tokens(seed == 4 ? 512 : 330, seed);
      const int64_t n_held = opened.session->sync(tokens);
      cold.opened.session->sync(tokens);
      BOOST_TEST((opened.session->logits() == cold.opened.session->logits()));
      BOOST_TEST(n_held >= 0);
    }
    // From disk, after all the others: the last is held in the pool still.
    BOOST_TEST(opened.session->sync(random_tokens(330, 3)) == 5 * kPageTokens);
    BOOST_TEST(opened.warnings.empty());
  }
}

BOOST_AUTO_TEST_CASE(what_is_written_back_is_stored_at_the_end) {
  const auto n_on_disk = [](Opened& opened) { return opened.engine->prefix_cache()->tree().n_disk_pages(); };
  const int64_t n_pages = kBase / kPageTokens;
  const TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  options.cache->write = WritePolicy::write_back;
  {
    Opened opened(options);
    opened.session->sync(base());
    BOOST_TEST(n_on_disk(opened) == 0);
  }
  Opened opened(options);
  BOOST_TEST(n_on_disk(opened) == n_pages);
}

// A prompt that leaves a stored one in the middle of a segment writes its own pages and no others.
BOOST_AUTO_TEST_CASE(branches_are_stored_from_where_they_leave) {
  const TempDir dir;
  fill(dir.file("cache"));
  std::vector<int32_t> branch(base().begin(), base().begin() + 3 * kPageTokens);
  const std::vector<int32_t> rest = random_tokens(2 * kPageTokens, 5);
  branch.insert(branch.end(), rest.begin(), rest.end());
  {
    Opened opened(options_in(dir.file("cache")));
    BOOST_TEST(opened.session->sync(branch) == 3 * kPageTokens);
  }
  Opened opened(options_in(dir.file("cache")));
  BOOST_TEST(opened.engine->prefix_cache()->tree().n_disk_pages() == kBase / kPageTokens + 2);
  Cold cold(KvType::fp8);
  branch.push_back(7);
  check_restored(opened, cold, branch, 5 * kPageTokens);
}

// What decides the bytes of a page decides who may have it; nothing else does.
BOOST_AUTO_TEST_CASE(only_the_same_model_finds_its_pages) {
  const TempDir dir;
  const std::string cache = dir.file("cache");
  fill(cache);
  const std::vector<int32_t> tokens = leaving_at(kBase);
  const int64_t n_stored = kBase / kPageTokens * kPageTokens;
  const auto n_found = [&](const EngineOptions& options, const std::string& path) {
    const GgufFile file(path);
    Engine engine(file, options);
    Session session(engine);
    return session.sync(tokens);
  };
  EngineOptions same = options_in(cache);
  same.cache->write = WritePolicy::write_back;
  same.cache->max_bytes = 1 << 30;
  same.context = 450, same.n_threads = 1, same.chunk = 100, same.topk_buffer = 40;
  const std::string moved = dir.file("moved.gguf");
  std::filesystem::copy_file(tiny_path(), moved);
  BOOST_TEST(n_found(same, moved) == n_stored);

  EngineOptions salted = same;
  salted.cache->salt = "another";
  BOOST_TEST(n_found(salted, tiny_path()) == 0);
  EngineOptions other_type = same;
  other_type.kv_type = KvType::bf16;
  BOOST_TEST(n_found(other_type, tiny_path()) == 0);

  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = 32;
  const auto other_model = [&](const char* name, const TinyModel& other) {
    write_tiny_model(dir.file(name), other);
    return n_found(same, dir.file(name));
  };
  BOOST_TEST(other_model("same.gguf", shape) == n_stored);
  TinyModel seed = shape, quantised = shape, yarn = shape;
  seed.seed = 2;
  quantised.types["blk.1.attn_output.weight"] = TensorType::f16;
  yarn.original_seq_len = 2048;
  BOOST_TEST(other_model("seed.gguf", seed) == 0);
  BOOST_TEST(other_model("quantised.gguf", quantised) == 0);
  BOOST_TEST(other_model("yarn.gguf", yarn) == 0);

  // Values of experts in another order, in the middle of their tensors.
  const std::string permuted = dir.file("permuted.gguf");
  std::filesystem::copy_file(tiny_path(), permuted);
  permute_experts(permuted);
  BOOST_TEST(n_found(same, permuted) == 0);
}

// Until it is known whose pages they are, prefixes are shared in memory alone; then what was computed is
// stored, and what is stored is found.
BOOST_AUTO_TEST_CASE(nothing_is_found_or_stored_until_the_model_is_known) {
  const TempDir dir;
  const GgufFile file(tiny_path());
  bool is_known = false;
  const auto open = [&] {
    return std::make_unique<Engine>(
        read_model_args(file), file.n_bytes(),
        [&](const ModelArgs& args, Backend& backend) { return load_weights(file, args, backend); },
        options_in(dir.file("cache")),
        [&](const CacheLayout&, const Backend&) {
          return [&] { return is_known ? std::optional(Hash256{1}) : std::nullopt; };
        });
  };
  const int64_t n_stored = kBase / kPageTokens * kPageTokens;
  const auto sync = [](Engine& engine, const std::vector<int32_t>& tokens) {
    Session session(engine);
    return session.sync(tokens);
  };
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, base()) == 0);
    BOOST_TEST(sync(*engine, leaving_at(kBase)) == n_stored);  // in memory
  }
  {
    const auto engine = open();  // that run ended before it knew
    is_known = true;
    BOOST_TEST(sync(*engine, base()) == 0);
    is_known = false;
  }
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, leaving_at(100)) == 0);
    is_known = true;  // between two prompts
    BOOST_TEST(sync(*engine, base()) == n_stored);
    is_known = false;
  }
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, random_tokens(330, 4)) == 0);
    is_known = true;  // only when it ends
  }
  BOOST_TEST(sync(*open(), random_tokens(330, 4)) == 5 * kPageTokens);
}

// A byte of the page that is wanted is another one: the same answer, one line, and the segment is gone.
BOOST_AUTO_TEST_CASE(damaged_pages_are_computed_again) {
  const TempDir dir;
  const std::string cache = dir.file("cache");
  fill(cache);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache)) {
    if (entry.path().extension() != ".kvs") continue;
    std::fstream bytes(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    bytes.put('x').put('y');
  }
  Cold cold(KvType::fp8);
  {
    Opened warm(options_in(cache));
    const int64_t n_held = warm.session->sync(leaving_at(kBase));
    BOOST_TEST(n_held < kBase / kPageTokens * kPageTokens);
    cold.opened.session->sync(leaving_at(kBase));
    BOOST_TEST((warm.session->logits() == cold.opened.session->logits()));
    BOOST_TEST(warm.warnings.size() == 1u);
  }
  Opened healed(options_in(cache));
  BOOST_TEST(healed.session->sync(leaving_at(kBase)) == kBase / kPageTokens * kPageTokens);
  BOOST_TEST(healed.warnings.empty());
}

// Three pages on disk, what earlier runs measured, and runs that ask for them.
struct MeasuredFixture {
  TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  explicit MeasuredFixture(const CacheSpeeds& speeds) {
    fill(options.cache->directory);
    options.cache->least_tokens.reset();
    options.cache->prefetch = PrefetchPolicy::timeout;
    options.cache->write = WritePolicy::write_back;
    store_of(options)->record_speeds(speeds);
  }
  int64_t n_held() const { return Opened(options).session->sync(leaving_at(3 * kPageTokens)); }
};

// What earlier runs measured decides, from the first prompt on.
BOOST_AUTO_TEST_CASE(a_disk_slower_than_computing_is_not_read) {
  BOOST_TEST(MeasuredFixture({1e3, 100}).n_held() == 0);
  BOOST_TEST(MeasuredFixture({1e12, 100}).n_held() == 3 * kPageTokens);
}

BOOST_AUTO_TEST_CASE(who_waits_for_all_reads_from_a_slow_disk_too) {
  MeasuredFixture slow({1e3, 100});
  slow.options.cache->prefetch = PrefetchPolicy::wait_complete;
  BOOST_TEST(slow.n_held() == 3 * kPageTokens);
}

// From run to run it is believed to be less slow.
BOOST_AUTO_TEST_CASE(a_disk_that_was_slow_is_tried_again) {
  const MeasuredFixture slow({1e3, 100});
  int n_runs = 0;
  while (n_runs < 30 && slow.n_held() == 0) ++n_runs;
  BOOST_TEST(n_runs > 2);
  BOOST_TEST(n_runs < 30);
  BOOST_TEST(slow.n_held() == 3 * kPageTokens);
}

// As when the process was stopped for a while: what was read did not come in time, or came late.
BOOST_AUTO_TEST_CASE(one_slow_read_does_not_end_the_reading) {
  for (const PrefetchPolicy policy : {PrefetchPolicy::timeout, PrefetchPolicy::wait_complete})
    for (const double former : {0.0, 1e8}) {
      MeasuredFixture disk({former, 1000});
      std::atomic<bool> has_stalled = false;
      FaultFileSystem stalling;
      stalling.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
        if (op == FileOp::read && !has_stalled.exchange(true))
          std::this_thread::sleep_for(std::chrono::seconds(1));
        return std::nullopt;
      };
      {
        EngineOptions stalled = disk.options;
        stalled.cache->files = &stalling;
        stalled.cache->prefetch = policy;
        Opened warm(stalled);
        has_stalled = false;  // of what is read at the start
        const bool comes = policy == PrefetchPolicy::wait_complete;
        BOOST_TEST(warm.session->sync(leaving_at(3 * kPageTokens)) == (comes ? 3 * kPageTokens : 0));
        BOOST_TEST(has_stalled);
      }
      BOOST_TEST(disk.n_held() == 3 * kPageTokens);
    }
}

BOOST_AUTO_TEST_CASE(it_is_said_why_nothing_came_from_the_cache) {
  // Twice the context: pages that are still being read when nobody waits for them are not free yet.
  const auto why = [](EngineOptions options, const std::vector<int32_t>& tokens) {
    options.context = 1024;
    Opened opened(options);
    BOOST_TEST(opened.session->sync(tokens) == 0);
    return std::string(opened.session->why_none_cached());
  };
  MeasuredFixture known({1e12, 100});
  BOOST_TEST(why(known.options, random_tokens(100, 77)) == "no prefix of it is known");
  EngineOptions options = known.options;
  options.cache->salt = "another";
  BOOST_TEST(why(options, base()) == "nothing is kept of this model with these settings");
  options = known.options;
  options.cache->least_tokens = 1000;
  BOOST_TEST(why(options, base()) == "what is known of it is too short to be read");
  options = known.options;
  options.cache.reset();
  BOOST_TEST(why(options, base()) == "the prefix cache is off");
  options = known.options;
  options.cache->directory = "/dev/null/x";
  BOOST_TEST(why(options, base()) == "the folder of prefixes cannot be used");
  BOOST_TEST(why(MeasuredFixture({1e3, 100}).options, base()) ==
             "the disk is taken for slower than computing");
  {
    FaultFileSystem disk;
    disk.on_call = [](int64_t, FileOp op) {
      if (op == FileOp::read) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return std::optional<int>();
    };
    options = known.options;
    options.cache->files = &disk;
    options.cache->prefetch = PrefetchPolicy::best_effort;
    BOOST_TEST(why(options, base()) == "the disk did not give what is known of it in time");
  }
  {
    FaultFileSystem disk;
    options = known.options;
    options.cache->files = &disk;
    Opened opened(options);
    disk.on_call = [](int64_t, FileOp op) { return op == FileOp::read ? std::optional(-EIO) : std::nullopt; };
    BOOST_TEST(opened.session->sync(base()) == 0);
    BOOST_TEST(std::string(opened.session->why_none_cached()) ==
               "what is known of it is damaged or cannot be read");
  }
  Opened opened(known.options);
  opened.session->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(std::string(opened.session->why_none_cached()) == "");
}

BOOST_AUTO_TEST_CASE(speeds_are_kept_for_the_next_run) {
  const TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  fill(options.cache->directory);
  BOOST_TEST(store_of(options)->speeds().prefill_tokens_per_second > 0);
  BOOST_TEST(store_of(options)->speeds().read_bytes_per_second == 0);
  Opened(options).session->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(store_of(options)->speeds().read_bytes_per_second > 0);
}

BOOST_AUTO_TEST_CASE(a_prefetch_is_taken_up) {
  const TempDir dir;
  fill(dir.file("cache"));
  EngineOptions options = options_in(dir.file("cache"));
  options.cache->prefetch = PrefetchPolicy::timeout;
  const GgufFile file(tiny_path());
  const std::vector<int32_t> tokens = leaving_at(kBase);
  Engine engine(file, options, [&](PrefixCache& prefixes) { prefixes.prefetch(tokens); });
  Session session(engine);
  BOOST_TEST(session.sync(tokens) == kBase / kPageTokens * kPageTokens);
}

// A disk that hangs: the prompt is computed after the time that the policy gives it, to the same bits.
BOOST_AUTO_TEST_CASE(a_hanging_disk_is_not_waited_for) {
  const TempDir dir;
  fill(dir.file("cache"));
  FaultFileSystem disk;
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = false;
  disk.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
    std::unique_lock lock(mutex);
    if (op == FileOp::read) changed.wait(lock, [&] { return !hangs; });
    return std::nullopt;
  };
  EngineOptions options = options_in(dir.file("cache"));
  options.context = 1024;  // what hangs keeps its pages
  options.cache->files = &disk;
  options.cache->prefetch = PrefetchPolicy::timeout;
  options.cache->write = WritePolicy::write_back;
  {
    Opened warm(options);
    hangs = true;
    const auto start = std::chrono::steady_clock::now();
    BOOST_TEST(warm.session->sync(leaving_at(kBase)) == 0);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    BOOST_TEST(passed.count() < 20.0);  // as long as computing takes, twice
    Cold cold(KvType::fp8);
    cold.opened.session->sync(leaving_at(kBase));
    BOOST_TEST((warm.session->logits() == cold.opened.session->logits()));
    const std::lock_guard lock(mutex);
    hangs = false;
    changed.notify_all();
  }
  Opened again(options);
  BOOST_TEST(again.session->sync(leaving_at(kBase)) == kBase / kPageTokens * kPageTokens);
}

// Pages whose checksums are right and whose values are not: the run fails once, and the next one is clean.
BOOST_AUTO_TEST_CASE(pages_that_lead_nowhere_are_removed) {
  const TempDir dir;
  const GgufFile file(tiny_path());
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const EngineOptions options = options_in(dir.file("cache"));
  {
    const PrefixStoreOptions sizes = store_options_of(options);
    const auto store = store_of(options);
    // 0x7f is no number in e4m3.
    const std::vector<uint8_t> rows(static_cast<size_t>(sizes.rows_page_bytes), 0x7f);
    const std::vector<uint8_t> keys(static_cast<size_t>(sizes.n_layers * sizes.keys_page_bytes), 0x7f);
    const std::vector<const uint8_t*> layers(static_cast<size_t>(sizes.n_layers), rows.data());
    const std::vector<PageSource> pages(2, {layers, keys.data()});
    BOOST_REQUIRE(store->store(DiskPage{}, std::span(base()).first(2 * kPageTokens), pages));
  }
  Cold cold(KvType::fp8);
  const std::string expected = greedy(*cold.opened.session, *tokenizer, base());
  {
    Opened poisoned(options);
    BOOST_CHECK_THROW(greedy(*poisoned.session, *tokenizer, base()), Error);
    BOOST_TEST(poisoned.warnings.size() == 1u);
  }
  Opened clean(options);
  int64_t n_cached = -1;
  BOOST_TEST(greedy(*clean.session, *tokenizer, base(), &n_cached) == expected);
  BOOST_TEST(n_cached == 0);
}

BOOST_AUTO_TEST_SUITE_END()
