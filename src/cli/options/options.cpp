// See options.h. Each command checks all lines of the settings file, so that a mistake is reported at once.
#include "cli/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/options/schema.h"
#include "cli/options/tools.h"
#include "cli/terminal/user_files.h"
#include "constrain/constraint.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSettingsBytes = 1 << 20;

// Flags, and those that contradict them: of two only one can be given, and one of the command line hides the
// other in the settings file.
constexpr const char* kRivals[][2] = {
    {"model", "synthetic type"},
    {"system", "system-file"},
    {"raw", "system system-file tools talk continue"},
    {"quiet", "verbose"},
    {"think", "reasoning"},
    {"ordered", "retry-failed"},
    {"stop", "schema"},
    {"schema", "tools"},
    {"each", "lines talk continue"},
    {"lines", "talk continue"},
    {"talk", "continue"},
    {"messages", "prompt file system system-file raw each lines talk continue"},
};

// Without a pair of quotes around its value.
std::string unquoted(const std::string& line) {
  const size_t begin = line.find('=') + 1, n = line.size() - begin;
  const bool is_quoted = begin > 0 && n > 1 && (line[begin] == '"' || line[begin] == '\'') &&
                         line.find(line[begin], begin + 1) == line.size() - 1;
  return is_quoted ? line.substr(0, begin) + line.substr(begin + 1, n - 2) : line;
}

// A line of the settings file, which any command may take, and which `command` reads.
GivenFlag read_line(const CommandLine& parser, const std::string& line, Command command) {
  if (!line.starts_with("--") || line.size() < 3 || line.find('\0') != line.npos ||
      line.find_first_of(" \t") < line.find('='))
    fail(ErrorKind::usage, "expected a flag, not '" + visible(line, false, 40) + "'",
         "a line is --NAME or --NAME=VALUE");
  const GivenFlag setting = take_apart(parser, {unquoted(line)}).flags.front();
  if (setting.flag->is_once())
    fail(ErrorKind::usage, "--" + setting.flag->name() + " belongs on the command line");
  Options checked;
  checked.command = command;
  setting.apply(checked);
  return setting;
}

bool are_rivals(const std::string& one, const std::string& other) {
  return std::ranges::any_of(kRivals, [&](const auto& row) {
    return (row[0] == one && std::ranges::count(split(row[1], ' '), other) > 0) ||
           (row[0] == other && std::ranges::count(split(row[1], ' '), one) > 0);
  });
}

bool is_hidden(const Flag& flag, const GivenWords& given) {
  const char* model = std::getenv("DSV32_MODEL");
  if (flag.name() == "model" && model && *model) return true;
  return std::ranges::any_of(given.flags, [&](const GivenFlag& one) {
    return one.flag == &flag || are_rivals(one.flag->name(), flag.name());
  });
}

// The flags that the settings file, $XDG_CONFIG_HOME/dsv32/config or else ~/.config/dsv32/config, sets for a
// command, in the file's order, without given ones and those that contradict them. DSV32_MODEL hides the
// file's model. A flag that only other commands take is passed over. Throws Error{usage}, one line that names
// the file's, for an unknown flag, one that cannot be set there, or a value that it does not take.
//
//   # a comment
//   --temp=0.6
//   --system="Be brief."  a pair of quotes is none of the value
//   --no-think
std::vector<GivenFlag> settings_for(Command command, const GivenWords& given) {
  std::vector<GivenFlag> settings;
  const std::string folder = user_folder(UserFolder::config), path = folder + "/config";
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(path, error)) return settings;
  if (std::filesystem::is_fifo(path, error))  // nobody named it, so nobody writes
    fail(ErrorKind::usage, visible(path) + ": it is a pipe, expected a file");
  Flags all;
  for (const Flag& flag : flags()) all.push_back(&flag);
  const CommandLine parser = make_command_line(row_of(command), all);
  std::istringstream file(read_text(path, kMostSettingsBytes));
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string where = format("%s:%d", path.c_str(), number);
    const std::string line(plain_text(text, where));
    const size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
    if (begin == line.npos || line[begin] == '#') continue;
    const GivenFlag setting = naming(
        visible(where), [&] { return read_line(parser, line.substr(begin, end + 1 - begin), command); });
    if (setting.flag->is_of(command) && !is_hidden(*setting.flag, given)) settings.push_back(setting);
  }
  return settings;
}

void refuse_if(bool is_wrong, const std::string& why) {
  if (is_wrong) fail(ErrorKind::usage, why);
}

void check_document(const Options& options) {
  if (!options.given.contains("schema")) return;
  refuse_if(options.schema.empty(), "--schema is empty");
  refuse_if(options.schema == "-" && options.command == Command::chat,
            "the messages of a chat are on standard input, --schema cannot be read from it");
  refuse_if(options.command == Command::run && !options.json &&
                options.thinking_display == ThinkingDisplay::on_stdout,
            "--schema leaves standard output to the document, --thinking takes show or hide beside it");
}

