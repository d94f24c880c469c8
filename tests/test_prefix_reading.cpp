// Prefixes on their way from a disk that is slow, fails or hangs: what has come in time is used, and to the
// bits of a prompt that is computed; what has not costs time and never an answer.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/thread.h"
#include "engine/loop.h"
#include "tests/support/disk_gate.h"
#include "tests/support/disk_options.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/stored_pages.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_reading)

namespace {

constexpr int64_t kFirstPages = 2, kPages = 3, kBase = kPages * kPageTokens;

const std::string& tiny_path() {
  static const TinyFile tiny(least_shape());
  return tiny.path;
}

const std::vector<int32_t>& base() {
  static const std::vector<int32_t> tokens = random_tokens(kBase, 1);
  return tokens;
}

// The first n tokens of the known prompt, and some that it does not have.
std::vector<int32_t> leaving_at(int64_t n, int64_t n_others = 3) {
  std::vector<int32_t> tokens(base().begin(), base().begin() + n);
  for (int64_t i = 0; i < n_others; ++i) tokens.push_back(i == 0 ? 250 : 252);
  return tokens;
}

EngineOptions cold_options() {
  EngineOptions options;
  options.context = 1024;
  options.n_threads = 2;
  return options;
}

struct Opened : TinySequence {
  explicit Opened(const EngineOptions& options) : TinySequence(tiny_path(), options) {}
};

// base() on disk, the last page of which is held back.
struct GatedFixture {
  TempDir dir;
  std::shared_ptr<DiskGate> gate =
      std::make_shared<DiskGate>();  // shared: a read that hangs may outlive the test

  GatedFixture() {
    sync(kFirstPages * kPageTokens);
    const auto first = page_files(dir.file("cache"));
    sync(kBase);
    for (const auto& page : page_files(dir.file("cache")))
      if (std::ranges::find(first, page) == first.end()) gate->held = page.filename();
    BOOST_REQUIRE(!gate->held.empty());
  }
  EngineOptions options() const {
    EngineOptions gated = with_disk(cold_options(), dir.file("cache"));
    gated.cache->files = gate.get();
    gated.cache->write = WritePolicy::write_back;
    return gated;
  }

