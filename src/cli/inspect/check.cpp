// `dsv32 check`. Each comparison prints its line at once; the object of --json is printed at the end.
//
// The built-in prompt is repeated until the buffer cannot hold it: a shorter one would compare nothing.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cli/inspect/inspect.h"
#include "cli/options/inputs.h"
#include "cli/options/request_json.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "engine/compare.h"

namespace dsv32 {
namespace {

using Tokens = std::span<const int32_t>;

constexpr int64_t kMostTokens = 4096;  // without -c
constexpr int64_t kPastBuffer = 256;   // tokens of the built-in prompt beyond the buffer's rows
// Least share of positions with the same likeliest token. Different rounding decides near ties of experts and
// rows differently: with a trained model nearly all positions keep their token, with random weights some two
// thirds, with a mistake in the mathematics hardly one in a hundred.
constexpr double kLeastSameChoice = 0.5;

constexpr const char* kText =
    "A lighthouse keeper writes down what the sea does, every hour, for thirty years. The first volumes are "
    "full of adjectives. In the fourth year the adjectives stop, and numbers take their place: the height of "
    "the swell in feet, the bearing of the wind, the number of sails between the island and the horizon. By "
    "the tenth year the keeper has learned which numbers matter. A falling glass and a swell from the south "
    "west mean a gale within nine hours; a rising glass with the same swell means nothing at all. Nobody "
    "asked for this knowledge and nobody came to collect it. When the lamp was made to turn by itself, the "
    "books went to a cellar in town, where a student of tides found them eighty years later, copied 262,800 "
    "lines into a table, and asked one question: on the night of 3 February 1899, at 02:00, what did the "
    "keeper see? The line reads: \"Swell 14 ft, WSW 7, glass 28.91 and falling, one light, moving east, not "
    "answering.\" Everything before it is needed to know that this was unusual, and almost none of it is "
    "needed to say why.\n\n";

class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  void add(bool is_passed, const std::string& what, const std::string& text, const Json& fields) {
    add(is_passed ? "passed" : "failed", what, text, fields);
    all_passed_ &= is_passed;
  }
  void skip(const std::string& what, const std::string& text) { add("skipped", what, text, Json::object()); }

  int finish(size_t n_tokens) const {
    const Json report{{"passed", all_passed_}, {"tokens", n_tokens}, {"checks", checks_}};
    if (json_) write_out(shown_json(report) + "\n");
    return all_passed_ ? 0 : 1;
  }

 private:
  void add(const char* result, const std::string& what, const std::string& text, const Json& fields) {
    if (!json_) write_out(format("%-7s  %s: %s\n", result, what.c_str(), text.c_str()));
    Json check{{"check", what}, {"result", result}, {"text", text}};
    check.update(fields);
    checks_.push_back(std::move(check));
  }

