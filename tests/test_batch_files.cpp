// cli/terminal/streams and cli/batch/batch_files: the two files of a batch; and how far a batch is.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/batch/batch.h"
#include "tests/support/contains.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(batch_files)

namespace {

using Result = LineReader::Result;

LineMaker maker() { return {Hash256{}, {}}; }

struct Files {
  TempDir dir;
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");

  void write(const std::string& path, const std::string& text) const { std::ofstream(path) << text; }
  std::string read(const std::string& path) const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<BatchItem> lines(const std::string& text, bool is_text = false, Shard shard = {}) const {
    write(in, text);
    BatchSource source;
    source.path = in, source.is_text = is_text;
    BatchInput input(source, shard);
    LineMaker made = maker();
    std::vector<BatchItem> all;
    for (BatchItem line; input.next(line, made, 0) == Result::line;) all.push_back(line);
    BOOST_TEST(input.n_read() == input.n_lines().value());
    return all;
  }
};

BatchItem numbered(int i) { return maker().from_text(i, "prompt " + std::to_string(i)); }
std::string answered(int i) { return answer_line(numbered(i), {{"choices", Json::array()}}); }
std::string failed(int i) { return failure_line(numbered(i), Error(ErrorKind::model, "broken")); }

BatchOptions with(bool BatchOptions::*option) {
  BatchOptions options;
  options.*option = true;
  return options;
}

// What opening the output says; empty: nothing.
std::string complaint(const std::string& path, const std::optional<FileStamp>& input = {}) try {
  const BatchOutput output(path, {}, input);
  return {};
} catch (const Error& error) {
  BOOST_TEST((error.kind() == ErrorKind::usage));
  return error.what();
}

}  // namespace

BOOST_AUTO_TEST_CASE(lines_and_their_numbers) {
  const Files files;
  const auto lines =
      files.lines("\xef\xbb\xbf{\"prompt\":\"a\"}\r\n\n  \t\n{\"prompt\":\"b\"}\nbad\n{\"prompt\":\"c\"}");
  BOOST_REQUIRE(lines.size() == 4u);
  BOOST_TEST(lines[0].id.value() == "1");
  BOOST_TEST(lines[1].id.value() == "4");
  BOOST_TEST((lines[2].error && lines[2].number == 5));
  BOOST_TEST(lines[3].request.prompt.user == "c");
  BOOST_TEST(files.lines("").empty());
  const auto texts = files.lines("{\"prompt\":\"a\"}\n\nsecond \n", true);
  BOOST_REQUIRE(texts.size() == 2u);
  BOOST_TEST(texts[0].request.prompt.user == "{\"prompt\":\"a\"}");
  BOOST_TEST(texts[1].request.prompt.user == "second ");
}

BOOST_AUTO_TEST_CASE(a_second_line_of_one_id_is_refused) {
  const Files files;
  const std::string line = R"({"custom_id":"2","prompt":"a"})";
  const auto lines = files.lines(line + "\n{\"prompt\":\"b\"}\n" + line + "\n");
  BOOST_REQUIRE(lines.size() == 3u);
  BOOST_TEST(!lines[0].error);
  BOOST_TEST((lines[1].error && lines[1].id == "2"));  // its number is the other's id
  BOOST_REQUIRE(lines[2].error);
  BOOST_TEST(contains(lines[2].error->what(), "line 3: an earlier line has the same id"));
  BOOST_TEST((lines[2].digest != lines[0].digest));
  // Whichever shard they fall to, they are the same lines.
  size_t n_lines = 0;
  for (uint64_t shard = 0; shard < 3; ++shard)
    for (const BatchItem& own : files.lines(line + "\n" + line + "\n{\"prompt\":\"b\"}\n", false,
                                            {.number = shard, .n_shards = 3, .source = {}})) {
      ++n_lines;
      BOOST_TEST(own.error.has_value() == (own.number == 2));
    }
  BOOST_TEST(n_lines == 3u);
}

BOOST_AUTO_TEST_CASE(a_line_that_is_too_long_is_passed_over) {
  const Files files;
  files.write(files.in, "one\n" + std::string(300000, 'x') + "\nthree\n" + std::string(200000, 'y'));
  const int fd = open(files.in.c_str(), O_RDONLY);
  LineReader reader(fd, "in", 100000);
  LineReader::Line line;
  for (const auto& [text, is_too_long] :
       std::vector<std::pair<std::string, bool>>{{"one", false}, {"", true}, {"three", false}, {"", true}}) {
    BOOST_TEST((reader.next(line, 0) == Result::line));
    BOOST_TEST(line.text == text);
    BOOST_TEST(line.is_too_long == is_too_long);
  }
  BOOST_TEST(line.end == 500011u);
  BOOST_TEST(!line.has_end);
  BOOST_TEST((reader.next(line, 0) == Result::end));
  close(fd);
}

