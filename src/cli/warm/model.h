// A model that answers requests: its file, and an engine here or in a warm process. --warm decides between
// the two.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "cli/options/options.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

namespace dsv32 {

class WarmClient;

// Throws Error{model}.
std::unique_ptr<Tokenizer> load_tokenizer(const GgufFile& file);
// Prints the tokenizer's warning, unless --quiet.
void report_tokenizer(const Tokenizer& tokenizer, const Options& options);

// What a client needs to know of an engine.
struct EngineFacts {
  int64_t vocab_size = 0;
  int64_t context = 0;                    // most tokens of a request
  int64_t max_seqs = 0, pool_tokens = 0;  // requests at a time, and their tokens together
  bool has_drafts = false;                // the block for drafts may guess
  std::vector<std::string> warnings;      // for the user, once
};

// A warm process has ended or does not answer. Another one may be asked.
class WarmGone : public Error {
 public:
  explicit WarmGone(const std::string& message, std::string hint = {})
      : Error(ErrorKind::io, message, std::move(hint)) {}
};

class Model : public Answerer {
 public:
  // Only opens the file. The options must outlive the object. Throws Error{usage, model}.
  explicit Model(const Options& options);
  ~Model() override;

  // Finds a warm process or loads the engine, and calls report(). `prefetch` starts to read the first
  // request's prefix from disk while the weights are loaded. Throws as load() does, and Error{io} when --warm
  // only finds no process.
  using Prefetch = Engine::BeforeWeights;
  void begin(const Prefetch& prefetch = {});
  // The most tokens of a request, whatever memory there is. Throws Error{model}.
  int64_t most_context() const;

  // Loads the engine in this process. Throws Error{usage, model, memory}, and what `prefetch` throws.
  void load(const Prefetch& prefetch = {});
  Engine& engine() { return *engine_; }  // once it is loaded
  // Prints the warnings of tokenizer and engine, with --verbose also model and context; nothing with --quiet.
  void report() const;

  // False: the warm process has ended, or is about to end and takes no more requests. reopen() then finds
  // another one or loads the engine, with a line that says so; no request may be under way. Throws as begin()
  // does. While the model is being loaded, signals end the process.
  bool is_open();
  void reopen();

  const GgufFile& file() const { return *file_; }
  const std::string& path() const { return path_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngineFacts& facts() const { return facts_; }  // of the last engine or process

  // The outcome of a request whose warm process has ended or hangs is WarmGone; if it was interrupted, it is
  // what was received.
  int64_t add(Request request, Listener& listener) override {
    return answerer().add(std::move(request), listener);
  }
  bool advance() override { return answerer().advance(); }
  bool is_done(int64_t request) const override { return answerer().is_done(request); }
  GenerationResult take(int64_t request) override { return answerer().take(request); }
  void drop(int64_t request) override { answerer().drop(request); }

 private:
  void open_file();
  void find(const Prefetch& prefetch, const std::optional<WarmGone>& left = {});
  Answerer& answerer() const;

  const Options& options_;
  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GgufFile> file_;  // null after a failed load, then opened again
  std::unique_ptr<WarmClient> warm_;
  std::unique_ptr<Engine> engine_;
  EngineFacts facts_;
};

// Tells models apart by their tensors' names, types and first bytes. Copies of a file have the same digest.
Hash256 rough_digest(const GgufFile& file);

// --cache-dir, else $XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32; empty when user_folder() is.
std::string cache_directory(const Options& options);

// The file's name without folder and ".gguf".
std::string model_name(const std::string& path);

}  // namespace dsv32
