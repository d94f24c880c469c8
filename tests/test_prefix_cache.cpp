// Prefixes that outlive their sequence and their engine: what is restored is what would be computed, bit for
// bit, wherever a prompt leaves the known one; and every fault is a miss.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/error.h"
#include "engine/loop.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/known_prompt.h"
#include "tests/support/sanitized.h"
#include "tests/support/stored_pages.h"
#include "text/chat_format.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_cache)

using namespace dsv32::known_prompt;

namespace {

constexpr int kRandomSplits = kIsSanitized ? 5 : 200;

// A sequence that computes everything itself.
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

void check_restored(Opened& warm, Cold& cold, const std::vector<int32_t>& tokens, int64_t n_expected) {
  BOOST_TEST(warm.sequence->sync(tokens) == n_expected);
  cold.opened.sequence->sync(tokens);
  BOOST_TEST((warm.sequence->logits() == cold.opened.sequence->logits()));
  BOOST_TEST(
      (remembered(*warm.engine, *warm.sequence) == remembered(*cold.opened.engine, *cold.opened.sequence)));
}

std::string greedy(ByHand& sequence, const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                   int64_t* n_cached = nullptr, bool thinking = false) {
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = 100;
  options.thinking = thinking;
  Listener silent;
  const GenerationResult result = generate(sequence, tokenizer, prompt, options, silent);
  if (n_cached) *n_cached = result.n_cached_tokens;
  return result.completion.reasoning + "|" + result.completion.content;
}

}  // namespace

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
      BOOST_TEST_INFO("split at " << split);
      check_restored(warm, cold, leaving_at(split), split / kPageTokens * kPageTokens);
      BOOST_TEST(warm.warnings.empty());
      warm.engine->prefix_cache()->forget(warm.sequence->cached());
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
    const std::string expected = greedy(*cold.opened.sequence, *tokenizer, question, nullptr, thinking);
    int64_t n_cached = -1;
    {
      Opened first(options_in(dir.file("cache")));
      BOOST_TEST(greedy(*first.sequence, *tokenizer, question, &n_cached, thinking) == expected);
      BOOST_TEST(n_cached == 0);
    }
    Opened again(options_in(dir.file("cache")));
    BOOST_TEST(greedy(*again.sequence, *tokenizer, question, &n_cached, thinking) == expected);
    BOOST_TEST(n_cached >= std::ssize(question) / kPageTokens * kPageTokens - (thinking ? kPageTokens : 0));
    // In thinking mode nothing from the last <｜Assistant｜> on is kept.
    const int64_t n_pages = again.engine->prefix_cache()->tree().n_pages();
    const int64_t n_turn = std::ssize(question) / kPageTokens;
    BOOST_TEST((n_pages <= n_turn) == thinking);

    messages.push_back({Message::Role::assistant, expected.substr(expected.find('|') + 1), "dropped"});
    messages.push_back({Message::Role::user, "and a page?", {}});
    const std::vector<int32_t> next = format.encode(messages, thinking);
    greedy(*again.sequence, *tokenizer, next, &n_cached, thinking);
    BOOST_TEST(n_cached >=
               (std::ssize(question) - 2) / kPageTokens * kPageTokens - (thinking ? kPageTokens : 0));
    BOOST_TEST(n_cached < std::ssize(next));
  }
}

// Two sequences of one engine: the second computes nothing that the first has, and takes nothing from it.
BOOST_AUTO_TEST_CASE(sequences_share_pages_in_memory) {
  EngineOptions options = options_in("");
  options.max_seqs = 2;
  Opened opened(options);
  Cold cold(KvType::fp8);
  opened.sequence->sync(base());
  const std::vector<uint8_t> before = remembered(*opened.engine, *opened.sequence);
  ByHand other(*opened.engine);
  const int64_t split = 3 * kPageTokens + 17;
  BOOST_TEST(other.sync(leaving_at(split)) == split);
  cold.opened.sequence->sync(leaving_at(split));
  BOOST_TEST((other.logits() == cold.opened.sequence->logits()));
  BOOST_TEST((remembered(*opened.engine, *opened.sequence) == before));
  for (int64_t i = 0; i < 3; ++i) BOOST_TEST((other.cached().page(i) == opened.sequence->cached().page(i)));
  BOOST_TEST((other.cached().page(3) != opened.sequence->cached().page(3)));
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
      const int64_t n_held = opened.sequence->sync(tokens);
      cold.opened.sequence->sync(tokens);
      BOOST_TEST((opened.sequence->logits() == cold.opened.sequence->logits()));
      BOOST_TEST(n_held >= 0);
    }
    // From disk, after all the others: the last is held in the pool still.
    BOOST_TEST(opened.sequence->sync(random_tokens(330, 3)) == 5 * kPageTokens);
    BOOST_TEST(opened.warnings.empty());
  }
}

BOOST_AUTO_TEST_CASE(what_is_written_back_is_stored_at_the_end) {
  const auto n_on_disk = [](Opened& opened) { return opened.engine->prefix_cache()->store()->n_pages(); };
  const int64_t n_pages = kBase / kPageTokens;
  const TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  options.cache->write = WritePolicy::write_back;
  {
    Opened opened(options);
    opened.sequence->sync(base());
    BOOST_TEST(n_on_disk(opened) == 0);
  }
  Opened opened(options);
  BOOST_TEST(n_on_disk(opened) == n_pages);
}

