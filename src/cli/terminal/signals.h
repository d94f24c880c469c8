// SIGINT, SIGTERM and SIGHUP: while something can be ended in good order the first one is a request,
// otherwise it ends the process at once with 130, 143 or 129.
//
// Ending, the handler says so on standard error and does nothing else: colours need no reset, because every
// coloured write ends with one. A SIGHUP that was ignored when the process began stays ignored.
#pragma once

namespace dsv32 {

// From here on a signal ends the process at once. SIGPIPE gets its default action back. Call first.
void install_signal_handlers();

// While one exists, the first signal is kept for exit_code(). One at a time.
class GracefulStop {
 public:
  // What a second signal does: whoever holds what is saved nowhere takes it as a request too. SIGQUIT and
  // SIGKILL still end the process at once.
  enum class Second { ends, is_request };

  explicit GracefulStop(Second second = Second::ends);
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;

  bool is_requested() const { return exit_code() != 0; }
  bool must_leave() const;  // SIGTERM or SIGHUP came, perhaps after a SIGINT
  void forget_interrupt();  // a SIGINT that has been dealt with
  void hang_up();           // as if SIGHUP had come: the terminal takes no more
  int exit_code() const;    // 129, 130 or 143; 0: no signal yet
  int end() const;          // the same, and says so on standard error
};

// While one exists a signal ends the process at once, GracefulStop or not: for what takes long and nothing is
// lost by.
class EndsAtOnce {
 public:
  EndsAtOnce();
  ~EndsAtOnce();
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;

 private:
  int former_;  // what a signal did before
};

}  // namespace dsv32
