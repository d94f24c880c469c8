// BatchRunner of cli/batch: whatever goes wrong on the way of one request is what comes of it, and of no
// other.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <stdexcept>

#include "cli/batch/batch.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(batch_runner)

namespace {

const Tokenizer& tokenizer() {
  static const TinyFile model(TinyModel{.n_layers = 2, .n_dense_layers = 1});
  static const std::unique_ptr<Tokenizer> made = Tokenizer::make(load_vocabulary(GgufFile(model.path)));
  return *made;
}

// Answers each request at once with its number, or throws where it is told to.
struct Parrot : Answerer {
  enum class Step { none, add, take };
  Step fails_at = Step::none;
  int64_t fails_for = -1;
  int64_t n_added = 0;
  std::map<int64_t, bool> asked = {};

  void check(Step step, int64_t number) const {
    if (step == fails_at && number == fails_for) throw std::out_of_range("the parrot is dead");
  }
  int64_t add(Request, Listener&) override {
    const int64_t number = n_added++;
    check(Step::add, number);
    asked[number] = true;
    return number;
  }
  bool advance() override { return !asked.empty(); }
  bool is_done(int64_t) const override { return true; }
  GenerationResult take(int64_t number) override {
    asked.erase(number);
    check(Step::take, number);
    GenerationResult result;
    result.n_prompt_tokens = number;
    return result;
  }
  void drop(int64_t number) override { asked.erase(number); }
};

BatchItem item_at(int64_t place, const std::string& prompt = "a prompt that is longer than a small buffer") {
  BatchItem item;
  item.number = place + 1, item.place = place;
  item.id = "the id of a line whose number is " + std::to_string(place);
  item.request.prompt.user = prompt;
  item.request.prompt.system = "A system prompt that is longer than a small buffer.";
  return item;
}

std::string text_of(const BatchItem& item) { return *item.id + " is answered at length"; }

// By their places: the texts of those that were answered, and why the others were not.
std::map<int64_t, std::string> outcomes(BatchRunner& runner) {
  std::map<int64_t, std::string> all;
  while (runner.n_running() > 0)
    for (const auto& item : runner.advance())
      all[item->place] = item->error ? item->error->what() : item->text;
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_one_request_throws_is_its_own_outcome) {
  const std::string bos(tokenizer().piece(tokenizer().bos_id()));
  for (const char* step : {"none", "prompt", "add", "take", "write"}) {
    const std::string at = step;
    Parrot parrot;
    parrot.fails_at = at == "add"    ? Parrot::Step::add
                      : at == "take" ? Parrot::Step::take
                                     : Parrot::Step::none;
    parrot.fails_for = 1;
    BatchRunner runner(parrot, 3, tokenizer(), [&](const BatchItem& one) {
      if (at == "write" && one.place == 1) throw std::bad_alloc();
      return text_of(one);
    });
    for (int64_t i = 0; i < 3; ++i)
      runner.begin(at == "prompt" && i == 1 ? item_at(i, bos + "rendered") : item_at(i));
    BOOST_TEST(!runner.has_room());
    const std::map<int64_t, std::string> all = outcomes(runner);
    BOOST_TEST(all.size() == 3u);
    for (const auto& [place, text] : all) {
      const bool is_answered = text == text_of(item_at(place));
      BOOST_TEST(is_answered == (place != 1 || at == "none"), at << ": " << text);
    }
    if (at == "write") BOOST_TEST(all.at(1) == "out of memory");
    if (at == "take") BOOST_TEST(all.at(1) == "the parrot is dead");
    BOOST_TEST(parrot.asked.empty());
  }
}

// Whichever allocation fails: what begin() and advance() throw has lost nothing, and one outcome at most is
// bad.
BOOST_AUTO_TEST_CASE(without_memory_no_other_request_is_lost) {
  int64_t n_bad = 0, n_thrown = 0;
  bool has_failed = true;
  for (int64_t n = 0; has_failed; ++n) {
    Parrot parrot;
    BatchRunner runner(parrot, 2, tokenizer(), text_of);
    BatchItem first = item_at(0), second = item_at(1);
    std::map<int64_t, std::string> all;
    {
      FailingAllocations failing(n);
      for (BatchItem* one : {&first, &second}) try {
          runner.begin(std::move(*one));
        } catch (const std::bad_alloc&) {
          ++n_thrown;
          runner.begin(std::move(*one));
        }
      std::vector<std::unique_ptr<BatchItem>> finished;
      try {
        finished = runner.advance();
      } catch (const std::bad_alloc&) {
        ++n_thrown;
        finished = runner.advance();
      }
      has_failed = failing.stop();
      for (const auto& item : finished) all[item->place] = item->error ? "" : item->text;
    }
    BOOST_TEST(runner.n_running() == 0);
    BOOST_TEST(all.size() == 2u);
    int64_t n_bad_here = 0;
    for (const auto& [place, text] : all) n_bad_here += text != text_of(item_at(place));
    BOOST_TEST(n_bad_here <= (has_failed ? 1 : 0), "allocation " << n);
    n_bad += n_bad_here;
  }
  BOOST_TEST(n_bad > 10);
  BOOST_TEST(n_thrown > 0);
}

BOOST_AUTO_TEST_SUITE_END()
