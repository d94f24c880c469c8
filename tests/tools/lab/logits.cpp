// Computes and writes a step at a time, so that only one step's logits are in memory.
#include "tests/tools/lab/logits.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "engine/engine.h"
#include "engine/sequence.h"

namespace dsv32 {

static_assert(std::endian::native == std::endian::little);  // logits are written as they lie in memory

std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size) {
  constexpr std::string_view kSeparators = ", \n\t\r";
  std::vector<int32_t> ids;
  for (size_t at; (at = text.find_first_not_of(kSeparators)) != std::string_view::npos;) {
    text.remove_prefix(at);
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    int32_t id = -1;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), id);
    if (result.ec != std::errc{} || result.ptr != word.data() + word.size() || id < 0 || id >= vocab_size)
      fail(ErrorKind::usage, format("--tokens has '%s', expected ids from 0 to %lld",
                                    visible(word, false, 40).c_str(), as_ll(vocab_size - 1)));
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
  if (ids.empty()) fail(ErrorKind::usage, "--tokens has no ids, expected at least one");
  return ids;
}

int lab_logits(const LabOptions& options) {
  const std::string& list = options.token_list;
  const std::string text = list.starts_with("@") ? read_input(list.substr(1), options) : list;
  if (options.output_path.empty()) fail(ErrorKind::usage, "lab logits needs --tokens IDS and --out FILE");
  const GgufFile model = open_model(options);
  EngineOptions asked = options.engine;
  const std::vector<int32_t> ids = parse_token_list(text, read_model_args(model).vocab_size);
  std::ofstream file(options.output_path == "-" ? "/dev/stdout" : options.output_path, std::ios::binary);
  asked.context = asked.context.value_or(std::ssize(ids));
  Engine engine(model, asked);
  ByHand sequence(engine);
  const auto chunk = static_cast<size_t>(engine.plan().chunk);
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const std::vector<float> logits =
        sequence.all_logits(std::span(ids).subspan(begin, std::min(chunk, ids.size() - begin)));
    file.write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  if (!file.flush()) fail(ErrorKind::io, "cannot write " + visible(options.output_path));
  return 0;
}

}  // namespace dsv32
