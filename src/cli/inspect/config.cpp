// See config.h. A flag's default is what its text in the help says it is.
#include "cli/inspect/config.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/model_lookup.h"
#include "cli/options/recommended.h"
#include "cli/options/settings.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_folders.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

std::string row(const std::string& name, const std::string& value, const std::string& from) {
  const std::string text =
      format("%-16s %-28s %s", name.c_str(), visible(value).c_str(), visible(from).c_str());
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

// Of "N (default: 3)" what stands there; of a switch that it is off.
std::string default_of(const FlagText& flag) {
  constexpr std::string_view kMark = "(default: ";
  const std::string_view text = flag.text;
  const size_t at = text.find(kMark);
  if (at == text.npos) return flag.value ? "-" : text.ends_with("(default)") ? "on" : "off";
  const size_t begin = at + kMark.size();
  return std::string(text.substr(begin, text.rfind(')') - begin));
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
std::unique_ptr<GgufFile> open_model(Command command, const std::vector<Setting>& settings) {
  if (!find_flag(flags_of(command), "temp")) return nullptr;
  Options none;
  for (const Setting& setting : settings)
    if (setting.flag->name() == "model") none.engine.model_path = setting.value;
  try {
    return std::make_unique<GgufFile>(find_model(none));
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

int config_command(const Options& options) {
  size_t n_taken = 0;
  const CommandRow& command =
      find_command(options.words.empty() ? std::vector<std::string>{"run"} : options.words, n_taken);
  const std::vector<Setting> settings = settings_for(command.command, {});
  const std::unique_ptr<GgufFile> model = open_model(command.command, settings);
  std::error_code error;
  const bool is_there = std::filesystem::exists(settings_path(), error);
  std::string text = row("settings", settings_path(), is_there ? "" : "not there");
  const std::string state = user_folder(UserFolder::state);
  text += row("talks", state.empty() ? "-" : state + "/talks", "");
  text += "\n" + format("dsv32 %s\n", command.name().c_str());
  for (const FlagText* flag : flags_of(command.command)) {
    if (static_cast<const Flag*>(flag)->is_once()) continue;
    std::string rows, value, where;
    for (const Setting& setting : settings)
      if (setting.flag == flag) {
        value = setting.value, where = setting.where;
        rows += row(flag->name(), flag->value ? value : "on", where);
      }
    if (flag->name() == "model") rows = model_row(value, where);
    if (flag->name() == "cache-dir" && rows.empty()) rows = row("cache-dir", cache_directory({}), "default");
    if (const auto advice = model ? recommended_value(*model, flag->name()) : std::nullopt;
        advice && rows.empty())
      rows = row(flag->name(), *advice, model->path());
    text += rows.empty() ? row(flag->name(), default_of(*flag), "default") : rows;
  }
  write_out(text);
  return 0;
}

}  // namespace dsv32
