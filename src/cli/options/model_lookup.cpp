// See model_lookup.h.
//
// A split model counts once: only its first part can be named. Folders are looked through with those in them,
// as downloads come (Q8_0/MODEL-00001-of-00031.gguf), a few levels deep, so that no loop of links matters.
#include "cli/options/model_lookup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOurs[] = {"models/tiny.gguf", "models/demo.gguf"};  // nobody put these there
constexpr size_t kPartTail = 15;                                                // "-00002-of-00009"
constexpr size_t kMostShown = 8;
constexpr int kMostLevels = 3;  // of folders in one that is looked through

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
  std::string place;  // in the folder that was looked through: "Q8_0/x"
  uint64_t n_bytes;   // of all parts
};

// First parts, by name.
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
  for (Candidate& model : models) model.n_bytes = n_bytes_of[folder / model.place];
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

// The one whose name it is, or else the only one with that in its name.
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
  if (fitting.size() == 1) return fitting.front().path;
  const std::string shown = visible(name, false, 80);
  if (!fitting.empty())
    fail(ErrorKind::usage, format("-m %s fits several models: %s", shown.c_str(), list_of(fitting).c_str()));
  fail(ErrorKind::usage, format("-m %s is no file, and no model has such a name%s", shown.c_str(),
                                all.empty() ? "" : ("; there are " + list_of(all)).c_str()));
}

// The one model in a folder that -m or DSV32_MODEL names.
std::string only_model_in(const std::string& folder) {
  const std::vector<Candidate> found = models_in(folder);
  if (found.size() == 1) return found.front().path;
  const std::string shown = visible(folder);
  if (found.empty())
    fail(ErrorKind::usage, format("-m %s is a folder without a model (*.gguf)", shown.c_str()));
  fail(ErrorKind::usage,
       format("-m %s is a folder of several models: %s", shown.c_str(), list_of(found).c_str()));
}

bool is_path(const std::string& name) {
  std::error_code error;
  return name.find('/') != name.npos || name.ends_with(".gguf") || fs::exists(name, error);
}

}  // namespace

std::string find_model(const Options& options) {
  const char* variable = environment("DSV32_MODEL");
  const std::string name =
      options.engine.model_path.empty() && variable ? variable : options.engine.model_path;
  std::error_code error;
  if (!name.empty() && fs::is_directory(name, error)) return only_model_in(name);
  if (!name.empty()) return is_path(name) ? name : look_up(name);
  // Of those that came with the program nobody wants a plan for another machine unasked.
  const bool wants_other = options.imagined.has_value();
  std::vector<Candidate> found = all_models();
  for (const std::string_view ours : kOurs)
    if (found.size() > 1 || wants_other)
      std::erase_if(found, [&](const Candidate& model) { return model.path == ours; });
  if (found.size() == 1) return found.front().path;
  const std::string none = std::string("no model is named and models/ holds none") +
                           (wants_other ? " but what came with the program" : "");
  fail(ErrorKind::usage, found.empty() ? none : "no model is named and there are several: " + list_of(found),
       wants_other ? "--type Q4_K_M plans for the real model without a file, -m FILE for another"
                   : "name one with -m FILE or in the environment variable DSV32_MODEL");
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Candidate& model : all_models()) names.push_back(name_of(model.path));
  return names;
}

bool is_stopgap(const Options& options, const std::string& path) {
  return options.engine.model_path.empty() && !environment("DSV32_MODEL") &&
         std::ranges::count(kOurs, path) > 0;
}

}  // namespace dsv32
