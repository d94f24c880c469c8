// See inspect_logits.h. The prompt is computed a step at a time, so only one step's logits are in memory.
//
// Values are written as they lie in memory: little-endian is the only byte order that this program runs on.
#include "cli/inspect_logits.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/asked_model.h"
#include "cli/output_file.h"
#include "cli/signals.h"
#include "cli/streams.h"
#include "engine/session.h"

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little);

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string token_text(const std::string& list) {
  return list.starts_with("@") ? read_text(list.substr(1), size_t{64} << 20) : list;
}

std::string_view bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
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
  const std::string text = token_text(options.token_list);
  OutputFile file(options.output_path);
  LoadedModel model(options);
  const std::vector<int32_t> ids = parse_token_list(text, model.engine.args().vocab_size);
  const int64_t context = model.engine.plan().cache.max_context;
  if (static_cast<int64_t>(ids.size()) > context)
    fail(ErrorKind::context_full,
         format("--tokens has %zu ids, the context holds %lld", ids.size(), static_cast<long long>(context)));
  report_model(model, facts_of(model.engine), options);
  const GracefulStop stop;
  Session session(model.engine);
  const size_t chunk = static_cast<size_t>(model.engine.forward().max_tokens());
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    if (stop.is_requested()) return stop.exit_code();
    file.write(
        bytes_of(session.all_logits(std::span(ids).subspan(begin, std::min(chunk, ids.size() - begin)))));
  }
  model.engine.check_file();
  file.commit();
  return 0;
}

}  // namespace dsv32
