// Many sequences and requests at a time: what becomes of each is what becomes of it alone.
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/loop.h"
#include "engine/sequence.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/many_sequences.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"
#include "tests/support/token_records.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(loop)

namespace {

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = 2, .n_dense_layers = 1, .index_topk = 32});
  return model.path;
}

// A listener that keeps what it hears and stops after so many calls.
struct Ear : Listener {
  std::string text;
  int64_t n_before_stop = -1;
  std::vector<int64_t> n_done;
  void on_prefill(int64_t done, int64_t, int64_t) override { n_done.push_back(done); }
  void on_reasoning(const std::string& piece) override { text += piece; }
  void on_answer(const std::string& piece) override { text += piece; }
  bool is_interrupted() override { return n_before_stop >= 0 && n_before_stop-- == 0; }
};

struct Scene {
  GgufFile file{tiny_path()};
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<ByHand>> sequences;

  explicit Scene(int64_t max_seqs, std::optional<int64_t> topk_buffer = {})
      : Scene(small(max_seqs, 256 * max_seqs, topk_buffer)) {
    for (int64_t i = 0; i < max_seqs; ++i) sequences.push_back(std::make_unique<ByHand>(*engine));
  }
  explicit Scene(const EngineOptions& options) : engine(std::make_unique<Engine>(file, options)) {}

  static EngineOptions small(int64_t max_seqs, int64_t pool, std::optional<int64_t> topk_buffer) {
    EngineOptions options;
    options.context = 256, options.chunk = 16, options.n_threads = 1;
    options.max_seqs = max_seqs, options.pool = pool, options.topk_buffer = topk_buffer;
    return options;
  }

  Request request(size_t i) const {
    GenerationOptions options;
    options.sampling.seed = i;
    options.max_tokens = 20 + static_cast<int64_t>(i) * 7;
    options.n_top_logprobs = static_cast<int64_t>(i);
    return {sequences.empty() ? nullptr : sequences[i % sequences.size()].get(), tokenizer.get(),
            random_tokens(40 + static_cast<int64_t>(i) * 25, i), options};
  }
};

EngineOptions many_sequences(std::optional<int64_t> topk_buffer = {}) {
  EngineOptions options;
  options.n_threads = 1, options.chunk = 64, options.topk_buffer = topk_buffer;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_CASE(three_requests_interleaved_are_answered_as_each_alone) {
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>{}, std::optional<int64_t>{40}}) {
    std::vector<Records> alone;
    std::vector<std::string> texts;
    for (size_t i = 0; i < 3; ++i) {
      Scene scene(1, topk_buffer);
      Ear ear;
      const Request request = scene.request(i);
      alone.push_back(
          records_of(generate(*scene.sequences[0], *scene.tokenizer, request.prompt, request.options, ear)));
      texts.push_back(ear.text);
    }
    Scene scene(3, topk_buffer);
    Ear ears[3];
    Loop& loop = scene.engine->loop();
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < 3; ++i) {
      numbers.push_back(loop.add(scene.request(i), ears[i]));
      for (int turns = 0; turns < 4; ++turns) loop.advance();  // the next one comes in the middle of this one
    }
    while (loop.advance()) {
    }
    for (size_t i = 0; i < 3; ++i) {
      const GenerationResult result = loop.take(numbers[i]);
      BOOST_TEST((records_of(result) == alone[i]), "request " << i);
      BOOST_TEST(ears[i].text == texts[i]);
      BOOST_TEST(result.n_completion_tokens > 0);
    }
  }
}

// On the CPU a prompt's last token is the same whether a chunk or a decode step computes it.
BOOST_AUTO_TEST_CASE(a_held_prompt_is_answered_without_reading) {
  Scene scene(2);
  Loop& loop = scene.engine->loop();
  Request read = scene.request(1), held = scene.request(1);
  read.sequence = scene.sequences[0].get(), held.sequence = scene.sequences[1].get();
  scene.sequences[1]->sync(std::span(held.prompt).first(held.prompt.size() - 1));
  held.is_held = true;
  Ear ears[2];
  const int64_t numbers[] = {loop.add(read, ears[0]), loop.add(held, ears[1])};
  while (loop.advance()) {
  }
  BOOST_TEST((records_of(loop.take(numbers[0])) == records_of(loop.take(numbers[1]))));
  BOOST_TEST(ears[0].text == ears[1].text);
  BOOST_TEST((!ears[0].n_done.empty() && ears[1].n_done.empty()));
}

