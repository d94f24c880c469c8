// Byte-level BPE, the tokenizer of DeepSeek-V3.2: split into words, then merge the bytes of each word.
//
// The file writes every byte as one printable character (a space is Ġ), as GPT-2 does: printable bytes of
// Latin-1 stand for themselves, the other 68 follow in order from U+0100. A word starts as its byte tokens;
// then the pair of neighbours with the lowest rank becomes one token, the leftmost of equals first, until no
// pair has a rank. A heap of pairs over a linked list of tokens does this in O(n log n), so even a word of a
// megabyte is fast.
#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace dsv32 {
namespace {

constexpr uint32_t kAlphabetEnd = 0x100 + 68;
constexpr size_t kMaxCachedWord = 64;  // bytes; longer words seldom repeat

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// The byte that each character of the alphabet stands for; -1 for other characters.
constexpr std::array<int, kAlphabetEnd> kByteOfChar = [] {
  std::array<int, kAlphabetEnd> byte_of_char{};
  byte_of_char.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte)
    byte_of_char[stands_for_itself(byte) ? byte : next++] = static_cast<int>(byte);
  return byte_of_char;
}();

// A token with a character outside the alphabet is returned unchanged.
std::string bytes_of_bpe_text(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    uint32_t code_point = 0;
    const int n_bytes = decode_utf8(token, at, &code_point);
    if (n_bytes == 0 || code_point >= kAlphabetEnd || kByteOfChar[code_point] < 0) return token;
    bytes += static_cast<char>(kByteOfChar[code_point]);
    at += static_cast<size_t>(n_bytes);
  }
  return bytes;
}

// From a pair of neighbouring tokens to its rank, the order of the lines in the file: lower goes first.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  using Find = std::function<std::optional<int32_t>(std::string_view name)>;

  // `lines` are "left right"; `find` returns the id of the token of that name if text may become it. A line
  // is skipped if `find` fails for left, right or both joined. Throws Error{model} for a line of another form
  // and a pair that occurs twice.
  MergeTable(const std::vector<std::string>& lines, const Find& find) {
    ranks_.reserve(lines.size());
    size_t first_skipped = 0;
    for (size_t number = 0; number < lines.size(); ++number) {
      const std::string_view line = lines[number];
      const size_t space = line.find(' ');
      if (space == line.npos || space == 0 || space + 1 == line.size() || space != line.rfind(' '))
        fail_line(lines, number, "is not of the form \"left right\"");
      const std::string left_text(line.substr(0, space)), right_text(line.substr(space + 1));
      const std::optional<int32_t> left = find(left_text), right = find(right_text);
      const std::optional<int32_t> result = find(left_text + right_text);
      if (!left || !right || !result) {
        if (results_.size() == number) first_skipped = number;
        continue;
      }
      if (!ranks_.emplace(pair_of(*left, *right), static_cast<uint32_t>(results_.size())).second)
        fail_line(lines, number, "occurs twice");
      results_.push_back(*result);
    }
    if (const size_t n_skipped = lines.size() - results_.size(); n_skipped > 0)
      warning_ = format(
          "%zu of %zu tokenizer.ggml.merges are passed over, as they join or make what is no token of "
          "text, such as %s",
          n_skipped, lines.size(), shown(lines, first_skipped).c_str());
  }

  // The rank of the pair, or kNone.
  uint32_t rank(int32_t left, int32_t right) const {
    const auto found = ranks_.find(pair_of(left, right));
    return found == ranks_.end() ? kNone : found->second;
  }
  // The token that the pair of that rank becomes.
  int32_t result(uint32_t rank) const { return results_[rank]; }
  // How many lines were skipped, with the first as an example; empty if none was.
  const std::string& warning() const { return warning_; }

 private:
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static std::string shown(const std::vector<std::string>& lines, size_t number) {
    return format("line %zu, \"%s\"", number, visible(lines[number], false, 80).c_str());
  }
  [[noreturn]] static void fail_line(const std::vector<std::string>& lines, size_t number,
                                     const char* problem) {
    fail(ErrorKind::model, "tokenizer.ggml.merges " + shown(lines, number) + ", " + problem);
  }

  std::unordered_map<uint64_t, uint32_t> ranks_;
  std::vector<int32_t> results_;  // by rank
  std::string warning_;
};

// Merges the tokens of a word; the memory is reused for the next word. A token's place is the index of its
// first byte in the word.
class Word {
 public:
  Word(const MergeTable& merges, std::vector<int32_t>& out) : merges_(merges), out_(out) {}

