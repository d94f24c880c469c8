// See inputs.h. Every text is read before the model is opened, so that a missing file is reported at once.
// The limit is on the sum of the parts.
//
// A split model counts once, by its first part. Downloads have subfolders (Q8_0/MODEL-00001-of-00031.gguf),
// so these are searched too, a few levels deep, which also ends loops of links.
#include "cli/options/inputs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOurs[] = {"models/tiny.gguf", "models/demo.gguf"};  // came with the program
constexpr size_t kPartTail = 15;                                                // "-00002-of-00009"
constexpr size_t kMostShown = 8;
constexpr int kMostLevels = 3;  // of subfolders that are searched

bool is_part(const std::string& stem) {
  return stem.size() >= kPartTail && stem.compare(stem.size() - 9, 4, "-of-") == 0;
}

// "x" of "x.gguf" and of "x-00001-of-00009.gguf".
std::string name_of(const fs::path& path) {
  const std::string stem = path.stem().string();
  return is_part(stem) ? stem.substr(0, stem.size() - kPartTail) : stem;
}

struct Candidate {
  std::string path;
  std::string place;  // in the searched folder: "Q8_0/x"
  uint64_t n_bytes;   // of all parts
};

// The first part of each model, sorted by path.
std::vector<Candidate> models_in(const fs::path& folder) {
  std::vector<Candidate> models;
  std::map<fs::path, uint64_t> n_bytes_of;  // of all parts, by folder and name
  const auto options =
      fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, options, error), end; at != end; at.increment(error)) {
    if (at.depth() >= kMostLevels) at.disable_recursion_pending();
    std::error_code none;
    const fs::path& path = at->path();
    if (path.extension() != ".gguf" || at->is_directory(none)) continue;
    const fs::path whole = path.parent_path() / name_of(path);
    const uint64_t n_bytes = at->file_size(none);
    n_bytes_of[whole] += none ? 0 : n_bytes;
    const std::string stem = path.stem().string();
    const bool is_first = !is_part(stem) || stem.compare(stem.size() - kPartTail, 6, "-00001") == 0;
    if (is_first) models.push_back({path.string(), whole.lexically_relative(folder).string(), 0});
  }
  uint64_t n_most = 0;
  for (Candidate& model : models) n_most = std::max(n_most, model.n_bytes = n_bytes_of[folder / model.place]);
  // An indexer's file that lies beside its model is none.
  std::erase_if(
      models, [&](const Candidate& model) { return model.n_bytes < n_most && is_indexer_name(model.path); });
  std::ranges::sort(models, {}, &Candidate::path);
  return models;
}

// Null where the variable is unset or empty.
const char* environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value ? value : nullptr;
}

std::vector<Candidate> all_models() {
  std::vector<fs::path> folders{"models"};
  if (const char* folder = environment("DSV32_MODELS")) folders.emplace_back(folder);
  if (const std::string data = user_folder(UserFolder::data); !data.empty())
    folders.push_back(data + "/models");
  std::vector<Candidate> all;
  for (const fs::path& folder : folders) {
    const std::vector<Candidate> some = models_in(folder);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// "models/a.gguf (15.0 MiB), models/b.gguf (386.0 GiB)"
std::string list_of(const std::vector<Candidate>& models) {
  std::string text;
  for (size_t i = 0; i < std::min(models.size(), kMostShown); ++i)
    text += (i > 0 ? ", " : "") +
            format("%s (%s)", visible(models[i].path).c_str(), human_bytes(models[i].n_bytes).c_str());
  if (models.size() > kMostShown) text += format(" and %zu more", models.size() - kMostShown);
  return text;
}

// The path of the only model of `found`.
std::string only_one(const std::vector<Candidate>& found, const std::string& if_none,
                     const std::string& if_several, const char* hint = "") {
  if (found.size() == 1) return found.front().path;
  fail(ErrorKind::usage, found.empty() ? if_none : if_several + ": " + list_of(found), hint);
}

// The model of this name, else the only one with `name` in its place.
std::string look_up(const std::string& name) {
  const std::vector<Candidate> all = all_models();
  std::vector<Candidate> fitting;
  for (const bool is_whole : {true, false}) {
    std::ranges::copy_if(all, std::back_inserter(fitting), [&](const Candidate& model) {
      return is_whole ? upper_case(name_of(model.path)) == upper_case(name)
                      : upper_case(model.place).find(upper_case(name)) != name.npos;
    });
    if (!fitting.empty()) break;
  }
  const std::string given = "-m " + visible(name, false, 80), there = all.empty() ? "" : "; there are ";
  return only_one(fitting, given + " is neither a file nor a model's name" + there + list_of(all),
                  given + " fits several models");
}

// The one model in a folder that -m or DSV32_MODEL names.
std::string only_model_in(const std::string& folder) {
  const std::string given = "-m " + visible(folder);
  return only_one(models_in(folder), given + " is a folder without a model (*.gguf)",
                  given + " is a folder of several models");
}

bool is_path(const std::string& name) {
  std::error_code error;
  return name.find('/') != name.npos || name.ends_with(".gguf") || fs::exists(name, error);
}

void append_part(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += part;
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::usage, format("the prompt's parts are longer than %zu bytes together", kMaxTextBytes));
}

// By -m or the environment; empty: by neither.
std::string named_model(const Options& options) {
  const char* variable = environment("DSV32_MODEL");
  return options.engine.model_path.empty() && variable ? variable : options.engine.model_path;
}

// Those that may be meant when none is named. A model that came with the program is meant only where there is
// no other, and never in a plan for another machine.
std::vector<Candidate> unnamed_models(const Options& options) {
  std::vector<Candidate> found = all_models();
  for (const std::string_view ours : kOurs)
    if (found.size() > 1 || options.imagined)
      std::erase_if(found, [&](const Candidate& model) { return model.path == ours; });
  return found;
}

}  // namespace