 private:
  void sync(int64_t n_tokens) const {
    Opened(with_disk(cold_options(), dir.file("cache")))
        .sequence->sync(std::span(base()).first(static_cast<size_t>(n_tokens)));
  }
};

void check_same(Engine& engine, ByHand& warm, const std::vector<int32_t>& tokens) {
  static Opened cold(cold_options());
  cold.sequence->sync(tokens);
  BOOST_TEST((warm.logits() == cold.sequence->logits()));
  BOOST_TEST((remembered(engine, warm) == remembered(*cold.engine, *cold.sequence)));
}

// Whether is_ready() looks at the tokens, which takes memory.
bool asks(ByHand& sequence, const std::vector<int32_t>& tokens) {
  FailingAllocations none(0);
  sequence.is_ready(tokens);
  return none.stop();
}

// The disk outlives its test: a thread that was left behind uses it.
DiskGate& lasting(const GatedFixture& disk) {
  static std::vector<std::shared_ptr<DiskGate>>& gates = *new std::vector<std::shared_ptr<DiskGate>>;
  return *gates.emplace_back(disk.gate);
}

// What uses the memory of the engine's pool has gone: a thread that hung went on and ended.
void let_go_on(DiskGate& gate) {
  gate.open();
  while (gate.is_waited_for()) std::this_thread::yield();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_slow_disk_is_waited_for) {
  for (const int64_t split : {kBase - 1, kBase - 20, kFirstPages * kPageTokens + 1}) {
    const GatedFixture disk;
    Opened warm(disk.options());
    std::thread opener([&] {
      while (!disk.gate->is_waited_for()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      disk.gate->open();
    });
    const std::vector<int32_t> tokens = leaving_at(split), whole = leaving_at(kBase);
    BOOST_TEST(warm.sequence->sync(whole) == kBase);
    opener.join();
    check_same(*warm.engine, *warm.sequence, whole);
    BOOST_TEST(warm.sequence->sync(tokens) == split);  // from memory
    check_same(*warm.engine, *warm.sequence, tokens);
    BOOST_TEST(warm.warnings.empty());
  }
}

// Long prefixes: the pages at the front are known, and what comes of them has the right bits, while the last
// one is still being read.
BOOST_AUTO_TEST_CASE(pages_are_known_while_later_ones_are_read) {
  constexpr int64_t kMany = 40;
  const TempDir dir;
  EngineOptions options = cold_options();
  options.context = (kMany + 2) * kPageTokens;
  const std::vector<int32_t> tokens = random_tokens(kMany * kPageTokens + 1, 3);
  Opened cold(options);
  cold.sequence->sync(tokens);
  options = with_disk(options, dir.file("cache"));
  Opened(options).sequence->sync(std::span(tokens).first((kMany - 1) * kPageTokens));
  const auto first = page_files(dir.file("cache"));
  Opened(options).sequence->sync(std::span(tokens).first(kMany * kPageTokens));
  DiskGate gate;
  for (const auto& page : page_files(dir.file("cache")))
    if (std::ranges::find(first, page) == first.end()) gate.held = page.filename();
  options.cache->files = &gate;
  Opened warm(options);
  const PrefixTree& tree = warm.engine->prefix_cache()->tree();
  while (tree.n_pages() < kMany / 2) BOOST_REQUIRE(!warm.sequence->is_ready(tokens));
  BOOST_TEST(tree.n_pages() < kMany);
  gate.open();
  while (!warm.sequence->is_ready(tokens)) std::this_thread::yield();
  BOOST_TEST(tree.n_pages() == kMany);
  BOOST_TEST(warm.sequence->sync(tokens) == kMany * kPageTokens);
  BOOST_TEST((warm.sequence->logits() == cold.sequence->logits()));
  BOOST_TEST((remembered(*warm.engine, *warm.sequence) == remembered(*cold.engine, *cold.sequence)));
}

// What comes after the deadline is nobody's. The pages ahead of it are used.
BOOST_AUTO_TEST_CASE(of_a_hanging_disk_what_has_come_is_used) {
  const GatedFixture disk;
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::timeout;
  options.max_seqs = 2;
  Opened warm(options);
  const std::vector<int32_t> tokens = leaving_at(kBase, 40);
  BOOST_TEST(warm.sequence->sync(tokens) == kFirstPages * kPageTokens);
  check_same(*warm.engine, *warm.sequence, tokens);
  ByHand other(*warm.engine);
  BOOST_TEST(other.sync(leaving_at(kBase, 50)) == kBase);
  check_same(*warm.engine, other, leaving_at(kBase, 50));
  disk.gate->open();
}

BOOST_AUTO_TEST_CASE(what_cannot_be_read_is_computed) {
  for (const int result : {-EIO, -ENOMEM}) {
    const GatedFixture disk;
    disk.gate->result = result;
    disk.gate->open();
    Opened warm(disk.options());
    BOOST_TEST(warm.sequence->sync(leaving_at(kBase)) == kFirstPages * kPageTokens);
    check_same(*warm.engine, *warm.sequence, leaving_at(kBase));
    BOOST_TEST(warm.warnings.size() == 1u);
  }
}

// Without waiting, pages are taken only if they are there.
BOOST_AUTO_TEST_CASE(best_effort_takes_what_is_there) {
  const GatedFixture disk;
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::best_effort;
  const std::vector<int32_t> tokens = leaving_at(kBase);
  const GgufFile file(tiny_path());
  Engine engine(file, options, [&](PrefixCache& prefixes) {
    while (!disk.gate->is_waited_for()) prefixes.prefetch(tokens);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  ByHand sequence(engine);
  BOOST_TEST(sequence.sync(tokens) == kFirstPages * kPageTokens);
  check_same(engine, sequence, tokens);
  disk.gate->open();
}

// Two pages are in use, one is on its way, and a prompt needs it: reading is given up and its end awaited, as
// long as there is hope for it.
BOOST_AUTO_TEST_CASE(pages_that_are_being_read_are_waited_for_when_none_is_left) {
  for (const bool hangs : {false, true}) {
    const GatedFixture disk;
    DiskGate& gate = lasting(disk);
    EngineOptions options = disk.options();
    options.context = kBase, options.chunk = kPageTokens;
    Opened warm(options);
    const std::vector<int32_t> others = random_tokens(kBase, 9);
    warm.sequence->sync(std::span(others).first(2 * kPageTokens));
    gate.held.clear();
    warm.engine->prefix_cache()->prefetch(leaving_at(kBase));
    while (!gate.is_waited_for()) std::this_thread::yield();
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(hangs ? 0 : 200));
      if (!hangs) gate.open();
    });
    const auto start = std::chrono::steady_clock::now();
    if (hangs) {
      BOOST_CHECK_EXCEPTION(warm.sequence->sync(others), Error,
                            [](const Error& error) { return error.kind() == ErrorKind::context_full; });
      BOOST_TEST(seconds_since(start) >= 1.9);
      BOOST_TEST(seconds_since(start) < 20);
    } else {
      BOOST_TEST(warm.sequence->sync(others) == 2 * kPageTokens);
    }
    opener.join();
    let_go_on(gate);
  }
}

// Two requests wait for the disk, the second for its turn there; the third, which the disk knows nothing of,
// is answered meanwhile. All are answered as they are alone and cold.
BOOST_AUTO_TEST_CASE(who_waits_for_the_disk_holds_nobody_up) {
  const GatedFixture disk;
  EngineOptions options = disk.options();
  options.max_seqs = 4, options.pool = 4096;
  Opened warm(options), cold(cold_options());
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(warm.file));
  GenerationOptions five;
  five.max_tokens = 5, five.thinking = false, five.n_top_logprobs = 0, five.sampling.temperature = 0;
  const std::vector<std::vector<int32_t>> prompts = {leaving_at(kBase), leaving_at(kBase, 10),
                                                     random_tokens(100, 9)};
  Listener nobody;
  Loop& loop = warm.engine->loop();
  std::vector<int64_t> numbers;
  for (const std::vector<int32_t>& prompt : prompts)
    numbers.push_back(loop.add({nullptr, tokenizer.get(), prompt, five}, nobody));
  while (!loop.is_done(numbers[2])) loop.advance();
  BOOST_TEST(disk.gate->is_waited_for());
  BOOST_TEST((!loop.is_done(numbers[0]) && !loop.is_done(numbers[1])));
  disk.gate->open();
  while (loop.advance()) {
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const GenerationResult result = loop.take(numbers[i]);
    BOOST_TEST(result.n_cached_tokens == (i < 2 ? kBase : 0));
    const GenerationResult alone = generate(*cold.sequence, *tokenizer, prompts[i], five, nobody);
    BOOST_REQUIRE(result.logprobs.size() == alone.logprobs.size());
    for (size_t t = 0; t < alone.logprobs.size(); ++t) {
      BOOST_TEST(result.logprobs[t].chosen.id == alone.logprobs[t].chosen.id);
      BOOST_TEST(result.logprobs[t].chosen.logprob == alone.logprobs[t].chosen.logprob);
    }
  }
}