// More requests than there are places, in pools that are too small for what they become: each waits, gives
// way or begins anew, and is answered as it is alone.
BOOST_AUTO_TEST_CASE(many_requests_in_small_pools_are_answered_as_each_alone) {
  constexpr size_t kRequests = kIsSanitized ? 6 : 24;
  const auto request = [](const Scene& scene, size_t i) {
    Request made = scene.request(i);
    made.sequence = nullptr;
    made.prompt.resize(1 + i * 37 % (i < 12 ? 40 : 150), 7);
    made.options.n_top_logprobs = static_cast<int64_t>(i % 3);
    made.options.max_tokens = i % 2 ? -1 : static_cast<int64_t>(i * 31 % 150);
    return made;
  };
  std::vector<Records> alone;
  for (size_t i = 0; i < kRequests; ++i) {
    Scene scene(1);
    Ear ear;
    const Request one = request(scene, i);
    alone.push_back(
        records_of(generate(*scene.sequences[0], *scene.tokenizer, one.prompt, one.options, ear)));
  }
  struct Pools {
    int64_t n_tokens, buffer, n_slots;
    bool restarts, shrinks;
  };
  for (const Pools& pools : {Pools{256, 40, 192, true, false}, Pools{2048, 150, 320, false, true}}) {
    EngineOptions options = Scene::small(3, pools.n_tokens, pools.buffer);
    options.slots = pools.n_slots;
    Scene scene(options);
    Loop& loop = scene.engine->loop();
    std::vector<Ear> ears(kRequests);
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < kRequests; ++i) numbers.push_back(loop.add(request(scene, i), ears[i]));
    while (loop.advance()) {
    }
    for (size_t i = 0; i < kRequests; ++i)
      BOOST_TEST((records_of(loop.take(numbers[i])) == alone[i]), "request " << i);
    BOOST_TEST((loop.n_restarted() > 0) == pools.restarts);
    BOOST_TEST((loop.n_shrunk() > 0) == pools.shrinks);
  }
}

// Whoever begins like another waits for it, computes only what is its own, and takes only the pages of that:
// so all of them run together in a pool that holds three of them alone.
BOOST_AUTO_TEST_CASE(a_prefix_that_several_wait_for_is_computed_once) {
  constexpr size_t kRequests = 6;
  EngineOptions options = Scene::small(kRequests, 4 * 256, {});
  options.cache.emplace();
  Scene scene(options);
  Loop& loop = scene.engine->loop();
  Ear ears[kRequests];
  std::vector<int64_t> numbers;
  std::vector<Request> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back(scene.request(i));
    requests.back().prompt = random_tokens(200, 1);
    requests.back().prompt.resize(220, static_cast<int32_t>(i));
    requests.back().options.max_tokens = 30;
    numbers.push_back(loop.add(requests.back(), ears[i]));
  }
  int64_t n_most = 0;
  while (loop.advance()) {
    int64_t n_decoding = 0;
    for (size_t i = 0; i < kRequests; ++i)
      n_decoding += !ears[i].n_done.empty() && ears[i].n_done.back() == 220 && !loop.is_done(numbers[i]);
    n_most = std::max(n_most, n_decoding);
  }
  for (size_t i = 0; i < kRequests; ++i) {
    const GenerationResult result = loop.take(numbers[i]);
    BOOST_TEST(result.n_cached_tokens == (i == 0 ? 0 : 192));
    Scene alone(1);
    Ear ear;
    BOOST_TEST((records_of(result) == records_of(generate(*alone.sequences[0], *alone.tokenizer,
                                                          requests[i].prompt, requests[i].options, ear))));
  }
  BOOST_TEST(n_most > 3);
  BOOST_TEST(loop.n_restarted() == 0);
}

