// See loaded_model.h.
#include "cli/warm/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/model_lookup.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/user_folders.h"

namespace dsv32 {
namespace {

void warn(const std::string& line) { write_err(visible("warning: " + line, true) + "\n"); }

// "loading 12.3 of 380.2 GB, 2.1 GB/s, 175 s left"
std::string loading_text(uint64_t n_done, uint64_t n_all, double seconds) {
  const double done = static_cast<double>(n_done), left = static_cast<double>(n_all - n_done);
  std::string text = format("loading %.1f of %.1f GB", done / 1e9, (done + left) / 1e9);
  if (n_done > 0 && seconds > 0)
    text += format(", %.1f GB/s, %.0f s left", done / 1e9 / seconds, left / done * seconds);
  return text;
}

// What has been loaded so far, and with `verbose` what it took at the end.
class LoadingLine {
 public:
  explicit LoadingLine(bool verbose) : verbose_(verbose) {}

  void report(uint64_t n_done, uint64_t n_all) {
    const double seconds = seconds_since(start_);
    if (n_done == n_all) {
      line_.erase();
      if (verbose_)
        write_err(format("loaded %.1f GB in %.2f s, %.1f GB/s\n", static_cast<double>(n_all) / 1e9, seconds,
                         static_cast<double>(n_all) / 1e9 / seconds));
      return;
    }
    line_.show(loading_text(n_done, n_all, seconds));
  }

 private:
  const bool verbose_;
  StatusLine line_{examine_terminal(ColorMode::never).can_redraw, false};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

LoadProgress loading_line(bool verbose) {
  return [line = std::shared_ptr<LoadingLine>(), verbose](uint64_t n_done, uint64_t n_all) mutable {
    if (!line) line = std::make_shared<LoadingLine>(verbose);
    line->report(n_done, n_all);
  };
}

EngineOptions engine_options(const Options& options, const std::string& path) {
  EngineOptions engine = options.engine;
  engine.model_path = path;
  if (!options.quiet) engine.on_loading = loading_line(options.verbose);
  const bool generates = options.command == Command::run || options.command == Command::batch ||
                         options.command == Command::chat || options.command == Command::warm_start;
  if (!generates || !options.uses_cache) return engine;
  engine.cache = options.cache;
  engine.cache->directory = cache_directory(options);
  std::error_code error;
  engine.cache->model_path = std::filesystem::absolute(path, error).string();
  if (!options.quiet) engine.cache->warn = warn;
  return engine;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file) {
  return Tokenizer::make(load_vocabulary(file));
}

void report_tokenizer(const Tokenizer& tokenizer, const Options& options) {
  if (!options.quiet && !tokenizer.warning().empty()) warn(tokenizer.warning());
}

std::string cache_directory(const Options& options) {
  if (!options.cache.directory.empty()) return options.cache.directory;
  return user_folder(UserFolder::cache);
}

Hash256 rough_digest(const GgufFile& file) {
  constexpr uint64_t kSample = 256;
  Sha256 hash;
  hash.add_number(file.n_bytes());
  for (const GgufTensor& tensor : file.tensors()) {
    hash.add_field(tensor.name);
    hash.add_number(static_cast<uint64_t>(tensor.type));
    hash.add(tensor.data, std::min(tensor.n_bytes, kSample));
  }
  return hash.finish();
}

ModelFile::ModelFile(const Options& options) : file(find_model(options)), tokenizer(load_tokenizer(file)) {}

LoadedModel::LoadedModel(const Options& options, const Prefetch& prefetch)
    : LoadedModel(ModelFile(options), options, prefetch) {}

LoadedModel::LoadedModel(ModelFile opened, const Options& options, const Prefetch& prefetch)
    : ModelFile(std::move(opened)),
      engine(file, engine_options(options, file.path()), [&](PrefixCache& prefixes) {
        if (prefetch) prefetch(prefixes, *tokenizer);
      }) {
  if (tokenizer->n_vocab() > engine.args().vocab_size)
    fail(ErrorKind::model, format("the vocabulary of %s has %d tokens, but its embedding only %lld rows",
                                  visible(file.path()).c_str(), tokenizer->n_vocab(),
                                  static_cast<long long>(engine.args().vocab_size)));
}

EngineFacts facts_of(const Engine& engine) {
  const CachePlan& cache = engine.plan().cache;
  return {engine.args().vocab_size, cache.max_context, cache.max_seqs, cache.pool_tokens, engine.warnings()};
}

std::string model_name(const std::string& path) {
  const std::filesystem::path name = std::filesystem::path(path).filename();
  return name.extension() == ".gguf" ? name.stem().string() : name.string();
}

}  // namespace dsv32
