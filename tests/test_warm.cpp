// Warm processes: what comes through one is what comes without it, and neither clients that vanish, lie or
// talk nonsense nor what lies in its folder harm it. Through the program itself, skipped where it is not
// built.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <sstream>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/warm_client.h"
#include "tests/support/chat_terminal.h"
#include "tests/support/child_process.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;
namespace fs = std::filesystem;

namespace {

boost::test_tools::assertion_result has_program(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!program_path().empty());
  result.message() << "no program";
  return result;
}

const std::string& model_path() {
  static const TinyFile model(least_shape());
  return model.path;
}

struct Ran {
  int code = 0;
  std::string out, err;
};

// A home, and perhaps warm processes in it, which go with the object.
struct Warm {
  const std::string flags = " -m " + model_path() + " -c 512 -t 1 ";
  const TempDir temp;
  const std::string runtime = temp.file("runtime"), folder = runtime + "/dsv32";

  ~Warm() {
    run("warm stop");
    for (const std::string& log : logs()) BOOST_TEST(log == "");
  }

  // What processes had to say after their start.
  std::vector<std::string> logs() const {
    std::vector<std::string> texts;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".log") texts.push_back(read_file(entry.path()));
    return texts;
  }

  // A shell's words behind the program's name; exec: the child is the program.
  pid_t begin(const std::string& words, const std::string& name = "ran") const {
    const std::string command = "exec env -u NO_COLOR XDG_RUNTIME_DIR=" + runtime +
                                " XDG_STATE_HOME=" + temp.file("state") +
                                " XDG_CACHE_HOME=" + temp.file("cache") + " " + program_path() + " " + words +
                                " >" + temp.file(name + ".out") + " 2>" + temp.file(name + ".err") +
                                (contains(words, "<") ? "" : " </dev/null");
    return fork_child([&] { return execl("/bin/sh", "sh", "-c", command.c_str(), nullptr), 98; });
  }
  Ran end(pid_t pid, const std::string& name = "ran") const {
    const int code = wait_for(pid);
    return {code, read_file(temp.file(name + ".out")), read_file(temp.file(name + ".err"))};
  }
  Ran run(const std::string& words, const std::string& name = "ran") const {
    return end(begin(words, name), name);
  }
  // Behind "run", "batch" and so on, with the flags that decide the engine.
  Ran ask(const std::string& command, const std::string& words, const char* how = "only",
          const std::string& name = "ran") const {
    return run(command + flags + "--warm " + how + " " + words, name);
  }
  void start(const std::string& more = "") const {
    const Ran ran = run("warm start" + flags + more);
    BOOST_REQUIRE_MESSAGE(ran.code == 0, ran.err);
  }

  std::string socket() const {
    if (fs::exists(folder))
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".sock") return entry.path().string();
    return {};
  }
  ReadJson status() const {
    const std::string path = socket();
    if (path.empty()) return {};
    std::optional<WarmGreeting> greeting = greet_warm(path, "status");
    return greeting ? greeting->answer : ReadJson();
  }
  int64_t warm_pid() const try {
    const ReadJson now = status();
    return now.is_null() ? 0 : now.at("pid").get<int64_t>();
  } catch (const Error&) {
    return 0;
  }
  bool await(const std::function<bool()>& condition, double seconds = 30) const {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
      if (seconds_since(begin) > seconds) return false;
      usleep(20000);
    }
    return true;
  }
  bool is_idle() const { return status().value("requests", 1) == 0; }
};

// Of an answer in JSON what does not differ from run to run.
ReadJson lasting(const std::string& text) {
  ReadJson json = ReadJson::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  for (const char* key : {"id", "created", "timings"}) json.erase(key);
  return json;
}

// Answers by their ids.
std::map<std::string, ReadJson> answers_of(const std::string& path) {
  std::map<std::string, ReadJson> answers;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const ReadJson json = ReadJson::parse(line);
    answers[json.at("custom_id")] = {json.at("error"),
                                     lasting(json.at("response").value("body", ReadJson()).dump())};
  }
  return answers;
}

WarmLink raw_link(const Warm& warm) { return {connect_warm(warm.socket()), kMostToldBytes, kMostToldBytes}; }

// Sends the bytes and hears the other end out.
std::string said_to(WarmLink link, const std::string& bytes) {
  link.queue(bytes);
  std::string heard;
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_there = true; is_there && seconds_since(begin) < 60;) {
    link.send();
    pollfd ready{link.fd(), static_cast<short>(POLLIN | (link.has_unsent() ? POLLOUT : 0)), 0};
    poll(&ready, 1, 100);
    is_there = link.receive();
    while (const auto line = link.next_line()) heard += *line + "\n";
  }
  return heard;
}

