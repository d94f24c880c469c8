// `dsv32 cache`.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/talk.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "prefix/cache_files.h"

namespace dsv32 {
namespace {

constexpr size_t kShownDigits = 16;  // of a fingerprint: enough to name one

std::string directory_of(const Options& options) {
  const std::string directory = cache_directory(options);
  if (directory.empty())
    fail(ErrorKind::usage, "there is no folder for the cache: neither HOME nor XDG_CACHE_HOME is set",
         "--cache-dir names one");
  return directory;
}

bool is_ours(const std::string& name) {
  return CacheFiles::is_folder(name) || CacheFiles::is_model_note(name);
}

// Nothing when there is no such folder.
std::optional<CacheFiles> open_cache(const Options& options) {
  const std::string directory = directory_of(options);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(directory, error))) return std::nullopt;
  std::string reason;
  std::optional<CacheFiles> files = CacheFiles::open(directory, real_file_system(), reason);
  if (!files) fail(ErrorKind::io, visible(directory) + " cannot be used as a cache: " + reason);
  std::vector<std::string> names;
  files->fs().list(files->top(), names);
  if (!names.empty() && std::ranges::none_of(names, is_ours))
    fail(ErrorKind::usage, visible(directory) + " is no cache of prefixes: nothing in it was made by dsv32",
         "--cache-dir names another folder");
  return files;
}

CacheContent content_in(const std::optional<CacheFiles>& cache) {
  return cache ? content_of(*cache) : CacheContent{};
}

struct CachedModel {
  std::string fingerprint, name = "?";
  int64_t n_pages = 0, used_ms = 0;
  uint64_t n_bytes = 0;
};

// One element for each fingerprint, the largest first.
std::vector<CachedModel> models_in(const CacheFiles& cache, const CacheContent& content) {
  constexpr size_t kMostPath = 4096;
  std::map<std::string, CachedModel> models;
  for (const StoredPage& page : content.pages) {
    CachedModel& model = models[page.folder];
    ++model.n_pages, model.n_bytes += page.n_bytes;
    model.used_ms = std::max(model.used_ms, page.used_ns / 1'000'000);
  }
  std::vector<CachedModel> sorted;
  for (auto& [fingerprint, model] : models) {
    const OwnedFd folder = cache.open_folder(fingerprint);
    const std::string path =
        folder.is_open() ? cache.read_note(folder.get(), CacheFiles::kPathNote, kMostPath) : "";
    model.fingerprint = fingerprint;
    if (!path.empty()) model.name = model_name(path);
    sorted.push_back(model);
  }
  std::ranges::stable_sort(sorted, std::ranges::greater(), &CachedModel::n_bytes);
  return sorted;
}

void list(const Options& options, const std::optional<CacheFiles>& cache) {
  const CacheContent content = content_in(cache);
  Json array = Json::array();
  std::string text =
      format("%s: %s\n", visible(directory_of(options)).c_str(), human_bytes(content.n_bytes).c_str());
  if (!content.pages.empty())
    text += format("%-16s  %-24s  %-16s %12s  %10s\n", "FINGERPRINT", "MODEL", "LAST USE", "TOKENS", "SIZE");
  for (const CachedModel& model : cache ? models_in(*cache, content) : std::vector<CachedModel>{}) {
    array.push_back({{"fingerprint", model.fingerprint},
                     {"model", sanitize_utf8(model.name)},
                     {"last_use_ms", model.used_ms},
                     {"pages", model.n_pages},
                     {"tokens", model.n_pages * kPageTokens},
                     {"bytes", model.n_bytes}});
    text += format("%s  %-24s  %-16s %12s  %10s\n", model.fingerprint.substr(0, kShownDigits).c_str(),
                   visible(model.name, false, 24).c_str(), time_ago(model.used_ms, now_ms()).c_str(),
                   with_thousands(model.n_pages * kPageTokens).c_str(), human_bytes(model.n_bytes).c_str());
  }
  write_result(
      options, text,
      {{"path", sanitize_utf8(directory_of(options))}, {"bytes", content.n_bytes}, {"models", array}});
}

// Reads every page; removes damaged ones, unless only asked to look.
int verify(const Options& options, const std::optional<CacheFiles>& cache) {
  const std::vector<StoredPage> pages = content_in(cache).pages;
  int64_t n_unreadable = 0;
  Json damage = Json::array();
  std::string text;
  for (const StoredPage& page : pages) {
    const OwnedFd folder = cache->open_folder(page.folder);
    const PageFault fault = folder.is_open() ? verify_page(cache->fs(), folder.get(), page.folder, page.name)
                                             : PageFault::unreadable;
    n_unreadable += fault == PageFault::unreadable;
    if (fault != PageFault::damaged) continue;
    const bool is_removed = !options.is_dry_run && remove_page(*cache, page);
    damage.push_back({{"name", page.name.file()}, {"removed", is_removed}});
    text += format("%s is damaged; %s\n", page.name.file().c_str(),
                   is_removed           ? "removed"
                   : options.is_dry_run ? "it would be removed"
                                        : "it could not be removed");
  }
  text +=
      format("%zu pages: %zu damaged, %lld unreadable\n", pages.size(), damage.size(), as_ll(n_unreadable));
  write_result(options, text,
               {{"pages", pages.size()},
                {"damaged", damage.size()},
                {"unreadable", n_unreadable},
                {"damage", damage}});
  return damage.empty() && n_unreadable == 0 ? 0 : 1;
}

// Removes pages until max_bytes are left; 0: all, and the notes of models' hashes. Returns 1 when some could
// not be removed.
int shrink(const Options& options, const std::optional<CacheFiles>& cache, uint64_t max_bytes) {
  const uint64_t before = content_in(cache).n_bytes;
  if (cache) make_room(*cache, {.max_bytes = max_bytes, .min_free_bytes = 0}, 0);
  std::vector<std::string> names;
  if (cache && max_bytes == 0) cache->fs().list(cache->top(), names);
  for (const std::string& name : names)
    if (CacheFiles::is_model_note(name)) cache->fs().unlink(cache->top(), name);
  const CacheContent left = content_in(cache);
  const uint64_t n_removed = before - std::min(before, left.n_bytes);
  write_result(options, human_bytes(n_removed) + " removed, " + human_bytes(left.n_bytes) + " left\n",
               {{"removed_bytes", n_removed}, {"bytes", left.n_bytes}});
  return left.n_bytes <= max_bytes || left.pages.empty() ? 0 : 1;
}

}  // namespace

int cache_command(const Options& options) {
  if (options.command == Command::cache_prune && options.words.size() != 1)
    fail(ErrorKind::usage, "cache prune needs the size that may stay, such as 50G");
  const std::optional<CacheFiles> cache = open_cache(options);
  switch (options.command) {
    case Command::cache_verify: return verify(options, cache);
    case Command::cache_prune:
      return shrink(options, cache, parse_bytes(options.words.front(), "cache prune"));
    case Command::cache_clear: return shrink(options, cache, 0);
    default: list(options, cache); return 0;
  }
}

}  // namespace dsv32
