// See config.h.
#include "cli/inspect/config.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/options/model_lookup.h"
#include "cli/options/options.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

std::string row(const std::string& name, const std::string& value, const std::string& from) {
  const std::string text =
      format("%-16s %-28s %s", name.c_str(), visible(value).c_str(), visible(from).c_str());
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

// The file that a command without -m opens, or why there is none.
std::string model_row(const std::string& set, const std::string& set_where) {
  Options none;
  none.engine.model_path = set;
  const char* variable = std::getenv("DSV32_MODEL");
  try {
    const std::string path = find_model(none);
    const char* from = !set.empty()             ? set_where.c_str()
                       : variable && *variable  ? "DSV32_MODEL"
                       : is_stopgap(none, path) ? "came with the program, and no other is there"
                                                : "the only one there";
    return row("model", path, from);
  } catch (const Error& error) {
    return row("model", "-", error.what());
  }
}

// That file, for what it recommends to a command that draws; null where there is none.
std::unique_ptr<GgufFile> open_model(Command command, const std::vector<GivenFlag>& settings) {
  if (!find_flag(flags_of(command), "temp")) return nullptr;
  Options none;
  for (const GivenFlag& setting : settings)
    if (setting.flag->name() == "model") none.engine.model_path = setting.value;
  try {
    return std::make_unique<GgufFile>(find_model(none));
  } catch (const Error&) {
    return nullptr;
  }
}

// What holds for the flag, and from where.
std::string rows_of(const Flag& flag, const std::vector<GivenFlag>& settings, const GgufFile* model) {
  std::string rows, value, where;
  for (const GivenFlag& setting : settings) {
    if (setting.flag != &flag) continue;
    value = setting.value, where = setting.where;
    rows += row(flag.name(), flag.value ? value : "on", where);
  }
  if (flag.name() == "model") return model_row(value, where);
  if (!rows.empty()) return rows;
  if (flag.name() == "cache-dir") return row("cache-dir", cache_directory({}), "default");
  Options advised;
  if (model && flag.option && take_recommended(*model, *flag.option, advised.generation))
    return row(flag.name(), flag.text_in(advised), model->path());
  const std::string standard = flag.default_text();
  return row(flag.name(), !standard.empty() ? standard : flag.value ? "-" : "off", "default");
}

}  // namespace

std::string config_text(const CommandRow& command) {
  const std::vector<GivenFlag> settings = settings_for(command.command, {});
  const std::unique_ptr<GgufFile> model = open_model(command.command, settings);
  std::error_code error;
  const bool is_there = std::filesystem::exists(settings_path(), error);
  const std::string state = user_folder(UserFolder::state);
  std::string text = row("settings", settings_path(), is_there ? "" : "not there");
  text += row("talks", state.empty() ? "-" : state + "/talks", "") + "\n" + command.full_name + "\n";
  for (const Flag* flag : flags_of(command.command))
    if (!flag->is_once()) text += rows_of(*flag, settings, model.get());
  return text;
}

int config_command(const Options& options) {
  size_t n_taken = 0;
  const std::vector<std::string> words =
      options.words.empty() ? std::vector<std::string>{"run"} : options.words;
  write_out(config_text(find_command(words, n_taken)));
  return 0;
}

}  // namespace dsv32
