// Warm processes that end, hang or are lied to, and those who ask them: nothing that was asked is lost,
// nobody waits without a bound, and what a process keeps for anybody has one.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/support/sanitized.h"
#include "tests/support/warm_home.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(warm_faults, *boost::unit_test::precondition(has_program))

namespace fs = std::filesystem;

namespace {

constexpr int kLongContext = 16384;  // an answer that runs in circles takes seconds to fill it

struct Heard : Listener {
  std::string text;
  void on_answer(const std::string& news) override { text += news; }
};

Request long_request(int i) {
  Request request;
  for (int32_t token = 0; token < 8; ++token) request.prompt.push_back(token + i);
  request.options.max_tokens = 300, request.options.thinking = false;
  request.options.sampling.seed = static_cast<uint64_t>(i);
  return request;
}

void write_lines(const std::string& path, int n, int max_tokens) {
  std::string lines;
  for (int i = 0; i < n; ++i)
    lines += Json{{"custom_id", std::to_string(i)},
                  {"prompt", "question " + std::to_string(i)},
                  {"max_tokens", max_tokens},
                  {"temperature", 0},
                  {"thinking", false}}
                 .dump() +
             "\n";
  write_file(path, lines);
}

// The texts of a batch's answers by their ids, with how often each stands there.
std::multiset<std::string> texts_of(const std::string& path) {
  std::multiset<std::string> texts;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    texts.insert(json.at("custom_id").get<std::string>() + json.at("error").dump() +
                 json["response"]["body"]["choices"].dump());
  }
  return texts;
}

// What a chat has saved as the answer to its last question.
std::string saved_answer(const Warm& warm) {
  for (const auto& entry : fs::directory_iterator(warm.temp.file("state") + "/dsv32/talks"))
    if (entry.path().extension() == ".json")
      return Json::parse(read_file(entry.path())).at("messages").back().at("content");
  return {};
}

bool can_chat() { return can_have_terminal(); }

std::vector<std::string> chat_words(const char* how) {
  return {"chat", "-m",     model_path(), "-c",         std::to_string(kLongContext),
          "-t",   "1",      "--no-cache", "--warm",     how,
          "-q",   "--temp", "0",          "--no-think", "--no-history",
          "-n",   "1500"};
}

// Somebody who says that line to whoever comes, at this path, until it is killed.
pid_t pretend(const std::string& path, const std::string& line) {
  const pid_t child = fork_child([&] {
    const WarmListener listener(path);
    std::vector<WarmLink> links;
    while (true) {
      pollfd ready{listener.fd(), POLLIN, 0};
      poll(&ready, 1, -1);
      links.emplace_back(listener.accept());
      links.back().queue(line), links.back().send();
    }
    return 0;
  });
  while (!fs::exists(path)) usleep(1000);
  return child;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_under_way_is_answered_before_the_end) {
  constexpr int kRequests = 8;
  const Warm warm;
  warm.start("--parallel 8");
  std::vector<std::string> answers;
  const auto client = WarmClient::connect(warm.socket());
  for (int i = 0; i < kRequests; ++i) {
    Listener nobody;
    answers.push_back(generate(*client, long_request(i), nobody).completion.content);
  }
  std::vector<Heard> heard(kRequests + 1);
  std::vector<int64_t> numbers;
  for (int i = 0; i < kRequests; ++i)
    numbers.push_back(client->add(long_request(i), heard[static_cast<size_t>(i)]));
  while (heard[0].text.empty()) client->advance();
  std::optional<WarmGreeting> stopping = greet_warm(warm.socket(), "stop");
  BOOST_TEST(stopping->answer.at("requests").get<int>() > 0);
  const int64_t late = client->add(long_request(0), heard.back());
  while (client->advance()) continue;
  BOOST_CHECK_THROW(client->take(late), WarmGone);
  for (size_t i = 0; i < kRequests; ++i) {
    BOOST_TEST(client->take(numbers[i]).completion.content == answers[i]);
    BOOST_TEST(heard[i].text == answers[i]);
  }
  std::string line;
  BOOST_TEST(warm.await([&] { return stopping->link.next_line(line, 0) == LineReader::Result::end; }));
  warm.start();  // which finds no lock held
  BOOST_TEST(warm.warm_pid() > 0);
}

