#include "tests/tools/lab/lab_options.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "tests/tools/lab/buffer.h"
#include "tests/tools/lab/experts.h"
#include "tests/tools/lab/kernels.h"
#include "tests/tools/lab/logits.h"
#include "tests/tools/lab/matvec.h"
#include "tests/tools/lab/prefixes.h"
#include "tests/tools/lab/steps.h"

namespace dsv32 {
namespace {

struct LabCommand {
  const char* name;
  const char* full_name;
  const char* usage;
  const char* about;
  bool takes_words;
  std::vector<std::string> shared_flags;  // of `dsv32 run`, or of another command
  int (*run)(const LabOptions& options);
  Command like = Command::run;

  CommandRow row() const { return {Command::run, full_name, usage, about, takes_words}; }
};

const LabCommand kCommands[] = {
    {"answers",
     "lab answers",
     "[flags] FILE...",
     "Counts the questions about long passages that are answered right. A line of a file is\n"
     "{\"passage\": \"...\", \"questions\": [{\"ask\": \"...\", \"answer\": \"...\"}, ...]}.",
     true,
     {"model", "backend", "gpus", "threads", "topk", "topk-buffer", "draft", "json", "help"},
     lab_answers},
    {"buffer",
     "lab buffer",
     "[flags] FILE",
     "Counts the rows that decode steps find in the top-k buffer, for several sizes and policies, in\n"
     "conversations about the passages of a file.",
     true,
     {"model", "backend", "gpus", "threads", "json", "help"},
     lab_buffer},
    {"matvec",
     "lab matvec",
     "[flags]",
     "Times one matrix-vector product on the CPU for each storage format.",
     false,
     {"threads", "json", "help"},
     lab_matvec},
    {"experts",
     "lab experts",
     "[flags]",
     "Times one token's routed experts on the CPU for each storage format.",
     false,
     {"threads", "help"},
     lab_experts},
    {"kernels",
     "lab kernels",
     "[flags]",
     "Shows which kernels a GPU runs for each format.",
     false,
     {"help"},
     lab_kernels},
    {"logits",
     "lab logits",
     "--tokens IDS --out FILE [flags]",
     "Writes the logits of every token of a prompt: float32 [n_tokens, vocab_size], row-major.",
     false,
     {"model", "backend", "gpus", "threads", "kv-type", "topk-buffer", "chunk", "help"},
     lab_logits},
    {"prefixes",
     "lab prefixes",
     "[flags]",
     "Times the first token of prompts that are known on disk.",
     false,
     {"model", "backend", "gpus", "threads", "gpu-mem", "host-mem", "kv-type", "topk-buffer", "synthetic",
      "layers", "type", "json", "help"},
     lab_prefixes,
     Command::bench},
    {"steps",
     "lab steps",
     "[flags]",
     "Times the parts of decode steps of the first of --sequences (1), at the first of --contexts (16384).",
     false,
     {"model", "backend", "gpus", "threads", "gpu-mem", "host-mem", "kv-type", "topk-buffer", "synthetic",
      "layers", "type", "contexts", "sequences", "decode", "locality", "expert-locality", "help"},
     lab_steps,
     Command::bench},
};

struct LabFlag {
  const char* commands;  // "answers buffer"
  Flag flag;
};

LabOptions& lab(Options& options) { return static_cast<LabOptions&>(options); }

using O = Options;
using V = const FlagValue&;

// With commas between them.
std::vector<int64_t> parse_lengths(V value) {
  std::vector<int64_t> lengths;
  std::istringstream words(value.text + ",");
  for (std::string word; std::getline(words, word, ',');)
    lengths.push_back(parse_integer({value.flag, word}, 1, 1 << 20));
  return lengths;
}

const LabFlag kFlags[] = {
    {"answers",
     {"chooser", "NAME", "who chooses positions: indexer, dense, quest, recent, random or all", "Asked", 0,
      [](O& o) {
        return FlagField{[&o](V value) { lab(o).choosers = parse_choosers(value.flag, value.text); }};
      },
      "indexer"}},
    {"answers buffer",
     {"passages", "N", "of each file, the first so many; 0: all", "Asked", 0,
      [](O& o) {
        return FlagField{[&o](V value) { lab(o).n_passages = parse_integer(value, 0, int64_t{1} << 30); }};
      },
      "0"}},
    {"answers",
     {"think", nullptr, "think before each answer", "Asked", 0,
      [](O& o) { return FlagField{[&o](V) { o.generation.thinking = true; }}; }}},
    {"answers",
     {"wrong", nullptr, "show the questions that are answered wrong, on standard error", "Asked", 0,
      [](O& o) { return FlagField{[&o](V) { lab(o).shows_wrong = true; }}; }}},
    {"matvec",
     {"rows", "N", "outputs of the matrix", "Product", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).n_rows = parse_integer(value, 1, 1 << 24); }}; },
      "18432"}},
    {"matvec",
     {"cols", "N", "inputs of the matrix, a multiple of 256", "Product", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).n_cols = parse_integer(value, 256, 1 << 20); }}; },
      "7168"}},
    {"matvec experts",
     {"runs", "N", "timed runs of each kind, of which the median counts", "Product", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).n_runs = parse_integer(value, 1, 1000); }}; }, "9"}},
    {"matvec experts kernels",
     {"type", "NAME", "only this format, e.g. Q4_K; may be repeated", "Product", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).types.push_back(parse_type(value)); }}; }}},
    {"logits",
     {"tokens", "IDS", "token ids, with commas or spaces between them, or @FILE", "Logits", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).token_list = value.text; }}; }}},
    {"logits",
     {"out", "FILE", "where to; - is standard output", "Logits", 0,
      [](O& o) { return FlagField{[&o](V value) { o.output_path = value.text; }}; }}},
    {"prefixes",
     {"contexts", "LIST", "lengths of the prompts", "Measured", 0,
      [](O& o) { return FlagField{[&o](V value) { o.bench.contexts = parse_lengths(value); }}; },
      "2048,8192,32768,131072"}},
    {"prefixes",
     {"dir", "DIR", "where the disk is that is measured; emptied afterwards", "Measured", 0,
      [](O& o) { return FlagField{[&o](V value) { lab(o).folder = value.text; }}; }}},
};