BOOST_AUTO_TEST_CASE(a_pipe_is_not_waited_for) {
  int ends[2];
  BOOST_REQUIRE(pipe(ends) == 0);
  const auto say = [&](const std::string& text) {
    BOOST_REQUIRE(write(ends[1], text.data(), text.size()) == std::ssize(text));
  };
  LineReader reader(ends[0], "pipe", 100);
  LineReader::Line line;
  BOOST_TEST((reader.next(line, 0) == Result::later));
  say("first\nsec");
  BOOST_TEST((reader.next(line, 0) == Result::line));
  BOOST_TEST(line.text == "first");
  BOOST_TEST((reader.next(line, 1) == Result::later));
  say("ond\n");
  BOOST_TEST((reader.next(line, 0) == Result::line));
  BOOST_TEST(line.text == "second");
  close(ends[1]);
  BOOST_TEST((reader.next(line, 0) == Result::end));
  close(ends[0]);
}

// 50 000 lines of 2 KB: what is held meanwhile is one line and a digest of each.
BOOST_AUTO_TEST_CASE(memory_does_not_grow_with_the_file) {
  const Files files;
  constexpr int64_t kLines = kIsSanitized ? 5000 : 50000;
  {
    std::ofstream file(files.in);
    const std::string text(2000, 'x');
    for (int64_t i = 0; i < kLines; ++i) file << R"({"prompt":")" << text << i << "\"}\n";
  }
  BatchSource source;
  source.path = files.in;
  BatchInput input(source, {});
  LineMaker made = maker();
  const auto n_used = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t n_before = n_used();
  int64_t n_lines = 0;
  size_t n_most = 0;
  for (BatchItem line; input.next(line, made, 0) == Result::line;)
    if (++n_lines % 1000 == 0) n_most = std::max(n_most, n_used());
  BOOST_TEST(n_lines == kLines);
  BOOST_TEST(input.n_lines().value() == kLines);
  if (!kIsSanitized) BOOST_TEST(n_most < n_before + kLines * 96);  // its allocator counts nothing
}

BOOST_AUTO_TEST_CASE(files_as_prompts) {
  BatchSource source;
  source.files = {"a.txt", "absent", "a.txt", "large", "b.txt"};
  source.read = [](const std::string& name) -> std::string {
    if (name == "absent") fail(ErrorKind::usage, "cannot read absent");
    if (name == "large") throw std::bad_alloc();
    return "text of " + name;
  };
  BatchInput input(source, {});
  LineMaker made = maker();
  std::vector<BatchItem> lines;
  for (BatchItem line; input.next(line, made, 0) == Result::line;) lines.push_back(line);
  BOOST_REQUIRE(lines.size() == 5u);
  BOOST_TEST(lines[0].id.value() == "a.txt");
  BOOST_TEST(lines[0].request.prompt.user == "text of a.txt");
  BOOST_TEST((lines[1].error && lines[2].error));
  BOOST_TEST((lines[3].error && lines[3].id == "large" && !lines[4].error));
}

BOOST_AUTO_TEST_CASE(what_was_answered_is_known_again) {
  const Files files;
  {
    BatchOutput output(files.out, {}, {});
    BOOST_TEST((output.find(numbered(1).digest) == BatchOutput::Known::no));
    output.put(0, answered(1));
    output.put(1, failed(2));
  }
  BOOST_TEST(files.read(files.out) == answered(1) + failed(2));
  const BatchOutput output(files.out, {}, {});
  BOOST_TEST((output.find(numbered(1).digest) == BatchOutput::Known::answered));
  BOOST_TEST((output.find(numbered(2).digest) == BatchOutput::Known::failed));
  BOOST_TEST((output.find(numbered(3).digest) == BatchOutput::Known::no));
}

// Cut anywhere in its last line, the file is repaired, and goes on with whole lines.
BOOST_AUTO_TEST_CASE(a_torn_last_line_is_cut_off) {
  const Files files;
  const std::string whole = answered(1), torn = failed(2);
  for (size_t n = 0; n < torn.size(); ++n) {
    files.write(files.out, whole + torn.substr(0, n));
    BatchOutput output(files.out, {}, {});
    BOOST_TEST((output.find(numbered(1).digest) == BatchOutput::Known::answered));
    BOOST_TEST((output.find(numbered(2).digest) == BatchOutput::Known::no));
    output.put(0, answered(3));
    BOOST_TEST(files.read(files.out) == whole + answered(3), n << " bytes of a torn line");
  }
}

