// A model that can be asked: by the engine here, or by a warm process that holds the same one.
//
// Which of them it is, is decided here, by --warm, and nowhere else.
#pragma once

#include <memory>

#include "cli/loaded_model.h"

namespace dsv32 {

class WarmClient;

class AskedModel {
 public:
  // Loads it unless a warm process has it (warm_path()). Says what it warns of, and with --verbose who
  // answers. Throws as LoadedModel does, and Error{io} when with --warm only there is no such process.
  explicit AskedModel(const Options& options, const LoadedModel::Prefetch& prefetch = {});
  ~AskedModel();

  const ModelFile& opened() const { return here_ ? *here_ : *file_; }
  const std::string& path() const { return opened().file.path(); }
  const Tokenizer& tokenizer() const { return *opened().tokenizer; }
  // Who is asked next. When a warm process is gone, another that holds the model, or it is loaded here;
  // throws as the constructor does.
  Answerer& answerer();
  const EngineFacts& facts() const { return facts_; }

 private:
  void find(ModelFile opened, const LoadedModel::Prefetch& prefetch);

  const Options& options_;
  std::unique_ptr<WarmClient> warm_;
  std::unique_ptr<ModelFile> file_;  // when that answers
  std::unique_ptr<LoadedModel> here_;
  EngineFacts facts_;
};

// Warnings of the tokenizer and the engine, and with --verbose its context; nothing with --quiet.
void report_model(const ModelFile& model, const EngineFacts& facts, const Options& options);

}  // namespace dsv32
