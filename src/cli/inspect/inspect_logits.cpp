// See inspect_logits.h. The prompt is computed a step at a time, so only one step's logits are in memory.
//
// Values are written as they lie in memory: little-endian is the only byte order that this program runs on.
#include "cli/inspect/inspect_logits.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/prompt.h"
#include "cli/terminal/output_file.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/warm/asked_model.h"
#include "engine/by_hand.h"
#include "engine/sampler.h"

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little);

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string token_text(const Options& options) {
  return options.token_list.starts_with("@") ? read_input(options.token_list.substr(1), options)
                                             : options.token_list;
}

std::string_view bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// As the sampler does, of rows of `vocab_size`.
void check_finite(const std::vector<float>& logits, int64_t vocab_size) {
  const auto found = std::ranges::find_if_not(logits, [](float value) { return std::isfinite(value); });
  if (found == logits.end()) return;
  const auto id = static_cast<int32_t>((found - logits.begin()) % vocab_size);
  TokenRecord{.chosen = {id, *found}, .top = {}, .is_finite = false}.check();
}

}  // namespace

std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size();) {
    if (is_separator(text[at])) {
      ++at;
      continue;
    }
    const size_t end = static_cast<size_t>(
        std::find_if(text.begin() + static_cast<ptrdiff_t>(at), text.end(), is_separator) - text.begin());
    int32_t id = -1;
    const auto result = std::from_chars(text.data() + at, text.data() + end, id);
    if (result.ec != std::errc{} || result.ptr != text.data() + end || id < 0 || id >= vocab_size)
      fail(ErrorKind::usage, format("--tokens has '%s', expected ids from 0 to %lld",
                                    visible(text.substr(at, end - at), false, 40).c_str(),
                                    static_cast<long long>(vocab_size - 1)));
    ids.push_back(id);
    at = end;
  }
  if (ids.empty()) fail(ErrorKind::usage, "--tokens has no ids, expected at least one");
  return ids;
}

int inspect_logits(const Options& options) {
  const std::string text = token_text(options);
  OutputFile file(options.output_path);
  LoadedModel model(options);
  const std::vector<int32_t> ids = parse_token_list(text, model.engine.args().vocab_size);
  const int64_t context = model.engine.plan().cache.max_context;
  if (static_cast<int64_t>(ids.size()) > context)
    fail(ErrorKind::context_full,
         format("--tokens has %zu ids, the context holds %lld", ids.size(), static_cast<long long>(context)));
  report_model(model, facts_of(model.engine), options);
  const GracefulStop stop;
  ByHand session(model.engine);
  const size_t chunk = static_cast<size_t>(model.engine.forward().max_tokens());
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    if (stop.is_requested()) return stop.end();
    const auto part = std::span(ids).subspan(begin, std::min(chunk, ids.size() - begin));
    const std::vector<float> logits = session.all_logits(part);
    check_finite(logits, model.engine.args().vocab_size);
    file.write(bytes_of(logits));
  }
  model.engine.check_file();
  file.commit();
  return 0;
}

}  // namespace dsv32