// The disk is read for `reading`, `waiting` waits for its turn there, and `decoding` decodes meanwhile.
struct TwoAtTheDisk {
  const GatedFixture disk;
  std::unique_ptr<Opened> warm;
  std::unique_ptr<Tokenizer> tokenizer;
  Listener nobody;
  int64_t reading = 0, waiting = 0, decoding = 0;

  TwoAtTheDisk() {
    const std::vector<int32_t> stored = random_tokens(kBase, 9);
    Opened(with_disk(cold_options(), disk.dir.file("cache"))).sequence->sync(stored);
    std::vector<int32_t> second = stored;
    second.push_back(250);
    EngineOptions options = disk.options();
    options.max_seqs = 4, options.pool = 4096;
    warm = std::make_unique<Opened>(options);
    tokenizer = Tokenizer::make(load_vocabulary(warm->file));
    reading = add(leaving_at(kBase), 2), waiting = add(second, 2), decoding = add(random_tokens(20, 5), 300);
    for (int i = 0; i < 10; ++i) loop().advance();
    BOOST_TEST(disk.gate->is_waited_for());
  }
  Loop& loop() { return warm->engine->loop(); }
  int64_t add(const std::vector<int32_t>& prompt, int64_t max_tokens) {
    GenerationOptions options;
    options.max_tokens = max_tokens;
    return loop().add({nullptr, tokenizer.get(), prompt, options}, nobody);
  }
  void open_until_done(int64_t request) {
    disk.gate->open();
    while (!loop().is_done(request) && !loop().is_done(decoding)) loop().advance();
  }
};

