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
#include "cli/options/options.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Throws Error{model}.
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);

// Says what it warns of, unless --quiet.
void report_tokenizer(const Tokenizer& tokenizer, const Options& options);

// The file that is meant, open, and nothing of it loaded.
struct ModelFile {
  // Throws Error{usage, model}.
  explicit ModelFile(const Options& options);

  GgufFile file;
  std::shared_ptr<Tokenizer> tokenizer;
};

struct LoadedModel : ModelFile {
  // Who knows so early what will be asked first has it read from disk while the weights are loaded.
  using Prefetch = std::function<void(PrefixCache& prefixes, const Tokenizer& tokenizer)>;
  // Throws Error{usage, model, memory}, and what `prefetch` throws.
  explicit LoadedModel(const Options& options, const Prefetch& prefetch = {});
  LoadedModel(ModelFile opened, const Options& options, const Prefetch& prefetch = {});

  Engine engine;
};

// What those who ask an engine go by.
struct EngineFacts {
  int64_t vocab_size = 0;
  int64_t context = 0;                    // most tokens of a request
  int64_t max_seqs = 0, pool_tokens = 0;  // requests at a time, and their tokens together
  std::vector<std::string> warnings;      // that a user should hear once
};
EngineFacts facts_of(const Engine& engine);

// Tells models apart without reading them whole: the same for copies of a file, wherever they lie.
Hash256 rough_digest(const GgufFile& file);

// --cache-dir, else $XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32; empty when none of them is known.
std::string cache_directory(const Options& options);

// The file's name without folder and ".gguf".
std::string model_name(const std::string& path);

}  // namespace dsv32
