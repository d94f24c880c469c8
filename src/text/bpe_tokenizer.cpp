// The byte alphabet and the merge loop.
//
// The alphabet is that of GPT-2: printable bytes of Latin-1 stand for themselves, the other 68 follow in
// order from U+0100. The loop keeps the word as a linked list of tokens in arrays, and a heap of the pairs
// that may merge.
#include "text/bpe_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr uint32_t kAlphabetEnd = 0x100 + 68;
constexpr size_t kMaxCachedWord = 64;  // bytes; longer words seldom come twice

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// The byte that each character of the alphabet stands for; -1 for other characters.
constexpr std::array<int, kAlphabetEnd> make_byte_of_char() {
  std::array<int, kAlphabetEnd> byte_of_char{};
  byte_of_char.fill(-1);
  uint32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t c = static_cast<uint32_t>(byte);
    byte_of_char[stands_for_itself(c) ? c : next++] = byte;
  }
  return byte_of_char;
}

constexpr std::array<int, kAlphabetEnd> kByteOfChar = make_byte_of_char();

// A token that strays from the alphabet means what it says.
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

}  // namespace

// A merge may only make normal tokens: a file whose merges spell a control token would let text forge one.
BpeTokenizer::BpeTokenizer(Vocabulary given)
    : Tokenizer(std::move(given), bytes_of_bpe_text),
      merges_(vocabulary().merges, [this](std::string_view name) {
        const std::optional<int32_t> id = find(name);
        return id && type_of(*id) == TokenType::normal ? id : std::nullopt;
      }) {
  for (uint32_t c = 0; c < kAlphabetEnd; ++c) {
    if (kByteOfChar[c] < 0) continue;
    std::string name;
    append_utf8(name, c);
    const std::optional<int32_t> id = find(name);
    if (!id || type_of(*id) != TokenType::normal)
      fail(ErrorKind::model, format("tokenizer.ggml.tokens has no token for byte 0x%02x", kByteOfChar[c]));
    set_byte_id(static_cast<uint8_t>(kByteOfChar[c]), *id);
  }
}

// Words come again and again in a text; the cache keeps where in `ids` a word was encoded first.
void BpeTokenizer::encode_utf8(std::string_view text, std::vector<int32_t>& ids) const {
  struct Range {
    size_t begin, n_ids;
  };
  std::unordered_map<std::string_view, Range> cache;
  Workspace work;
  for (const std::string_view word : pre_tokenizer_.split(text)) {
    if (word.size() == 1) {
      ids.push_back(byte_id(static_cast<uint8_t>(word[0])));
      continue;
    }
    const size_t begin = ids.size();
    if (word.size() > kMaxCachedWord) {
      encode_word(word, work, ids);
      continue;
    }
    const auto [entry, is_new] = cache.try_emplace(word, Range{begin, 0});
    if (is_new) {
      encode_word(word, work, ids);
      entry->second.n_ids = ids.size() - begin;
    } else {
      for (size_t i = 0; i < entry->second.n_ids; ++i) ids.push_back(ids[entry->second.begin + i]);
    }
  }
}

// Every byte its own token, and a queue of all pairs that have a rank.
void BpeTokenizer::fill(std::string_view word, Workspace& work) const {
  const size_t n_bytes = word.size();
  work.ids.resize(n_bytes);
  work.prev.resize(n_bytes);
  work.next.resize(n_bytes);
  work.rank.assign(n_bytes, MergeTable::kNone);
  work.heap.clear();
  for (size_t i = 0; i < n_bytes; ++i) {
    work.ids[i] = byte_id(static_cast<uint8_t>(word[i]));
    work.prev[i] = static_cast<uint32_t>(i) - 1;  // meaningless for the first, which is never asked
    work.next[i] = static_cast<uint32_t>(i) + 1;
  }
  for (size_t i = 0; i + 1 < n_bytes; ++i) {
    work.rank[i] = merges_.rank(work.ids[i], work.ids[i + 1]);
    if (work.rank[i] != MergeTable::kNone) work.heap.push_back(static_cast<uint64_t>(work.rank[i]) << 32 | i);
  }
  std::make_heap(work.heap.begin(), work.heap.end(), std::greater<>());
}

// Queue entries are not removed when a merge changes their pair: an entry whose rank is no longer the one at
// its place is passed over. A pair never comes back to a place it has left, since tokens only grow.
void BpeTokenizer::encode_word(std::string_view word, Workspace& work, std::vector<int32_t>& ids) const {
  fill(word, work);
  const uint32_t n_bytes = static_cast<uint32_t>(word.size());
  const auto update_pair = [&](uint32_t place) {
    const uint32_t next = work.next[place];
    work.rank[place] = next == n_bytes ? MergeTable::kNone : merges_.rank(work.ids[place], work.ids[next]);
    if (work.rank[place] == MergeTable::kNone) return;
    work.heap.push_back(static_cast<uint64_t>(work.rank[place]) << 32 | place);
    std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
  };
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
    const uint32_t rank = static_cast<uint32_t>(work.heap.back() >> 32);
    const uint32_t place = static_cast<uint32_t>(work.heap.back());
    work.heap.pop_back();
    if (work.rank[place] != rank) continue;
    const uint32_t right = work.next[place];
    work.ids[place] = merges_.result(rank);
    work.rank[right] = MergeTable::kNone;
    work.next[place] = work.next[right];
    if (work.next[place] != n_bytes) work.prev[work.next[place]] = place;
    update_pair(place);
    if (place != 0) update_pair(work.prev[place]);
  }
  for (uint32_t place = 0; place < n_bytes; place = work.next[place]) ids.push_back(work.ids[place]);
}

}  // namespace dsv32
