#include "tests/support/random_walk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace dsv32 {

namespace {

constexpr int64_t kMostTokens = 3000;

// Whether the end of a text lies within a JSON string, and there behind a backslash.
class StringScan {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      const bool was_escaped = is_escaped;
      is_escaped = is_inside && !was_escaped && byte == '\\';
      if (byte == '"' && !was_escaped) is_inside = !is_inside;
    }
  }
  bool is_inside = false, is_escaped = false;
};

class Walker {
 public:
  Walker(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary, uint64_t seed)
      : constraint_(grammar, vocabulary.trie()),
        vocabulary_(vocabulary),
        random_(seed),
        kind_(seed % 4),
        begins_with_bracket_(seed / 4 % 2 == 1) {}

  Walk run(uint64_t most_free) {
    Walk walk;
    const int64_t n_free = static_cast<int64_t>(random_.below(most_free + 1));
    for (; walk.n_tokens < kMostTokens; ++walk.n_tokens) {
      mask_ = mask_of(constraint_, vocabulary_);
      const int32_t id = walk.n_tokens == 0 && begins_with_bracket_ ? draw_bracket()
                         : walk.n_tokens < n_free                   ? draw_freely()
                                                                    : step_to_an_end();
      if (id < 0) return walk.is_stuck = true, walk;
      if (vocabulary_.tokenizer().is_end_of_generation(id)) return walk;
      constraint_.push(id);
      walk.text += vocabulary_.tokenizer().bytes_of(id);
      scan_.add(vocabulary_.tokenizer().bytes_of(id));
    }
    walk.is_cut = true;
    return walk;
  }

 private:
  int32_t draw_freely() {
    if (kind_ >= 2 && random_.below(3) == 0) return step_to_an_end();
    return kind_ % 2 == 0 ? draw_among_tokens() : draw_by_first_byte();
  }

  int32_t draw_bracket() {
    for (const char byte : {random_.below(2) == 0 ? '{' : '[', '{', '['})
      if (allows(byte)) return vocabulary_.byte_id(static_cast<uint8_t>(byte));
    return draw_freely();
  }

  int32_t draw_among_tokens() {
    uint64_t n_allowed = 0;
    for (const uint32_t word : mask_) n_allowed += static_cast<uint64_t>(std::popcount(word));
    if (n_allowed == 0) return -1;
    int64_t rank = static_cast<int64_t>(random_.below(n_allowed));
    size_t i = 0;
    while (rank >= std::popcount(mask_[i])) rank -= std::popcount(mask_[i++]);
    uint32_t word = mask_[i];
    for (; rank > 0; --rank) word &= word - 1;
    return static_cast<int32_t>(32 * i) + std::countr_zero(word);
  }

  int32_t draw_by_first_byte() {
    std::array<bool, 257> occurs{};
    for_each_allowed([&](int32_t id) { occurs[vocabulary_.first_byte(id)] = true; });
    std::vector<size_t> bytes;
    for (size_t byte = 0; byte < occurs.size(); ++byte)
      if (occurs[byte]) bytes.push_back(byte);
    if (bytes.empty()) return -1;
    const size_t byte = bytes[random_.below(bytes.size())];
    std::vector<int32_t> ids;
    for_each_allowed([&](int32_t id) {
      if (vocabulary_.first_byte(id) == byte) ids.push_back(id);
    });
    return ids[random_.below(ids.size())];
  }

  template <typename Action>
  void for_each_allowed(const Action& action) const {
    for (size_t i = 0; i < mask_.size(); ++i)
      for (uint32_t word = mask_[i]; word != 0; word &= word - 1)
        action(static_cast<int32_t>(32 * i) + std::countr_zero(word));
  }

  bool allows(char byte) const {
    const int32_t id = vocabulary_.byte_id(static_cast<uint8_t>(byte));
    return id >= 0 && is_allowed(mask_, id);
  }

  // The end; else what closes something; else a byte after which something can be closed; else any byte that
  // opens nothing, if there is one.
  int32_t step_to_an_end() {
    for (const int32_t id : vocabulary_.end_ids())
      if (is_allowed(mask_, id)) return id;
    if (scan_.is_inside) return step_to_end_of_string();
    for (const char byte : {'}', ']', '"'})
      if (allows(byte)) return vocabulary_.byte_id(static_cast<uint8_t>(byte));
    if (allows(',')) return vocabulary_.byte_id(',');
    return any_byte([](char byte) { return byte != '{' && byte != '[' && byte != ' '; });
  }

  int32_t step_to_end_of_string() {
    if (!scan_.is_escaped && allows('"')) return vocabulary_.byte_id('"');
    std::vector<char> closing;
    for (int byte = 0; byte < 256; ++byte)
      if (const char c = static_cast<char>(byte); allows(c) && can_close_after(c)) closing.push_back(c);
    if (!closing.empty()) {
      const char byte = closing[random_.below(closing.size())];
      return vocabulary_.byte_id(static_cast<uint8_t>(byte));
    }
    return any_byte([](char byte) { return byte != '\\' && static_cast<uint8_t>(byte) < 0x80; });
  }

  // Whether a quotation mark may come behind the byte, or behind the escape that it begins.
  bool can_close_after(char byte) const {
    const auto closes = [&](const std::string& bytes) { return Constraint(constraint_).take(bytes + '"'); };
    if (byte != '\\' || scan_.is_escaped) return closes({byte});
    const std::string_view letters = "\"\\nt";
    return std::any_of(letters.begin(), letters.end(), [&](char letter) { return closes({byte, letter}); });
  }

  // One of the allowed bytes, of those that `suits`, if there are any; -1 if none is allowed.
  int32_t any_byte(const std::function<bool(char)>& suits) {
    std::vector<int32_t> suitable, others;
    for (int byte = 0; byte < 256; ++byte)
      if (const char c = static_cast<char>(byte); allows(c))
        (suits(c) ? suitable : others).push_back(vocabulary_.byte_id(static_cast<uint8_t>(byte)));
    const std::vector<int32_t>& ids = suitable.empty() ? others : suitable;
    return ids.empty() ? -1 : ids[random_.below(ids.size())];
  }

  Constraint constraint_;
  const ConstrainedVocabulary& vocabulary_;
  SplitMix64 random_;
  const uint64_t kind_;
  const bool begins_with_bracket_;
  StringScan scan_;
  std::vector<uint32_t> mask_;
};

}  // namespace

uint64_t SplitMix64::next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t value = state_;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

Walk random_walk(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary,
                 uint64_t seed, uint64_t most_free) {
  return Walker(grammar, vocabulary, seed).run(most_free);
}

}  // namespace dsv32
