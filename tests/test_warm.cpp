// Warm processes: what comes through one is what comes without it, and neither clients that vanish, lie or
// talk nonsense nor what lies in its folder harm it. Through the program itself, skipped where it is not
// built.
#include <csignal>
#include <map>
#include <random>
#include <sstream>

#include <sys/stat.h>

#include "tests/support/constrained_answers.h"
#include "tests/support/sanitized.h"
#include "tests/support/unwilling_model.h"
#include "tests/support/warm_home.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(warm, *boost::unit_test::precondition(has_program))

namespace fs = std::filesystem;

namespace {

// Of an answer in JSON what does not differ from run to run. How many guesses there were depends on time.
Json lasting(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  for (const char* key : {"id", "created", "timings"}) json.erase(key);
  if (json.contains("usage")) json["usage"].erase("completion_tokens_details");
  return json;
}

// Answers by their ids.
std::map<std::string, Json> answers_of(const std::string& path) {
  std::map<std::string, Json> answers;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    answers[json.at("custom_id")] = {json.at("error"),
                                     lasting(json.at("response").value("body", Json()).dump())};
  }
  return answers;
}

}  // namespace

BOOST_AUTO_TEST_CASE(answers_are_those_of_a_process_of_ones_own) {
  const Warm warm;
  BOOST_TEST(warm.run("warm status").code == 1);
  const Ran none = warm.ask("run", "-n 4 hello");
  BOOST_TEST(none.code == 1);
  BOOST_TEST(contains(none.err, "hint: dsv32 warm start"), none.err);
  warm.start();
  BOOST_TEST(warm.run("warm status").code == 0);
  for (const std::string& words :
       {std::string("-n 20 --think-max 5 --seed 3 hello you"), std::string("--no-think -n 9 --temp 0 hello"),
        std::string("-n 0 hello"), std::string("--no-think -n 30 --seed 5 --stop e hello"),
        std::string("--no-think -n 30 --temp 1 --seed 3 --schema '{\"enum\":[\"hello\",\"here\",12]}' hello"),
        "--no-think -n 3 -p \"" + std::string(2000, 'x') + "\""}) {
    const Ran cold = warm.ask("run", words, "never"), through = warm.ask("run", words);
    BOOST_TEST(through.code == cold.code);
    BOOST_TEST(through.out == cold.out);
    BOOST_TEST(through.err == cold.err);
    const Ran cold_json = warm.ask("run", "--no-cache --json --logprobs 3 --seed 1 " + words, "never");
    warm.start("--no-cache");
    const Ran json = warm.ask("run", "--no-cache --json --logprobs 3 --seed 1 " + words);
    BOOST_TEST(json.code == cold_json.code);
    BOOST_TEST(lasting(json.out) == lasting(cold_json.out));
    BOOST_TEST(json.err == cold_json.err);
  }
  BOOST_TEST(warm.ask("run", "--chunk 64 hello").code == 1);  // another engine
  BOOST_TEST(warm.run("warm stop").code == 0);
  BOOST_TEST(warm.run("warm status").code == 1);
  BOOST_TEST(warm.socket() == "");
}

BOOST_AUTO_TEST_CASE(batches_are_answered_the_same) {
  const Warm warm;
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += Json{{"custom_id", std::to_string(i)},
                  {"prompt", i == 7 ? std::string(3000, 'y') : "question " + std::to_string(i)},
                  {"max_tokens", 5 + i},
                  {"thinking", i % 2 == 0}}
                 .dump() +
             "\n";
  write_file(warm.temp.file("asked"), lines);
  warm.start("--no-cache");
  const auto answered = [&](const char* how) {
    const std::string out = warm.temp.file(std::string("answers.") + how);
    BOOST_TEST(warm.ask("batch", "-q --no-cache -o " + out + " " + warm.temp.file("asked"), how).code == 5);
    return answers_of(out);
  };
  const auto through = answered("only"), cold = answered("never");
  BOOST_TEST(through.size() == 12u);
  BOOST_TEST((through == cold));
}