BOOST_AUTO_TEST_CASE(a_batch_goes_on_when_its_process_is_stopped_or_killed) {
  constexpr int kLines = 30;
  const Warm warm;
  write_lines(warm.temp.file("asked"), kLines, 100);
  const auto words = [&](const std::string& out, const char* how) {
    return "batch" + warm.flags + "--no-cache --parallel 8 --warm " + how + " -o " + warm.temp.file(out) +
           " " + warm.temp.file("asked");
  };
  BOOST_TEST(warm.run(words("cold", "never")).code == 0);
  for (const bool is_killed : {false, true}) {
    warm.start("--no-cache --parallel 8");
    const std::string out = is_killed ? "killed" : "stopped";
    const pid_t batch = warm.begin(words(out, "auto"), out);
    BOOST_TEST(warm.await([&] { return warm.status().value("requests", 0) >= 4; }));
    if (is_killed)
      kill(static_cast<pid_t>(warm.warm_pid()), SIGKILL);
    else
      BOOST_TEST(warm.run("warm stop").code == 0);
    const Ran ran = warm.end(batch, out);
    BOOST_TEST(ran.code == 0);
    BOOST_TEST(contains(ran.err, "the warm process ended: opening the model again\n"), ran.err);
    BOOST_TEST((texts_of(warm.temp.file(out)) == texts_of(warm.temp.file("cold"))));
  }
}

BOOST_AUTO_TEST_CASE(a_run_ends_with_its_process) {
  const Warm warm(kLongContext);
  warm.start("--no-cache");
  const std::string words = "run" + warm.flags + "--no-cache --no-think --temp 0 hello --warm ";
  const pid_t run = warm.begin(words + "auto");
  BOOST_TEST(warm.await([&] { return read_file(warm.temp.file("ran.out")).size() > 20; }));
  kill(static_cast<pid_t>(warm.warm_pid()), SIGKILL);
  const Ran ran = warm.end(run), cold = warm.run(words + "never -n 1500");
  BOOST_TEST(ran.code == exit_code(ErrorKind::io));
  BOOST_TEST(contains(ran.err, "dsv32: the warm process ended\n"), ran.err);
  BOOST_TEST(ran.out.ends_with('\n'));
  const std::string told = ran.out.substr(0, ran.out.size() - 1);
  const size_t n = std::min(told.size(), cold.out.size() - 1);
  BOOST_TEST(told.substr(0, n) == cold.out.substr(0, n));
}

BOOST_AUTO_TEST_CASE(who_asks_a_process_that_hangs_can_leave) {
  const Warm warm(kLongContext);
  warm.start("--parallel 4");
  write_lines(warm.temp.file("asked"), 1, kLongContext);
  const std::string run = "run" + warm.flags + "--warm only --no-think --temp 0 hello";
  const pid_t first = warm.begin(run, "first"), second = warm.begin(run, "second");
  const pid_t batch = warm.begin("batch" + warm.flags + "--warm only --parallel 4 -o " +
                                     warm.temp.file("answers") + " " + warm.temp.file("asked"),
                                 "batch");
  BOOST_TEST(warm.await([&] {
    return warm.status().value("requests", 0) == 3 && !read_file(warm.temp.file("first.out")).empty() &&
           !read_file(warm.temp.file("second.out")).empty();
  }));
  const auto hung = static_cast<pid_t>(warm.warm_pid());
  kill(hung, SIGSTOP);
  kill(first, SIGINT), kill(second, SIGTERM), kill(batch, SIGINT);
  usleep(300000);
  kill(batch, SIGINT);  // the first lets it finish what runs
  BOOST_TEST(warm.await([&] {
    return std::ranges::all_of(std::array{first, second, batch},
                               [](pid_t pid) { return resident_kib(pid) == 0; });
  }));
  for (const pid_t pid : {first, second, batch}) kill(pid, SIGKILL);  // nothing to those that have ended
  BOOST_TEST(warm.end(first).code == 130);
  BOOST_TEST(warm.end(second).code == 143);
  BOOST_TEST(warm.end(batch).code == 130);
  kill(hung, SIGCONT);
  BOOST_TEST(warm.await([&] { return warm.is_idle(); }));
}

