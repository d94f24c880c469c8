// See asked_model.h.
#include "cli/asked_model.h"

#include "base/error.h"
#include "cli/model_lookup.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "cli/warm_client.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

// Null: the model is to be loaded here.
std::unique_ptr<WarmClient> find_warm(const Options& options, const GgufFile& file) {
  if (options.warm == WarmUse::never) return nullptr;
  std::string why = "no warm process holds this model with these flags";
  try {
    const std::string path = warm_path(options, file);
    std::unique_ptr<WarmClient> client = WarmClient::connect(path);
    if (client && options.verbose) say("warm: answers come from " + path);
    if (client) return client;
  } catch (const Error& error) {
    why = error.what();
  }
  if (options.warm == WarmUse::only)
    fail(ErrorKind::io, why,
         "dsv32 warm start with the same -m and flags; dsv32 warm status lists those there are");
  if (options.verbose) say("warm: " + why + "; it is loaded here");
  return nullptr;
}

}  // namespace

AskedModel::AskedModel(const Options& options, const LoadedModel::Prefetch& prefetch) : options_(options) {
  find(ModelFile(options), prefetch);
}

AskedModel::~AskedModel() = default;

void AskedModel::find(ModelFile opened, const LoadedModel::Prefetch& prefetch) {
  warm_ = find_warm(options_, opened.file);
  if (warm_)
    file_ = std::make_unique<ModelFile>(std::move(opened));
  else
    here_ = std::make_unique<LoadedModel>(std::move(opened), options_, prefetch);
  facts_ = warm_ ? warm_->facts() : facts_of(here_->engine);
}

Answerer& AskedModel::answerer() {
  if (warm_ && !warm_->is_there()) {
    if (!options_.quiet) say("the warm process ended: the model is opened anew");
    find(std::move(*file_), {});
  }
  return warm_ ? static_cast<Answerer&>(*warm_) : here_->engine.loop();
}

void report_model(const ModelFile& model, const EngineFacts& facts, const Options& options) {
  report_tokenizer(*model.tokenizer, options);
  if (options.quiet) return;
  for (const std::string& warning : facts.warnings) say("warning: " + warning);
  if (options.verbose || is_stopgap(options, model.file.path())) say("model: " + model.file.path());
  if (options.verbose) say(format("context: %s tokens", with_thousands(facts.context).c_str()));
}

}  // namespace dsv32
