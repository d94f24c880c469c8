#include "cli/user_folders.h"

#include <cstdlib>

#include <sys/stat.h>

namespace dsv32 {
namespace {

struct FolderPlace {
  const char *variable, *below_home;
};

constexpr FolderPlace kPlaces[] = {{"XDG_CONFIG_HOME", "/.config"},
                                   {"XDG_CACHE_HOME", "/.cache"},
                                   {"XDG_DATA_HOME", "/.local/share"},
                                   {"XDG_STATE_HOME", "/.local/state"},
                                   {"XDG_RUNTIME_DIR", "/.local/state"}};

// Makes `path` and the folders above it.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0700);
  mkdir(path.c_str(), 0700);
}

}  // namespace

std::string user_folder(UserFolder folder) {
  const FolderPlace& place = kPlaces[static_cast<size_t>(folder)];
  const char *named = std::getenv(place.variable), *home = std::getenv("HOME");
  if (named && *named == '/') return std::string(named) + "/dsv32";
  if (home && *home == '/') return std::string(home) + place.below_home + "/dsv32";
  return {};
}

std::string make_user_folder(UserFolder folder) {
  const std::string path = user_folder(folder);
  if (!path.empty()) make_folders(path);
  return path;
}

}  // namespace dsv32
