// See help.h.
//
// A screenful is 24 lines of 80 columns.
#include "cli/help.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/version.h"

namespace dsv32 {

std::string exit_codes() {
  return "Exit codes: 0 done, 1 run time, 2 usage, 3 model, 4 memory, 5 some of a batch "
         "failed, 6 no whole answer.\n";
}

std::string overview() {
  return R"(dsv32 runs DeepSeek-V3.2 from a GGUF file.

  dsv32 run "Why is the sky blue?"           the answer, on standard output
  dsv32 run -f notes.txt "Summarise this."   a file, then the question
  git diff | dsv32 run "Review this."        standard input, then the question
  dsv32 batch asked.jsonl -o answers.jsonl   many prompts, many at a time

Commands:
  run               answer one prompt, or with --each or --lines each of many
  batch             answer a file of requests
  chat              talk, at a terminal
  inspect model     the model file's metadata; also tokens, prompt, logits
  inspect plan      what would lie where, in bytes
  cache list        what is kept of earlier prompts; also show, verify, prune, clear, path
  warm start        keep a model loaded, for what comes next; also status, stop
  talks list        the talks that are kept; also show, rename, delete, export
  check             whether this machine computes the model as it should
  bench             speed against what the machine can do
  config            what holds without flags, and from where
  completion        what bash, zsh and fish complete, or the manual page
  help, version     this text; dsv32 COMMAND --help lists a command's flags

The model is -m FILE, else $DSV32_MODEL, else the only one in models/.
)" + exit_codes();
}

// The commands of a group, each in a line or two.
std::string group_text(const std::string& group) {
  std::string text;
  for (const CommandRow& row : commands())
    if (row.name().starts_with(group + " "))
      text += format("  %s %s\n      %s\n", row.text.name.c_str(), row.text.usage, row.text.about);
  return text + "\ndsv32 COMMAND --help lists a command's flags.\n";
}

std::string general_text(const std::vector<std::string>& words) {
  const bool is_behind = is_group(words[0]) && words.size() > 1;
  const std::string& word = words[is_behind ? 1 : 0];
  if (word == "--version" || word == "-V" || (word == "version" && !is_behind)) return version_text();
  if (word != "--help" && word != "-h" && (word != "help" || is_behind)) return {};
  return is_behind ? group_text(words[0]) : overview();
}

std::string error_text(const std::string& message, const std::string& hint) {
  std::string text = "dsv32: " + visible(message, true) + "\n";
  if (!hint.empty()) text += "hint: " + visible(hint, true) + "\n";
  return text;
}

}  // namespace dsv32
