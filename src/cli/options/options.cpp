// See options.h. The settings file (settings_for() in flags.h) is checked as a whole, whatever is asked of
// it: a mistake is told of at once.
#include "cli/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/terminal/user_folders.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSettingsBytes = 1 << 20;

// Of these no more than one is meant: the one on the command line.
constexpr const char* kRivals[][2] = {
    {"model", "synthetic"}, {"model", "type"},           {"system", "system-file"},
    {"system", "raw"},      {"system-file", "raw"},      {"quiet", "verbose"},
    {"think", "no-think"},  {"ordered", "retry-failed"}, {"color", "no-color"},
};

struct Line {
  std::string section, name, value, where;
};

[[noreturn]] void fail_line(const std::string& where, const std::string& what) {
  fail(ErrorKind::usage, visible(where) + ": " + what);
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

std::vector<Line> read_lines(const std::string& path) {
  std::vector<Line> lines;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return lines;
  std::istringstream file(read_text(path, kMostSettingsBytes));
  std::string section, text;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string where = format("%s:%d", path.c_str(), number);
    const std::string line = trimmed(std::string(plain_text(text, where)));
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (line[0] != '[')
      lines.push_back({section, trimmed(line.substr(0, equals)),
                       equals == line.npos ? "true" : trimmed(line.substr(equals + 1)), where});
    else if (line.back() != ']')
      fail_line(where, "a section is [COMMAND]");
    else
      section = trimmed(line.substr(1, line.size() - 2));
  }
  return lines;
}

// "" is for all, "inspect" for its group.
bool is_for(const std::string& section, const std::string& command) {
  return section.empty() || command == section || command.starts_with(section + " ");
}

const Flag* flag_of(Command command, const std::string& name) { return find_flag(flags_of(command), name); }

// Some command of its section takes it, and a file may say so.
void check(const Line& line) {
  std::vector<std::string> names;
  bool is_section = false;
  for (const CommandRow& row : commands()) {
    if (!is_for(line.section, row.name())) continue;
    is_section = true;
    const Flag* flag = flag_of(row.command, line.name);
    for (const Flag* known : flags_of(row.command)) names.push_back(known->name());
    if (!flag) continue;
    if (flag->is_once()) fail_line(line.where, "--" + flag->name() + " belongs on the command line");
    if (!flag->value && line.value != "true" && line.value != "false")
      fail_line(line.where, "--" + flag->name() + " is a switch, true or false");
    return;
  }
  const std::string shown = visible(is_section ? line.name : line.section, false, 40);
  if (!is_section) fail_line(line.where, "there is no command " + shown);
  const std::string near = nearest(line.name, names);
  fail_line(line.where, "unknown flag " + shown + (near.empty() ? "" : " (did you mean " + near + "?)"));
}

bool is_hidden(const Flag& flag, const GivenWords& given) {
  const char* model = std::getenv("DSV32_MODEL");
  if (given.has(flag.name()) || (flag.name() == "model" && model && *model)) return true;
  return std::ranges::any_of(kRivals, [&](const auto& pair) {
    return (flag.name() == pair[0] && given.has(pair[1])) || (flag.name() == pair[1] && given.has(pair[0]));
  });
}

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
  const GivenWords given = take_apart(row_of(command), flags_of(command), args);
  Options options;
  options.command = command;
  options.wants_help = given.has("help");
  options.wants_version = given.has("version");
  if (options.wants_help || options.wants_version) return options;
  for (const GivenFlag& setting : settings_for(command, given)) setting.apply(options);
  for (const GivenFlag& flag : given.flags) flag.apply(options);
  options.words = given.words;
  check_together(options);
  return options;
}

uint64_t choose_seed(const Options& options) { return options.seed ? *options.seed : std::random_device{}(); }

std::string settings_path() {
  const std::string folder = user_folder(UserFolder::config);
  return folder.empty() ? "" : folder + "/config";
}

std::vector<GivenFlag> settings_for(Command command, const GivenWords& given) {
  const std::string name = row_of(command).name();
  std::vector<std::pair<size_t, GivenFlag>> found;  // and how long its section's name is
  for (const Line& line : read_lines(settings_path())) {
    check(line);
    const Flag* flag = is_for(line.section, name) ? flag_of(command, line.name) : nullptr;
    const bool is_off = flag && !flag->value && line.value == "false";
    if (!flag || is_hidden(*flag, given)) continue;
    std::erase_if(found, [&](const auto& other) {
      return other.second.flag == flag && (other.first < line.section.size() || is_off);
    });
    const bool is_general = std::ranges::any_of(found, [&](const auto& other) {
      return other.second.flag == flag && other.first > line.section.size();
    });
    if (!is_off && !is_general) found.push_back({line.section.size(), {flag, line.value, line.where}});
  }
  std::vector<GivenFlag> settings;
  for (auto& [rank, setting] : found) settings.push_back(std::move(setting));
  return settings;
}

std::optional<std::string> recommended_value(const GgufFile& file, const GenerationOption& option) {
  if (!option.gguf_key || !file.has(option.gguf_key)) return std::nullopt;
  GenerationOptions none;
  if (std::holds_alternative<float*>(option.field(none))) return text_of(*file.get_f32(option.gguf_key));
  return std::to_string(*file.get_u32(option.gguf_key));
}

Options with_recommended(Options options, const GgufFile& file) {
  for (const Flag* flag : flags_of(options.command)) {
    if (!flag->option || options.given.contains(flag->name())) continue;
    const std::optional<std::string> value = recommended_value(file, *flag->option);
    if (!value) continue;
    try {
      flag->set(*flag, options, {flag->option->gguf_key, *value});
      options.generation.check();
    } catch (const Error& error) {
      fail(ErrorKind::model,
           format("%s recommends %s %s: %s", visible(file.path()).c_str(), flag->option->gguf_key,
                  value->c_str(), error.what()),
           format("--%s N is taken instead", flag->name().c_str()));
    }
  }
  return options;
}

bool is_talk_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxTalkName && name[0] != '.' &&
         std::ranges::all_of(name, is_allowed);
}

void check_talk_name(const std::string& name) {
  if (is_talk_name(name)) return;
  fail(ErrorKind::usage,
       format("'%s' is no name for a talk, expected 1 to %zu letters, digits, '.', '_' or '-', "
              "not beginning with '.'",
              visible(name, false, 80).c_str(), kMaxTalkName));
}

}  // namespace dsv32