BOOST_AUTO_TEST_CASE(a_chat_outlives_its_process, *boost::unit_test::precondition([](auto) {
                       return boost::test_tools::assertion_result(can_chat());
                     })) {
  const Warm warm(kLongContext), cold(kLongContext);
  warm.start("--no-cache");
  ChatTerminal alone(cold.temp.file(""), chat_words("never")), chat(warm.temp.file(""), chat_words("auto"));
  BOOST_REQUIRE(alone.await_prompt());
  alone.say("hello");
  BOOST_REQUIRE(chat.await_prompt());
  const auto ask = [&] {
    const size_t from = chat.written().size() + std::strlen("hello") + 2;
    chat.type("hello\n");
    BOOST_REQUIRE(chat.await(
        [&] { return warm.status().value("requests", 0) == 1 && chat.written().size() > from + 20; }));
  };
  const auto process = static_cast<pid_t>(warm.warm_pid());
  ask();
  kill(process, SIGSTOP);
  chat.type("\x03");
  BOOST_TEST(chat.await_prompt());
  kill(process, SIGCONT);
  chat.type("/undo\n");
  BOOST_TEST(chat.await_prompt());
  ask();
  kill(process, SIGKILL);
  BOOST_TEST(chat.await_prompt());
  BOOST_TEST(contains(chat.written(), "the warm process ended"));
  chat.say("/retry");
  chat.type("/bye\n"), alone.type("/bye\n");
  BOOST_TEST(chat.end() == 0);
  BOOST_TEST(alone.end() == 0);
  BOOST_TEST(saved_answer(warm) == saved_answer(cold));
  BOOST_TEST(saved_answer(cold).size() > 100u);
}

// Who does not read, and who stays without a word.
BOOST_AUTO_TEST_CASE(who_stays_locks_nobody_out) {
  const Warm warm;
  warm.start();
  std::vector<WarmLink> staying;
  for (int i = 0; i < 260; ++i)
    for (const std::string& line : {std::string("{\"want\": \"status\"}"), asked(small_request()).dump()}) {
      staying.push_back(raw_link(warm));
      staying.back().queue(line), staying.back().send();
      staying.push_back(raw_link(warm));
    }
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
}

