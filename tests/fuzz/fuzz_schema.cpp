// libFuzzer: any text as a constraint either compiles, and then no mask along a walk is empty and takes what
// it allows, or gives one Error{usage} whose message is fit for a terminal. Run by `make fuzz`; the seeds are
// the golden schemas.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "constrain/constraint.h"
#include "tests/support/bpe_vocabulary.h"
#include "text/tokenizer.h"

namespace {

using namespace dsv32;

constexpr size_t kMostTokens = 48;

void require(bool ok) {
  if (!ok) std::abort();
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> made = Tokenizer::make(bpe_vocabulary());
  return *made;
}

std::vector<int32_t> allowed_ids(Constraint& constraint) {
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer().n_vocab()) + 31) / 32);
  constraint.write_mask(mask);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer().n_vocab(); ++id)
    if (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
  return ids;
}

// The bytes of the input choose among the tokens.
void walk(const std::shared_ptr<Grammar>& grammar, std::string_view choices) {
  static const std::shared_ptr<const TokenTrie> trie = std::make_shared<const TokenTrie>(tokenizer());
  Constraint constraint(grammar, trie);
  for (size_t i = 0; i < kMostTokens; ++i) {
    const std::vector<int32_t> ids = allowed_ids(constraint);
    require(!ids.empty());
    const size_t choice = static_cast<uint8_t>(choices[i % choices.size()]) * 7919 + i;
    const int32_t id = ids[choice % ids.size()];
    if (tokenizer().is_end_of_generation(id)) return require(constraint.is_complete());
    Constraint by_bytes = constraint;
    require(by_bytes.take(tokenizer().bytes_of(id)));
    constraint.push(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), n_bytes);
  try {
    walk(compile_constraint(text), text);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::usage);
    require(visible(error.what()) == error.what());
  }
  return 0;
}
