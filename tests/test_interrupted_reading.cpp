// base/file: reading that never ends, of a pipe whose writer says nothing or of some of /proc, ends with a
// signal.
#include <boost/test/unit_test.hpp>
#include <csignal>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(interrupted_reading)

// In a process of its own, which the hundredth signal ends.
BOOST_AUTO_TEST_CASE(a_signal_ends_it) {
  const TempDir temp;
  const std::string path = temp.file("silent");
  BOOST_REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const pid_t reader = fork_child([&] {
    [[maybe_unused]] const int writer = open(path.c_str(), O_RDWR);
    static volatile std::sig_atomic_t n_signals = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
      n_signals = n_signals + 1;
      if (n_signals == 100) _exit(2);
    };
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 50'000}, {0, 50'000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    try {
      read_text(path, 1000);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage ? 0 : 1;
    }
    return 1;
  });
  BOOST_TEST(wait_for(reader) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
