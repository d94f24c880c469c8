// `dsv32 batch` with thousands of mixed lines in pools that hold a few of them, and in processes that are
// killed: every line is answered once, and with the answer that its request gets alone.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "cli/batch/batch.h"
#include "cli/chat/answer.h"
#include "cli/warm/model.h"
#include "engine/sequence.h"
#include "gguf/random_weights.h"
#include "tests/support/child_process.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/plain_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(many_requests)

namespace {

constexpr int64_t kContext = 1088, kParallel = 24;
constexpr int64_t kMostPool = 3 * kContext + kParallel * kPageTokens;  // that --host-mem gives, in tokens
constexpr int64_t kLines = kIsSanitized ? 100 : 2000, kFewLines = kIsSanitized ? 40 : 200;
constexpr int kKills = kIsSanitized ? 5 : 50;

// All logits of tokens that end an answer become 0, which only a high temperature draws.
void make_endings_unlikely(const std::string& path) {
  const GgufFile file(path);
  const auto tokenizer = load_tokenizer(file);
  const GgufTensor& output = *file.find_tensor("output.weight");
  const uint64_t n_row = output.n_bytes / static_cast<uint64_t>(tokenizer->n_vocab());
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  for (int32_t id = 0; id < tokenizer->n_vocab(); ++id) {
    if (!tokenizer->is_end_of_generation(id)) continue;
    bytes.seekp(static_cast<std::streamoff>(output.offset + static_cast<uint64_t>(id) * n_row));
    bytes << std::string(n_row, '\0');
  }
}

// A model that is small enough to be asked so much.
void write_model(const std::string& path) {
  TinyModel shape = narrow_shape();
  shape.has_mtp = false;
  write_tiny_model(path, shape);
  make_endings_unlikely(path);
}

// Lines of every kind. Words are tokens.
class LineWriter {
 public:
  LineWriter() {
    for (const int64_t n : {70, 150, 300}) shared_.push_back(words(n));
  }

  std::string line(int64_t i) {
    if (i % 20 == 19) return bad(i / 20);
    return i % 500 < 24 ? longer_than_expected() : good(i);
  }

 private:
  std::string words(int64_t n) {
    constexpr const char* kWords[] = {" the", " of", " and", " in", " to", " is", " was", " that", " we"};
    std::string text;
    for (int64_t i = 0; i < n; ++i) text += kWords[rng_.next() % std::size(kWords)];
    return text;
  }
  bool one_in(uint64_t n) { return rng_.next() % n == 0; }

  // A few words more often than many; every fourth line begins like others.
  std::string prompt() {
    const auto n = static_cast<int64_t>(std::pow(980., static_cast<double>(rng_.next() % 1000) / 999));
    if (!one_in(4)) return words(n);
    const std::string& text = shared_[rng_.next() % shared_.size()];
    return text + words(std::min<int64_t>(n, 70));
  }

  std::string good(int64_t i) {
    nlohmann::json body{{"max_tokens", rng_.next() % 20}, {"thinking", one_in(2)}};
    if (one_in(40)) body["max_tokens"] = 100 + rng_.next() % 200;
    if (one_in(100)) body["max_tokens"] = -1, body["temperature"] = 100, body["top_p"] = 1;
    if (one_in(2)) body["seed"] = rng_.next() % 1000;
    if (one_in(4)) body.emplace("temperature", 0);
    if (one_in(4)) body["top_k"] = 20, body.emplace("top_p", 0.9);
    if (one_in(4)) body["stop"] = {" the", "e", "\n"}, body["thinking"] = false;
    if (one_in(6)) body["logprobs"] = true, body["top_logprobs"] = rng_.next() % 4;
    if (i % 3 == 0) return completion(i, body);
    if (i % 3 == 1)
      body["messages"] = {{{"role", "system"}, {"content", "Be brief."}},
                          {{"role", "user"}, {"content", prompt()}}};
    else
      body["prompt"] = prompt();
    if (one_in(2)) body["custom_id"] = "q" + std::to_string(i);
    return body.dump();
  }
  std::string longer_than_expected() {
    return nlohmann::json{{"prompt", words(56)}, {"max_tokens", 100 + rng_.next() % 60}}.dump();
  }
  std::string completion(int64_t i, nlohmann::json& body) {
    body["prompt"] = i % 90 == 30 ? "a" : i % 90 == 60 ? words(990) : prompt();
    return nlohmann::json{{"custom_id", "c" + std::to_string(i)}, {"url", "/v1/completions"}, {"body", body}}
        .dump();
  }

