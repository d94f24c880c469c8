// See asked_model.h.
#include "cli/warm/asked_model.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "cli/options/model_lookup.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/told_text.h"
#include "cli/warm/warm_client.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

// Null: the model is to be loaded here. `left`: the process that was asked before, if one was.
std::unique_ptr<WarmClient> find_warm(const Options& options, const GgufFile& file,
                                      const std::optional<Error>& left) {
  if (options.warm == WarmUse::never) return nullptr;
  Error why = left.value_or(Error(ErrorKind::io, "no warm process holds this model with these flags"));
  bool is_told = options.verbose;
  try {
    const std::string path = warm_path(options, file);
    std::unique_ptr<WarmClient> client = WarmClient::connect(path);
    if (client && options.verbose) say("warm: answers come from " + path);
    if (client) return client;
  } catch (const WarmGone& gone) {
    why = gone, is_told = !options.quiet;  // or nobody knows why it takes so long
  } catch (const Error& error) {
    why = error;
  }
  if (options.warm == WarmUse::only)
    fail(ErrorKind::io, why.what(),
         !why.hint().empty() ? why.hint()
                             : "dsv32 warm start with the same -m and flags; dsv32 warm status lists those "
                               "there are");
  if (is_told) say(std::string("warm: ") + why.what() + "; it is loaded here");
  return nullptr;
}

}  // namespace

// A request until it is taken, and its listener: who answers it anew comes by the same text.
struct AskedModel::Asked : Listener {
  Asked(Request its_request, Listener& its_listener)
      : request(std::move(its_request)),
        listener(its_listener),
        n_prompt_tokens(std::ssize(request.prompt)) {}

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
    thinking.begin_anew(), answer.begin_anew();
    if (thinking.is_empty() && answer.is_empty()) listener.on_prefill(n_done, n_total, n_cached);
  }
  void on_reasoning(const std::string& text) override {
    if (const std::string news = thinking.news(text); !news.empty())
      listener.on_reasoning(news), ++n_thinking;
  }
  void on_answer(const std::string& text) override {
    if (const std::string news = answer.news(text); !news.empty()) listener.on_answer(news), ++n_answer;
  }
  bool is_interrupted() override { return listener.is_interrupted(); }

  // As far as it was heard: a piece of text is a token, near enough.
  GenerationResult interrupted() const {
    GenerationResult result;
    result.completion = {thinking.told(), answer.told(), n_thinking > 0 && n_answer > 0};
    result.finish_reason = FinishReason::interrupted;
    result.n_prompt_tokens = n_prompt_tokens;
    result.n_completion_tokens = n_thinking + n_answer, result.n_thinking_tokens = n_thinking;
    result.decoded = request.decoded;
    return result;
  }

  bool is_done() const { return outcome.index() != 0; }
  bool is_waiting() const { return !is_done() && !number; }

  Request request;  // until the engine here has it
  Listener& listener;
  const int64_t n_prompt_tokens;
  ToldText thinking, answer;
  int64_t n_thinking = 0, n_answer = 0;
  std::optional<int64_t> number;  // who answers knows it by
  std::variant<std::monostate, GenerationResult, std::exception_ptr> outcome;
};

AskedModel::AskedModel(const Options& options, const LoadedModel::Prefetch& prefetch)
    : options_(options), file_(std::make_unique<ModelFile>(options)) {
  path_ = file_->file.path();
  tokenizer_ = file_->tokenizer;
  find(prefetch);
}

AskedModel::~AskedModel() = default;

void AskedModel::find(const LoadedModel::Prefetch& prefetch) {
  const EndsAtOnce ends;
  if (!file_) file_ = std::make_unique<ModelFile>(options_);
  warm_ = find_warm(options_, file_->file, left_);
  is_warm_ending_ = false;
  if (!warm_) {
    const std::unique_ptr<ModelFile> file = std::move(file_);
    here_ = std::make_unique<LoadedModel>(std::move(*file), options_, prefetch);
  }
  facts_ = warm_ ? warm_->facts() : facts_of(here_->engine);
}

Answerer& AskedModel::answerer() { return warm_ ? static_cast<Answerer&>(*warm_) : here_->engine.loop(); }

