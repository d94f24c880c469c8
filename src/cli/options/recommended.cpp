// See recommended.h.
#include "cli/options/recommended.h"

#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/flags.h"

namespace dsv32 {
namespace {

constexpr const char* kRecommendable[][2] = {{"temp", "general.sampling.temp"},
                                             {"top-k", "general.sampling.top_k"},
                                             {"top-p", "general.sampling.top_p"},
                                             {"min-p", "general.sampling.min_p"}};

// The shortest that is read as the same number.
std::string shortest(float value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

}  // namespace

std::optional<std::string> recommended_value(const GgufFile& file, const std::string& flag) {
  for (const auto& [name, key] : kRecommendable) {
    if (flag != name || !file.has(key)) continue;
    return flag == "top-k" ? std::to_string(*file.get_u32(key)) : shortest(*file.get_f32(key));
  }
  return std::nullopt;
}

Options with_recommended(Options options, const GgufFile& file) {
  for (const auto& [name, key] : kRecommendable) {
    if (options.given.contains(name)) continue;
    const std::optional<std::string> value = recommended_value(file, name);
    if (!value) continue;
    try {
      static_cast<const Flag*>(find_flag(flags_of(options.command), name))->apply(options, *value, key);
      options.generation.sampling.check();
    } catch (const Error& error) {
      fail(ErrorKind::model,
           format("%s recommends %s %s: %s", visible(file.path()).c_str(), key, value->c_str(), error.what()),
           format("--%s N is taken instead", name));
    }
  }
  return options;
}

}  // namespace dsv32
