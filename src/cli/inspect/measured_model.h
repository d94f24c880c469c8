// What a bench measures: a model file, or random weights of the real dimensions.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/options/options.h"
#include "engine/engine.h"
#include "gguf/gguf.h"

namespace dsv32 {

class MeasuredModel {
 public:
  // Throws Error{usage, model} as find_model() and GgufFile do.
  explicit MeasuredModel(const Options& options);

  const ModelArgs& args() const { return args_; }
  const ModelBytes& bytes() const { return bytes_; }
  std::string name() const;         // for people
  uint64_t n_bytes_unused() const;  // in the file (MTP blocks)
  // What is free on the backends of these options, with nothing on them.
  Machine machine(const EngineOptions& options) const;
  // Throws as Engine does.
  std::unique_ptr<Engine> open(const EngineOptions& options) const;

 private:
  std::optional<GgufFile> file_;
  SyntheticTypes types_;
  ModelArgs args_;
  ModelBytes bytes_;
};

}  // namespace dsv32
