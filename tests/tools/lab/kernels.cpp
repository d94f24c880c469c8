// Both kernel families are shown, since a machine may have both.
#include "tests/tools/lab/kernels.h"

#include "backend/choose.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "weights/synthetic.h"

namespace dsv32 {
namespace {

constexpr int kSteps[] = {1, 8, 33};
constexpr int64_t kPromptTokens = 2048;

// "wide 40": the kernel of products in decode, and the tokens that share its reading of the weights.
std::string decode_cell(TensorType type, int n_tokens, KernelFamily family) {
  constexpr const char* kKernels[] = {"float_rows", "float_tiles", "rows", "columns", "wide"};
  const DecodeChoice choice = choose_decode(type, n_tokens, 0, family);
  return format("%s %d", kKernels[static_cast<size_t>(choice.kernel)], choice.width);
}

std::string format_lines(TensorType type, KernelFamily family, const char* name) {
  std::string text = format("%-8s %-8s", type_name(type), name);
  for (const int n : kSteps) text += format(" %-16s", decode_cell(type, n, family).c_str());
  return text + (uses_library(kPromptTokens) && type != TensorType::f32 ? "cuBLASLt\n" : "tiles\n");
}

// How many uses of one of V3.2's experts share a reading of its weights.
std::string uses_line(TensorType type, KernelFamily family, const char* name) {
  const ModelArgs args = full_size_args(61, 3);
  std::string text = format("%-8s %-8s", "uses", name);
  for (const int n : kSteps)
    text += format(" %-16d", std::max(1, choose_run(n, args.n_routed_experts, has_codes(type), family)));
  const bool is_double = family == KernelFamily::hopper &&
                         has_double_tiles(kPromptTokens * args.n_activated_experts, args.n_routed_experts);
  return text + (is_double ? "256\n" : "128\n");
}

}  // namespace

int lab_kernels(const LabOptions& options) {
  std::vector<TensorType> types = options.types;
  if (types.empty())
    for (const std::string& name : type_names()) types.push_back(parse_type({"--type", name}));
  std::string text = format("%-8s %-8s", "format", "family");
  for (const int n : kSteps) text += format(" %-16s", format("%d at a time", n).c_str());
  text += "prompt\n";
  for (const auto& [family, name] :
       {std::pair{KernelFamily::hopper, "hopper"}, {KernelFamily::generic, "generic"}}) {
    for (const TensorType type : types) text += format_lines(type, family, name);
    text += uses_line(types.front(), family, name);
  }
  write_out(text);
  return 0;
}

}  // namespace dsv32
