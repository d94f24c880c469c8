#include "engine/session.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/stopwatch.h"

namespace dsv32 {

Session::Session(Engine& engine) : engine_(engine), sequence_(engine.cache().open()) {}

Session::~Session() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->forget(*sequence_);
  engine_.cache().close(*sequence_);
}

int64_t Session::sync(std::span<const int32_t> tokens, const Progress& progress, int64_t n_reusable) {
  check(tokens);
  const auto differ = std::ranges::mismatch(tokens, tokens_).in1;
  int64_t n_held = differ - tokens.begin();
  // The logits belong to the last token: with nothing left to compute, that one is computed again.
  if (n_held == static_cast<int64_t>(tokens.size())) --n_held;
  if (n_held < static_cast<int64_t>(tokens_.size())) {
    tokens_.resize(static_cast<size_t>(n_held));
    engine_.cache().truncate(*sequence_, n_held);
  }
  n_reusable_ = n_reusable;
  n_as_prefilled_ = std::min(n_as_prefilled_, n_held);
  PrefixCache* prefixes = engine_.prefix_cache();
  const int64_t n_own = n_held;
  if (prefixes) n_held = prefixes->restore(*sequence_, tokens, n_held);
  if (n_held > n_own) n_as_prefilled_ = n_held;  // all of it is remembered
  tokens_.assign(tokens.begin(), tokens.begin() + n_held);
  const int64_t n_total = static_cast<int64_t>(tokens.size()), chunk = engine_.forward().max_tokens();
  for (int64_t n_done = n_held; n_done < n_total;) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t n = std::min(chunk, n_total - n_done);
    extend(tokens.subspan(static_cast<size_t>(n_done), static_cast<size_t>(n)), Role::prefill, false);
    n_done += n;
    engine_.backend().download(nullptr, nullptr, 0);  // done means computed, also to whoever measures
    if (prefixes) prefixes->note_prefill(n, seconds_since(start));
    remember();
    if (progress && !progress(n_done, n_total, n_held)) return -1;
  }
  return n_held;
}

void Session::step(int32_t token) {
  check(std::span(&token, 1));
  extend(std::span(&token, 1), Role::decode, false);
}

void Session::rest() { remember(); }

void Session::distrust() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->distrust(tokens_);
}

void Session::remember() {
  const auto n = static_cast<size_t>(std::min(n_reusable_, n_as_prefilled_));
  if (PrefixCache* prefixes = engine_.prefix_cache())
    prefixes->remember(*sequence_, std::span(tokens_).first(n));
}

const std::vector<float>& Session::logits() {
  if (!logits_.empty()) return logits_;
  const std::span<const float> logits = device_logits();
  logits_.resize(logits.size());
  engine_.backend().download(logits_.data(), logits.data(), logits.size_bytes());
  return logits_;
}

std::span<const float> Session::device_logits() const {
  return {engine_.forward().last_logits(), static_cast<size_t>(engine_.args().vocab_size)};
}

std::vector<float> Session::all_logits(std::span<const int32_t> tokens) {
  check(tokens);
  std::vector<float> all;
  const size_t chunk = static_cast<size_t>(engine_.forward().max_tokens());
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    extend(tokens.subspan(begin, std::min(chunk, tokens.size() - begin)), Role::prefill, true);
    const std::vector<float> part = engine_.forward().logits();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void Session::check(std::span<const int32_t> tokens) const {
  const int64_t vocab_size = engine_.args().vocab_size;
  if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty, expected at least one token");
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      fail(ErrorKind::usage, format("token id %d is outside the model's vocabulary of %lld", token,
                                    static_cast<long long>(vocab_size)));
  const int64_t context = engine_.plan().cache.max_tokens;
  if (static_cast<int64_t>(tokens.size()) > context)
    fail(ErrorKind::context_full,
         format("the prompt has %zu tokens, the context holds %lld", tokens.size(),
                static_cast<long long>(context)),
         "a larger context (-c) holds more");
}

void Session::extend(std::span<const int32_t> tokens, Role role, bool wants_all_logits) {
  Step step;
  step.role = role;
  step.tokens.assign(tokens.begin(), tokens.end());
  step.seq.assign(tokens.size(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) step.pos.push_back(static_cast<int32_t>(tokens_.size() + i));
  step.sequences = {sequence_.get()};
  step.first_logits = wants_all_logits ? 0 : step.n_tokens() - 1;
  const int64_t n_tokens = static_cast<int64_t>(tokens_.size() + tokens.size());
  engine_.cache().reserve(*sequence_, n_tokens);
  logits_.clear();
  engine_.forward().run(step);
  engine_.cache().set_length(*sequence_, n_tokens);
  const bool is_behind_prefilled = n_as_prefilled_ == std::ssize(tokens_);
  if (is_behind_prefilled && (role == Role::prefill || engine_.backend().roles_agree()))
    n_as_prefilled_ = n_tokens;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

}  // namespace dsv32
