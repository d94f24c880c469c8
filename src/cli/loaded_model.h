// The model as the commands need it: the file, its tokenizer, and for those that compute the engine.
//
// Finding the file is here too: -m, else the environment variable DSV32_MODEL, else the only model in
// models/. The parts are built in order and outlive each other as they must.
#pragma once

#include <memory>
#include <string>

#include "cli/options.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Throws Error{usage} when no file is named and models/ does not have exactly one.
std::string find_model(const Options& options);

// Throws Error{model}.
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);

struct LoadedModel {
  // Throws Error{usage, model, memory}.
  explicit LoadedModel(const Options& options);

  GgufFile file;
  std::unique_ptr<Tokenizer> tokenizer;
  Engine engine;
};

// The file's name without folder and ".gguf".
std::string model_name(const std::string& path);

}  // namespace dsv32