BOOST_AUTO_TEST_CASE(one_request_that_ends_early_leaves_the_others_alone) {
  Scene scene(3);
  Loop& loop = scene.engine->loop();
  Ear stopped, refused, other;
  stopped.n_before_stop = 12;
  Request too_long = scene.request(1);
  too_long.prompt = random_tokens(300, 5);
  const int64_t a = loop.add(scene.request(0), stopped), b = loop.add(too_long, refused),
                c = loop.add(scene.request(2), other);
  while (loop.advance()) {
  }
  BOOST_TEST((loop.take(a).finish_reason == FinishReason::interrupted));
  BOOST_CHECK_EXCEPTION(loop.take(b), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::context_full; });
  Scene alone(1);
  Ear ear;
  const Request request = alone.request(2);
  const Records expected =
      records_of(generate(*alone.sequences[0], *alone.tokenizer, request.prompt, request.options, ear));
  BOOST_TEST((records_of(loop.take(c)) == expected));
  BOOST_TEST(
      std::vector(other.n_done.begin(), other.n_done.begin() + 4) == (std::vector<int64_t>{0, 8, 16, 16}),
      boost::test_tools::per_element());  // of a chunk of 16, two layers
  BOOST_TEST(other.n_done.back() == 90);
}

// Who was interrupted may not stand in the way of those who wait for its place.
BOOST_AUTO_TEST_CASE(a_place_that_an_interruption_leaves_is_taken) {
  Scene scene(Scene::small(2, 512, {}));
  Loop& loop = scene.engine->loop();
  std::vector<Ear> ears(6);
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < ears.size(); ++i) {
    ears[i].n_before_stop = i < 3 ? 6 : -1;
    Request request = scene.request(i);
    request.sequence = nullptr;
    numbers.push_back(loop.add(std::move(request), ears[i]));
  }
  while (loop.advance()) {
  }
  for (size_t i = 0; i < ears.size(); ++i)
    BOOST_TEST((loop.take(numbers[i]).finish_reason == FinishReason::interrupted) == (i < 3));
}

// The sequence of a talk is there for its next request, unless somebody else asked in between.
BOOST_AUTO_TEST_CASE(a_talk_goes_on_where_it_was) {
  Scene scene(Scene::small(2, 512, {}));
  Loop& loop = scene.engine->loop();
  const auto asked = [&](int64_t talk) {
    Request request = scene.request(0);
    request.sequence = nullptr, request.talk = talk;
    Ear ear;
    return generate(loop, request, ear);
  };
  const int64_t n_prompt = std::ssize(scene.request(0).prompt);
  BOOST_TEST(asked(1).n_cached_tokens == 0);
  BOOST_TEST(asked(1).n_cached_tokens == n_prompt - 1);
  BOOST_TEST(asked(2).n_cached_tokens == 0);
  BOOST_TEST(asked(1).n_cached_tokens == 0);
  BOOST_TEST(asked(1).n_held_tokens > n_prompt);
  BOOST_TEST(asked(0).n_cached_tokens == 0);
  BOOST_TEST(asked(1).n_cached_tokens == 0);
  loop.end_talk(1);
  BOOST_TEST(asked(1).n_cached_tokens == 0);
}

// Its rows may be damaged.
BOOST_AUTO_TEST_CASE(a_talk_does_not_go_on_with_the_rows_of_a_request_that_failed) {
  struct Failing : Listener {
    void on_reasoning(const std::string&) override { throw std::runtime_error("the ear hurts"); }
    void on_answer(const std::string& text) override { on_reasoning(text); }
  };
  Scene scene(Scene::small(1, 256, {}));
  Request request = scene.request(0);
  request.talk = 1;
  Failing failing;
  Ear ear;
  BOOST_CHECK_THROW(generate(scene.engine->loop(), request, failing), Error);
  BOOST_TEST(generate(scene.engine->loop(), request, ear).n_cached_tokens == 0);
}