// What is read for a request that was dropped does not keep the next one from the disk, while others decode.
BOOST_AUTO_TEST_CASE(a_dropped_request_leaves_the_disk_to_the_next) {
  TwoAtTheDisk scene;
  Loop& loop = scene.loop();
  loop.drop(scene.reading);
  scene.open_until_done(scene.waiting);
  BOOST_TEST(!loop.is_done(scene.decoding));
  BOOST_TEST(loop.take(scene.waiting).n_cached_tokens == kBase);
  loop.drop(scene.decoding);
}

BOOST_AUTO_TEST_CASE(a_dropped_request_that_waits_for_its_turn_leaves_the_disk_to_the_one_before) {
  TwoAtTheDisk scene;
  Loop& loop = scene.loop();
  const PrefixCache& prefixes = *scene.warm->engine->prefix_cache();
  const uint64_t n_changes = prefixes.n_changes();
  loop.drop(scene.waiting);
  BOOST_TEST(prefixes.n_changes() == n_changes);
  scene.open_until_done(scene.reading);
  BOOST_TEST(loop.take(scene.reading).n_cached_tokens == kBase);
  loop.drop(scene.decoding);
}

// Steps that bring no page to be known are no reason to ask again for who waits for its turn there.
BOOST_AUTO_TEST_CASE(who_waits_for_its_turn_is_asked_again_when_something_changed) {
  const GatedFixture disk;
  const std::vector<int32_t> first = leaving_at(kBase), stored = random_tokens(kBase, 9);
  Opened(with_disk(cold_options(), disk.dir.file("cache"))).sequence->sync(stored);
  std::vector<int32_t> second = stored;
  second.push_back(250);
  EngineOptions options = disk.options();
  options.max_seqs = 3, options.pool = 4096;
  Opened warm(options);
  PrefixCache& prefixes = *warm.engine->prefix_cache();
  ByHand reading(*warm.engine), waiting(*warm.engine);
  BOOST_TEST(!reading.is_ready(first));
  BOOST_TEST((prefixes.readiness(first) == PrefixCache::Readiness::is_read));
  BOOST_TEST(!waiting.is_ready(second));
  BOOST_TEST((prefixes.readiness(second) == PrefixCache::Readiness::waits_for_it));
  const uint64_t n_at_first = prefixes.n_changes();
  warm.sequence->sync(random_tokens(20, 5));
  for (int i = 0; i < 20; ++i) warm.sequence->step(7), warm.sequence->save_prefix();
  BOOST_TEST(prefixes.n_changes() == n_at_first);
  BOOST_TEST(asks(reading, first));
  BOOST_TEST(!asks(waiting, second));
  warm.sequence->sync(random_tokens(kPageTokens, 6));
  BOOST_TEST(prefixes.n_changes() > n_at_first);
  BOOST_TEST(asks(waiting, second));
  BOOST_TEST(!waiting.is_ready(second));
  disk.gate->open();
  while (!reading.is_ready(first)) std::this_thread::yield();
  BOOST_TEST(reading.hold(first) == kBase);
  while (!waiting.is_ready(second)) std::this_thread::yield();
  BOOST_TEST(waiting.hold(second) == kBase);
}

// What was read for one prompt serves another that leaves it earlier, in the middle of a page or not.
BOOST_AUTO_TEST_CASE(a_prefetch_for_another_prompt_is_taken_as_far_as_it_goes) {
  for (const int64_t split : {int64_t{10}, kPageTokens, kFirstPages * kPageTokens}) {
    const GatedFixture disk;
    const GgufFile file(tiny_path());
    Engine engine(file, disk.options(), [&](PrefixCache& prefixes) { prefixes.prefetch(leaving_at(kBase)); });
    ByHand sequence(engine);
    const std::vector<int32_t> tokens = leaving_at(split, 9);
    BOOST_TEST(sequence.sync(tokens) == split);  // in the middle of a page that was read
    check_same(engine, sequence, tokens);
    disk.gate->open();
    BOOST_TEST(sequence.sync(leaving_at(kBase)) == kBase);
    check_same(engine, sequence, leaving_at(kBase));
  }
}

