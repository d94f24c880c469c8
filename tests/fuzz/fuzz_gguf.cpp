// libFuzzer: any bytes as a GGUF file either open, and then every getter and every tensor's bytes are sound,
// or give one Error{model} whose message is fit for a terminal. Run by `make fuzz`; the seeds are written by
// `build/make_tiny_model --fuzz-corpus tests/fuzz/corpus`.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "gguf/gguf.h"

namespace {

using namespace dsv32;

void require(bool ok) {
  if (!ok) std::abort();
}

// Runs `action`; the only way it may fail is an Error{model} with a printable message.
void refusal_is_clean(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::model);
    require(visible(error.what()) == error.what());
    require(visible(error.hint()) == error.hint());
  }
}

// Reads the first and the last byte, where the sanitizer watches.
template <typename T>
void touch(std::span<const T> bytes) {
  if (bytes.empty()) return;
  [[maybe_unused]] volatile T first = bytes.front(), last = bytes.back();
}

void ask_everything(const GgufFile& file, std::string_view key) {
  require(file.has(key));
  refusal_is_clean([&] { file.get_u32(key); });
  refusal_is_clean([&] { file.get_f32(key); });
  refusal_is_clean([&] { file.get_bool(key); });
  refusal_is_clean([&] { file.get_string(key); });
  refusal_is_clean([&] { file.get_u32_or_array(key); });
  refusal_is_clean([&] { file.get_i32s(key); });
  refusal_is_clean([&] { file.get_f32s(key); });
  refusal_is_clean([&] {
    const auto texts = file.get_strings(key);
    for (const std::string_view text : *texts) touch(std::span<const char>(text));
  });
}

void open_and_use(std::span<const uint8_t> bytes) {
  const GgufFile file(bytes, "input");
  for (const GgufFile::KeyInfo& row : file.describe_metadata()) {
    require(visible(row.value) == row.value && visible(row.key) == row.key);
    ask_everything(file, row.key);
  }
  for (const GgufTensor& tensor : file.tensors()) {
    require(file.find_tensor(tensor.name) == &tensor);
    require(tensor.data == bytes.data() + tensor.offset);
    const TypeTraits* type = find_traits(tensor.type);
    require((tensor.n_bytes > 0) == (type && type->is_supported));
    require(tensor.offset + tensor.n_bytes <= bytes.size());
    touch(std::span(tensor.data, tensor.n_bytes));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  refusal_is_clean([&] { open_and_use({data, n_bytes}); });
  return 0;
}
