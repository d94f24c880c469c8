#include "cli/terminal/user_folders.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <sys/stat.h>

#include "base/error.h"
#include "base/text.h"

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

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Makes `path` and the folders above it. Of those that are there already some systems say that they may not
// be made: what counts is what is there afterwards.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string folder = path.substr(0, at);
    const int why = mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
    if (why != 0 && !is_folder(folder))
      fail(ErrorKind::io,
           format("cannot make the folder %s: %s", visible(folder).c_str(), std::strerror(why)));
    if (at == std::string::npos) return;
  }
}

}  // namespace

std::string user_folder(UserFolder folder) {
  const FolderPlace& place = kPlaces[static_cast<size_t>(folder)];
  const char *named = std::getenv(place.variable), *home = std::getenv("HOME");
  if (named && *named == '/') return std::string(named) + "/dsv32";
  if (home && *home == '/' && is_folder(home)) return std::string(home) + place.below_home + "/dsv32";
  return {};
}

std::string make_user_folder(UserFolder folder) {
  const std::string path = user_folder(folder);
  if (!path.empty()) make_folders(path);
  return path;
}

}  // namespace dsv32
