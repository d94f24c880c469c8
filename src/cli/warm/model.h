// A model that answers: its file, and the engine here or a warm process that holds the same model.
//
// Which of the two it is, is decided here, by --warm. When a warm process ends or hangs, what it has not
// answered is asked once more, of another or of the engine here: the same tokens come, and listeners hear
// only what is new.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
// Says what it warns of, unless --quiet.
void report_tokenizer(const Tokenizer& tokenizer, const Options& options);

// What a client of an engine needs to know of it.
struct EngineFacts {
  int64_t vocab_size = 0;
  int64_t context = 0;                    // most tokens of a request
  int64_t max_seqs = 0, pool_tokens = 0;  // requests at a time, and their tokens together
  std::vector<std::string> warnings;      // that a user should hear once
};
EngineFacts facts_of(const Engine& engine);

class Model : public Answerer {
 public:
  // Has prefixes read from disk while the weights are loaded, for what will be asked first.
  using Prefetch = std::function<void(PrefixCache& prefixes, const Tokenizer& tokenizer)>;

  // Opens the file alone. The options must outlive the object. Throws Error{usage, model}.
  explicit Model(const Options& options);
  // Finds a warm process or loads the engine, and reports. Throws as load() does, and Error{io} when with
  // --warm only there is no such process.
  Model(const Options& options, const Prefetch& prefetch);
  ~Model() override;

  // The engine here. Throws Error{usage, model, memory}, and what `prefetch` throws.
  void load(const Prefetch& prefetch = {});
  Engine& engine() { return *engine_; }  // once it is loaded
  // Says what tokenizer and engine warn of, and with --verbose the context; nothing with --quiet.
  void report() const;

  const GgufFile& file() const { return *file_; }
  const std::string& path() const { return path_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngineFacts& facts() const { return facts_; }  // of the engine or process that answers, or did last

  int64_t add(Request request, Listener& listener) override;
  // Throws as the constructor does when another answerer is needed, and what ends the engine's loop. Signals
  // end the process while the model is loaded.
  bool turn() override;
  bool is_done(int64_t request) const override;
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;

  // False: a warm process has ended or says nothing, and going on may mean to load the model.
  bool is_at_hand() const;

 private:
  struct Asked;
  void open_file();
  void find(const Prefetch& prefetch);
  Answerer& answerer();
  void ask_waiting();
  void end_interrupted();
  void turn_warm();
  void take_done();
  void leave_warm(const Error& why);
  bool any(bool (Asked::*is_so)() const) const;

  const Options& options_;
  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GgufFile> file_;  // null after a failed load: it is opened anew
  std::unique_ptr<WarmClient> warm_;
  std::unique_ptr<Engine> engine_;
  EngineFacts facts_;
  std::map<int64_t, std::unique_ptr<Asked>> asked_;
  int64_t n_added_ = 0;
  bool is_warm_ending_ = false;  // it has refused a request
  std::optional<Error> left_;    // why a warm process is asked no more
};

// Tells models apart without reading them whole: the same for copies of a file, wherever they lie.
Hash256 rough_digest(const GgufFile& file);

// --cache-dir, else $XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32; empty when none of them is known.
std::string cache_directory(const Options& options);

// The file's name without folder and ".gguf".
std::string model_name(const std::string& path);

}  // namespace dsv32
