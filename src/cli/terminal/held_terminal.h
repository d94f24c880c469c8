// The modes of a terminal on which lines are edited: given back while the process is stopped and at its end,
// taken again when it goes on.
//
// The one idea: what a shell does with a terminal between Ctrl-Z and `fg` is not known, and after SIGSTOP
// nothing could be given back. So the modes that are ours are kept here, and the handler of SIGCONT sets them
// again, whatever goes on meanwhile. A process in the background touches no modes: that would stop it.
#pragma once

#include <functional>

namespace dsv32 {

// One at a time. Of standard input.
class HeldTerminal {
 public:
  // `marks_pastes`: it is asked to tell what is pasted.
  explicit HeldTerminal(bool marks_pastes);
  ~HeldTerminal();
  HeldTerminal(const HeldTerminal&) = delete;
  HeldTerminal& operator=(const HeldTerminal&) = delete;

  // The modes that are set now are ours.
  void keep_modes();
  // While `user` runs they are as they were before all this. What it throws is thrown.
  void lend(const std::function<void()>& user);

  // Since the last call: nothing; or the process was stopped, and the window is as it was; or others had the
  // terminal, which is ours again, and what is in the window is not known.
  enum class Fate { kept, continued, taken_again };
  Fate fate();
};

}  // namespace dsv32
