// `dsv32 cache`.
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/talk.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "prefix/cache_directory.h"

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

// Opens the cache with limits that evict nothing. Null when there is no such folder.
std::unique_ptr<CacheDirectory> open_cache(const Options& options) {
  const std::string directory = directory_of(options);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(directory, error))) return nullptr;
  if (!std::filesystem::exists(directory + "/LOCK", error))
    fail(ErrorKind::usage, visible(directory) + " is no cache of prefixes: it holds no file LOCK",
         "dsv32 cache path says where it is, --cache-dir names another");
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

// The model's name; "?" when it is unknown.
std::string name_of(const CachedModel& model) { return model.path.empty() ? "?" : model_name(model.path); }

std::string age_of(uint64_t last_use) { return time_ago(static_cast<int64_t>(last_use / 1000), now_ms()); }

void list(const Options& options, CacheDirectory* cache) {
  const std::vector<CachedModel> models = cache ? list_models(*cache) : std::vector<CachedModel>{};
  const uint64_t n_bytes = cache ? cache->used_bytes() : 0;
  Json array = Json::array();
  std::string text = format("%s: %s\n", visible(directory_of(options)).c_str(), human_bytes(n_bytes).c_str());
  if (!models.empty())
    text += format("%-16s  %-24s  %-16s %12s  %10s  %8s  HITS\n", "FINGERPRINT", "MODEL", "LAST USE",
                   "TOKENS", "SIZE", "SEGMENTS");
  for (const CachedModel& model : models) {
    array.push_back({{"fingerprint", model.fingerprint},
                     {"model", sanitize_utf8(name_of(model))},
                     {"last_use_ms", model.last_use / 1000},
                     {"segments", model.n_segments},
                     {"pages", model.n_pages},
                     {"tokens", model.n_pages * kPageTokens},
                     {"bytes", model.n_bytes},
                     {"hits", model.n_hits}});
    text += format("%s  %-24s  %-16s %12s  %10s  %8lld  %llu\n",
                   model.fingerprint.substr(0, kShownDigits).c_str(),
                   visible(name_of(model), false, 24).c_str(), age_of(model.last_use).c_str(),
                   with_thousands(model.n_pages * kPageTokens).c_str(), human_bytes(model.n_bytes).c_str(),
                   as_ll(model.n_segments), static_cast<unsigned long long>(model.n_hits));
  }
  const Json json{{"path", sanitize_utf8(directory_of(options))}, {"bytes", n_bytes}, {"models", array}};
  write_out(options.json ? shown_json(json) + "\n" : text);
}

// The models whose fingerprint begins with the word, or whose name contains it; without a word all. The
// largest first.
std::vector<CachedModel> models_meant(const Options& options, CacheDirectory* cache) {
  std::vector<CachedModel> models = cache ? list_models(*cache) : std::vector<CachedModel>{};
  if (options.words.empty()) return models;
  if (options.words.size() > 1)
    fail(ErrorKind::usage, "cache show takes one model, by its name or fingerprint");
  const std::string& word = options.words.front();
  std::erase_if(models, [&](const CachedModel& model) {
    return !model.fingerprint.starts_with(word) && name_of(model).find(word) == std::string::npos;
  });
  if (models.empty())
    fail(ErrorKind::usage,
         format("no fingerprint in the cache begins with '%s', and no model has such a name",
                visible(word, false, 70).c_str()),
         "dsv32 cache list shows them");
  return models;
}

// Null when the model's file was moved or cannot be read.
std::unique_ptr<Tokenizer> tokenizer_of(const CachedModel& model) try {
  return model.path.empty() ? nullptr : load_tokenizer(GgufFile(model.path));
} catch (const Error&) {
  return nullptr;
}

// The segment's first tokens as text.
std::string first_words(const std::vector<int32_t>& tokens, const Tokenizer* tokenizer) {
  constexpr size_t kMostTokens = 32;
  std::string text;
  for (size_t i = 0; tokenizer && i < std::min(tokens.size(), kMostTokens); ++i)
    if (tokens[i] >= 0 && tokens[i] < tokenizer->n_vocab()) text += tokenizer->bytes_of(tokens[i]);
  return text;
}

