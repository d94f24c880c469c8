#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dsv32 {

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "interrupted"};
  return kNames[static_cast<size_t>(reason)];
}

void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens) {
  if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty, expected at least one token");
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      fail(ErrorKind::usage,
           format("token id %d is outside the model's vocabulary of %lld", token, as_ll(vocab_size)));
  if (std::ssize(tokens) > context)
    fail(ErrorKind::context_full,
         format("the prompt has %zu tokens, the context holds %lld", tokens.size(), as_ll(context)),
         "a larger context (-c) holds more");
}

GenerationResult generate(Answerer& answerer, Request request, Listener& listener) {
  const int64_t number = answerer.add(std::move(request), listener);
  try {
    while (!answerer.is_done(number)) answerer.turn();
  } catch (...) {  // not the request's own error: it is still there
    answerer.drop(number);
    throw;
  }
  return answerer.take(number);
}

}  // namespace dsv32
