#include "tests/tools/lab/lab_options.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/flag_values.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "tests/tools/lab/buffer.h"
#include "tests/tools/lab/experts.h"
#include "tests/tools/lab/matvec.h"
#include "tests/tools/lab/prefixes.h"

namespace dsv32 {
namespace {

struct LabCommand {
  const char* name;
  const char* usage;
  const char* about;
  bool takes_words;
  std::vector<std::string> shared_flags;  // of `dsv32 run`, or of another command
  int (*run)(const LabOptions& options);
  Command like = Command::run;

  CommandText text() const { return {std::string("lab ") + name, usage, about, takes_words}; }
};

const LabCommand kCommands[] = {
    {"answers",
     "[flags] FILE...",
     "Counts the questions about long passages that are answered right. A line of a file is\n"
     "{\"passage\": \"...\", \"questions\": [{\"ask\": \"...\", \"answer\": \"...\"}, ...]}.",
     true,
     {"model", "backend", "gpus", "threads", "topk-buffer", "json", "help"},
     lab_answers},
    {"buffer",
     "[flags] FILE",
     "Counts the rows that decode steps find in the top-k buffer, for several sizes and policies, in\n"
     "conversations about the passages of a file.",
     true,
     {"model", "backend", "gpus", "threads", "json", "help"},
     lab_buffer},
    {"matvec",
     "[flags]",
     "Times one matrix-vector product on the CPU for each storage format.",
     false,
     {"threads", "json", "help"},
     lab_matvec},
    {"experts",
     "[flags]",
     "Times one token's routed experts on the CPU for each storage format.",
     false,
     {"threads", "help"},
     lab_experts},
    {"prefixes",
     "[flags]",
     "Times the first token of prompts that are known on disk.",
     false,
     {"model", "backend", "gpus", "threads", "gpu-mem", "host-mem", "kv-type", "topk-buffer", "synthetic",
      "layers", "dense", "type", "head-type", "json", "help"},
     lab_prefixes,
     Command::bench},
};

struct LabFlag : FlagText {
  std::string commands;  // "answers buffer"
  void (*apply)(LabOptions& options, const std::string& value, const std::string& flag);
};

using O = LabOptions;
using S = const std::string;

const LabFlag kFlags[] = {
    {{"chooser", "NAME", "who chooses positions: indexer, dense, recent, random or all (default: indexer)",
      "Asked"},
     "answers",
     [](O& o, S& v, S& f) { o.choosers = parse_choosers(f, v); }},
    {{"passages", "N", "of each file, the first so many; 0: all (default: 0)", "Asked"},
     "answers buffer",
     [](O& o, S& v, S& f) { o.n_passages = parse_integer(f, v, 0, int64_t{1} << 30); }},
    {{"think", nullptr, "think before each answer", "Asked"},
     "answers",
     [](O& o, S&, S&) { o.generation.thinking = true; }},
    {{"wrong", nullptr, "show the questions that are answered wrong, on standard error", "Asked"},
     "answers",
     [](O& o, S&, S&) { o.shows_wrong = true; }},
    {{"rows", "N", "outputs of the matrix (default: 18432)", "Product"},
     "matvec",
     [](O& o, S& v, S& f) { o.n_rows = parse_integer(f, v, 1, 1 << 24); }},
    {{"cols", "N", "inputs of the matrix, a multiple of 256 (default: 7168)", "Product"},
     "matvec",
     [](O& o, S& v, S& f) { o.n_cols = parse_integer(f, v, 256, 1 << 20); }},
    {{"runs", "N", "timed runs of each kind, of which the median counts (default: 9)", "Product"},
     "matvec experts",
     [](O& o, S& v, S& f) { o.n_runs = parse_integer(f, v, 1, 1000); }},
    {{"type", "NAME", "only this format, e.g. Q4_K; may be repeated", "Product"},
     "matvec experts",
     [](O& o, S& v, S& f) { o.types.push_back(parse_type(f, v)); }},
    {{"contexts", "LIST", "lengths of the prompts (default: 2048,8192,32768,131072)", "Measured"},
     "prefixes",
     [](O& o, S& v, S& f) { o.bench.contexts = parse_numbers(f, v, 1); }},
    {{"dir", "DIR", "where the disk is that is measured; emptied afterwards (default: .)", "Measured"},
     "prefixes",
     [](O& o, S& v, S&) { o.folder = v; }},
};

FlagTexts flags_of(const LabCommand& command) {
  FlagTexts texts;
  for (const FlagText* flag : flags_of(command.like))
    if (std::ranges::count(command.shared_flags, flag->name()) > 0) texts.push_back(flag);
  for (const LabFlag& flag : kFlags)
    if (flag.commands.find(command.name) != std::string::npos) texts.push_back(&flag);
  return texts;
}

const LabFlag* own_flag(const FlagText* flag) {
  const auto found = std::ranges::find_if(kFlags, [&](const LabFlag& own) { return &own == flag; });
  return found == std::end(kFlags) ? nullptr : found;
}

std::string overview() {
  std::string text;
  for (const LabCommand& command : kCommands)
    text += format("lab %s %s\n%s\n\n", command.name, command.usage, command.about);
  return text + "lab COMMAND --help lists the flags.\n";
}

}  // namespace

int run_lab(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help") return write_out(overview()), 0;
  const auto command = std::ranges::find(kCommands, words[0], &LabCommand::name);
  if (command == std::end(kCommands))
    fail(ErrorKind::usage,
         format("unknown command '%s', expected answers, buffer, matvec, experts or prefixes",
                visible(words[0], false, 40).c_str()));
  const GivenWords given = take_apart(command->text(), flags_of(*command), {words.begin() + 1, words.end()});
  if (given.has("help")) return write_out(help_of(command->text(), flags_of(*command))), 0;
  LabOptions options;
  options.uses_cache = false;  // everything is computed
  options.generation.thinking = false;
  options.words = given.words;
  for (const auto& [flag, value] : given.flags) {
    if (const LabFlag* own = own_flag(flag))
      own->apply(options, value, "--" + flag->name());
    else
      static_cast<const Flag*>(flag)->apply(options, value, "--" + flag->name());
  }
  return command->run(options);
}

}  // namespace dsv32
