// cli/terminal/user_files, the history: what is appended reads back the same in libedit, whoever else writes,
// and stays bounded.
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <clocale>
#include <filesystem>
#include <string>
#include <vector>

#include <histedit.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/terminal/user_files.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/plain_files.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(history_file)

namespace fs = std::filesystem;
namespace tt = boost::test_tools;

namespace {

const std::string kFirst = "_HiStOrY_V2_\n";

// What libedit finds in a file, the oldest first.
std::vector<std::string> loaded(const std::string& path) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  History* history = history_init();
  HistEvent event;
  ::history(history, &event, H_SETSIZE, 100'000);
  ::history(history, &event, H_LOAD, path.c_str());
  std::vector<std::string> entries;
  for (int found = ::history(history, &event, H_LAST); found >= 0; found = ::history(history, &event, H_PREV))
    entries.emplace_back(event.str);
  history_end(history);
  return entries;
}

std::string numbered(int begin, int end) {
  std::string lines;
  for (int i = begin; i < end; ++i) lines += std::to_string(i) + "\n";
  return lines;
}

}  // namespace

BOOST_AUTO_TEST_CASE(entries_read_back_as_they_were_typed) {
  TempDir temp;
  const std::string path = temp.file("history");
  const std::vector<std::string> entries{"hello",         "two words\tand a tab", "several\nlines\n\nof text",
                                         "C:\\040\\n \\", "é 語 \U0001f600",      "# ! $ ^C \x1b[31m \x7f",
                                         "_HiStOrY_V2_"};
  BOOST_TEST(!HistoryFile(path).shorten());
  for (const std::string& entry : entries) HistoryFile(path).append(entry);
  BOOST_TEST(loaded(path) == entries, tt::per_element());
  BOOST_TEST(HistoryFile(path).shorten());
  BOOST_TEST(loaded(path) == entries, tt::per_element());
  struct stat info {};
  BOOST_REQUIRE(stat(path.c_str(), &info) == 0);
  BOOST_TEST((info.st_mode & 0777) == 0600u);
}

BOOST_AUTO_TEST_CASE(a_file_that_libedit_wrote_goes_on) {
  TempDir temp;
  const std::string path = temp.file("history");
  std::setlocale(LC_CTYPE, "C.UTF-8");
  History* history = history_init();
  HistEvent event;
  ::history(history, &event, H_SETSIZE, 10);
  const std::vector<std::string> entries{"é \\ 語", "a\nb", "\x1b"};
  for (const std::string& entry : {entries[0], entries[1]})
    ::history(history, &event, H_ENTER, entry.c_str());
  BOOST_REQUIRE(::history(history, &event, H_SAVE, path.c_str()) >= 0);
  history_end(history);
  HistoryFile(path).append(entries[2]);
  BOOST_TEST(loaded(path) == entries, tt::per_element());
}

BOOST_AUTO_TEST_CASE(the_last_entries_stay) {
  TempDir temp;
  const std::string path = temp.file("history");
  const HistoryFile file(path);
  const auto shortened = [&](const std::string& text) {
    write_file(path, text);
    BOOST_TEST(file.shorten());
    return read_file(path);
  };
  BOOST_TEST((shortened(kFirst + numbered(0, 1000)) == kFirst + numbered(0, 1000)));
  BOOST_TEST((shortened(kFirst + numbered(0, 1001)) == kFirst + numbered(1, 1001)));
  BOOST_TEST((shortened(kFirst + numbered(0, 5000)) == kFirst + numbered(4000, 5000)));
  BOOST_TEST(shortened("") == kFirst);
  BOOST_TEST(shortened("a\nb") == kFirst + "a\nb\n");  // of another program, or half written
  const std::string line(1 << 20, 'x');
  BOOST_TEST((shortened(kFirst + line + "\n" + line + "\n" + line + "\n" + line + "\nend\n") ==
              kFirst + line + "\n" + line + "\n" + line + "\nend\n"));
  write_file(path, kFirst + "half");
  file.append("whole");
  BOOST_TEST(read_file(path) == kFirst + "half\nwhole\n");
}

// Each process appends while another keeps shortening.
BOOST_AUTO_TEST_CASE(the_lines_of_every_process_survive) {
  constexpr int kProcesses = 4, kLines = 100;
  TempDir temp;
  const std::string path = temp.file("history");
  write_file(path, kFirst + numbered(0, 5000));
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < kLines; ++i) {
      HistoryFile(path).append(std::to_string(process) + " says " + std::to_string(i));
      if (process == 0 && i % 10 == 0) HistoryFile(path).append("more"), HistoryFile(path).shorten();
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    BOOST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
  }
  const std::vector<std::string> entries = loaded(path);
  std::vector<int> next(kProcesses);
  for (const std::string& entry : entries)
    for (int process = 0; process < kProcesses; ++process)
      if (entry == std::to_string(process) + " says " + std::to_string(next[process])) ++next[process];
  for (const int n_found : next) BOOST_TEST(n_found == kLines, "the lines of a process end at " << n_found);
  BOOST_TEST(!fs::exists(temp.file(".history.tmp")));
}

BOOST_AUTO_TEST_CASE(what_is_no_file_is_left_alone) {
  TempDir temp;
  BOOST_REQUIRE(mkfifo(temp.file("fifo").c_str(), 0600) == 0);
  fs::create_directory(temp.file("folder"));
  for (const std::string& path :
       {temp.file("fifo"), temp.file("folder"), std::string("/dev/null"), std::string()}) {
    HistoryFile(path).append("a");
    BOOST_TEST(!HistoryFile(path).shorten());
  }
  write_file(temp.file("elsewhere"), kFirst + numbered(0, 1001));
  fs::create_symlink(temp.file("elsewhere"), temp.file("link"));
  BOOST_TEST(HistoryFile(temp.file("link")).shorten());
  HistoryFile(temp.file("link")).append("a");
  BOOST_TEST(fs::is_symlink(temp.file("link")));
  BOOST_TEST((read_file(temp.file("elsewhere")) == kFirst + numbered(1, 1001) + "a\n"));
}

// A failure in any call leaves the entries that were there, and none by halves.
BOOST_AUTO_TEST_CASE(failures) {
  TempDir temp;
  const std::string path = temp.file("history");
  FaultFileSystem faults;
  const HistoryFile file(path, faults);
  const std::string before = kFirst + numbered(0, 1001), after = kFirst + numbered(1, 1001);
  for (int64_t fails_at = 0; fails_at < 12; ++fails_at) {
    write_file(path, before);
    int64_t first = faults.n_calls;
    faults.most_at_once = 5;  // so that a later part fails
    faults.on_call = [&](int64_t n, FileOp) {
      return n - first == fails_at ? std::optional<int>(-ENOSPC) : std::nullopt;
    };
    file.append("appended");
    const std::string appended = read_file(path);
    BOOST_TEST((appended == before || appended == before + "appended\n"),
               fails_at << ": " << appended.substr(before.size() - 5));
    write_file(path, before);
    faults.most_at_once = SIZE_MAX;
    first = faults.n_calls;
    file.shorten();
    const std::string shortened = read_file(path);
    BOOST_TEST((shortened == before || shortened == after));
    faults.on_call = nullptr;
  }
}

BOOST_AUTO_TEST_SUITE_END()
