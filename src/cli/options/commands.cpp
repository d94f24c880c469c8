// See flags.h. A command of two words belongs to the group that its first word names; a group's word alone is
// no command.

#include <algorithm>

#include <histedit.h>
#include <hwy/highway.h>
#include <openssl/opensslv.h>
#include <xxhash.h>
#include <nlohmann/json.hpp>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text.h"
#include "cli/options/flags.h"
#include "engine/gpu_kinds.h"

namespace dsv32 {
namespace {

constexpr size_t kProgram = 6;  // "dsv32 "

// `words`: all of the command line. They may be a prompt without `run`; then a hint says so.
[[noreturn]] void fail_unknown(const std::string& name, const std::vector<std::string>& words) {
  const std::string prompt = joined(words);
  const bool is_prompt = name == words[0] && prompt.find(' ') != prompt.npos;
  std::vector<std::string> names = words_behind("");
  names.insert(names.end(), {"help", "version"});
  for (const CommandRow& row : commands()) names.push_back(row.name());
  fail(ErrorKind::usage,
       "unknown command '" + visible(name, false, 40) + "'" + did_you_mean(name, names) + ", see dsv32 help",
       is_prompt ? "dsv32 run \"" + visible(prompt, false, 60) + "\" asks the model" : "");
}

// The commands of a group, each in a line or two.
std::string group_text(const std::string& group) {
  std::string text;
  for (const CommandRow& row : commands())
    if (row.name().starts_with(group + " "))
      text += format("  %s %s\n      %s\n", row.full_name, row.usage, row.about);
  return text + "\ndsv32 COMMAND --help lists a command's flags.\n";
}

}  // namespace

std::span<const CommandRow> commands() {
  static constexpr CommandRow kRows[] = {
      {Command::run, "dsv32 run", "[flags] [PROMPT...]",
       "answers one prompt: standard input, then files, then the words", true},
      {Command::batch, "dsv32 batch", "[flags] FILE -o FILE", "answers a file of requests, many at a time",
       true},
      {Command::chat, "dsv32 chat", "[flags]", "a conversation at the terminal; /help lists what to type",
       false},
      {Command::inspect_model, "dsv32 inspect model", "[flags]", "the model file's metadata and tensors",
       false},
      {Command::inspect_plan, "dsv32 inspect plan", "[flags]",
       "where weights and caches would be placed, in bytes", false},
      {Command::inspect_tokens, "dsv32 inspect tokens", "[flags] [PROMPT...]",
       "token ids of a prompt, and the text that the model reads", true},
      {Command::check, "dsv32 check", "[flags] [PROMPT...]",
       "whether this machine computes the model as it should", true},
      {Command::cache_list, "dsv32 cache list", "[flags]", "the models whose prefixes are kept on disk",
       false},
      {Command::cache_verify, "dsv32 cache verify", "[flags]",
       "checks all stored prefixes and removes damaged ones", false},
      {Command::cache_prune, "dsv32 cache prune", "[flags] SIZE",
       "removes the prefixes used least lately until SIZE is left", true},
      {Command::cache_clear, "dsv32 cache clear", "[flags]",
       "removes all prefixes, and digests of model files", false},
      {Command::talks_list, "dsv32 talks list", "[flags]", "the talks that are kept, the one used last first",
       false},
      {Command::talks_delete, "dsv32 talks delete", "[flags] NAME...", "deletes talks, for good", true},
      {Command::bench, "dsv32 bench", "[flags]", "speed of prompts and answers at lengths of context", false},
      {Command::warm_start, "dsv32 warm start", "[flags]", "leaves a process that keeps the model loaded",
       false},
      {Command::warm_status, "dsv32 warm status", "[flags]",
       "the processes that hold a model; exit code 1: none", false},
      {Command::warm_stop, "dsv32 warm stop", "[flags]",
       "ends them, with -m only this model's, after their requests", false},
      {Command::completion, "dsv32 completion", "bash|zsh|fish|man",
       "what a shell completes, or the manual page", true},
  };
  return kRows;
}

std::string CommandRow::name() const { return full_name + kProgram; }

const CommandRow& row_of(Command command) { return commands()[static_cast<size_t>(command)]; }

const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken) {
  if (words[0].starts_with("-"))
    fail(ErrorKind::usage,
         format("%s must come after the command, see dsv32 help", visible(words[0], false, 40).c_str()),
         words[0].find(' ') == words[0].npos
             ? ""
             : "dsv32 run -- \"" + visible(words[0], false, 60) + "\" asks the model");
  const std::vector<std::string> seconds = words_behind(words[0]);
  if (!seconds.empty() && words.size() == 1)
    fail(ErrorKind::usage, words[0] + " needs one of " + joined(seconds, ", "));
  n_taken = seconds.empty() ? 1 : 2;
  const std::string name = seconds.empty() ? words[0] : words[0] + " " + words[1];
  for (const CommandRow& row : commands())
    if (name == row.name()) return row;
  fail_unknown(name, words);
}