// Tools, and a conversation from a file.
void check_tools(const Options& options, bool is_talk) {
  const bool has_tools = options.given.contains("tools"), is_chat = options.command == Command::chat;
  refuse_if(has_tools && options.tools.empty(), "--tools is empty");
  refuse_if(has_tools && !is_chat && is_talk, "a talk goes on with --tools in chat alone");
  refuse_if(is_chat && options.tools == "-",
            "the messages of a chat are on standard input, --tools cannot be read from it");
  if (!options.given.contains("messages")) return;
  refuse_if(options.messages.empty(), "--messages is empty");
  refuse_if(!options.words.empty(), "--messages is the whole conversation, expected no words beside it");
}

void check_together(const Options& options) {
  const BatchOptions& batch = options.batch;
  const bool is_batch = options.command == Command::batch, is_each_or_lines = batch.is_each || batch.is_lines;
  const bool is_talk = options.continues || !options.talk.empty();
  const std::vector<std::string> dash{"-"};
  refuse_if(options.prompt && !options.words.empty(),
            "the prompt is given twice, with --prompt and as words; expected one of them");
  refuse_if(batch.is_each && options.files.empty(), "--each needs the files of -f");
  if (!is_batch && is_each_or_lines) {
    refuse_if(options.prompt == "-" || options.words == dash,
              "with --each and --lines only -f reads standard input (-)");
    refuse_if(batch.is_lines && options.files.size() > 1,
              "--lines reads one file, -f is given more than once");
  }
  if (is_batch) {
    refuse_if(options.words.size() + !batch.input_path.empty() != 1,
              "batch needs one file of requests, as a word or with -i (- is standard input)");
    refuse_if(options.output_path.empty(), "batch needs -o FILE for the answers (- is standard output)");
  }
  refuse_if(options.generation.n_top_logprobs >= 0 && !options.json && !is_batch,
            "--logprobs needs --json, which carries them");
  refuse_if(options.is_streamed && (!options.json || is_each_or_lines),
            "--stream needs --json and one prompt");
  refuse_if(options.n_stdin() > 1, "standard input (-) is named more than once");
  check_document(options);
  check_tools(options, is_talk);
  refuse_if(options.command == Command::check && options.engine.topk_buffer == kEveryRow,
            "check compares a top-k buffer with full ones, --topk-buffer takes a number or auto");
  const size_t n_sizes = options.engine.gpu_mem.size(), n_gpus = options.engine.gpus.size();
  refuse_if(n_sizes > 1 && n_sizes != n_gpus,
            format("--gpu-mem has %zu sizes for %zu of --gpus", n_sizes, n_gpus));
  refuse_if(!options.bench.accepted.empty() && options.engine.n_guesses == 0,
            "--accept says which guesses are right, expected --draft beside it");
}

// Flags that contradict each other.
void check_contradictions(const Options& options, const GivenWords& given) {
  Options none;
  for (const GivenFlag& one : given.flags) {
    const auto first = std::ranges::find(given.flags, one.flag, &GivenFlag::flag);
    refuse_if(first->value != one.value && !one.flag->field(none).is_list,
              format("--%s is given twice, as '%s' and as '%s'", one.flag->name().c_str(),
                     visible(first->value, false, 40).c_str(), visible(one.value, false, 40).c_str()));
  }
  for (const std::string& one : options.given)
    for (const std::string& other : options.given)
      refuse_if(one < other && are_rivals(one, other),
                format("--%s and --%s are both given, expected one of them", one.c_str(), other.c_str()));
}

// Flags of the command line that would do nothing. Those of GPUs: check_gpu_flags() (engine/engine.h).
void check_idle(const Options& options, const GivenWords& given) {
  const Command command = options.command;
  const BatchOptions& batch = options.batch;
  const bool is_run = command == Command::run, is_batch = command == Command::batch,
             is_many = batch.is_each || batch.is_lines, is_bench = command == Command::bench;
  const auto refuse = [&](bool is_idle, std::initializer_list<const char*> flags, const char* why) {
    for (const char* flag : flags)
      refuse_if(is_idle && given.has(flag), std::string("--") + flag + " does nothing " + why);
  };
  refuse(!options.uses_cache, {"cache-dir", "cache-size", "cache-policy", "cache-write", "cache-wait"},
         "with --no-cache");
  refuse(options.bench.is_synthetic, {"with"}, "without a file of the model");
  refuse(options.imagined.has_value(), {"backend", "gpus"}, "with --on, which says what computes");
  refuse(is_bench && !options.bench.is_synthetic, {"layers"}, "without --synthetic");
  refuse(options.bench.is_capacity,
         {"sequences", "n-prompt", "decode", "locality", "expert-locality", "accept"}, "with --capacity");
  refuse(!options.bench.sequences.empty(), {"n-prompt"}, "with --sequences, whose prompts are made up");
  refuse(is_batch && options.output_path == "-", {"retry-failed"}, "where no answers are kept");
  refuse(is_run && !is_many, {"parallel"}, "without --each and --lines");
  refuse(is_run && (is_many || options.json), {"thinking"}, "with --each, --lines and --json");
  refuse(is_run && batch.is_lines && options.files.empty(), {"no-stdin"},
         "where --lines reads standard input");
  refuse(!is_batch && options.is_raw, {"chat-format", "think", "reasoning"}, "with --raw");
  refuse(is_run && !options.is_raw && !options.generation.thinking, {"think-max", "thinking"},
         "with --no-think");
}

