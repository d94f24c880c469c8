// What signals do, and the terminal's modes while lines are edited on it.
//
// SIGINT, SIGTERM, SIGHUP and SIGUSR1, by which batch systems say that time is nearly over: while a
// GracefulStop exists, the first signal only asks for an end. Otherwise a signal ends the process at once
// with 130, 143, 129 or 138 and a line on standard error. (Colours need no reset, since every coloured write
// ends with one.) A SIGHUP that was ignored when the process began stays ignored.
//
// SIGTSTP and SIGCONT: the terminal has its former modes while the process is stopped, and the editor's when
// it goes on. The handler of SIGCONT always sets them, because a shell may change the modes between Ctrl-Z
// and `fg`, and because SIGSTOP has no handler that could give them back. A process in the background does
// not touch the modes, since that would stop it.
#pragma once

namespace dsv32 {

// From here on a signal ends the process at once. SIGPIPE gets its default action back. Call first.
void install_signal_handlers();

// While one exists, the first signal is kept for exit_code(). One at a time.
class GracefulStop {
 public:
  // end: a signal ends the process at once, despite an outer GracefulStop: for work that loses nothing.
  // first_is_request: the first asks for an end, the second ends the process. are_requests: all only ask,
  // because data is unsaved. SIGQUIT and SIGKILL always end it at once.
  enum class Signals { end, first_is_request, are_requests };

  explicit GracefulStop(Signals signals = Signals::first_is_request);
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;

  bool is_requested() const { return exit_code() != 0; }
  bool must_leave() const;  // SIGTERM, SIGHUP or SIGUSR1 came, perhaps after a SIGINT
  void forget_interrupt();  // call when a SIGINT has been dealt with
  void hang_up();           // acts as SIGHUP: for a terminal that takes no more output
  int exit_code() const;    // 129, 130, 138 or 143; 0: no signal yet
  int end() const;          // the same, and says so on standard error

 private:
  const Signals former_;
};

// Sets the modes of standard input's terminal in which lines are edited: each key comes at once, as the
// keyboard sends it, and is not echoed. One at a time.
class HeldTerminal {
 public:
  HeldTerminal();  // also asks the terminal to mark pasted text
  ~HeldTerminal();
  HeldTerminal(const HeldTerminal&) = delete;
  HeldTerminal& operator=(const HeldTerminal&) = delete;

  // While one exists the modes are as they were before HeldTerminal.
  struct Loan {
    Loan();
    ~Loan();
  };

  // Sets the held modes again if they are lost. True: another program may have used the terminal since the
  // last call, so what its window shows is unknown.
  bool was_lost();
};

}  // namespace dsv32
