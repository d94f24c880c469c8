// See settings.h. The whole file is checked whatever is asked of it: a mistake is told of at once.
#include "cli/options/settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/options/commands.h"
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

const Flag* flag_of(Command command, const std::string& name) {
  return static_cast<const Flag*>(find_flag(flags_of(command), name));
}

// Some command of its section takes it, and a file may say so.
void check(const Line& line) {
  std::vector<std::string> names;
  bool is_section = false;
  for (const CommandRow& row : commands()) {
    if (!is_for(line.section, row.name())) continue;
    is_section = true;
    const Flag* flag = flag_of(row.command, line.name);
    for (const FlagText* text : flags_of(row.command)) names.push_back(text->name());
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

}  // namespace

std::string settings_path() {
  const std::string folder = user_folder(UserFolder::config);
  return folder.empty() ? "" : folder + "/config";
}

std::vector<Setting> settings_for(Command command, const GivenWords& given) {
  const std::string name = row_of(command).name();
  std::vector<std::pair<size_t, Setting>> found;  // and how long its section's name is
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
  std::vector<Setting> settings;
  for (auto& [rank, setting] : found) settings.push_back(std::move(setting));
  return settings;
}

}  // namespace dsv32
