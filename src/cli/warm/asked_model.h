// A model that can be asked: by the engine here, or by a warm process that holds the same one.
//
// Which of them it is, is decided here, by --warm, and nowhere else. When a warm process ends, hangs or is to
// end, what it has not answered is asked once more, of another or of the engine here: the same tokens come,
// and who listens hears only what is new.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "cli/warm/loaded_model.h"

namespace dsv32 {

class WarmClient;

class AskedModel : public Answerer {
 public:
  // Loads it unless a warm process has it (warm_path()). Says what it warns of, and with --verbose who
  // answers. Throws as LoadedModel does, and Error{io} when with --warm only there is no such process.
  explicit AskedModel(const Options& options, const LoadedModel::Prefetch& prefetch = {});
  ~AskedModel() override;

  const ModelFile& opened() const { return here_ ? *here_ : *file_; }  // until somebody is asked
  const std::string& path() const { return path_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngineFacts& facts() const { return facts_; }  // of who answers, or did last

  int64_t add(Request request, Listener& listener) override;
  // Throws as the constructor does when somebody else is to be asked, and what ends the engine's loop.
  // Signals end the process while the model is loaded.
  bool turn() override;
  bool is_done(int64_t request) const override;
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;

  // False: a warm process has ended or says nothing, and going on may mean to load the model.
  bool is_at_hand() const;

 private:
  struct Asked;
  void find(const LoadedModel::Prefetch& prefetch);
  Answerer& answerer();
  void ask_waiting();
  void end_interrupted();
  void turn_warm();
  void take_done();
  void leave_warm(const Error& why);
  bool is_any_asked() const;
  bool is_any_waiting() const;

  const Options& options_;
  std::string path_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<ModelFile> file_;  // unless the engine is here
  std::unique_ptr<WarmClient> warm_;
  std::unique_ptr<LoadedModel> here_;
  EngineFacts facts_;
  std::map<int64_t, std::unique_ptr<Asked>> asked_;
  int64_t n_added_ = 0;
  bool is_warm_ending_ = false;  // it has refused a request
  std::optional<Error> left_;    // why a warm process is asked no more
};

// Warnings of the tokenizer and the engine, and with --verbose its context; nothing with --quiet.
void report_model(const ModelFile& model, const EngineFacts& facts, const Options& options);

}  // namespace dsv32
