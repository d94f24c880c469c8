#include "tests/tools/lab/answers.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "engine/loop.h"
#include "tests/support/generate_by_hand.h"
#include "tests/tools/lab/lab_options.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostAnswerTokens = 48, kMostReasoningTokens = 160;

struct NamedChooser {
  const char* name;
  Chooser chooser;
};
constexpr NamedChooser kChoosers[] = {{"indexer", Chooser::indexer},
                                      {"dense", Chooser::dense},
                                      {"quest", Chooser::quest},
                                      {"recent", Chooser::recent},
                                      {"random", Chooser::random}};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n\t"), end = text.find_last_not_of(" \n\t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

struct AskedPrompt {
  std::vector<int32_t> tokens;
  const AskedPassage::Question* question;
};

std::vector<AskedPrompt> prompts_of(const Tokenizer& tokenizer, const std::vector<AskedPassage>& passages,
                                    bool thinks) {
  std::vector<AskedPrompt> prompts;
  for (const AskedPassage& passage : passages)
    for (const AskedPassage::Question& question : passage.questions)
      prompts.push_back({first_turn(tokenizer, passage, question, thinks), &question});
  return prompts;
}

const char* name_of(Chooser chooser) {
  return std::ranges::find(kChoosers, chooser, &NamedChooser::chooser)->name;
}

}  // namespace

std::vector<Chooser> parse_choosers(const std::string& flag, const std::string& names) {
  std::vector<Chooser> chosen;
  for (const NamedChooser& chooser : kChoosers)
    if (names == "all" || names == chooser.name) chosen.push_back(chooser.chooser);
  if (chosen.empty())
    fail(ErrorKind::usage, format("%s takes one of indexer, dense, quest, recent, random, all, not '%s'",
                                  flag.c_str(), visible(names, false, 40).c_str()));
  return chosen;
}

AnswerTally count_right_answers(const GgufFile& file, EngineOptions options, const Asking& asking,
                                const std::vector<AskedPassage>& passages, const Answered& answered) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  const std::vector<AskedPrompt> prompts = prompts_of(*tokenizer, passages, asking.thinks);
  AnswerTally tally;
  for (const AskedPrompt& prompt : prompts)
    tally.n_prompt_tokens = std::max(tally.n_prompt_tokens, std::ssize(prompt.tokens));
  GenerationOptions generation;
  generation.sampling.temperature = 0;
  generation.max_tokens = kMostAnswerTokens + (asking.thinks ? kMostReasoningTokens : 0);
  generation.thinking = asking.thinks;
  options.context =
      std::min(tally.n_prompt_tokens + generation.max_tokens, read_model_args(file).max_seq_len);
  if (asking.chooser == Chooser::dense) options.select = SelectPolicy::all;
  if (asking.chooser == Chooser::quest) options.select = SelectPolicy::quest;
  if (asking.chooser != Chooser::quest) options.quest_rows.reset();
  Engine engine(file, options);
  ByHand sequence(engine);
  std::optional<ChosenPositions> chosen;
  if (asking.chooser == Chooser::recent || asking.chooser == Chooser::random)
    chosen.emplace(engine, sequence, asking.chooser);
  const auto start = std::chrono::steady_clock::now();
  for (const AskedPrompt& prompt : prompts) {
    Listener silent;
    const GenerationResult result = generate(sequence, *tokenizer, prompt.tokens, generation, silent);
    const std::string answer = trimmed(result.completion.content);
    ++tally.n_questions;
    tally.n_guessed += result.n_guessed, tally.n_accepted += result.n_accepted;
    tally.n_right += answer == prompt.question->answer;
    if (answered) answered(*prompt.question, answer);
  }
  tally.seconds = seconds_since(start);
  return tally;
}

namespace {

void show_wrong(const AskedPassage::Question& question, const std::string& answer) {
  if (answer == question.answer) return;
  write_err(format("%s: '%s', expected '%s'\n", visible(question.ask).c_str(), visible(answer).c_str(),
                   visible(question.answer).c_str()));
}

struct Measured {
  const std::string& path;
  const char* chooser;
  bool thinks;
  AnswerTally tally;
  std::vector<std::string> answers;
};

nlohmann::json as_json(const Measured& measured) {
  return {{"file", measured.path},
          {"chooser", measured.chooser},
          {"thinking", measured.thinks},
          {"prompt_tokens", measured.tally.n_prompt_tokens},
          {"questions", measured.tally.n_questions},
          {"right", measured.tally.n_right},
          {"guessed", measured.tally.n_guessed},
          {"accepted", measured.tally.n_accepted},
          {"seconds", measured.tally.seconds},
          {"answers", measured.answers}};
}

void print_row(const Measured& measured) {
  const AnswerTally& tally = measured.tally;
  write_out(format("%8lld %10s %10lld %10lld %9.1f%% %10.1f %9lld %9lld  %s\n",
                   static_cast<long long>(tally.n_prompt_tokens), measured.chooser,
                   static_cast<long long>(tally.n_questions), static_cast<long long>(tally.n_right),
                   100 * tally.accuracy(), tally.seconds, static_cast<long long>(tally.n_guessed),
                   static_cast<long long>(tally.n_accepted), visible(measured.path).c_str()));
}

}  // namespace

int lab_answers(const LabOptions& options) {
  if (options.words.empty()) fail(ErrorKind::usage, "name a file of questions");
  const GgufFile file(find_model(options));
  nlohmann::json list = nlohmann::json::array();
  if (!options.json)
    write_out(format("%8s %10s %10s %10s %10s %10s %9s %9s  %s\n", "tokens", "chooser", "questions", "right",
                     "accuracy", "seconds", "guessed", "accepted", "file"));
  for (const std::string& path : options.words) {
    const std::vector<AskedPassage> passages = read_passages(path, options.n_passages);
    for (const Chooser chooser : options.choosers) {
      const bool thinks = options.generation.thinking;
      Measured measured{path, name_of(chooser), thinks, {}, {}};
      const auto answered = [&](const AskedPassage::Question& question, const std::string& answer) {
        measured.answers.push_back(answer);
        if (options.shows_wrong) show_wrong(question, answer);
      };
      measured.tally = count_right_answers(file, options.engine, {chooser, thinks}, passages, answered);
      list.push_back(as_json(measured));
      if (!options.json) print_row(measured);
    }
  }
  if (options.json) write_out(list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  return 0;
}

}  // namespace dsv32