// Notes what a shell leaves as it is within quotes.
void note_escapes(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops)
    if (stop.find("\\n") != stop.npos || stop.find("\\t") != stop.npos)
      say("note: --stop " + visible(stop, false, 40) +
          " has a backslash and a letter; a shell makes a line end of $'\\n', a tab of $'\\t'");
}

// Commands that answer many requests get an engine with room for them. `run` answers in the order of its
// input.
void make_room_for_many(Options& options) {
  BatchOptions& batch = options.batch;
  const bool is_many = options.command == Command::batch || batch.is_each || batch.is_lines;
  if (!is_many && options.command != Command::warm_start) return;
  options.engine.max_seqs = batch.n_parallel.value_or(kAsManyAsSuit);
  options.engine.pool = kAllContexts;
  options.engine.is_for_all = is_many;
  batch.is_ordered |= options.command == Command::run;
}

// Whether the command lets the block for drafts guess, or be shown, unasked.
bool drafts(Command command) {
  return command == Command::run || command == Command::batch || command == Command::chat ||
         command == Command::warm_start || command == Command::inspect_plan ||
         command == Command::inspect_model;
}

}  // namespace

Options parse_options(Command command, const std::vector<std::string>& args) {
  const GivenWords given = take_apart(make_command_line(row_of(command), flags_of(command)), args);
  Options options;
  options.command = command;
  if (drafts(command)) options.engine.n_guesses.reset();
  if (command == Command::inspect_plan) options.bench.types = {.mix = find_mix("Q4_K_M")};
  options.wants_help = given.has("help");
  if (options.wants_help) return options;
  for (const GivenFlag& setting : settings_for(command, given)) setting.apply(options);
  for (const GivenFlag& flag : given.flags) flag.apply(options);
  options.words = given.words;
  make_room_for_many(options);
  check_contradictions(options, given);
  check_together(options);
  if (!options.schema.empty()) options.generation.constraint = read_schema(options.schema, options);
  if (!options.tools.empty()) {
    const Tools tools = read_tools(options.tools, options);
    options.tools = tools.json;
    tools.apply_to(options.generation);
  }
  if (!options.generation.constraint.empty()) compile_constraint(options.generation.constraint);
  options.generation.check();
  check_idle(options, given);
  if (!options.quiet) note_escapes(options.generation.stops);
  return options;
}

int64_t Options::n_stdin() const {
  const bool is_unnamed = command == Command::run && batch.is_lines && files.empty();
  return std::ranges::count(files, "-") + (prompt == "-") + (words == std::vector<std::string>{"-"}) +
         (system_file == "-") + (batch.input_path == "-") + (schema == "-") + (tools == "-") +
         (messages == "-") + is_unnamed;
}

uint64_t choose_seed(const Options& options) { return options.seed ? *options.seed : std::random_device{}(); }

Options with_recommended(Options options, const GgufFile& file) {
  for (const Flag* flag : flags_of(options.command)) {
    const char* key = flag->option ? flag->option->gguf_key : nullptr;
    if (!key || !file.has(key) || options.given.contains(flag->name())) continue;
    const GenerationOption::Field field = flag->option->field(options.generation);
    if (const auto number = std::get_if<float*>(&field))
      **number = *file.get_f32(key);
    else
      *std::get<int64_t*>(field) = *file.get_i64(key);
    try {
      options.generation.check();
    } catch (const Error& error) {
      fail(ErrorKind::model,
           format("%s recommends %s %s: %s", visible(file.path()).c_str(), key,
                  flag->text_in(options).c_str(), error.what()),
           format("--%s N is taken instead", flag->name().c_str()));
    }
  }
  return options;
}

bool is_talk_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTalkName && name[0] != '.' &&
         std::ranges::all_of(name, [](char c) { return is_name_character(c) || c == '.'; });
}

void check_talk_name(const std::string& name) {
  if (is_talk_name(name)) return;
  fail(ErrorKind::usage,
       format("'%s' is no name for a talk, expected 1 to %zu letters, digits, '.', '_' or '-', "
              "not beginning with '.'",
              visible(name, false, 80).c_str(), kMaxTalkName));
}

}  // namespace dsv32
