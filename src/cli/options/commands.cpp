// See commands.h. A command of two words belongs to the group that the first names.
#include "cli/options/commands.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kProgram = 6;  // "dsv32 "

bool has_members(const std::string& word) {
  return std::ranges::any_of(commands(),
                             [&](const CommandRow& row) { return row.name().starts_with(word + " "); });
}

// "model, plan, tokens"
std::string members_of(const std::string& group) {
  std::vector<std::string> names;
  for (const CommandRow& row : commands())
    if (const std::string name = row.name(); name.starts_with(group + " "))
      names.push_back(name.substr(group.size() + 1));
  return joined(names, ", ");
}

// `words`: all of them. A prompt, perhaps, for which `run` was left away.
[[noreturn]] void fail_unknown(const std::string& name, const std::vector<std::string>& words) {
  const std::string prompt = joined(words);
  const bool is_prompt = name == words[0] && prompt.find(' ') != prompt.npos;
  std::vector<std::string> names{"help", "version", "inspect", "cache", "talks", "warm"};
  for (const CommandRow& row : commands()) names.push_back(row.name());
  const std::string near = nearest(name, names);
  fail(ErrorKind::usage,
       format("unknown command '%s'%s, see dsv32 help", visible(name, false, 40).c_str(),
              near.empty() ? "" : format(" (did you mean %s?)", near.c_str()).c_str()),
       is_prompt ? "dsv32 run \"" + visible(prompt, false, 60) + "\" asks the model" : "");
}

}  // namespace

std::span<const CommandRow> commands() {
  static const CommandRow kRows[] = {
      {Command::run,
       {"dsv32 run", "[flags] [PROMPT...]",
        "Answers one prompt. What comes first: standard input, then files, then the prompt.", true}},
      {Command::batch,
       {"dsv32 batch", "[flags] FILE -o FILE",
        "Answers a file of requests, many at a time, each as it would be answered alone.", true}},
      {Command::chat,
       {"dsv32 chat", "[flags]", "A conversation at the terminal. /help lists what can be typed there.",
        false}},
      {Command::inspect_model,
       {"dsv32 inspect model", "[flags]", "The model file's metadata and tensors.", false}},
      {Command::inspect_plan,
       {"dsv32 inspect plan", "[flags]", "What would lie where, in bytes, without loading anything.", false}},
      {Command::inspect_tokens,
       {"dsv32 inspect tokens", "[flags] [TEXT]", "The token ids of a text, or of standard input.", true}},
      {Command::inspect_prompt,
       {"dsv32 inspect prompt", "[flags] [PROMPT...]", "The prompt as the model would read it.", true}},
      {Command::inspect_logits,
       {"dsv32 inspect logits", "--tokens IDS --out FILE [flags]",
        "The logits of every token of a prompt, to a file.", false}},
      {Command::check,
       {"dsv32 check", "[flags] [PROMPT...]",
        "Whether this machine computes the model as it should: the top-k buffer, and the GPU.", true}},
      {Command::cache_list,
       {"dsv32 cache list", "[flags]", "The models whose prefixes are kept on disk.", false}},
      {Command::cache_show,
       {"dsv32 cache show", "[flags] [MODEL]",
        "The kept segments, of all models or of one, by its name or fingerprint.", true}},
      {Command::cache_verify,
       {"dsv32 cache verify", "[flags]", "Reads all that is kept and removes what is damaged.", false}},
      {Command::cache_prune,
       {"dsv32 cache prune", "[flags] SIZE", "Removes what the policy lets go first, until SIZE is left.",
        true}},
      {Command::cache_clear,
       {"dsv32 cache clear", "[flags]", "Removes all kept prefixes, and what is known of models' bytes.",
        false}},
      {Command::cache_path, {"dsv32 cache path", "[flags]", "Where prefixes are kept.", false}},
      {Command::talks_list,
       {"dsv32 talks list", "[flags]", "The talks that are kept, the one used last first.", false}},
      {Command::talks_show,
       {"dsv32 talks show", "[flags] NAME", "What was said in a talk, for reading.", true}},
      {Command::talks_rename,
       {"dsv32 talks rename", "[flags] NAME NEW", "Keeps a talk under another name.", true}},
      {Command::talks_delete, {"dsv32 talks delete", "[flags] NAME...", "Deletes talks, for good.", true}},
      {Command::talks_export,
       {"dsv32 talks export", "[flags] NAME", "A talk as Markdown, or as JSON, on standard output.", true}},
      {Command::bench, {"dsv32 bench", "[flags]", "Times prefill and decode at context frontiers.", false}},
      {Command::bench_batch,
       {"dsv32 bench batch", "[flags]",
        "Times decode steps of many sequences, and says how many fit: with every row resident, and with "
        "top-k "
        "buffers.",
        false}},
      {Command::config,
       {"dsv32 config", "[COMMAND]", "What holds for a command without flags, run for one, and from where.",
        true}},
      {Command::warm_start,
       {"dsv32 warm start", "[flags]",
        "Loads the model and leaves a process that holds it, so that run, chat and batch begin at once.",
        false}},
      {Command::warm_status,
       {"dsv32 warm status", "[flags]", "The processes that hold a model. Exit code 1: there is none.",
        false}},
      {Command::warm_stop,
       {"dsv32 warm stop", "[flags]",
        "Ends those processes, or those of -m, when what is under way has been answered.", false}},
      {Command::completion,
       {"dsv32 completion", "bash|zsh|fish|man",
        "What the shell completes, or the manual page, on standard output.", true}},
  };
  return kRows;
}

std::string CommandRow::name() const { return text.name.substr(kProgram); }

const CommandRow& row_of(Command command) { return commands()[static_cast<size_t>(command)]; }

bool is_group(const std::string& word) {
  return has_members(word) &&
         std::ranges::none_of(commands(), [&](const CommandRow& row) { return row.name() == word; });
}

const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken) {
  if (words[0].starts_with("-"))
    fail(ErrorKind::usage, format("%s comes before a command, expected it after one, see dsv32 help",
                                  visible(words[0], false, 40).c_str()));
  const std::string pair = words.size() > 1 && has_members(words[0]) ? words[0] + " " + words[1] : "";
  for (const std::string& name : {pair, words[0]})
    for (const CommandRow& row : commands())
      if (name == row.name()) {
        n_taken = name == pair ? 2 : 1;
        return row;
      }
  if (pair.empty() && has_members(words[0]))
    fail(ErrorKind::usage, words[0] + " what? one of " + members_of(words[0]));
  fail_unknown(pair.empty() ? words[0] : pair, words);
}

}  // namespace dsv32
