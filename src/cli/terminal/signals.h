// What signals do, and the terminal's modes while lines are edited on it.
//
// SIGINT, SIGTERM and SIGHUP: the first one is a request while something can be ended in good order;
// otherwise a signal ends the process at once with 130, 143 or 129 and a line on standard error. (Colours
// need no reset, since every coloured write ends with one.) A SIGHUP that was ignored when the process began
// stays ignored.
//
// SIGTSTP and SIGCONT: the modes are given back while the process is stopped and set again when it goes on.
// What a shell does with a terminal between Ctrl-Z and `fg` is unknown, and after SIGSTOP nothing could be
// given back, so that the handler of SIGCONT sets them in any case. A process in the background does not
// touch the modes, since that would stop it.
#pragma once

namespace dsv32 {

// From here on a signal ends the process at once. SIGPIPE gets its default action back. Call first.
void install_signal_handlers();

// While one exists, the first signal is kept for exit_code(). One at a time.
class GracefulStop {
 public:
  // What signals do: end the process; the first one is a request, the second one ends it; or all are
  // requests, for unsaved data's sake. SIGQUIT and SIGKILL still end the process at once.
  enum class Signals { end, first_is_request, are_requests };

  explicit GracefulStop(Signals signals = Signals::first_is_request);
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;

  bool is_requested() const { return exit_code() != 0; }
  bool must_leave() const;  // SIGTERM or SIGHUP came, perhaps after a SIGINT
  void forget_interrupt();  // a SIGINT that has been dealt with
  void hang_up();           // as if SIGHUP had come: the terminal takes no more
  int exit_code() const;    // 129, 130 or 143; 0: no signal yet
  int end() const;          // the same, and says so on standard error

 private:
  const Signals former_;
};

// While one exists a signal ends the process at once, GracefulStop or not: for slow work that loses nothing.
struct EndsAtOnce : private GracefulStop {
  EndsAtOnce() : GracefulStop(Signals::end) {}
};

// Holds the modes of standard input's terminal. One at a time.
class HeldTerminal {
 public:
  explicit HeldTerminal(bool marks_pastes);  // asks the terminal to mark pasted text
  ~HeldTerminal();
  HeldTerminal(const HeldTerminal&) = delete;
  HeldTerminal& operator=(const HeldTerminal&) = delete;

  // The modes that are set now are those to hold.
  void keep_modes();

  // While one exists the modes are as they were before HeldTerminal.
  struct Loan {
    Loan();
    ~Loan();
  };

  // Since the last call others may have had the terminal. It is held again; what its window shows is unknown.
  bool was_lost();
};

}  // namespace dsv32
