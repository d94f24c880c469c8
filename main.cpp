// dsv32: the command line's first word picks what runs; errors end here, as one line and an exit code.
//
// Exit codes: 0 done, 1 run time, 2 usage, 3 model, 4 memory, 130 and 143 after SIGINT and SIGTERM.
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/chat.h"
#include "cli/help.h"
#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/run.h"
#include "cli/signals.h"
#include "cli/streams.h"

namespace dsv32 {
namespace {

using Words = std::vector<std::string>;

Words after(const Words& words, size_t n) {
  return {words.begin() + static_cast<std::ptrdiff_t>(n), words.end()};
}

int run_with(Command command, const Words& args, int (*function)(const Options&)) {
  const Options options = parse_options(command, args);
  if (options.wants_help) return write_out(command_help(command)), 0;
  if (options.wants_version) return write_out(version_line()), 0;
  return function(options);
}

[[noreturn]] void fail_word(const char* what, const std::string& word, const Words& known) {
  const std::string near = nearest(word, known);
  fail(ErrorKind::usage, format("unknown %s '%s'%s, see dsv32 help", what, visible(word, false, 80).c_str(),
                                near.empty() ? "" : format(" (did you mean %s?)", near.c_str()).c_str()));
}

int inspect(const Words& words) {
  static const Words kNames{"model", "plan", "tokens", "prompt", "logits"};
  constexpr Command kCommands[] = {Command::inspect_model, Command::inspect_plan, Command::inspect_tokens,
                                   Command::inspect_prompt, Command::inspect_logits};
  if (words.empty()) fail(ErrorKind::usage, "inspect what? one of model, plan, tokens, prompt, logits");
  if (words[0] == "--help" || words[0] == "-h") return write_out(overview()), 0;
  if (words[0] == "--version") return write_out(version_line()), 0;
  for (size_t i = 0; i < kNames.size(); ++i)
    if (words[0] == kNames[i]) return run_with(kCommands[i], after(words, 1), inspect_command);
  fail_word("thing to inspect", words[0], kNames);
}

int dispatch(const Words& words) {
  static const Words kNames{"run", "chat", "inspect", "bench", "help"};
  if (words.empty()) return write_err(overview()), exit_code(ErrorKind::usage);
  const std::string& name = words[0];
  if (name == "run") return run_with(Command::run, after(words, 1), run_command);
  if (name == "chat") return run_with(Command::chat, after(words, 1), chat_command);
  if (name == "inspect") return inspect(after(words, 1));
  if (name == "bench") return bench_command(after(words, 1));
  if (name == "help" && words.size() > 1) {
    Words asked = after(words, 1);
    asked.push_back("--help");
    return dispatch(asked);
  }
  if (name == "help" || name == "--help" || name == "-h") return write_out(overview()), 0;
  if (name == "--version") return write_out(version_line()), 0;
  if (name.starts_with("-")) fail(ErrorKind::usage, "a command comes before its flags, see dsv32 help");
  fail_word("command", name, kNames);
}

int guarded(const Words& words) {
  try {
    return dispatch(words);
  } catch (const Error& error) {
    write_err(error_text(error.what(), error.hint()));
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    write_err(error_text("out of memory", "a smaller context (-c) needs less"));
    return exit_code(ErrorKind::memory);
  } catch (const std::exception& error) {
    write_err(error_text(error.what()));
    return exit_code(ErrorKind::internal);
  }
}

}  // namespace
}  // namespace dsv32

int main(int argc, char** argv) {
  dsv32::open_missing_streams();
  dsv32::install_signal_handlers();
  dsv32::install_truncation_guard();
  return dsv32::guarded({argv + 1, argv + argc});
}