Flags flags_of(const LabCommand& command) {
  Flags found;
  for (const Flag* flag : flags_of(command.like))
    if (std::ranges::count(command.shared_flags, flag->name()) > 0) found.push_back(flag);
  for (const LabFlag& row : kFlags)
    if (std::string(row.commands).find(command.name) != std::string::npos) found.push_back(&row.flag);
  return found;
}

std::string lab_overview() {
  std::string text;
  for (const LabCommand& command : kCommands)
    text += format("lab %s %s\n%s\n\n", command.name, command.usage, command.about);
  return text + "lab COMMAND --help lists the flags.\n";
}

}  // namespace

int run_lab(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help") return write_out(lab_overview()), 0;
  const auto command = std::ranges::find(kCommands, words[0], &LabCommand::name);
  if (command == std::end(kCommands))
    fail(ErrorKind::usage, format("unknown command '%s', expected answers, buffer, matvec, experts, kernels, "
                                  "logits, prefixes or steps",
                                  visible(words[0], false, 40).c_str()));
  const CommandLine line = make_command_line(command->row(), flags_of(*command));
  const GivenWords given = take_apart(line, {words.begin() + 1, words.end()});
  if (given.has("help")) return write_out(help_of(line)), 0;
  LabOptions options;
  options.uses_cache = false;  // everything is computed
  options.generation.thinking = false;
  options.words = given.words;
  for (const GivenFlag& flag : given.flags) flag.apply(options);
  return command->run(options);
}

}  // namespace dsv32
