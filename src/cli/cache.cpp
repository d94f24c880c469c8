#include "cli/cache.h"

#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/loaded_model.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "prefix/cache_maintenance.h"

namespace dsv32 {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownDigits = 16;  // of a fingerprint: enough to name one

std::string directory_of(const Options& options) {
  const std::string directory = cache_directory(options);
  if (directory.empty())
    fail(ErrorKind::usage, "there is no folder for the cache: neither HOME nor XDG_CACHE_HOME is set",
         "--cache-dir names one");
  return directory;
}

// Null when there is no such folder. Looking at the cache evicts nothing.
std::unique_ptr<CacheDirectory> open_cache(const Options& options) {
  const std::string directory = directory_of(options);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(directory, error))) return nullptr;
  CacheLimits limits;
  limits.max_bytes = std::numeric_limits<uint64_t>::max();
  limits.min_free_bytes = 0;
  limits.policy = options.cache.eviction;
  auto cache = CacheDirectory::open(directory, limits, real_file_system(), [](const std::string& line) {
    write_err(visible("warning: " + line, true) + "\n");
  });
  if (!cache) fail(ErrorKind::io, visible(directory) + " cannot be used as a cache");
  return cache;
}

void list(const Options& options, CacheDirectory* cache) {
  const std::vector<CachedModel> models = cache ? list_models(*cache) : std::vector<CachedModel>{};
  const uint64_t n_bytes = cache ? cache->files().used_bytes() : 0;
  if (options.json) {
    Json array = Json::array();
    for (const CachedModel& model : models)
      array.push_back({{"fingerprint", model.fingerprint},
                       {"segments", model.n_segments},
                       {"pages", model.n_pages},
                       {"tokens", model.n_pages * kPageTokens},
                       {"bytes", model.n_bytes},
                       {"hits", model.n_hits}});
    const Json json{{"path", sanitize_utf8(directory_of(options))}, {"bytes", n_bytes}, {"models", array}};
    return write_out(json.dump() + "\n");
  }
  std::string text = format("%s: %s\n", visible(directory_of(options)).c_str(), human_bytes(n_bytes).c_str());
  for (const CachedModel& model : models)
    text += format("%s  %12s tokens  %10s  %6lld segments  %llu hits\n",
                   model.fingerprint.substr(0, kShownDigits).c_str(),
                   with_thousands(model.n_pages * kPageTokens).c_str(), human_bytes(model.n_bytes).c_str(),
                   static_cast<long long>(model.n_segments), static_cast<unsigned long long>(model.n_hits));
  write_out(text);
}

// The prompts' tokens are not shown: whoever wants them has the files.
void show(const Options& options, CacheDirectory* cache) {
  const std::string prefix = options.words.empty() ? "" : options.words.front();
  const std::vector<CachedSegment> segments =
      cache ? list_segments(*cache, prefix) : std::vector<CachedSegment>{};
  if (segments.empty() && !prefix.empty())
    fail(ErrorKind::usage,
         format("no fingerprint in the cache begins with '%s'", visible(prefix, false, 70).c_str()),
         "dsv32 cache list shows them");
  Json array = Json::array();
  std::string text;
  for (const auto& [segment, use] : segments) {
    const std::string name = CacheFiles::name_of(segment.chain);
    array.push_back({{"name", name},
                     {"fingerprint", hex(segment.fingerprint)},
                     {"first_token", segment.first_page * kPageTokens},
                     {"tokens", segment.n_pages * kPageTokens},
                     {"bytes", segment.file_bytes()},
                     {"hits", use.n_hits}});
    text += format("%s  %s  tokens %lld to %lld  %10s  %llu hits\n", name.c_str(),
                   hex(segment.fingerprint).substr(0, kShownDigits).c_str(),
                   static_cast<long long>(segment.first_page * kPageTokens),
                   static_cast<long long>((segment.first_page + segment.n_pages) * kPageTokens),
                   human_bytes(segment.file_bytes()).c_str(), static_cast<unsigned long long>(use.n_hits));
  }
  write_out(options.json ? array.dump() + "\n" : text);
}

int verify(const Options& options, CacheDirectory* cache) {
  const Verification found = cache ? dsv32::verify(*cache) : Verification{};
  const bool is_whole = found.damaged.empty() && found.n_unreadable == 0;
  if (options.json) {
    Json damaged = Json::array();
    for (const Verification::Damaged& one : found.damaged)
      damaged.push_back({{"name", one.name}, {"reason", one.reason}, {"removed", one.is_removed}});
    const Json json{{"segments", found.n_segments},
                    {"pages", found.n_pages},
                    {"damaged", found.damaged.size()},
                    {"unreadable", found.n_unreadable},
                    {"damage", damaged}};
    write_out(json.dump() + "\n");
  } else {
    std::string text;
    for (const Verification::Damaged& one : found.damaged)
      text += format("%s: %s; %s\n", one.name.c_str(), one.reason.c_str(),
                     one.is_removed ? "removed" : "it could not be removed");
    write_out(text + format("%lld segments, %lld whole pages: %zu damaged, %lld unreadable\n",
                            static_cast<long long>(found.n_segments), static_cast<long long>(found.n_pages),
                            found.damaged.size(), static_cast<long long>(found.n_unreadable)));
  }
  return is_whole ? 0 : 1;
}

// 1 when segments are left that were to go.
int shrink(const Options& options, CacheDirectory* cache, uint64_t max_bytes) {
  const Pruned pruned = cache ? prune(*cache, max_bytes) : Pruned{.n_bytes = 0, .is_done = true};
  const uint64_t n_left = cache ? cache->files().used_bytes() : 0;
  if (options.json)
    write_out(Json{{"removed_bytes", pruned.n_bytes}, {"bytes", n_left}}.dump() + "\n");
  else
    write_out(
        format("%s removed, %s left\n", human_bytes(pruned.n_bytes).c_str(), human_bytes(n_left).c_str()));
  return pruned.is_done ? 0 : 1;
}

}  // namespace

int cache_command(const Options& options) {
  if (options.command == Command::cache_path) {
    const std::string directory = directory_of(options);
    write_out((options.json ? Json{{"path", sanitize_utf8(directory)}}.dump() : directory) + "\n");
    return 0;
  }
  if (options.command == Command::cache_prune && options.words.size() != 1)
    fail(ErrorKind::usage, "cache prune needs the size that may stay, such as 50G");
  const std::unique_ptr<CacheDirectory> cache = open_cache(options);
  switch (options.command) {
    case Command::cache_show: show(options, cache.get()); return 0;
    case Command::cache_verify: return verify(options, cache.get());
    case Command::cache_prune:
      return shrink(options, cache.get(), parse_bytes(options.words.front(), "cache prune"));
    case Command::cache_clear: return shrink(options, cache.get(), 0);
    default: list(options, cache.get()); return 0;
  }
}

}  // namespace dsv32