// A prompt that leaves a stored one writes its own pages and no others.
BOOST_AUTO_TEST_CASE(branches_are_stored_from_where_they_leave) {
  const TempDir dir;
  fill(dir.file("cache"));
  std::vector<int32_t> branch(base().begin(), base().begin() + 3 * kPageTokens);
  const std::vector<int32_t> rest = random_tokens(2 * kPageTokens, 5);
  branch.insert(branch.end(), rest.begin(), rest.end());
  {
    Opened opened(options_in(dir.file("cache")));
    BOOST_TEST(opened.sequence->sync(branch) == 3 * kPageTokens);
  }
  Opened opened(options_in(dir.file("cache")));
  BOOST_TEST(opened.engine->prefix_cache()->store()->n_pages() == kBase / kPageTokens + 2);
  Cold cold(KvType::fp8);
  branch.push_back(7);
  check_restored(opened, cold, branch, 5 * kPageTokens);
}

// Each page has a byte that is another one: the same answer, one line, and what was found damaged is removed
// and stored anew, until all is.
BOOST_AUTO_TEST_CASE(damaged_pages_are_computed_again) {
  const TempDir dir;
  const std::string cache = dir.file("cache");
  fill(cache);
  for (const auto& page : page_files(cache)) {
    std::fstream bytes(page, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(page) / 2));
    bytes.put('x').put('y');
  }
  Cold cold(KvType::fp8);
  cold.opened.sequence->sync(leaving_at(kBase));
  constexpr int64_t kStored = kBase / kPageTokens * kPageTokens;
  int64_t n_held = 0;
  for (int run = 0; run <= kStored / kPageTokens && n_held < kStored; ++run) {
    Opened warm(options_in(cache));
    n_held = warm.sequence->sync(leaving_at(kBase));
    BOOST_TEST((warm.sequence->logits() == cold.opened.sequence->logits()));
    BOOST_TEST(warm.warnings.size() == (n_held < kStored ? 1u : 0u));
  }
  BOOST_TEST(n_held == kStored);
}

BOOST_AUTO_TEST_CASE(a_prefetch_is_taken_up) {
  const TempDir dir;
  fill(dir.file("cache"));
  EngineOptions options = options_in(dir.file("cache"));
  options.cache->prefetch = PrefetchPolicy::timeout;
  const GgufFile file(tiny_path());
  const std::vector<int32_t> tokens = leaving_at(kBase);
  Engine engine(file, options, [&](PrefixCache& prefixes) { prefixes.prefetch(tokens); });
  ByHand sequence(engine);
  BOOST_TEST(sequence.sync(tokens) == kBase / kPageTokens * kPageTokens);
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
    BOOST_TEST(warm.sequence->sync(leaving_at(kBase)) == 0);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    BOOST_TEST(passed.count() < 20.0);  // as long as computing takes, twice
    Cold cold(KvType::fp8);
    cold.opened.sequence->sync(leaving_at(kBase));
    BOOST_TEST((warm.sequence->logits() == cold.opened.sequence->logits()));
    const std::lock_guard lock(mutex);
    hangs = false;
    changed.notify_all();
  }
  Opened again(options);
  BOOST_TEST(again.sequence->sync(leaving_at(kBase)) == kBase / kPageTokens * kPageTokens);
}

// Pages whose checksums are right and whose values are not: the run fails once, and the next one is clean.
BOOST_AUTO_TEST_CASE(pages_that_lead_nowhere_are_removed) {
  const TempDir dir;
  const GgufFile file(tiny_path());
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const EngineOptions options = options_in(dir.file("cache"));
  {
    const PageFormat format = store_options_of(options).format;
    const auto store = store_of(options);
    // 0x7f is no number in e4m3.
    std::vector<uint8_t> rows(static_cast<size_t>(format.rows_page_bytes), 0x7f);
    std::vector<uint8_t> keys(static_cast<size_t>(format.n_layers * format.keys_page_bytes), 0x7f);
    PageBytes bytes(static_cast<size_t>(format.n_layers), rows);
    bytes.emplace_back(keys);
    const std::vector<PageName> names = names_of(base());
    std::vector<NewPage> pages;
    for (size_t i = 0; i < 2; ++i)
      pages.push_back({names[i], std::span(base()).subspan(i * kPageTokens, kPageTokens), bytes});
    BOOST_REQUIRE(store->store(pages) == 2);
  }
  Cold cold(KvType::fp8);
  const std::string expected = greedy(*cold.opened.sequence, *tokenizer, base());
  {
    Opened poisoned(options);
    BOOST_CHECK_THROW(greedy(*poisoned.sequence, *tokenizer, base()), Error);
    BOOST_TEST(poisoned.warnings.size() == 1u);
  }
  Opened clean(options);
  int64_t n_cached = -1;
  BOOST_TEST(greedy(*clean.sequence, *tokenizer, base(), &n_cached) == expected);
  BOOST_TEST(n_cached == 0);
}

BOOST_AUTO_TEST_SUITE_END()
