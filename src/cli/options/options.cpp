// See options.h.
#include "cli/options/options.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/flag_parser.h"
#include "cli/options/flags.h"
#include "cli/options/help.h"
#include "cli/options/settings.h"

namespace dsv32 {
namespace {

void check_batch(const Options& options) {
  const BatchOptions& batch = options.batch;
  const auto count = [](const std::string& path) { return path.empty() ? 0 : 1; };
  if (batch.is_each && batch.is_lines)
    fail(ErrorKind::usage, "--each and --lines are both given, expected one of them");
  if (batch.is_each && options.files.empty()) fail(ErrorKind::usage, "--each needs the files of -f");
  if (options.command == Command::run && (batch.is_each || batch.is_lines)) {
    if (options.prompt == "-" || options.words == std::vector<std::string>{"-"})
      fail(ErrorKind::usage, "with --each and --lines only -f reads standard input (-)");
    if (batch.is_lines && options.files.size() > 1)
      fail(ErrorKind::usage, "--lines reads one file, -f is given more than once");
  }
  if (options.command != Command::batch) return;
  if (count(batch.input_path) + std::ssize(options.words) != 1)
    fail(ErrorKind::usage, "batch needs one file of requests, as a word or with -i (- is standard input)");
  if (options.output_path.empty())
    fail(ErrorKind::usage, "batch needs -o FILE for the answers (- is standard output)");
  if (batch.is_ordered && batch.retries_failed)
    fail(ErrorKind::usage, "--retry-failed puts answers behind those that are there, which is not --ordered");
}

void check_together(const Options& options) {
  if (options.prompt && !options.words.empty())
    fail(ErrorKind::usage, "the prompt is given twice, with --prompt and as words; expected one of them");
  if (!options.system_text.empty() && !options.system_file.empty())
    fail(ErrorKind::usage, "--system and --system-file are both given, expected one of them");
  if (options.is_raw && !(options.system_text.empty() && options.system_file.empty()))
    fail(ErrorKind::usage, "--raw means that the prompt is rendered already, --system cannot be added to it");
  check_batch(options);
  if (options.generation.n_top_logprobs >= 0 && !options.json && options.command != Command::batch)
    fail(ErrorKind::usage, "--logprobs needs --json, which carries them");
  if (options.is_streamed && (!options.json || options.batch.is_each || options.batch.is_lines))
    fail(ErrorKind::usage, "--stream needs --json and one prompt");
  if (options.continues && !options.talk.empty())
    fail(ErrorKind::usage, "--talk and --continue are both given, expected one of them");
  const bool is_talk = options.continues || !options.talk.empty();
  if (is_talk && (options.is_raw || options.batch.is_each || options.batch.is_lines))
    fail(ErrorKind::usage,
         "a talk goes on with one prompt that is not rendered yet, without --raw, --each and --lines");
  const bool names_stdin_twice =
      std::ranges::count(options.files, "-") + (options.prompt == "-") + (options.system_file == "-") > 1;
  if (names_stdin_twice) fail(ErrorKind::usage, "standard input (-) is named more than once");
  if (options.command == Command::inspect_logits &&
      (options.token_list.empty() || options.output_path.empty()))
    fail(ErrorKind::usage, "inspect logits needs --tokens IDS and --out FILE");
  if (options.bench.is_synthetic && !options.engine.model_path.empty())
    fail(ErrorKind::usage, format("--model and --synthetic%s are both given, expected one of them",
                                  options.command == Command::inspect_plan ? " or --type" : ""));
  if (options.engine.gpu_mem.size() > 1 && options.engine.gpu_mem.size() != options.engine.gpus.size())
    fail(ErrorKind::usage, format("--gpu-mem has %zu sizes for %zu of --gpus", options.engine.gpu_mem.size(),
                                  options.engine.gpus.size()));
  if (options.bench.n_dense > options.bench.n_layers)
    fail(ErrorKind::usage,
         format("--dense is %lld of %lld --layers", static_cast<long long>(options.bench.n_dense),
                static_cast<long long>(options.bench.n_layers)));
}

}  // namespace

Options parse_options(Command command, const std::vector<std::string>& args) {
  const GivenWords given = take_apart(row_of(command).text, flags_of(command), args);
  Options options;
  options.command = command;
  options.wants_help = given.has("help");
  options.wants_version = given.has("version");
  if (options.wants_help || options.wants_version) return options;
  for (const Setting& setting : settings_for(command, given)) {
    setting.flag->apply(options, setting.value, visible(setting.where) + ": " + setting.flag->name());
    options.given.insert(setting.flag->name());
  }
  for (const auto& [flag, value] : given.flags) {
    static_cast<const Flag*>(flag)->apply(options, value, "--" + flag->name());
    options.given.insert(flag->name());
  }
  options.words = given.words;
  check_together(options);
  return options;
}

uint64_t choose_seed(const Options& options) { return options.seed ? *options.seed : std::random_device{}(); }

std::string command_help(Command command) {
  return help_of(row_of(command).text, flags_of(command)) + "\n" + fitted(exit_codes());
}

}  // namespace dsv32