// Each of the three limits by itself, and what they allow together. The end of thinking that a limit sets
// has no record, and what was thought before it is what would have been thought anyway.
BOOST_AUTO_TEST_CASE(thinking_and_answer_have_limits_of_their_own) {
  Scene scene(1);
  const auto answered = [&](int64_t max_answer, int64_t max_thinking, int64_t max_tokens) {
    Request request = scene.request(1);
    request.options.max_answer = max_answer, request.options.max_thinking = max_thinking;
    request.options.max_tokens = max_tokens;
    Ear ear;
    return generate(*scene.sequences[0], *scene.tokenizer, request.prompt, request.options, ear);
  };
  const GenerationResult both = answered(7, 5, -1), none = answered(7, 0, -1), sum = answered(7, -1, 9);
  BOOST_TEST((both.n_thinking_tokens == 6 && both.n_answer_tokens() == 7 && both.logprobs.size() == 12));
  BOOST_TEST((both.completion.thinking_closed && !both.completion.content.empty()));
  BOOST_TEST(
      (none.n_thinking_tokens == 1 && none.n_answer_tokens() == 7 && none.completion.reasoning.empty()));
  BOOST_TEST((sum.n_thinking_tokens == 9 && sum.n_answer_tokens() == 0));
  const Records thought = records_of(both), anyway = records_of(sum);
  BOOST_TEST(std::equal(thought.begin(), thought.begin() + 10, anyway.begin()));
  BOOST_TEST(answered(0, -1, -1).n_completion_tokens == 0);

  const auto n_most = [](int64_t max_answer, int64_t max_thinking, int64_t max_tokens, bool thinking) {
    return GenerationOptions{{}, max_answer, max_thinking, max_tokens, {}, thinking, -1, {}}.n_most();
  };
  BOOST_TEST(
      (n_most(-1, -1, -1, true) == -1 && n_most(7, -1, -1, true) == -1 && n_most(7, -1, 9, true) == 9));
  BOOST_TEST((n_most(7, 5, -1, true) == 13 && n_most(7, 5, -1, false) == 7 && n_most(7, 5, 20, true) == 13));
  BOOST_TEST((n_most(0, -1, -1, true) == 0 && n_most(-1, 5, 9, false) == 9));
}

// Wherever in its chunks a prompt is left, what follows has the same bits.
BOOST_AUTO_TEST_CASE(a_prompt_that_is_left_in_a_chunk) {
  Scene scene(1), fresh(1);
  const Request request = scene.request(0);
  const auto answer = [&](Scene& where, Listener& listener) {
    return generate(*where.sequences[0], *where.tokenizer, request.prompt, request.options, listener);
  };
  Ear expected;
  const Records records = records_of(answer(fresh, expected));
  for (const int64_t n_before : {1, 2, 3, 5, 10, 20, 50, 100, 150}) {
    Ear ear;
    ear.n_before_stop = n_before;
    const GenerationResult left = answer(scene, ear);
    BOOST_TEST((left.finish_reason == FinishReason::interrupted));
    BOOST_TEST(ear.text.empty());
    BOOST_TEST(left.n_read_tokens < std::ssize(request.prompt));
    BOOST_TEST(left.n_read_tokens == std::ssize(scene.sequences[0]->tokens()));
    if (n_before % 20 != 0) continue;
    Ear again;
    BOOST_TEST((records_of(answer(scene, again)) == records));
    scene.sequences[0]->hold(std::vector<int32_t>{request.prompt.back()});
  }
  Ear ear;
  BOOST_TEST((records_of(answer(scene, ear)) == records));
}