// A read that hangs when the engine goes is left behind, with the memory that it writes to.
BOOST_AUTO_TEST_CASE(a_read_that_hangs_does_not_keep_the_program) {
  const GatedFixture disk;
  DiskGate& gate = lasting(disk);
  EngineOptions options = disk.options();
  options.cache->prefetch = PrefetchPolicy::best_effort;
  const auto engine = std::make_unique<Opened>(options);
  engine->engine->prefix_cache()->prefetch(leaving_at(kBase));
  while (!gate.is_waited_for()) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  engine->sequence.reset(), engine->engine.reset();
  const double seconds = seconds_since(start);
  BOOST_TEST(seconds >= 1.9);
  BOOST_TEST(seconds < 20);
  BOOST_TEST(are_threads_left_behind());
  let_go_on(gate);
}

// So is the list of what is stored: neither the start waits for it, nor the first prompt, nor the end. What
// comes later is known from then on.
BOOST_AUTO_TEST_CASE(a_list_that_hangs_keeps_nobody) {
  for (const bool comes_later : {true, false}) {
    const GatedFixture disk;
    DiskGate& gate = lasting(disk);
    gate.holds_lists = true;
    EngineOptions options = disk.options();
    options.cache->prefetch = PrefetchPolicy::timeout;
    options.max_seqs = 2;
    auto start = std::chrono::steady_clock::now();
    const GgufFile file(tiny_path());
    auto engine = std::make_unique<Engine>(file, options);
    auto sequence = std::make_unique<ByHand>(*engine);
    BOOST_TEST(sequence->sync(leaving_at(kBase)) == 0);
    BOOST_TEST(std::string(sequence->why_none_cached()) == "the disk did not list its prefixes in time");
    BOOST_TEST(seconds_since(start) < 15);
    BOOST_TEST(gate.is_waited_for());
    if (comes_later) {
      gate.open();
      while (!engine->prefix_cache()->store()) engine->prefix_cache()->store_more();
      BOOST_TEST(engine->prefix_cache()->store()->n_pages() >= kPages);
    }
    start = std::chrono::steady_clock::now();
    sequence.reset(), engine.reset();
    BOOST_TEST(seconds_since(start) < 15);
    let_go_on(gate);
  }
}

// So is a write: the engine goes, and what the write still reads stays.
BOOST_AUTO_TEST_CASE(a_write_that_hangs_does_not_keep_the_program) {
  const GatedFixture disk;
  DiskGate& gate = lasting(disk);
  gate.holds_writes = true;
  EngineOptions options = disk.options();
  options.cache->write = WritePolicy::write_through;
  // Many pages, each of which reads the pool.
  options.kv_type = KvType::f32, options.chunk = 1024;
  const auto engine = std::make_unique<Opened>(options);
  engine->sequence->sync(random_tokens(15 * kPageTokens, 5));
  while (!gate.is_waited_for()) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  engine->sequence.reset(), engine->engine.reset();
  const double seconds = seconds_since(start);
  BOOST_TEST(seconds >= 1.9);
  BOOST_TEST(seconds < 20);
  const uint64_t n_writes = gate.n_steps_done;
  let_go_on(gate);
  while (gate.n_steps_done < n_writes + 3) std::this_thread::yield();  // of fifteen
}

// Weights that cannot be loaded while a read hangs: the pool stays for it.
BOOST_AUTO_TEST_CASE(a_read_that_hangs_outlives_an_engine_that_is_never_made) {
  const GatedFixture disk;
  DiskGate& gate = lasting(disk);
  const GgufFile file(tiny_path());
  const auto fail_loading = [&](PrefixCache& prefixes) {
    while (!gate.is_waited_for()) prefixes.prefetch(leaving_at(kBase));
    fail(ErrorKind::model, "no weights");
  };
  BOOST_CHECK_THROW(Engine(file, disk.options(), fail_loading), Error);
  let_go_on(gate);
}

BOOST_AUTO_TEST_SUITE_END()