void show(const Options& options, CacheDirectory* cache) {
  constexpr size_t kShownChars = 40;
  Json array = Json::array();
  std::string text;
  for (const CachedModel& model : models_meant(options, cache)) {
    const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(model);
    text += format("%s%s %s\n%-32s  %-16s %18s  %10s  %4s  FIRST WORDS\n", text.empty() ? "" : "\n",
                   model.fingerprint.substr(0, kShownDigits).c_str(), visible(name_of(model)).c_str(),
                   "SEGMENT", "LAST USE", "TOKENS", "SIZE", "HITS");
    for (const StoredSegment& segment : list_segments(*cache, model.fingerprint)) {
      const std::string name = CacheFiles::name_of(segment.chain);
      const int64_t first = segment.first_page * kPageTokens, n = segment.n_pages * kPageTokens;
      const std::string words = first_words(segment.tokens, tokenizer.get());
      array.push_back({{"name", name},
                       {"fingerprint", model.fingerprint},
                       {"model", sanitize_utf8(name_of(model))},
                       {"last_use_ms", segment.use.last_use / 1000},
                       {"first_token", first},
                       {"tokens", n},
                       {"bytes", segment.file_bytes()},
                       {"hits", segment.use.n_hits},
                       {"words", sanitize_utf8(words)}});
      text += format(
          "%s  %-16s %8lld-%-9lld  %10s  %4llu  %s\n", name.c_str(), age_of(segment.use.last_use).c_str(),
          as_ll(first), as_ll(first + n), human_bytes(segment.file_bytes()).c_str(),
          static_cast<unsigned long long>(segment.use.n_hits), visible(words, false, kShownChars).c_str());
    }
  }
  write_out(options.json ? shown_json(array) + "\n" : text);
}

int verify(const Options& options, CacheDirectory* cache) {
  const Verification found = cache ? dsv32::verify(*cache, !options.is_dry_run) : Verification{};
  Json damage = Json::array();
  std::string text;
  for (const Verification::Damaged& one : found.damaged) {
    damage.push_back({{"name", one.name}, {"reason", one.reason}, {"removed", one.is_removed}});
    text += format("%s: %s; %s\n", one.name.c_str(), one.reason.c_str(),
                   one.is_removed       ? "removed"
                   : options.is_dry_run ? "it would be removed"
                                        : "it could not be removed");
  }
  text += format("%lld segments, %lld whole pages: %zu damaged, %lld unreadable\n", as_ll(found.n_segments),
                 as_ll(found.n_pages), found.damaged.size(), as_ll(found.n_unreadable));
  const Json json{{"segments", found.n_segments},
                  {"pages", found.n_pages},
                  {"damaged", found.damaged.size()},
                  {"unreadable", found.n_unreadable},
                  {"damage", damage}};
  write_out(options.json ? shown_json(json) + "\n" : text);
  return found.damaged.empty() && found.n_unreadable == 0 ? 0 : 1;
}

// Removes segments until max_bytes are left. Returns 1 when some could not be removed.
int shrink(const Options& options, CacheDirectory* cache, uint64_t max_bytes) {
  const Pruned pruned = cache ? prune(*cache, max_bytes) : Pruned{.n_bytes = 0, .is_done = true};
  const uint64_t n_left = cache ? cache->used_bytes() : 0;
  const Json json{{"removed_bytes", pruned.n_bytes}, {"bytes", n_left}};
  write_out((options.json ? shown_json(json)
                          : human_bytes(pruned.n_bytes) + " removed, " + human_bytes(n_left) + " left") +
            "\n");
  return pruned.is_done ? 0 : 1;
}

}  // namespace

int cache_command(const Options& options) {
  if (options.command == Command::cache_path) {
    const std::string directory = directory_of(options);
    write_out((options.json ? shown_json({{"path", sanitize_utf8(directory)}}) : directory) + "\n");
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