BOOST_AUTO_TEST_CASE(chats_say_the_same, *boost::unit_test::precondition([](auto) {
                       return boost::test_tools::assertion_result(can_have_terminal());
                     })) {
  const auto talked = [](const char* how, bool is_warm, bool ends = false) {
    const Warm warm;
    if (is_warm) warm.start("--no-cache");
    ChatTerminal chat(warm.temp.file(""),
                      {"chat", "-m", model_path(), "-c", "512", "-t", "1", "--no-cache", "--warm", how,
                       "--temp", "0", "--no-think", "-n", "12", "--no-save", "--color", "never"});
    BOOST_REQUIRE(chat.await_prompt());
    chat.say("hello there");
    if (ends) BOOST_TEST(warm.run("warm stop").code == 0);
    chat.say("and more");
    chat.type("/stats\n");
    BOOST_TEST(chat.await_text("of 512 tokens"));
    chat.type("/bye\n");
    BOOST_TEST(chat.end() == 0);
    std::string text = chat.screen().text().substr(0, chat.screen().text().find("/stats"));
    const std::string notice = "the warm process ended: opening the model again\n";
    const size_t at = text.find(notice);
    BOOST_TEST((at != std::string::npos) == ends);
    return ends ? text.erase(at, notice.size()) : text;
  };
  const std::string through = talked("only", true);
  BOOST_TEST(through == talked("never", false));
  BOOST_TEST(through == talked("auto", true, true));
}

BOOST_AUTO_TEST_CASE(signals_end_an_answer_and_nothing_else) {
  const Warm warm;
  warm.start();
  for (const auto& [number, code] :
       {std::pair(SIGINT, 130), {SIGTERM, 143}, {SIGKILL, kKilledBy + SIGKILL}}) {
    fs::remove(warm.temp.file("ran.out"));
    const pid_t asking = warm.begin("run" + warm.flags + "--warm only --no-think --temp 1 -n -1 hello");
    BOOST_TEST(warm.await([&] { return !read_file(warm.temp.file("ran.out")).empty(); }));
    kill(asking, number);
    const Ran ran = warm.end(asking);
    BOOST_TEST((ran.code == code || ran.code == 6 || ran.code == 0), ran.code);  // or its end came first
    BOOST_TEST(warm.await([&] { return warm.is_idle(); }));
  }
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
}

BOOST_AUTO_TEST_CASE(garbage_is_refused_in_one_line) {
  const Warm warm;
  warm.start();
  Json ask = asked(small_request()), bad_token = ask, bad_option = ask, no_list = ask, far_token = ask,
       unknown = ask;
  bad_token["body"]["prompt"] = {1, -7};
  far_token["body"]["prompt"] = {1, 1 << 30};
  bad_option["body"]["top_logprobs"] = 1000;
  no_list["body"].erase("prompt");
  unknown["body"]["echo"] = true;
  for (const auto& [bytes, fault] : std::initializer_list<std::pair<std::string, const char*>>{
           {"GET / HTTP/1.1\r", "at byte 1"},
           {std::string("\x00\xff\x80", 3), "at byte 1"},
           {std::string(1000, '['), "deep"},
           {"null", "the line is no JSON object"},
           {"{}", "messages is missing"},
           {"{\"want\": \"all\"}", "expected want to be"},
           {"{\"custom_id\": 1}", "messages is missing"},
           {bad_token.dump(), "token id -7 is outside"},
           {bad_option.dump(), "top_logprobs is 1000"},
           {no_list.dump(), "messages is missing"},
           {far_token.dump(), "outside the model's vocabulary"},
           {unknown.dump(), "echo is not supported"}}) {
    const std::string heard = said_to(raw_link(warm), bytes);
    BOOST_TEST(heard.starts_with("{\"error\""), visible(bytes, false, 80) << " -> " << heard);
    BOOST_TEST(contains(heard, fault), visible(bytes, false, 80) << " -> " << heard);
    BOOST_TEST(std::ranges::count(heard, '\n') == 1, heard);
  }
  BOOST_TEST(contains(said_to(raw_link(warm), ask.dump()), "\"finish_reason\":\"length\""));
  for (int i = 0; i < 20; ++i) {  // half a request, and gone
    WarmLink link = raw_link(warm);
    link.queue(ask.dump().substr(0, 30)), link.send();
  }
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
  BOOST_TEST(warm.await([&] { return warm.status().value("clients", 1) == 0; }));
}

