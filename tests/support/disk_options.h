// Options of an engine that keeps prefixes on disk.
#pragma once

#include <string>

#include "engine/engine.h"

namespace dsv32 {

// Keeps prefixes in `directory`; even short ones are loaded, and prompts wait for them.
inline EngineOptions with_disk(EngineOptions options, const std::string& directory) {
  options.cache.emplace();
  options.cache->directory = directory;
  options.cache->prefetch = PrefetchPolicy::wait_complete;
  options.cache->least_tokens = 1;
  return options;
}

}  // namespace dsv32