BOOST_AUTO_TEST_CASE(what_failed_is_taken_out_to_be_asked_again) {
  const Files files;
  files.write(files.out, answered(1) + failed(2) + answered(3) + failed(4) + "{\"id\":\"batch_r");
  chmod(files.out.c_str(), 0640);
  const std::string link = files.dir.file("link");
  BOOST_REQUIRE(symlink(files.out.c_str(), link.c_str()) == 0);
  {
    BatchOutput output(link, with(&BatchOptions::retries_failed), {});
    BOOST_TEST((output.find(numbered(2).digest) == BatchOutput::Known::no));
    BOOST_TEST((output.find(numbered(3).digest) == BatchOutput::Known::answered));
    BOOST_TEST(contains(complaint(files.out), "another process writes to"));
    output.put(0, answered(2));
  }
  BOOST_TEST(files.read(files.out) == answered(1) + answered(3) + answered(2));
  struct stat info {};
  BOOST_TEST((lstat(link.c_str(), &info) == 0 && S_ISLNK(info.st_mode)));
  BOOST_TEST((stat(files.out.c_str(), &info) == 0 && (info.st_mode & 0777) == 0640));
  BOOST_TEST(access((files.out + ".tmp").c_str(), F_OK) != 0);
}

// A file of the user's beside the answers, of whatever name, stays; and so does nothing of ours.
BOOST_AUTO_TEST_CASE(retrying_touches_no_other_file) {
  const Files files;
  files.write(files.out, answered(1) + failed(2));
  files.write(files.out + ".tmp", "precious");
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(files.dir.file("")))
      all.insert(entry.path().filename().string());
    return all;
  };
  const std::set<std::string> before = names();
  { const BatchOutput output(files.out, with(&BatchOptions::retries_failed), {}); }
  BOOST_TEST(files.read(files.out) == answered(1));
  BOOST_TEST(files.read(files.out + ".tmp") == "precious");
  BOOST_TEST((names() == before));
}

// A kill while the file without the failed lines is written: the old file stays, and nothing is beside it
// (but where the file system has no files without a name).
BOOST_AUTO_TEST_CASE(a_kill_while_retrying_leaves_no_file) {
  const Files files;
  std::string all = failed(0);
  for (int i = 1; i < 200; ++i) all += answered(i);
  files.write(files.out, all);
  const std::string folder = files.dir.file("");
  const int nameless = open(folder.c_str(), O_TMPFILE | O_RDWR, 0600);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit few{4096, 4096}, none{0, 0};
    signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_CORE, &none) == 0 && setrlimit(RLIMIT_FSIZE, &few) == 0)
      const BatchOutput output(files.out, with(&BatchOptions::retries_failed), {});
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ));
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder), {}) == (nameless < 0 ? 2 : 1));
  BOOST_TEST(files.read(files.out) == all);
  close(nameless);
}

// Moved away, it has all answers so far.
BOOST_AUTO_TEST_CASE(a_file_that_loses_its_name_ends_the_batch) {
  for (const std::string how : {"stays", "moved", "removed", "replaced", "folder removed"}) {
    const Files files;
    const std::string folder = files.dir.file("sub"), path = folder + "/out", moved = files.dir.file("moved");
    std::filesystem::create_directory(folder);
    std::string why;
    {
      BatchOutput output(path, {}, {});
      output.put(0, answered(1));
      output.check_place();
      if (how == "moved") std::filesystem::rename(path, moved);
      if (how == "removed") std::filesystem::remove(path);
      if (how == "replaced") files.write(files.in, "mine"), std::filesystem::rename(files.in, path);
      if (how == "folder removed") std::filesystem::remove_all(folder);
      output.put(1, answered(2));
      try {
        output.check_place();
      } catch (const Error& error) {
        why = error.what();
        BOOST_TEST((error.kind() == ErrorKind::io));
      }
    }
    BOOST_TEST(why.empty() == (how == "stays"), how);
    if (how == "moved" || how == "stays")
      BOOST_TEST(files.read(how == "moved" ? moved : path) == answered(1) + answered(2), how);
    if (how != "stays") BOOST_TEST(contains(why, path + " was removed, moved or replaced"), why);
    if (how == "replaced") BOOST_TEST(files.read(path) == "mine");
  }
}

