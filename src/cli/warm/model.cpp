// See model.h.
#include "cli/warm/model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"
#include "cli/warm/warm_client.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

void warn(const std::string& line) { say("warning: " + line); }

// "loading 12.3 of 380.2 GB, 2.1 GB/s, 175 s left"
std::string loading_text(uint64_t n_done, uint64_t n_all, double seconds) {
  const double done = static_cast<double>(n_done), left = static_cast<double>(n_all - n_done);
  std::string text = format("loading %.1f of %.1f GB", done / 1e9, (done + left) / 1e9);
  if (n_done > 0 && seconds > 0)
    text += format(", %.1f GB/s, %.0f s left", done / 1e9 / seconds, left / done * seconds);
  return text;
}

// Shows the progress of loading, and with `verbose` the time at the end.
LoadProgress loading_line(bool verbose) {
  struct Shown {
    StatusLine line{examine_terminal(ColorMode::never).can_redraw, false};
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };
  return [shown = std::shared_ptr<Shown>(), verbose](uint64_t n_done, uint64_t n_all) mutable {
    if (!shown) shown = std::make_shared<Shown>();
    const double seconds = seconds_since(shown->start), size = static_cast<double>(n_all) / 1e9;
    if (n_done < n_all) return shown->line.show(loading_text(n_done, n_all, seconds));
    shown->line.erase();
    if (verbose) write_err(format("loaded %.1f GB in %.2f s, %.1f GB/s\n", size, seconds, size / seconds));
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

// Null: load the model here. `left`: why the last warm process was given up.
std::unique_ptr<WarmClient> find_warm(const Options& options, const GgufFile& file,
                                      const std::optional<WarmGone>& left) {
  if (options.warm == WarmUse::never) return nullptr;
  Error why(ErrorKind::io, "no warm process holds this model with these flags");
  if (left) why = *left;
  bool says_why = options.verbose;
  try {
    const std::string path = warm_path(options, file);
    std::unique_ptr<WarmClient> client = WarmClient::connect(path);
    if (client && options.verbose) say("warm: answers come from " + path);
    if (client) return client;
  } catch (const WarmGone& gone) {
    why = gone, says_why = !options.quiet;  // explains why the model is loaded
  } catch (const Error& error) {
    why = error;
  }
  if (options.warm == WarmUse::only)
    fail(ErrorKind::io, why.what(),
         !why.hint().empty() ? why.hint()
                             : "dsv32 warm start with the same -m and flags; dsv32 warm status lists the "
                               "running ones");
  if (says_why) say(std::string("warm: ") + why.what() + "; loading the model in this process");
  return nullptr;
}

}  // namespace

Model::Model(const Options& options) : options_(options) { open_file(); }

void Model::begin(const Prefetch& prefetch) {
  StatusLine status(examine_terminal(ColorMode::never).can_redraw, options_.quiet);
  status.show("opening the model");
  find(prefetch);
  status.erase();
  report();
}

Model::~Model() = default;

void Model::open_file() {
  file_ = std::make_unique<GgufFile>(open_model(options_));
  if (tokenizer_) return;  // requests point to this one
  path_ = file_->path();
  read_model_args(*file_);  // throws for a file that is only a part of a model
  tokenizer_ = load_tokenizer(*file_);
  // Said before the weights are loaded.
  if (!options_.is_raw)
    thinks(options_.chat_format ? *options_.chat_format : find_chat_kind(*tokenizer_).kind,
           options_.generation.thinking, options_.is_thinking_given());
}

int64_t Model::most_context() const {
  const int64_t most = read_model_args(*file_).max_seq_len;
  return std::min(options_.engine.context.value_or(most), most);
}

void Model::load(const Prefetch& prefetch) try {
  engine_ = std::make_unique<Engine>(*file_, engine_options(options_, file_->path()), prefetch);
  if (tokenizer_->n_vocab() > engine_->args().vocab_size)
    fail(ErrorKind::model,
         format("the vocabulary of %s has %d tokens, but its embedding only %lld rows",
                visible(path_).c_str(), tokenizer_->n_vocab(), as_ll(engine_->args().vocab_size)));
  const CachePlan& cache = engine_->plan().cache;
  facts_ = {engine_->args().vocab_size, cache.max_context,        cache.max_seqs,
            cache.pool_tokens,          cache.n_draft_layers > 0, engine_->warnings()};
} catch (...) {
  engine_.reset();
  file_.reset();
  throw;
}

void Model::find(const Prefetch& prefetch, const std::optional<WarmGone>& left) {
  const GracefulStop loses_nothing(GracefulStop::Signals::end);
  if (!file_) open_file();
  warm_ = find_warm(options_, *file_, left);
  if (warm_)
    facts_ = warm_->facts();
  else
    load(prefetch);
}

void Model::report() const {
  report_tokenizer(*tokenizer_, options_);
  if (options_.quiet) return;
  for (const std::string& warning : facts_.warnings) warn(warning);
  if (options_.verbose || is_stopgap(options_, path_)) say("model: " + path_);
  if (options_.verbose) say(format("context: %s tokens", with_thousands(facts_.context).c_str()));
}

Answerer& Model::answerer() const { return warm_ ? static_cast<Answerer&>(*warm_) : engine_->loop(); }

bool Model::is_open() { return engine_ || (warm_ && !warm_->gone()); }

void Model::reopen() {
  if (is_open()) return;
  std::optional<WarmGone> left;
  if (warm_) left = warm_->gone();
  warm_.reset();
  if (left && !options_.quiet && options_.warm != WarmUse::only)
    say(std::string(left->what()) + ": opening the model again");
  find({}, left);
}

std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file) {
  return Tokenizer::make(load_vocabulary(file));
}

void report_tokenizer(const Tokenizer& tokenizer, const Options& options) {
  if (!options.quiet && !tokenizer.warning().empty()) warn(tokenizer.warning());
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

std::string cache_directory(const Options& options) {
  return options.cache.directory.empty() ? user_folder(UserFolder::cache) : options.cache.directory;
}

std::string model_name(const std::string& path) {
  const std::filesystem::path name = std::filesystem::path(path).filename();
  return name.extension() == ".gguf" ? name.stem().string() : name.string();
}

}  // namespace dsv32
