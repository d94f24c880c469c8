// Tokens from the cache count as read, not as computed: rates are of what was computed.
#include "cli/batch/batch_progress.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/terminal.h"

namespace dsv32 {
namespace {

std::string duration(double seconds) {
  if (seconds < 10) return format("%.1f s", seconds);
  if (seconds < 100) return format("%.0f s", seconds);
  if (seconds < 6000) return format("%.0f min", seconds / 60);
  return format("%.0f h", seconds / 3600);
}

}  // namespace

std::string batch_progress(const BatchTally& tally) {
  const int64_t n_left = tally.n_running + tally.n_waiting.value_or(0);
  std::string text = with_thousands(tally.n_done());
  if (tally.n_waiting) text += " / " + with_thousands(tally.n_done() + n_left);
  text += format("  %s failed  %s running", with_thousands(tally.n_all_failed()).c_str(),
                 with_thousands(tally.n_running).c_str());
  if (tally.n_waiting) text += format("  %s waiting", with_thousands(*tally.n_waiting).c_str());
  const int64_t n_here = tally.n_answered + tally.n_failed;
  if (tally.n_waiting && n_here > 0)
    text +=
        "  " + duration(tally.seconds * static_cast<double>(n_left) / static_cast<double>(n_here)) + " left";
  return text + format("  %s t/s in  %s t/s out  %s cached",
                       rate(tally.n_prompt - tally.n_cached, tally.seconds).c_str(),
                       rate(tally.n_generated, tally.seconds).c_str(),
                       with_thousands(tally.n_cached).c_str());
}

std::string batch_summary(const BatchTally& tally) {
  const int64_t n_before = tally.n_answered_before + tally.n_failed_before;
  return format("%s lines: %s answered, %s failed%s; %s tokens in (%s from cache), %s out, in %s, %s t/s out",
                with_thousands(tally.n_done()).c_str(),
                with_thousands(tally.n_answered + tally.n_answered_before).c_str(),
                with_thousands(tally.n_all_failed()).c_str(),
                n_before > 0 ? format(" (%s before)", with_thousands(n_before).c_str()).c_str() : "",
                with_thousands(tally.n_prompt).c_str(), with_thousands(tally.n_cached).c_str(),
                with_thousands(tally.n_generated).c_str(), duration(tally.seconds).c_str(),
                rate(tally.n_generated, tally.seconds).c_str());
}

std::vector<std::string> batch_failures(const BatchTally& tally) {
  constexpr size_t kShownChars = 300;
  const auto counted = [](int64_t n) { return with_thousands(n) + (n == 1 ? " line" : " lines"); };
  std::vector<std::string> lines;
  for (const auto& [status, alike] : tally.failures)
    lines.push_back(format("%s failed with status %d, the first is %s", counted(alike.n).c_str(), status,
                           visible(alike.first, false, kShownChars).c_str()));
  if (tally.n_failed_before > 0)
    lines.push_back(counted(tally.n_failed_before) +
                    " failed in an earlier run, --retry-failed asks for them again");
  return lines;
}

}  // namespace dsv32
