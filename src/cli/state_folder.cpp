#include "cli/state_folder.h"

#include <cstdlib>

#include <sys/stat.h>

namespace dsv32 {
namespace {

// Makes `path` and the folders above it.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0700);
  mkdir(path.c_str(), 0700);
}

}  // namespace

std::string state_folder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (state && *state == '/')
    folder = std::string(state) + "/dsv32";
  else if (home && *home == '/')
    folder = std::string(home) + "/.local/state/dsv32";
  if (!folder.empty()) make_folders(folder);
  return folder;
}

}  // namespace dsv32
