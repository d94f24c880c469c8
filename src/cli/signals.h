// SIGINT and SIGTERM: while something can be ended in good order the first one is a request, otherwise and
// the second time it ends the process at once with 130 or 143.
//
// The handler does nothing else: colours need no reset, because every coloured write ends with one.
#pragma once

namespace dsv32 {

// From here on a signal ends the process at once. SIGPIPE gets its default action back. Call first.
void install_signal_handlers();

// While one exists, the first signal is kept for requested_exit_code(). One at a time.
class GracefulStop {
 public:
  GracefulStop();
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;

  bool is_requested() const { return exit_code() != 0; }
  void reset();           // forgets a signal that has been dealt with
  int exit_code() const;  // 130 or 143; 0: no signal yet
};

}  // namespace dsv32
