// dsv32: the command line's first word chooses the command. Errors end here, as one line and an exit code.
//
// Exit codes: 0 done, 1 run time, 2 usage, 3 model, 4 memory, 5 some of a batch failed, 6 no whole answer
// (answer.h), 129, 130, 138 and 143 after SIGHUP, SIGINT, SIGUSR1 and SIGTERM.
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"
#include "cli/batch/batch.h"
#include "cli/chat/chat.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/warm/warm.h"

namespace dsv32 {
namespace {

int run_command_of(const Options& options) {
  switch (options.command) {
    case Command::run:
      return options.batch.is_each || options.batch.is_lines ? run_many(options) : run_command(options);
    case Command::batch: return batch_command(options);
    case Command::chat: return chat_command(options);
    case Command::inspect_model: return inspect_model(options);
    case Command::inspect_plan: return inspect_plan(options);
    case Command::inspect_tokens: return inspect_tokens(options);
    case Command::check: return check_command(options);
    case Command::cache_list:
    case Command::cache_verify:
    case Command::cache_prune:
    case Command::cache_clear: return cache_command(options);
    case Command::talks_list:
    case Command::talks_delete: return talks_command(options);
    case Command::bench: return bench_command(options);
    case Command::warm_start: return warm_start_command(options);
    case Command::warm_status: return warm_status_command(options);
    case Command::warm_stop: return warm_stop_command(options);
    case Command::completion: return completion_command(options);
  }
  return 0;
}

int dispatch(std::vector<std::string> words) try {
  if (words.empty()) return write_err(overview()), exit_code(ErrorKind::usage);
  if (words[0] == "help" && words.size() > 1) {  // "help run" is "run --help"
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (const std::string text = general_text(words); !text.empty()) return write_out(text), 0;

  size_t n_taken = 0;
  const CommandRow& row = find_command(words, n_taken);
  words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(n_taken));
  if (words.size() == 1 && (words[0] == "--version" || words[0] == "-V")) return write_out(version_text()), 0;
  const Options options = parse_options(row.command, words);
  if (options.wants_help) return write_out(command_help(row.command)), 0;
  return run_command_of(options);
} catch (...) {
  const Error error = current_error();
  write_err(error_text(error.what(), error.hint()));
  return exit_code(error.kind());
}

}  // namespace
}  // namespace dsv32

int main(int argc, char** argv) {
  dsv32::open_missing_streams();
  dsv32::install_signal_handlers();
  dsv32::install_truncation_guard();
  dsv32::take_unknown_terminal_for_dumb();
  const int code = dsv32::dispatch({argv + (argc > 0), argv + argc});
  if (dsv32::are_threads_left_behind()) std::_Exit(code);  // destroys nothing that they use
  return code;
}
