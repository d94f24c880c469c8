// The stream decoder: a few bytes that wait, and what is complete goes out.
//
// A tail that begins a character is kept even if the bytes before it are malformed; what follows decides
// whether it becomes a character, and nothing is judged or replaced here.
#include "text/stream_decoder.h"

#include <utility>

#include "base/text.h"

namespace dsv32 {

std::string StreamDecoder::push(int32_t id) {
  waiting_ += tokenizer_.bytes_of(id);
  const size_t n_complete = waiting_.size() - incomplete_utf8_tail(waiting_);
  std::string text = waiting_.substr(0, n_complete);
  waiting_.erase(0, n_complete);
  return text;
}

std::string StreamDecoder::finish() { return std::exchange(waiting_, {}); }

}  // namespace dsv32