std::string find_model(const Options& options) {
  const std::string name = named_model(options);
  std::error_code error;
  if (!name.empty() && fs::is_directory(name, error)) return only_model_in(name);
  if (!name.empty()) return is_path(name) ? name : look_up(name);
  return only_one(unnamed_models(options), "no model is named and models/ holds none",
                  "no model is named and there are several",
                  "name one with -m FILE or in the environment variable DSV32_MODEL");
}

bool lacks_model(const Options& options) {
  return named_model(options).empty() && unnamed_models(options).empty();
}

GgufFile open_model(const Options& options) {
  std::vector<std::string> warnings;
  GgufFile file = open_model(find_model(options), options.engine.added_paths, warnings);
  if (!options.quiet)
    for (const std::string& warning : warnings) say("warning: " + warning);
  return file;
}

bool is_stopgap(const Options& options, const std::string& path) {
  return options.engine.model_path.empty() && !environment("DSV32_MODEL") &&
         std::ranges::count(kOurs, path) > 0;
}

std::string read_input(const std::string& path, const Options& options, size_t max_bytes) {
  const bool is_told = path == "-" && !options.quiet;
  const bool can_leave = find_flag(flags_of(options.command), "no-stdin") != nullptr;
  const std::string line =
      std::string("reading standard input to its end") + (can_leave ? "; --no-stdin leaves it alone" : "");
  return read_text(path, max_bytes, is_told ? [&] { say(line); } : std::function<void()>());
}

std::optional<GivenJson> read_json(const std::string& given, char first, const Options& options) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  const size_t begin = given.find_first_not_of(" \t\r\n");
  if (begin != given.npos && given[begin] == first) {
    if (given.size() > kMostBytes) fail(ErrorKind::usage, "the JSON of a flag is longer than 1 MiB");
    return GivenJson{"the JSON given", given};
  }
  std::error_code error;
  const bool is_file = fs::exists(given, error) && !fs::is_directory(given, error);
  if (given != "-" && !is_file) return std::nullopt;
  return GivenJson{given == "-" ? "standard input" : visible(given), read_input(given, options, kMostBytes)};
}

std::string read_system(const Options& options) {
  return options.system_file.empty() ? options.system_text : read_input(options.system_file, options);
}

PromptText read_prompt(const Options& options, bool is_in_terminal) {
  PromptText text;
  text.system = read_system(options);
  text.tools = options.tools;
  if (!options.messages.empty()) {
    text.json = read_input(options.messages, options);
    return text;
  }
  if (!is_in_terminal && !options.leaves_stdin && options.n_stdin() == 0)
    append_part(text.user, read_input("-", options));
  for (const std::string& path : options.files) append_part(text.user, read_input(path, options));
  const std::string last = options.prompt.value_or(joined(options.words));
  append_part(text.user, last == "-" ? read_input("-", options) : last);
  if (text.user.empty())
    fail(ErrorKind::usage,
         format("there is no prompt, expected one as words, with -p, with -f or on standard input, "
                "see dsv32 %s --help",
                row_of(options.command).name().c_str()));
  return text;
}

}  // namespace dsv32
