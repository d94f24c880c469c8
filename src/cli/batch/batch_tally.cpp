// BatchTally of batch.h: what a batch says of its progress, its failures and its rest.
#include "base/text.h"
#include "cli/batch/batch.h"

namespace dsv32 {
namespace {

std::string lines_text(int64_t n) { return with_thousands(n) + (n == 1 ? " line" : " lines"); }

}  // namespace

// Rates count only computed tokens, without those from the cache.
std::string batch_progress(const BatchTally& tally) {
  const auto& counted = with_thousands;
  const int64_t n_left = tally.n_running + tally.n_waiting.value_or(0);
  const int64_t n_here = tally.n_answered + tally.n_failed;
  std::string text = counted(tally.n_done());
  if (tally.n_waiting) text += " / " + counted(tally.n_done() + n_left);
  text += "  " + counted(tally.n_all_failed()) + " failed  " + counted(tally.n_running) + " running";
  if (tally.n_waiting) text += "  " + counted(*tally.n_waiting) + " waiting";
  if (tally.n_waiting && n_here > 0)
    text +=
        "  " + duration(tally.seconds * static_cast<double>(n_left) / static_cast<double>(n_here)) + " left";
  const auto& [n_prompt, n_cached, n_generated] = tally.tokens;
  return text + "  " + rate(n_prompt - n_cached, tally.seconds) + " t/s in  " +
         rate(n_generated, tally.seconds) + " t/s out  " + counted(n_cached) + " cached";
}

std::string batch_summary(const BatchTally& tally) {
  const auto& counted = with_thousands;
  const int64_t n_before = tally.n_answered_before + tally.n_failed_before;
  const auto& [n_prompt, n_cached, n_generated] = tally.tokens;
  return lines_text(tally.n_done()) + ": " + counted(tally.n_answered + tally.n_answered_before) +
         " answered, " + counted(tally.n_all_failed()) + " failed" +
         (n_before > 0 ? " (" + counted(n_before) + " before)" : "") + "; " + counted(n_prompt) +
         " tokens in (" + counted(n_cached) + " from cache), " + counted(n_generated) + " out, in " +
         duration(tally.seconds) + ", " + rate(n_generated, tally.seconds) + " t/s out";
}

void BatchTally::add_failure(const std::string& name, const Error& error) {
  std::string kind = std::to_string(status_of(error)) + " ";
  for (const char c : std::string_view(error.what()))
    if (const bool is_digit = c >= '0' && c <= '9'; !is_digit || kind.back() != '0')
      kind += is_digit ? '0' : c;
  const bool is_other = !failures.contains(kind) && failures.size() >= kMostKinds;
  Failures& alike = failures[is_other ? "other" : kind];
  alike.status = is_other ? 0 : status_of(error);
  if (alike.n++ == 0) alike.first = name + error.what() + (error.hint().empty() ? "" : "; " + error.hint());
}

std::vector<std::string> batch_failures(const BatchTally& tally) {
  constexpr size_t kShownChars = 300;
  std::vector<std::string> lines;
  for (const auto& [kind, alike] : tally.failures)
    lines.push_back(
        lines_text(alike.n) +
        (alike.status > 0 ? format(" failed with status %d", alike.status) : " failed otherwise") +
        ", the first is " + visible(alike.first, false, kShownChars));
  if (tally.n_failed_before > 0)
    lines.push_back(lines_text(tally.n_failed_before) +
                    " failed in an earlier run, --retry-failed asks for them again");
  return lines;
}

std::string batch_rest(const BatchTally& tally, bool is_kept) {
  if (tally.n_waiting == 0) return {};
  const std::string goes_on = is_kept ? "; the same command goes on" : "";
  if (!tally.n_waiting) return "the input was not read to its end" + goes_on;
  return (tally.is_estimate ? "about " : "") + lines_text(*tally.n_waiting) +
         (tally.n_waiting == 1 ? " remains" : " remain") + goes_on;
}

}  // namespace dsv32