  std::string bad(int64_t i) {
    const nlohmann::json long_one{{"prompt", words(kContext + 50)}, {"max_tokens", 3}};
    const std::string lines[] = {"no JSON",
                                 R"({"prompt":"x","stream":true})",
                                 long_one.dump(),
                                 R"({"custom_id":"c30","prompt":"again"})",
                                 R"({"prompt":""})",
                                 R"({"messages":[]})",
                                 R"({"prompt":"x","max_tokens":"many"})",
                                 R"({"custom_id":5,"prompt":"x"})",
                                 R"({"prompt":"x","n":2})",
                                 std::string(1000, '[')};
    return lines[static_cast<size_t>(i) % std::size(lines)];
  }

  Rng rng_{3};
  std::vector<std::string> shared_;
};

// A line without what differs between two runs.
std::string comparable(const std::string& line) {
  nlohmann::json json = nlohmann::json::parse(line);
  nlohmann::json& body = json["response"]["body"];
  if (body.is_object()) {
    for (const char* key : {"id", "created", "timings"}) body.erase(key);
    for (const char* key : {"prompt_tokens_details", "completion_tokens_details"}) body["usage"].erase(key);
  }
  return json.dump();
}

// By the lines' own ids.
using Answers = std::map<std::string, std::string>;

std::string id_of(const std::string& line) { return line.substr(0, line.find(',')); }

// Every whole line of the file once.
Answers read_answers(const std::string& path) {
  std::ifstream file(path);
  Answers answers;
  for (std::string line; std::getline(file, line) && !file.eof();)
    BOOST_TEST(answers.emplace(id_of(line), comparable(line)).second, "twice: " << line);
  return answers;
}

void check_among(const Answers& answers, const Answers& expected) {
  int64_t n_different = 0;
  for (const auto& [id, answer] : answers) {
    const auto found = expected.find(id);
    const bool is_same = found != expected.end() && found->second == answer;
    if (!is_same && ++n_different < 4)
      BOOST_ERROR(answer << "\n  instead of\n" << (found == expected.end() ? "nothing" : found->second));
  }
  BOOST_TEST(n_different == 0);
}

void check_all(const std::string& path, const Answers& expected) {
  const Answers answers = read_answers(path);
  BOOST_TEST(answers.size() == expected.size());
  check_among(answers, expected);
}

// What a killed run left: nothing else than answers, and of those that were there before all but failures.
void check_gone_on(const std::string& path, Answers& answers, const Answers& expected) {
  const Answers former = std::exchange(answers, read_answers(path));
  check_among(answers, expected);
  for (const auto& [id, answer] : former)
    if (answer.find(R"("error":null)") != answer.npos) BOOST_TEST(answers.contains(id), "lost: " << answer);
}

// There are answers of both kinds, prompts of every length, and as many failures as lines that ask for one.
void check_kinds(const Answers& answers) {
  int64_t n_failed = 0, n_stopped = 0, shortest = kContext, longest = 0, n_prompt = 0;
  for (const auto& [id, answer] : answers) {
    const nlohmann::json json = nlohmann::json::parse(answer);
    if (!json["error"].is_null()) {
      ++n_failed;
      continue;
    }
    const nlohmann::json& body = json["response"]["body"];
    const int64_t n = body["usage"]["prompt_tokens"];
    n_stopped += body["choices"][0]["finish_reason"] == "stop";
    shortest = std::min(shortest, n), longest = std::max(longest, n), n_prompt += n;
  }
  BOOST_TEST(n_failed == kLines / 20);
  BOOST_TEST(n_stopped > kLines / 20);
  BOOST_TEST(shortest <= 2);
  BOOST_TEST(longest > 900);
  if (!kIsSanitized) BOOST_TEST(n_prompt / 10 > kMostPool);
}

// The model, two files of lines, and what each line gets alone.
struct Scene {
  TempDir dir;
  std::string model = dir.file("tiny.gguf"), lines = dir.file("lines.jsonl"), few = dir.file("few.jsonl");