int64_t AskedModel::add(Request request, Listener& listener) {
  asked_[n_added_] = std::make_unique<Asked>(std::move(request), listener);
  return n_added_++;
}

bool AskedModel::turn() {
  if (!warm_ && !here_) end_interrupted();
  if (is_any_waiting() && !warm_ && !here_) find({});
  if (!is_warm_ending_) ask_waiting();
  if (warm_)
    turn_warm();
  else if (here_)
    here_->engine.loop().turn();
  take_done();
  if (is_warm_ending_ && !is_any_asked()) leave_warm(Error(ErrorKind::io, "the warm process ended"));
  return !std::ranges::all_of(asked_, [](const auto& row) { return row.second->is_done(); });
}

// Nobody is asked any more, and for their sake nobody need be.
void AskedModel::end_interrupted() {
  for (const auto& [number, asked] : asked_)
    if (asked->is_waiting() && asked->is_interrupted()) asked->outcome = asked->interrupted();
}

void AskedModel::ask_waiting() {
  for (const auto& [number, asked] : asked_)
    if (asked->is_waiting()) try {
        asked->number = answerer().add(warm_ ? asked->request : std::move(asked->request), *asked);
      } catch (const std::exception&) {
        asked->outcome = std::current_exception();
      }
}

void AskedModel::turn_warm() {
  try {
    warm_->turn();
  } catch (const WarmGone& gone) {
    take_done();
    leave_warm(gone);
  }
}

void AskedModel::take_done() {
  for (const auto& [number, asked] : asked_) {
    if (asked->is_done() || !asked->number || !answerer().is_done(*asked->number)) continue;
    const int64_t its = *asked->number;
    if (warm_ && warm_->is_refused(its)) {
      warm_->drop(its);
      asked->number.reset();
      is_warm_ending_ = true;
      continue;
    }
    try {
      asked->outcome = answerer().take(its);
    } catch (const std::exception&) {
      asked->outcome = std::current_exception();
    }
  }
}

// What it has not answered waits for another.
void AskedModel::leave_warm(const Error& why) {
  left_ = why;
  warm_.reset();
  is_warm_ending_ = false;
  for (const auto& [number, asked] : asked_) asked->number.reset();
  end_interrupted();
  for (const auto& [number, asked] : asked_)
    if (asked->is_waiting() && !options_.quiet && options_.warm != WarmUse::only)
      return asked->listener.on_notice(std::string(why.what()) + ": the model is opened anew");
}

bool AskedModel::is_any_asked() const {
  return std::ranges::any_of(asked_,
                             [](const auto& row) { return !row.second->is_done() && row.second->number; });
}

bool AskedModel::is_any_waiting() const {
  return std::ranges::any_of(asked_, [](const auto& row) { return row.second->is_waiting(); });
}

bool AskedModel::is_done(int64_t request) const { return asked_.at(request)->is_done(); }

GenerationResult AskedModel::take(int64_t request) {
  const std::unique_ptr<Asked> asked = std::move(asked_.extract(request).mapped());
  if (const auto* error = std::get_if<std::exception_ptr>(&asked->outcome)) std::rethrow_exception(*error);
  return std::get<GenerationResult>(std::move(asked->outcome));
}

void AskedModel::drop(int64_t request) {
  const auto asked = asked_.extract(request);
  if (!asked.empty() && !asked.mapped()->is_done() && asked.mapped()->number)
    answerer().drop(*asked.mapped()->number);
}

bool AskedModel::is_at_hand() const {
  constexpr double kQuietSeconds = 5;  // of a process that says something every second, between its steps
  return here_ || (warm_ && warm_->seconds_silent() < kQuietSeconds);
}

void report_model(const ModelFile& model, const EngineFacts& facts, const Options& options) {
  report_tokenizer(*model.tokenizer, options);
  if (options.quiet) return;
  for (const std::string& warning : facts.warnings) say("warning: " + warning);
  if (options.verbose || is_stopgap(options, model.file.path())) say("model: " + model.file.path());
  if (options.verbose) say(format("context: %s tokens", with_thousands(facts.context).c_str()));
}

}  // namespace dsv32