BOOST_AUTO_TEST_CASE(files_that_are_no_answers_are_left_alone) {
  const Files files;
  for (const std::string& text :
       {std::string("notes"), std::string("notes\n"), answered(1) + "{\"id\":\"other\"}\n",
        answered(1) + "\n", std::string("{\"id\":\"batch_req_0\",\"custom_id\":1}\n"), "x" + answered(1),
        answered(1) + std::string("\0\n", 2)}) {
    files.write(files.out, text);
    BOOST_TEST(contains(complaint(files.out), "is no answer of dsv32 batch"), text);
    BOOST_TEST(files.read(files.out) == text);
  }
}

BOOST_AUTO_TEST_CASE(one_writer_and_never_the_input) {
  const Files files;
  files.write(files.in, "");
  const std::string link = files.dir.file("link");
  BOOST_REQUIRE(::link(files.in.c_str(), link.c_str()) == 0);
  BatchSource source;
  source.path = files.in;
  const BatchInput input(source, {});
  BOOST_TEST(contains(complaint(files.in, input.stamp()), "is both input and output"));
  BOOST_TEST(contains(complaint(link, input.stamp()), "is both input and output"));
  {
    const BatchOutput first(files.out, {}, input.stamp());
    BOOST_TEST(contains(complaint(files.out, input.stamp()), "another process writes to"));
  }
  BOOST_TEST(complaint(files.out, input.stamp()).empty());
}

BOOST_AUTO_TEST_CASE(answers_in_the_order_of_their_places) {
  const Files files;
  BatchOutput output(files.out, with(&BatchOptions::is_ordered), {});
  for (const int i : {3, 1, 4}) output.put(i, answered(i));
  BOOST_TEST(files.read(files.out).empty());
  BOOST_TEST(output.n_held() == 3);
  output.put(0, answered(0));
  BOOST_TEST(files.read(files.out) == answered(0) + answered(1));
  output.put(2, answered(2));
  BOOST_TEST(files.read(files.out) == answered(0) + answered(1) + answered(2) + answered(3) + answered(4));
  BOOST_TEST(output.n_held() == 0);
}

BOOST_AUTO_TEST_CASE(how_far_it_is) {
  BatchTally tally;
  tally.n_answered = 100, tally.n_failed = 3, tally.n_answered_before = 309, tally.n_running = 8;
  tally.n_waiting = 580, tally.tokens = {74688, 12288, 1900};
  tally.seconds = 50;
  BOOST_TEST(
      batch_progress(tally) ==
      "412 / 1,000  3 failed  8 running  580 waiting  5 min left  1,248 t/s in  38.0 t/s out  12,288 cached");
  BOOST_TEST(
      batch_summary(tally) ==
      "412 lines: 409 answered, 3 failed (309 before); 74,688 tokens in (12,288 from cache), 1,900 out, in "
      "50 s, 38.0 t/s out");
  for (const char* line : {"7", "12"})
    tally.add_failure("q" + std::string(line) + ": ",
                      Error(ErrorKind::usage, "line " + std::string(line) + ": top_k is -5", "a hint"));
  tally.add_failure("x: ", Error(ErrorKind::usage, "another"));
  tally.add_failure("", Error(ErrorKind::context_full, "a\x1b"));
  tally.n_failed_before = 1000;
  BOOST_TEST(batch_failures(tally) ==
                 (std::vector<std::string>{
                     "1 line failed with status 400, the first is x: another",
                     "2 lines failed with status 400, the first is q7: line 7: top_k is -5; a hint",
                     "1 line failed with status 413, the first is a\\e",
                     "1,000 lines failed in an earlier run, --retry-failed asks for them again"}),
             boost::test_tools::per_element());
  for (char kind = 'a'; kind < 'm'; ++kind)
    tally.add_failure("", Error(ErrorKind::usage, std::string(1, kind)));
  BOOST_TEST(tally.failures.size() == BatchTally::kMostKinds + 1);
  BOOST_TEST(batch_failures(tally)[BatchTally::kMostKinds] == "7 lines failed otherwise, the first is f");
  BOOST_TEST(batch_rest(tally, true) == "580 lines remain; the same command goes on");
  BOOST_TEST(batch_rest(tally, false) == "580 lines remain");
  tally.is_estimate = true;
  BOOST_TEST(batch_rest(tally, false) == "about 580 lines remain");
  tally.failures.clear(), tally.n_failed_before = 0;
  BOOST_TEST(batch_failures(tally).empty());
  tally.n_waiting = 0;
  BOOST_TEST(batch_rest(tally, true).empty());
  tally.n_waiting.reset();
  BOOST_TEST(batch_rest(tally, true) == "the input was not read to its end; the same command goes on");
  BOOST_TEST(batch_progress(tally) == "412  3 failed  8 running  1,248 t/s in  38.0 t/s out  12,288 cached");
}

BOOST_AUTO_TEST_SUITE_END()