BOOST_AUTO_TEST_CASE(callers_wait_for_a_place) {
  const TempDir temp;
  const std::string path = temp.file("warm-full.sock");
  chmod(temp.file("").c_str(), 0700);
  const OwnedFd listener(real_file_system(), socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  BOOST_REQUIRE(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  BOOST_REQUIRE(listen(listener.get(), 0) == 0);
  const OwnedFd first = connect_warm(path);
  const pid_t second = fork_child([&] { return connect_warm(path).is_open() ? 0 : 1; });
  usleep(300000);
  const OwnedFd accepted(real_file_system(), accept(listener.get(), nullptr, nullptr));
  BOOST_TEST(wait_for(second) == 0);
}

// All at once: each waits for ten seconds.
BOOST_AUTO_TEST_CASE(who_hangs_is_passed_over) {
  struct Home {
    const Warm warm;
    pid_t hung = 0;
    Home() {
      warm.start();
      hung = static_cast<pid_t>(warm.warm_pid());
      kill(hung, SIGSTOP);
      BOOST_TEST(warm.run("warm start -m " + model_path() + " -c 600 -t 1").code == 0);
    }
    ~Home() { kill(hung, SIGKILL); }
  } const listed, stopped;
  const auto ask = [&](const char* how) {
    return listed.warm.begin("run" + listed.warm.flags + "-n 4 --no-think hello --warm " + how, how);
  };
  const pid_t status = listed.warm.begin("warm status", "status"),
              stop = stopped.warm.begin("warm stop", "stop"), loads = ask("auto"), refuses = ask("only");
  const Ran told = listed.warm.end(status, "status");
  BOOST_TEST(told.code == 0);
  BOOST_TEST(std::ranges::count(told.out, '\n') == 1);
  const Ran ended = stopped.warm.end(stop, "stop");
  BOOST_TEST(ended.code == 1);
  for (const Ran& ran : {told, ended}) {
    BOOST_TEST(contains(ran.err, "does not answer"), ran.err);
    BOOST_TEST(std::ranges::count(ran.err, '\n') == 1);
  }
  const Ran loaded = listed.warm.end(loads, "auto"), refused = listed.warm.end(refuses, "only");
  BOOST_TEST(loaded.code == 0);
  BOOST_TEST(contains(loaded.err, "does not answer; loading the model in this process"), loaded.err);
  BOOST_TEST(refused.code == 1);
  kill(stopped.hung, SIGKILL);
  BOOST_TEST(stopped.warm.await([&] { return stopped.warm.run("warm status").code == 1; }));
}

BOOST_AUTO_TEST_CASE(greetings_of_the_wrong_shape_are_errors_of_ours) {
  const Warm warm;
  warm.start();
  const std::string path = warm.socket();
  warm.run("warm stop");
  for (const char* line :
       {"nonsense", "[]", "{}", "{\"facts\": 5}", "{\"talk\": 1, \"facts\": {\"vocab_size\": \"many\"}}",
        "{\"error\": 5}",
        "{\"talk\": 1, \"facts\": {\"vocab_size\": 9, \"context\": 9, \"max_seqs\": 0, \"pool_tokens\": 9, "
        "\"has_drafts\": false, \"warnings\": []}}"}) {
    const pid_t liar = pretend(path, line);
    BOOST_TEST(warm.ask("run", "-n 4 --no-think hello", "auto").code == 0, line);
    const Ran only = warm.ask("run", "-n 4 --no-think hello"), status = warm.run("warm status");
    BOOST_TEST(only.code == 1, line);
    BOOST_TEST(status.code == 1, line);
    for (const Ran& ran : {only, status}) {
      BOOST_TEST(contains(ran.err, "a warm process sent an unreadable line"), ran.err);
      BOOST_TEST(!contains(ran.err, "json.exception"), ran.err);
    }
    kill(liar, SIGKILL), wait_for(liar);
    fs::remove(path);
  }
}

BOOST_AUTO_TEST_CASE(its_files_may_be_taken_away) {
  const Warm warm;
  warm.start();
  const int64_t pid = warm.warm_pid();
  fs::remove(warm_log(warm.socket()));
  const Ran again = warm.run("warm start" + warm.flags);
  BOOST_TEST(again.code == 0);
  BOOST_TEST(contains(again.err, "already"), again.err);
  BOOST_TEST(warm.warm_pid() == pid);
  const std::string path = warm.socket();
  fs::remove(path), fs::remove(warm_log(path));
  warm.start();
  const int64_t other = warm.warm_pid();
  BOOST_TEST(other != pid);
  BOOST_TEST(warm.await([&] { return resident_kib(pid) == 0; }, 10));  // as nobody finds it
  BOOST_TEST(warm.warm_pid() == other);
}

BOOST_AUTO_TEST_CASE(a_file_that_was_written_to_is_another) {
  const TempDir folder;
  const std::string model = folder.file("own.gguf");
  fs::copy_file(model_path(), model);
  const Warm warm(512, model);
  warm.start();
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
  chmod(model.c_str(), 0600);  // no byte of it
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code == 0);
  struct stat before {};
  stat(model.c_str(), &before);
  usleep(20000);
  const timespec times[] = {before.st_atim, before.st_mtim};
  std::fstream(model, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(before.st_size / 2)
      .write(std::string(static_cast<size_t>(before.st_size / 2), 'x').data(), before.st_size / 2);
  utimensat(AT_FDCWD, model.c_str(), times, 0);  // as who sets the time back
  BOOST_TEST(warm.ask("run", "-n 4 --no-think hello").code != 0);
  BOOST_TEST(warm.await([&] { return warm.warm_pid() == 0; }));  // it sees it too, and ends
  // It leaves its socket first.
  BOOST_TEST(warm.await([&] {
    return std::ranges::all_of(
        warm.logs(), [](const std::string& log) { return contains(log, "has changed since it was opened"); });
  }));
  fs::remove_all(warm.folder);
}

BOOST_AUTO_TEST_CASE(stop_goes_by_the_file) {
  const Warm warm;
  warm.start();
  const Ran other = warm.run("warm stop -m " + warm.temp.file("other.gguf"));
  BOOST_TEST(other.code == 1);
  BOOST_TEST(contains(other.err, "no warm process holds " + warm.temp.file("other.gguf")), other.err);
  BOOST_TEST(warm.warm_pid() > 0);
  fs::create_symlink(model_path(), warm.temp.file("link.gguf"));
  BOOST_TEST(warm.run("warm stop -m " + warm.temp.file("link.gguf")).code == 0);
  BOOST_TEST(warm.socket() == "");
  BOOST_TEST(contains(warm.run("warm stop").err, "no warm process is running"));
}

BOOST_AUTO_TEST_SUITE_END()