BOOST_AUTO_TEST_CASE(a_stale_socket_gives_way) {
  const Warm warm;
  warm.start();
  const int64_t pid = warm.warm_pid();
  kill(static_cast<pid_t>(pid), SIGKILL);
  BOOST_TEST(warm.await([&] { return kill(static_cast<pid_t>(pid), 0) != 0 || warm.warm_pid() == 0; }));
  BOOST_TEST(fs::exists(warm.socket()));
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello", "auto").code == 0);
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 1);
  warm.start();
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
  const Ran again = warm.run("warm start" + warm.flags);
  BOOST_TEST(again.code == 0);
  BOOST_TEST(contains(again.err, "already"), again.err);
}

BOOST_AUTO_TEST_CASE(a_folder_that_others_may_enter_is_refused) {
  const Warm warm;
  fs::create_directories(warm.folder);
  const auto is_refused = [&] {
    const Ran started = warm.run("warm start" + warm.flags), asked = warm.ask("run", "-n 4 hello");
    BOOST_TEST(started.code == 1);
    BOOST_TEST(asked.code == 1);
    for (const Ran& ran : {started, asked}) BOOST_TEST(contains(ran.err, "of this user alone"), ran.err);
    BOOST_TEST(warm.ask("run", "-n 4 --no-think hello", "auto").code == 0);
  };
  chmod(warm.folder.c_str(), 0755);
  is_refused();
  chmod(warm.folder.c_str(), 0700);
  if (geteuid() != 0 || chown(warm.folder.c_str(), 12345, static_cast<gid_t>(-1)) != 0) return;
  is_refused();
}

BOOST_AUTO_TEST_CASE(failures_of_start_are_told_by_start) {
  const Warm warm;
  BOOST_TEST(warm.run("warm start -m nowhere.gguf").code == 3);
  BOOST_TEST(warm.run("warm start" + warm.flags + " --host-mem 1M").code == 4);
  BOOST_TEST(warm.run("warm start" + warm.flags + " --keep soon").code == 2);
  BOOST_TEST(warm.socket() == "");
}

BOOST_AUTO_TEST_CASE(a_log_that_is_a_pipe_is_refused) {
  const Warm warm;
  warm.start();
  const std::string log = warm_log(warm.socket());
  BOOST_TEST(warm.run("warm stop").code == 0);
  fs::remove(log);
  BOOST_REQUIRE(mkfifo(log.c_str(), 0600) == 0);
  const Ran again = warm.run("warm start" + warm.flags);
  BOOST_TEST(again.code == exit_code(ErrorKind::io));
  BOOST_TEST(contains(again.err, "is no regular file, expected the log of a warm process"), again.err);
  fs::remove(log);  // the home reads its logs at the end
}

BOOST_AUTO_TEST_CASE(it_ends_when_nobody_asks) {
  const Warm warm;
  warm.start("--keep 1s");
  WarmLink link = raw_link(warm);
  link.queue(kHello), link.send();
  usleep(2500000);  // somebody is there
  BOOST_TEST(warm.warm_pid() > 0);
  link = raw_link(warm);
  BOOST_TEST(warm.await([&] { return warm.socket().empty(); }, 10));
}

// Of a short prompt, beside what the engine takes by its own account; the machine may be busy.
BOOST_AUTO_TEST_CASE(the_first_token_comes_within_ten_milliseconds) {
  const Warm warm;
  warm.start("--no-cache");
  double least = 1;
  for (int64_t i = 0; i < 20; ++i) {
    const std::unique_ptr<WarmClient> client = WarmClient::connect(warm.socket());
    BOOST_REQUIRE(client);
    struct First : Listener {
      std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
      double seconds = -1;
      void on_answer(const std::string&) override {
        if (seconds < 0) seconds = seconds_since(asked);
      }
    } first;
    const GenerationResult result = generate(*client, small_request(), first);
    if (first.seconds >= 0) least = std::min(least, first.seconds - result.prefill_seconds);
  }
  BOOST_TEST(least < (kIsSanitized ? 0.05 : 0.01));
  BOOST_TEST_MESSAGE("first token after " << least * 1e3 << " ms beside the engine's own");
}