  Scene() {
    write_model(model);
    LineWriter writer;
    std::string text, beginning;
    for (int64_t i = 0; i < kLines; ++i) {
      text += writer.line(i) + "\n";
      if (i + 1 == kFewLines) beginning = text;
    }
    write_file(lines, text), write_file(few, beginning);
  }

  // What the user says. The host's memory holds a pool of two contexts.
  Options options(const std::string& input, const std::string& output,
                  const std::vector<std::string>& more = {"--no-cache"}) const {
    std::vector<std::string> words{
        "-m",         model,   "-c",         std::to_string(kContext),  "-t", "1",   "--chunk", "64",
        "--host-mem", "9300K", "--parallel", std::to_string(kParallel), "-q", input, "-o",      output};
    words.insert(words.end(), more.begin(), more.end());
    return parse_options(Command::batch, words);
  }
};

// The lines of a file as the command reads them, and what becomes of them.
class Reading {
 public:
  Reading(const std::string& path, Model& model, const Options& options)
      : input_({.path = path, .question = {}, .files = {}, .read = {}}, {}),
        maker_(rough_digest(model.file()), defaults(options)),
        model_(model) {}

  // With its prompt, if it has one. False: there is none left.
  bool next(BatchItem& item) {
    if (input_.next(item, maker_, -1) != LineReader::Result::line) return false;
    if (!item.error) item.prompt = prompt_of(item.request, model_.tokenizer());
    return true;
  }

  void conclude(const BatchItem& item) {
    add(item.error ? failure_line(item, *item.error)
                   : answer_line(item, AnswerJson({.model_name = model_name(model_.path()),
                                                   .seed = item.request.options.sampling.seed,
                                                   .load_seconds = {},
                                                   .thinking = item.prompt.thinking,
                                                   .is_text_completion = item.request.is_completion},
                                                  model_.tokenizer())
                                           .whole(item.result)));
  }

  Answers answers;

 private:
  static ChatRequest defaults(const Options& options) {
    ChatRequest request;
    request.options = options.generation;
    return request;
  }
  void add(const std::string& line) { answers.emplace(id_of(line), comparable(line)); }