std::vector<std::string> words_behind(const std::string& group) {
  std::vector<std::string> words;
  const std::string begin = group.empty() ? "" : group + " ";
  for (const CommandRow& row : commands()) {
    if (!row.name().starts_with(begin)) continue;
    const std::string word = split(row.name().substr(begin.size()), ' ')[0];
    if (std::ranges::count(words, word) == 0) words.push_back(word);
  }
  return words;
}

std::string exit_codes() {
  return "Exit codes: 0 done, 1 run time, 2 usage, 3 model, 4 memory, 5 some of a\n"
         "batch failed, 6 no whole answer.\n";
}

std::span<const Entry> examples() {
  static constexpr Entry kExamples[] = {
      {"dsv32 run \"Why is the sky blue?\"", "the answer, on standard output"},
      {"dsv32 run -f notes.txt \"Summarise this.\"", "a file, then the question"},
      {"git diff | dsv32 run \"Review this.\"", "standard input, then the question"},
      {"dsv32 batch asked.jsonl -o answers.jsonl", "many prompts, many at a time"},
  };
  return kExamples;
}

std::string overview() {
  std::string text = "dsv32 runs DeepSeek-V3.2 from a GGUF file.\n\n";
  for (const Entry& example : examples()) text += format("  %-42s %s\n", example.name, example.text);
  text += "\nCommands:\n";
  for (const CommandRow& row : commands()) text += format("  %-15s %s\n", row.name().c_str(), row.about);
  text += "  help, version   this text; dsv32 COMMAND --help lists a command's flags\n\n";
  text += "The model is -m FILE, else $DSV32_MODEL, else the only one in models/.\n";
  return text + exit_codes();
}

std::string command_help(Command command) {
  const std::string gpus = command == Command::inspect_plan
                               ? "\n GPUs known by name, with what data sheets say:\n" + gpu_table()
                               : "";
  return help_of(make_command_line(row_of(command), flags_of(command))) + gpus + "\n" + exit_codes();
}

std::string general_text(const std::vector<std::string>& words) {
  const bool is_behind = !words_behind(words[0]).empty() && words.size() > 1;
  const std::string& word = words[is_behind ? 1 : 0];
  if (word == "--version" || word == "-V" || (word == "version" && !is_behind)) return version_text();
  if (word != "--help" && word != "-h" && (word != "help" || is_behind)) return {};
  return is_behind ? group_text(words[0]) : overview();
}

std::string version_text() {
  std::string text = format("dsv32 0.1.0 (%s)\n", DSV32_REVISION);
  text += "compiler: g++ " __VERSION__ "\n";
  text += "backends: " DSV32_BACKENDS "\n";
  text += format(
      "libraries: Highway %d.%d.%d, PCRE2 %d.%d, sentencepiece, libedit %d.%d, OpenSSL %s, "
      "xxHash %d.%d.%d, JSON %d.%d.%d, cxxopts %s",
      HWY_MAJOR, HWY_MINOR, HWY_PATCH, PCRE2_MAJOR, PCRE2_MINOR, LIBEDIT_MAJOR, LIBEDIT_MINOR,
      OPENSSL_VERSION_STR, XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE,
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH,
      parser_version().c_str());
  return text + "\n";
}

std::string error_text(const std::string& message, const std::string& hint) {
  std::string text = "dsv32: " + visible(message, true) + "\n";
  if (!hint.empty()) text += "hint: " + visible(hint, true) + "\n";
  return text;
}

}  // namespace dsv32