// Everything of a result and of its events, bytes that are no text among it.
BOOST_AUTO_TEST_CASE(answers_are_read_as_they_were_written) {
  UnwillingModel model({});
  GenerationResult result;
  Completion& made = result.completion;
  made = {{{{"f", R"({"a":1})", "call_1"}}, "<x>", true, "no call"}, "why\xff", "text \xe8\xaa", true};
  result.finish_reason = FinishReason::length;
  result.n_prompt_tokens = 9, result.n_cached_tokens = 3, result.n_read_tokens = 8;
  result.n_completion_tokens = 7, result.n_thinking_tokens = 2, result.n_guessed = 7, result.n_accepted = 5;
  result.why_none_cached = "none", result.prefill_seconds = 0.1, result.decode_seconds = 1.0 / 3;
  result.logprobs = {{{7, -0.1f}, {{8, -1.5f}, {1 << 20, -2}}}};
  result.decoded = {{4, 6}}, result.n_held_tokens = 12, result.buffer_tally = {100, 7};
  AnswerFacts facts;
  facts.is_for_reader = true;
  AnswerJson json(facts, *model.tokenizer), again(facts, *model.tokenizer);
  GenerationResult read;
  struct : Listener {
    std::string told;
    void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
      told += format("%d/%d/%d ", int(n_done), int(n_total), int(n_cached));
    }
    void on_reasoning(const std::string& text) override { told += text + "|"; }
    void on_answer(const std::string& text) override { told += text; }
  } listener;
  const std::string role = json.piece("content", ""), last = json.last(result);
  bool is_over = false;
  for (const std::string& line :
       split(json.progress(8, 9, 3) + json.piece("reasoning_content", made.reasoning) +
                 json.piece("content", "text ") + json.piece("content", "\xe8\xaa") + last,
             '\n'))
    if (!line.empty()) BOOST_TEST(!std::exchange(is_over, read_chunk(Json::parse(line), read, listener)));
  BOOST_TEST(is_over);
  BOOST_TEST(listener.told == "8/9/3 why\xff|text \xe8\xaa");
  BOOST_TEST(read.completion.reasoning == made.reasoning);
  BOOST_TEST(read.completion.content == made.content);
  BOOST_TEST(read.completion.calls_text == made.calls_text);
  again.piece("content", "");  // with the role
  const auto without_ids = [](std::string text) {
    const std::string id = R"("id":"chatcmpl-0123456789abcdef",)";
    for (size_t at; (at = text.find(id.substr(0, 15))) != text.npos;) text.erase(at, id.size());
    return text;
  };
  BOOST_TEST(without_ids(again.last(read)) == without_ids(last));
}

// A constraint and tools go with a request, and calls come with its answer.
BOOST_AUTO_TEST_CASE(documents_and_calls_come_through) {
  const Warm warm;
  warm.start("--no-cache");
  const std::unique_ptr<WarmClient> client = WarmClient::connect(warm.socket());
  BOOST_REQUIRE(client);
  EngineOptions options;
  options.backend = "cpu", options.context = 512, options.n_threads = 1;
  UnwillingModel model(options);
  for (const bool has_tools : {false, true}) {
    Request request = model.request(
        has_tools ? R"({"tools":[{"name":"f","strict":true,"parameters":{"type":"object","properties":
                       {"a":{"enum":["\u00e4",1]}},"required":["a"],"additionalProperties":false}}],
                       "choice":"required","parallel":false})"
                  : R"({"schema":{"type":"array","items":{"enum":["\u00e4",1]},"minItems":3,"maxItems":3}})",
        1, 3, 300);
    request.options.tools = has_tools;
    HeardAnswers here(1), there(1);
    here[0].result = generate(model.engine.loop(), request, here[0]);
    there[0].result = generate(*client, request, there[0]);
    check_same(there, here);
    const Completion &completion = there[0].result.completion, &expected = here[0].result.completion;
    BOOST_TEST(there[0].is_whole());
    BOOST_TEST(completion.content == expected.content);
    BOOST_REQUIRE(completion.calls.size() == (has_tools ? 1u : 0u));
    if (!has_tools) continue;
    BOOST_TEST(completion.calls[0].name == "f");
    BOOST_TEST(completion.calls[0].arguments == expected.calls[0].arguments);
  }
}