constexpr const char* kHello = "{\"dsv32\": 1, \"want\": \"answers\"}";

ReadJson small_request() {
  Request request;
  request.prompt = {0, 1, 2, 3, 4, 5, 6, 7};
  request.options.max_tokens = 4, request.options.thinking = false;
  return warm_json(request);
}

int64_t resident_kib(int64_t pid) {
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/status");
  return std::stoll(text.substr(text.find("VmRSS:") + 6));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(warm, *boost::unit_test::precondition(has_program))

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
  BOOST_TEST(warm.ask("run", "-t 2 hello").code == 1);  // another engine
  BOOST_TEST(warm.run("warm stop").code == 0);
  BOOST_TEST(warm.run("warm status").code == 1);
  BOOST_TEST(warm.socket() == "");
}

BOOST_AUTO_TEST_CASE(batches_are_answered_the_same) {
  const Warm warm;
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += ReadJson{{"custom_id", std::to_string(i)},
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
    const std::string notice = "the warm process ended: the model is opened anew\n";
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
  const std::string hello = std::string(kHello) + "\n";
  const ReadJson ask = {{"ask", 1}, {"request", small_request()}};
  ReadJson bad_token = ask, bad_option = ask, no_list = ask, far_token = ask;
  bad_token["request"]["prompt"] = {1, -7};
  far_token["request"]["prompt"] = {1, 1 << 30};
  bad_option["request"]["options"]["top_logprobs"] = 1000;
  no_list["request"].erase("prompt");
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r"), std::string("{}"), std::string("\x00\xff\x80", 3),
        std::string(1000, '['), std::string("{\"dsv32\": 2, \"want\": \"answers\"}"),
        std::string("{\"dsv32\": 1, \"want\": \"all\"}"), hello + "{\"ask\": 1}", hello + bad_token.dump(),
        hello + bad_option.dump(), hello + no_list.dump(), hello + "null"}) {
    const std::string heard = said_to(raw_link(warm), bytes);
    BOOST_TEST(contains(heard, "\"error\""), visible(bytes, false, 80) << " -> " << heard);
  }
  {  // tokens that there are not are the request's own fault: the connection stays
    WarmLink link = raw_link(warm);
    link.queue(hello + far_token.dump()), link.send();
    BOOST_TEST(warm.await([&] {
      link.receive();
      const auto line = link.next_line();
      return line && contains(*line, "\"of\":1") && contains(*line, "outside the model's vocabulary");
    }));
  }
  BOOST_TEST(!contains(said_to(raw_link(warm), std::string(kMostAskedBytes + (1 << 20), 'x')), "\n"));
  for (int i = 0; i < 20; ++i) {  // half a request, and gone
    WarmLink link = raw_link(warm);
    link.queue(hello + ask.dump().substr(0, 30)), link.send();
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
    const GenerationResult result = generate(*client, warm_request(small_request()), first);
    if (first.seconds >= 0) least = std::min(least, first.seconds - result.prefill_seconds);
  }
  BOOST_TEST(least < (kIsSanitized ? 0.05 : 0.01));
  BOOST_TEST_MESSAGE("first token after " << least * 1e3 << " ms beside the engine's own");
}

namespace {

struct Fate : Listener {
  int64_t n_before_end = -1;  // pieces
  bool is_interrupted() override { return n_before_end == 0; }
  void on_answer(const std::string&) override { n_before_end -= n_before_end > 0; }
};

// One of several: asks, cancels or vanishes at random, and holds whole answers against those of before.
int be_client(const Warm& warm, uint64_t seed, double seconds, const std::vector<ReadJson>& asked,
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
        client->add(warm_request(asked[which]), fate);
        for (uint64_t n = random() % 5; n > 0; --n) client->turn();
        break;
      }
      const GenerationResult result = generate(*client, warm_request(asked[which]), fate);
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
  std::vector<ReadJson> asked;
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
    asked.push_back(warm_json(request));
  }
  const int64_t pid = warm.warm_pid();
  for (int round = 0; round < 3; ++round) {
    answers.clear();
    const auto client = WarmClient::connect(warm.socket());
    Listener nobody;
    for (const ReadJson& request : asked)
      answers.push_back(generate(*client, warm_request(request), nobody).completion.content);
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