  // Appends the tokens of a word whose bytes have these ids.
  void encode(const std::vector<int32_t>& byte_ids) {
    ids_ = byte_ids;
    n_ = static_cast<uint32_t>(ids_.size());
    prev_.resize(n_), next_.resize(n_), rank_.resize(n_), heap_.clear();
    for (uint32_t place = 0; place < n_; ++place) {
      prev_[place] = place - 1;  // meaningless for the first place, and never read there
      next_[place] = place + 1;
    }
    for (uint32_t place = 0; place < n_; ++place) add_pair(place);
    while (!heap_.empty()) merge_first();
    for (uint32_t place = 0; place < n_; place = next_[place]) out_.push_back(ids_[place]);
  }

 private:
  void add_pair(uint32_t place) {
    const uint32_t next = next_[place];
    rank_[place] = next == n_ ? MergeTable::kNone : merges_.rank(ids_[place], ids_[next]);
    if (rank_[place] == MergeTable::kNone) return;
    heap_.push_back(static_cast<uint64_t>(rank_[place]) << 32 | place);
    std::ranges::push_heap(heap_, std::greater<>());
  }

  // A merge leaves the heap's entries of pairs that it changed: an entry whose rank is no longer that of its
  // place is skipped. A pair never returns to its place, since tokens only grow.
  void merge_first() {
    std::ranges::pop_heap(heap_, std::greater<>());
    const auto rank = static_cast<uint32_t>(heap_.back() >> 32), place = static_cast<uint32_t>(heap_.back());
    heap_.pop_back();
    if (rank_[place] != rank) return;
    const uint32_t right = next_[place];
    ids_[place] = merges_.result(rank);
    rank_[right] = MergeTable::kNone;
    next_[place] = next_[right];
    if (next_[place] != n_) prev_[next_[place]] = place;
    add_pair(place);
    if (place != 0) add_pair(prev_[place]);
  }

  const MergeTable& merges_;
  std::vector<int32_t>& out_;
  uint32_t n_ = 0;  // bytes
  std::vector<int32_t> ids_;
  std::vector<uint32_t> prev_, next_;  // places of the tokens before and after; n_ at the end
  std::vector<uint32_t> rank_;         // of the pair that begins here, or MergeTable::kNone
  std::vector<uint64_t> heap_;         // rank << 32 | place; the smallest comes first
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary given)
      : Tokenizer(std::move(given), bytes_of_bpe_text),
        pre_tokenizer_(vocabulary().pre),
        merges_(vocabulary().merges, [this](std::string_view name) { return find_normal(name); }) {
    for (uint32_t c = 0; c < kAlphabetEnd; ++c) {
      if (kByteOfChar[c] < 0) continue;
      std::string name;
      append_utf8(name, c);
      const std::optional<int32_t> id = find_normal(name);
      if (!id)
        fail(ErrorKind::model, format("tokenizer.ggml.tokens has no token for byte 0x%02x", kByteOfChar[c]));
      set_byte_id(static_cast<uint8_t>(kByteOfChar[c]), *id);
    }
  }
  std::string warning() const override { return merges_.warning(); }

 protected:
  // Words repeat in a text; the cache has the range of `ids` where a word was encoded first.
  void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const override {
    struct Range {
      size_t begin, n_ids;
    };
    std::unordered_map<std::string_view, Range> cache;
    Word work(merges_, ids);
    std::vector<int32_t> byte_ids;
    for (const std::string_view word : pre_tokenizer_.split(text)) {
      const size_t begin = ids.size();
      const bool is_cached = word.size() > 1 && word.size() <= kMaxCachedWord;
      if (const auto known = is_cached ? cache.find(word) : cache.end(); known != cache.end()) {
        for (size_t i = 0; i < known->second.n_ids; ++i) ids.push_back(ids[known->second.begin + i]);
        continue;
      }
      byte_ids.clear();
      for (const char byte : word) byte_ids.push_back(byte_id(byte));
      work.encode(byte_ids);
      if (is_cached) cache[word] = {begin, ids.size() - begin};
    }
  }

 private:
  // Only normal tokens may be merged or made: with merges that spell a control token, text could forge it.
  std::optional<int32_t> find_normal(std::string_view name) const {
    const std::optional<int32_t> id = find(name);
    return id && type_of(*id) == TokenType::normal ? id : std::nullopt;
  }

  PreTokenizer pre_tokenizer_;
  MergeTable merges_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(Vocabulary vocabulary) {
  return std::make_unique<BpeTokenizer>(std::move(vocabulary));
}

}  // namespace dsv32