namespace {

struct Fate : Listener {
  int64_t n_before_end = -1;  // pieces
  bool is_interrupted() override { return n_before_end == 0; }
  void on_answer(const std::string&) override { n_before_end -= n_before_end > 0; }
};

// One of several: asks, cancels or vanishes at random, and holds whole answers against those of before.
int be_client(const Warm& warm, uint64_t seed, double seconds, const std::vector<Request>& asked,
              const std::vector<std::string>& answers) {
  std::mt19937_64 random(seed);
  const auto begin = std::chrono::steady_clock::now();
  while (seconds_since(begin) < seconds) {
    const std::unique_ptr<WarmClient> client = WarmClient::connect(warm.socket());
    if (!client) return 1;
    for (int i = 0; i < 3; ++i) {
      const size_t which = random() % asked.size();
      Fate fate;
      const int what = static_cast<int>(random() % 4);
      if (what == 1) fate.n_before_end = static_cast<int64_t>(random() % 5);
      if (what == 2) {  // vanishes
        client->add(asked[which], fate);
        for (uint64_t n = random() % 5; n > 0; --n) client->advance();
        break;
      }
      const GenerationResult result = generate(*client, asked[which], fate);
      const bool is_whole = result.finish_reason != FinishReason::interrupted;
      if (is_whole ? result.completion.content != answers[which]
                   : !answers[which].starts_with(result.completion.content))
        return 2;
    }
  }
  return 0;
}

void many_clients(double seconds) {
  constexpr int kClients = 8;
  const Warm warm;
  warm.start("--parallel 4");
  std::vector<Request> asked;
  std::vector<std::string> answers;
  std::mt19937_64 random(7);
  for (int i = 0; i < 24; ++i) {
    Request request;
    for (uint64_t n = 4 + random() % 200; n > 0; --n)
      request.prompt.push_back(static_cast<int32_t>(random() % 250));
    request.options.max_tokens = static_cast<int64_t>(1 + random() % 30);
    request.options.sampling.seed = random();
    request.options.thinking = false;
    request.talk = i % 2;
    asked.push_back(request);
  }
  const int64_t pid = warm.warm_pid();
  for (int round = 0; round < 3; ++round) {
    answers.clear();
    const auto client = WarmClient::connect(warm.socket());
    Listener nobody;
    for (const Request& request : asked)
      answers.push_back(generate(*client, request, nobody).completion.content);
  }
  const auto churn = [&](double lasting) {
    std::vector<pid_t> clients;
    for (int i = 0; i < kClients; ++i)
      clients.push_back(
          fork_child([&] { return be_client(warm, static_cast<uint64_t>(i) + 1, lasting, asked, answers); }));
    for (const pid_t client : clients) BOOST_TEST(wait_for(client) == 0);
    BOOST_TEST(warm.await([&] { return warm.is_idle() && warm.status().value("clients", 1) == 0; }));
  };
  churn(seconds / 4);
  const int64_t before = resident_kib(pid);
  churn(seconds * 3 / 4);
  BOOST_TEST(warm.warm_pid() == pid);
  if (!kIsSanitized) BOOST_TEST(resident_kib(pid) < before + 16 * 1024);
  BOOST_TEST(warm.run("warm stop").code == 0);
  BOOST_TEST(warm.socket() == "");
}

}  // namespace

BOOST_AUTO_TEST_CASE(many_clients_come_and_go) { many_clients(kIsSanitized ? 16 : 8); }

BOOST_AUTO_TEST_CASE(many_clients_for_five_minutes,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  many_clients(300);
}

BOOST_AUTO_TEST_SUITE_END()