  bool json_, all_passed_ = true;
  Json checks_ = Json::array();
};

// `options`: the backend, and the rows of the small buffer; no rows when every row is read.
void check_buffer(Report& report, const GgufFile& file, const EngineOptions& options, Tokens tokens) {
  const std::string what = options.backend + ", top-k buffer against full residency";
  if (!options.topk_buffer) return report.skip(what, "every row is read");
  const int64_t n_rows = *options.topk_buffer;
  if (std::ssize(tokens) <= n_rows)
    return report.skip(what, format("%zu tokens fit %lld rows", tokens.size(), as_ll(n_rows)));
  EngineOptions full = options;
  full.topk_buffer = kEveryRow;
  const DecodeEquality found = compare_decode(file, options, full, tokens);
  const bool is_equal = found.first_unequal_pos < 0;
  const std::string where =
      format("the logits at position %lld differ or are not finite", as_ll(found.first_unequal_pos));
  report.add(is_equal, what,
             format("%lld decode steps up to %zu tokens with %lld rows, %lld of %lld rows fetched, %s",
                    as_ll(found.n_steps), tokens.size(), as_ll(n_rows), as_ll(found.tally.n_misses),
                    as_ll(found.tally.n_rows), is_equal ? "the same bits" : where.c_str()),
             {{"buffer_rows", n_rows},
              {"decode_steps", found.n_steps},
              {"rows", found.tally.n_rows},
              {"misses", found.tally.n_misses},
              {"first_unequal_pos", found.first_unequal_pos}});
}

// What Quest loses against dense attention. Passes as long as the numbers are finite.
void check_selection(Report& report, const GgufFile& file, EngineOptions options, Tokens tokens) {
  if (options.select != SelectPolicy::quest) return;
  options.topk_buffer = kEveryRow;
  const SelectionLoss found = compare_selection(file, options, tokens);
  report.add(
      std::isfinite(found.kept + found.mean_difference), options.backend + ", quest against every row",
      format("%.1f %% of the attention's weight is kept over %lld decode steps up to %zu tokens, %.1f %% "
             "in the worst layer of a step; the same likeliest token in %lld steps; the prompt's "
             "log-probabilities differ by %.3f, at most %.3f",
             100 * found.kept, as_ll(found.n_steps), tokens.size(), 100 * found.least_kept,
             as_ll(found.n_same_choice), found.mean_difference, found.largest_difference),
      {{"kept_weight", found.kept},
       {"least_kept_weight", found.least_kept},
       {"decode_steps", found.n_steps},
       {"same_choice", found.n_same_choice},
       {"mean_difference", found.mean_difference},
       {"largest_difference", found.largest_difference}});
}

// `options`: the backend.
void check_cuts(Report& report, const GgufFile& file, EngineOptions options, Tokens tokens) {
  options.topk_buffer = kEveryRow;
  Engine engine(file, options);
  const CutEquality found = compare_cuts(engine, tokens);
  const bool is_equal = found.first_unequal.empty();
  const std::string other =
      format("the last logits %s differ or are not finite", found.first_unequal.c_str());
  report.add(is_equal, options.backend + ", a prompt in any chunks",
             format("%zu tokens at once, in other steps and after held ones, %lld ways, %s", tokens.size(),
                    as_ll(found.n_ways), is_equal ? "the same bits" : other.c_str()),
             {{"ways", found.n_ways}, {"first_unequal", found.first_unequal}});
}

std::string where_text(const Deviation& found) {
  if (found.first_pos < 0) return {};
  std::string text =
      format("; first deviation over %g: position %lld, ", kDeviationTolerance, as_ll(found.first_pos));
  if (found.layer < 0) return text + "in the logits alone";
  return text + format("layer %lld, %s (%.2g)", as_ll(found.layer), found.name.c_str(), found.deviation);
}

void check_against_cpu(Report& report, const GgufFile& file, EngineOptions options, Tokens tokens) {
  options.topk_buffer = kEveryRow;
  options.backend = "cuda";
  Engine reference(file, for_cpu(options)), engine(file, options);
  const Deviation found = compare_engines(engine, reference, tokens);
  const double share = static_cast<double>(found.n_same_choice) / static_cast<double>(found.n_rows);
  report.add(
      share >= kLeastSameChoice, "cuda against cpu",
      format("the same likeliest token in %.1f %% of %lld rows, largest deviation %.2g at position %lld%s",
             100 * share, as_ll(found.n_rows), found.largest, as_ll(found.largest_pos),
             where_text(found).c_str()),
      {{"rows", found.n_rows},
       {"same_choice", share},
       {"largest_deviation", found.largest},
       {"largest_pos", found.largest_pos},
       {"first_pos", found.first_pos},
       {"layer", found.layer},
       {"stage", found.name},
       {"stage_deviation", found.deviation}});
}

// Why no GPU is checked; empty when one is. With --backend cuda throws Error{usage} or Error{device} instead.
std::string absence_of_cuda(const EngineOptions& options) {
  const std::string found =
      make_backends(options, [](const Backends&, size_t) { return true; }).front()->name();
  if (found == "cuda") return {};
  if (options.backend == "cpu") return "not checked because of --backend cpu";
  const std::string why = why_no_gpu(options);
  return why.empty() ? "not in this build" : why;
}

// The prompt's tokens, at most `n_most`; the built-in text is repeated until it has `n_least`.
std::vector<int32_t> prompt_tokens(const Options& options, const GgufFile& file, size_t n_least,
                                   size_t n_most) {
  const bool is_given = options.prompt || !options.words.empty() || !options.files.empty();
  ChatRequest request;
  request.is_raw = true;
  request.prompt = is_given ? read_prompt(options, true) : PromptText{{}, kText};
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  report_tokenizer(*tokenizer, options);
  std::vector<int32_t> ids = prompt_of(request, *tokenizer).ids;
  if (!is_given) {
    const std::vector<int32_t> again = tokenizer->encode(kText, false);
    while (ids.size() < n_least) ids.insert(ids.end(), again.begin(), again.end());
  }
  ids.resize(std::min(ids.size(), n_most));
  return ids;
}

}  // namespace

int check_command(const Options& options) {
  const GgufFile file = open_model(options);
  const ModelArgs args = with_selector(read_model_args(file), options.engine);
  EngineOptions engine = options.engine;
  engine.model_path = file.path();
  engine.context = options.engine.context.value_or(std::min(kMostTokens, args.max_seq_len));
  if (!engine.topk_buffer && args.topk() > 0) engine.topk_buffer = args.topk();
  make_plan(args, engine, {});  // throws unless the flags fit the model
  const int64_t n_least = options.engine.context.value_or(engine.topk_buffer.value_or(0) + kPastBuffer);
  const std::vector<int32_t> tokens =
      prompt_tokens(options, file, static_cast<size_t>(n_least), static_cast<size_t>(*engine.context));
  engine.context = static_cast<int64_t>(tokens.size());

  const std::string absence = absence_of_cuda(engine);
  Report report(options.json);
  std::vector<EngineOptions> checked{for_cpu(engine)};
  if (absence.empty()) checked.push_back(engine), checked.back().backend = "cuda";
  for (const EngineOptions& one : checked) {
    check_buffer(report, file, one, tokens);
    check_cuts(report, file, one, tokens);
    check_selection(report, file, one, tokens);
  }
  if (absence.empty())
    check_against_cpu(report, file, engine, tokens);
  else
    report.skip("cuda", absence);
  file.check_unchanged();
  return report.finish(tokens.size());
}

}  // namespace dsv32