// As for lack of memory, or a device that fails: the request goes with the one who asked.
BOOST_AUTO_TEST_CASE(a_request_whose_turn_throws_leaves_the_loop) {
  struct Failing : Listener {
    int n_before = 0;
    bool is_interrupted() override {
      if (n_before-- == 0) throw std::bad_alloc();
      return false;
    }
  };
  Scene scene(1), fresh(1);
  const Request request = scene.request(0);
  const auto answer = [&](Scene& where, Listener& listener) {
    return records_of(
        generate(*where.sequences[0], *where.tokenizer, request.prompt, request.options, listener));
  };
  for (const int n_before : {1, 12}) {  // in the prompt, in the answer
    Failing failing;
    failing.n_before = n_before;
    BOOST_CHECK_EXCEPTION(answer(scene, failing), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::memory; });
    BOOST_TEST(!scene.engine->loop().advance());
  }
  Ear ear, expected;
  BOOST_TEST((answer(scene, ear) == answer(fresh, expected)));
  BOOST_TEST(ear.text == expected.text);
}

// Wherever it is, on its way to the answer or in it: the other one does not notice.
BOOST_AUTO_TEST_CASE(what_one_request_throws_is_its_own_error) {
  struct Failing : Listener {
    int n_before = 0;
    void hear() {
      if (n_before-- == 0) throw std::runtime_error("the ear hurts");
    }
    void on_prefill(int64_t, int64_t, int64_t) override { hear(); }
    void on_reasoning(const std::string&) override { hear(); }
    void on_answer(const std::string&) override { hear(); }
    bool is_interrupted() override { return hear(), false; }
  };
  const EngineOptions options = Scene::small(2, 512, {});
  Scene reference(options);
  Ear expected;
  const Records alone = records_of(generate(reference.engine->loop(), reference.request(1), expected));
  Scene scene(options);
  Loop& loop = scene.engine->loop();
  for (const int n_before : {0, 1, 2, 5, 9, 14, 20, 30, 40}) {
    Failing failing;
    failing.n_before = n_before;
    Ear ear;
    const int64_t bad = loop.add(scene.request(0), failing), good = loop.add(scene.request(1), ear);
    BOOST_CHECK_NO_THROW(while (loop.advance()){});
    BOOST_TEST((records_of(loop.take(good)) == alone), "after " << n_before);
    BOOST_TEST(ear.text == expected.text);
    BOOST_CHECK_EXCEPTION(loop.take(bad), Error,
                          [](const Error& error) { return error.what() == std::string("the ear hurts"); });
  }
}

// Without memory for its admission; where it is a step of all that lacks memory, the turn says so.
BOOST_AUTO_TEST_CASE(a_request_that_cannot_be_admitted_is_alone_in_that) {
  const EngineOptions options = Scene::small(2, 512, {});
  Scene reference(options);
  Ear nobody;
  const Records alone = records_of(generate(reference.engine->loop(), reference.request(0), nobody));
  int n_refused = 0;
  for (int64_t n = 0; n < 24; ++n) {
    Scene scene(options);
    Loop& loop = scene.engine->loop();
    const int64_t first = loop.add(scene.request(0), nobody);
    for (int i = 0; i < 8; ++i) loop.advance();
    const int64_t second = loop.add(scene.request(1), nobody);
    bool is_everyones = false;
    {
      FailingAllocations failing(n);
      try {
        loop.advance();
      } catch (const std::bad_alloc&) {
        is_everyones = true;
      }
    }
    if (is_everyones || !loop.is_done(second)) continue;
    ++n_refused;
    BOOST_CHECK_EXCEPTION(loop.take(second), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::memory; });
    while (loop.advance()) {
    }
    BOOST_TEST((records_of(loop.take(first)) == alone), "allocation " << n);
  }
  BOOST_TEST(n_refused > 0);
}

BOOST_AUTO_TEST_CASE(sequences_at_random_equal_each_alone) {
  ManySequences(tiny_path(), many_sequences()).run(kIsSanitized ? 100 : 600);
  ManySequences(tiny_path(), many_sequences(40)).run(kIsSanitized ? 100 : 300);
}

BOOST_AUTO_TEST_CASE(sequences_at_random_ten_thousand_steps,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  ManySequences(tiny_path(), many_sequences()).run(10000);
  ManySequences(tiny_path(), many_sequences(40)).run(10000);
}

BOOST_AUTO_TEST_SUITE_END()
