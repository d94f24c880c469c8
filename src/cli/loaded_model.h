// The model as the commands need it: the file, its tokenizer, and for those that compute the engine.
//
// Whether and where prefixes are kept is decided here. The parts are built in order and outlive each other as
// they must.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Throws Error{model}.
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);

// Says what it warns of, unless --quiet.
void report_tokenizer(const Tokenizer& tokenizer, const Options& options);

struct LoadedModel {
  // Who knows so early what will be asked first has it read from disk while the weights are loaded.
  using Prefetch = std::function<void(PrefixCache& prefixes, const Tokenizer& tokenizer)>;
  // Throws Error{usage, model, memory}, and what `prefetch` throws.
  explicit LoadedModel(const Options& options, const Prefetch& prefetch = {});

  GgufFile file;
  std::unique_ptr<Tokenizer> tokenizer;
  Engine engine;
};

// Tells models apart without reading them whole: the same for copies of a file, wherever they lie.
Hash256 rough_digest(const GgufFile& file);

// --cache-dir, else $XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32; empty when none of them is known.
std::string cache_directory(const Options& options);

// The file's name without folder and ".gguf".
std::string model_name(const std::string& path);

}  // namespace dsv32
