// See help.h.
//
// A screenful is 24 lines of 80 columns.
#include "cli/options/help.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/version.h"

namespace dsv32 {

std::string exit_codes() {
  return "Exit codes: 0 done, 1 run time, 2 usage, 3 model, 4 memory, 5 some of a batch "
         "failed, 6 no whole answer.\n";
}

std::span<const Example> examples() {
  static constexpr Example kExamples[] = {
      {"dsv32 run \"Why is the sky blue?\"", "the answer, on standard output"},
      {"dsv32 run -f notes.txt \"Summarise this.\"", "a file, then the question"},
      {"git diff | dsv32 run \"Review this.\"", "standard input, then the question"},
      {"dsv32 batch asked.jsonl -o answers.jsonl", "many prompts, many at a time"},
  };
  return kExamples;
}

std::string overview() {
  std::string text = "dsv32 runs DeepSeek-V3.2 from a GGUF file.\n\n";
  for (const Example& example : examples()) text += format("  %-42s %s\n", example.command, example.text);
  text += R"(
Commands:
  run               answer one prompt, or with --each or --lines each of many
  batch             answer a file of requests
  chat              talk, at a terminal
  inspect model     the model file's metadata; also tokens, prompt, logits
  inspect plan      what would lie where, in bytes
  cache list        kept prompts; also show, verify, prune, clear, path
  warm start        keep a model loaded; also status, stop
  talks list        the talks that are kept; also show, rename, delete, export
  check             whether this machine computes the model as it should
  bench             speed against what the machine can do
  config            what holds without flags, and from where
  completion        what bash, zsh and fish complete, or the manual page
  help, version     this text; dsv32 COMMAND --help lists a command's flags

The model is -m FILE, else $DSV32_MODEL, else the only one in models/.
)";
  return fitted(text + exit_codes());
}

std::string fitted(const std::string& text, size_t width) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); out += line + "\n") {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const size_t gap = line.rfind("  "), margin = gap == line.npos || gap < begin ? begin : gap + 2;
    const std::string indent(margin > width / 2 ? std::min(begin, width / 4) + 2 : margin, ' ');
    for (size_t at = begin; line.size() > width; at = indent.size()) {
      size_t cut = line.rfind(' ', width);
      if (cut == line.npos || cut < at) cut = line.find(' ', at);  // a word that is wider
      if (cut == line.npos) break;
      out += line.substr(0, line.find_last_not_of(' ', cut) + 1) + "\n";
      line = indent + line.substr(std::min(line.find_first_not_of(' ', cut), line.size()));
    }
  }
  return out;
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
  return is_behind ? fitted(group_text(words[0])) : overview();
}

std::string error_text(const std::string& message, const std::string& hint) {
  std::string text = "dsv32: " + visible(message, true) + "\n";
  if (!hint.empty()) text += "hint: " + visible(hint, true) + "\n";
  return text;
}

}  // namespace dsv32