  BatchInput input_;
  LineMaker maker_;
  Model& model_;
};

// Each line on a sequence of its own, in a cache that holds nothing else.
Answers answers_alone(const std::string& path, Options options) {
  options.engine.gpu_mem.clear(), options.engine.host_mem.reset();
  Model model(options);
  model.load();
  Reading reading(path, model, options);
  Listener nobody;
  for (BatchItem item; reading.next(item); reading.conclude(item)) try {
      if (item.error) continue;
      GenerationOptions asked = item.request.options;
      asked.thinking = item.prompt.thinking;
      ByHand sequence(model.engine());
      item.result = generate(sequence, model.tokenizer(), item.prompt.ids, asked, nobody);
    } catch (const Error& error) {
      item.error = error;
    }
  return std::move(reading.answers);
}

struct Together {
  Answers answers;
  int64_t n_pool = 0;  // tokens
  int64_t n_restarted = 0;
};

// All lines on the loop of one engine, as many at a time as it takes.
Together answers_together(const std::string& path, const Options& options) {
  Model model(options);
  model.load();
  BatchRunner runner(model.engine().loop(), model.engine().plan().cache.max_seqs, model.tokenizer(),
                     [](const BatchItem&) { return std::string(); });
  Reading reading(path, model, options);
  for (bool has_more = true; has_more || runner.n_running() > 0;) {
    for (BatchItem item; has_more && runner.has_room();) {
      if (!(has_more = reading.next(item))) break;
      if (item.error)
        reading.conclude(item);
      else
        runner.begin(std::move(item));
    }
    for (const auto& item : runner.advance()) reading.conclude(*item);
  }
  const Loop& loop = model.engine().loop();
  return {std::move(reading.answers), model.engine().plan().cache.n_pages() * kPageTokens,
          loop.n_restarted()};
}

constexpr int kSomeFailed = 5;

// The command, in a process of its own.
pid_t start(const Options& options) {
  return fork_child([&] { return batch_command(options); });
}

int64_t n_lines(const std::string& path) { return std::ranges::count(read_file(path), '\n'); }

bool is_running(pid_t pid) {
  siginfo_t ended{};
  return waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
}

// Goes on with the output, and is killed a little after so many more lines are written. False: it came to its
// end before.
bool is_killed(const Options& options, int64_t n_more, int delay_ms) {
  const int64_t n_wanted = n_lines(options.output_path) + n_more;
  const pid_t pid = start(options);
  while (n_lines(options.output_path) < n_wanted && is_running(pid))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  kill(pid, SIGKILL);
  const int end = wait_for(pid);
  BOOST_TEST((end == kSomeFailed || end == kKilledBy + SIGKILL), "ended with " << end);
  return end != kSomeFailed;
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_of_many_lines_is_answered_as_alone) {
  const Scene scene;
  const std::string plain = scene.dir.file("plain"), cached = scene.dir.file("cached");
  const pid_t first = start(scene.options(scene.lines, plain)),
              second = start(scene.options(scene.lines, cached, {"--cache-dir", scene.dir.file("cache")}));
  const Answers alone = answers_alone(scene.lines, scene.options(scene.lines, "-"));
  BOOST_TEST(wait_for(first) == kSomeFailed);
  BOOST_TEST(wait_for(second) == kSomeFailed);
  BOOST_TEST(std::ssize(alone) == kLines);
  check_all(plain, alone);
  check_all(cached, alone);
  BOOST_TEST(read_file(cached).find(R"("cached_tokens":1)") != std::string::npos);  // 1, 15, 150, ...
  check_kinds(alone);
}

// In the pool that the command has.
BOOST_AUTO_TEST_CASE(many_lines_make_requests_give_way) {
  const Scene scene;
  Options options = scene.options(scene.few, "-");
  const Answers alone = answers_alone(scene.few, options);
  options.engine.max_seqs = kParallel, options.engine.pool = kAllContexts;
  const Together restarted = answers_together(scene.few, options);
  BOOST_TEST((restarted.answers == alone));
  BOOST_TEST(restarted.n_pool <= kMostPool);
  BOOST_TEST(restarted.n_restarted > 0);
}

// Again and again, in memory alone and with prefixes on disk, in every way of writing, and once in a while
// with the beginning of a line that was torn.
BOOST_AUTO_TEST_CASE(killed_runs_are_gone_on_with) {
  const Scene scene;
  const Answers alone = answers_alone(scene.few, scene.options(scene.few, "-"));
  int n_killed = 0;
  for (int round = 0; n_killed < kKills; ++round) {
    const std::string output = scene.dir.file("out" + std::to_string(round));
    Answers answers;
    const auto options = [&] {
      std::vector<std::string> more{"--no-cache"};
      if (n_killed % 2) more = {"--cache-dir", scene.dir.file("cache")};
      if (n_killed % 3) more.push_back(n_killed % 3 == 1 ? "--ordered" : "--retry-failed");
      return scene.options(scene.few, output, more);
    };
    for (; n_killed < kKills && is_killed(options(), n_killed % 11, n_killed % 7); ++n_killed) {
      check_gone_on(output, answers, alone);
      if (n_killed % 5 == 0)
        std::ofstream(output, std::ios::app) << read_file(output).substr(0, 20 + 31 * n_killed % 200);
    }
    BOOST_TEST(wait_for(start(options())) == kSomeFailed);
    check_all(output, alone);
  }
}

BOOST_AUTO_TEST_SUITE_END()
