#include "engine/session.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/stopwatch.h"
#include "engine/loop.h"

namespace dsv32 {

Session::Session(Engine& engine) : engine_(engine), timeline_(engine.cache().open()) {}

Session::~Session() {
  if (engine_.forward().n_under_way(*timeline_) > 0) engine_.forward().abandon();
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->forget(*timeline_);
  engine_.cache().close(*timeline_);
}

// Hundreds may wait for their turn at the disk, and each is asked about at every turn of the loop.
bool Session::is_ready(std::span<const int32_t> prompt, std::span<const TokenRun> decoded) {
  PrefixCache* prefixes = engine_.prefix_cache();
  if (!prefixes) return true;
  if (waits_since_ == prefixes->n_changes()) return false;
  const PrefixCache::Readiness readiness = prefixes->readiness(prompt, decoded);
  waits_since_.reset();
  if (readiness == PrefixCache::Readiness::waits_for_it) waits_since_ = prefixes->n_changes();
  return readiness == PrefixCache::Readiness::is_ready;
}

int64_t Session::hold(std::span<const int32_t> prompt, int64_t n_reusable,
                      std::span<const TokenRun> decoded) {
  check_prompt(engine_, prompt);
  settle();
  int64_t n_held = std::ranges::mismatch(prompt, tokens()).in1 - prompt.begin();
  // The logits belong to the last token: with nothing left to compute, that one is computed again.
  if (n_held == std::ssize(prompt)) --n_held;
  if (n_held < timeline_->n_tokens()) engine_.cache().truncate(*timeline_, n_held);
  n_reusable_ = n_reusable;
  waits_since_.reset();
  logits_end_ = -1;
  if (PrefixCache* prefixes = engine_.prefix_cache())
    n_held = prefixes->restore(*timeline_, prompt, n_held, decoded);
  return n_held;
}

int64_t Session::read_chunk(std::span<const int32_t> prompt) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t n_held = timeline_->n_tokens(), n_left = std::ssize(prompt) - n_held;
  const int64_t n = std::min(engine_.forward().max_tokens(), n_left);
  const int64_t n_through = n_held - engine_.forward().n_under_way(*timeline_);
  try {
    loop().compute({Role::prefill,
                    {{timeline_.get(), prompt.subspan(static_cast<size_t>(n_held), static_cast<size_t>(n)),
                      n == n_left ? 1 : 0}}});
    engine_.forward().wait();  // done means computed, also to whoever measures
  } catch (...) {
    engine_.forward().abandon();
    engine_.forward().wait();  // its pages are about to be somebody else's
    engine_.cache().truncate(*timeline_, n_through);
    throw;
  }
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->note_prefill(n, seconds_since(start));
  remember();
  return timeline_->n_tokens();
}

int64_t Session::sync(std::span<const int32_t> prompt, const Progress& progress, int64_t n_reusable) {
  const int64_t n_held = hold(prompt, n_reusable), n_total = std::ssize(prompt);
  for (int64_t n_done = n_held; n_done < n_total;) {
    n_done = read_chunk(prompt);
    if (progress && !progress(n_done, n_total, n_held)) return -1;
  }
  return n_held;
}

void Session::step(int32_t token) {
  check_prompt(engine_, std::span(&token, 1));
  loop().compute({Role::decode, {{timeline_.get(), std::span(&token, 1), 1}}});
}

// What others know of it may leave the device too.
void Session::suspend() {
  settle();
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->forget(*timeline_);
  engine_.cache().suspend(*timeline_);
}

void Session::resume() { engine_.cache().resume(*timeline_); }

void Session::rest() {
  if (timeline_->is_suspended()) return;
  settle();
  remember();
}

void Session::settle() {
  if (engine_.forward().n_under_way(*timeline_) == 0) return;
  engine_.forward().finish();
  engine_.forward().wait();  // the host may be about to write to its pages, or to read them
}

void Session::distrust() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->distrust(timeline_->history());
}

std::span<const int32_t> Session::reusable() const {
  const std::span<const int32_t> history = timeline_->history();
  const int64_t n_through = std::ssize(history) - engine_.forward().n_under_way(*timeline_);
  return history.first(static_cast<size_t>(std::min(n_reusable_, n_through)));
}

void Session::remember() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->remember(*timeline_, reusable());
}

std::vector<TokenRun> Session::decoded() const {
  std::vector<TokenRun> runs;
  const std::span<const int32_t> history = reusable();
  for (int64_t i = 0; i < std::ssize(history); ++i) {
    if (!(history[static_cast<size_t>(i)] & kMadeByDecode)) continue;
    if (runs.empty() || runs.back().end < i) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  return runs;
}

const std::vector<float>& Session::logits() {
  if (logits_end_ == timeline_->n_tokens()) return logits_;
  logits_end_ = timeline_->n_tokens();
  logits_.resize(static_cast<size_t>(engine_.args().vocab_size));
  engine_.forward().last_backend().download(logits_.data(), device_logits(), logits_.size() * sizeof(float));
  return logits_;
}

const float* Session::device_logits() const {
  return engine_.forward().logits_row(engine_.forward().n_logits() - 1);
}

int32_t Session::likeliest() {
  const SampleRule greedy{.temperature = 0};
  return loop().sampler().sample(device_logits(), engine_.args().vocab_size, {&greedy, 1}).front().chosen.id;
}

std::vector<float> Session::all_logits(std::span<const int32_t> tokens) {
  check_prompt(engine_, tokens);
  std::vector<float> all;
  const auto chunk = static_cast<size_t>(engine_.forward().max_tokens());
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::span<const int32_t> part = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    loop().compute({Role::prefill, {{timeline_.get(), part, std::ssize(part)}}});
    const std::vector<float> logits = engine_.forward().logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

void check_prompt(const Engine& engine, std::span<const int32_t> tokens) {
  check_prompt(engine.args().vocab_size, engine.plan().cache.max_context, tokens);
}

void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens) {
  if (tokens.empty()) fail(ErrorKind::usage, "the prompt is empty, expected at least one token");
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      fail(ErrorKind::usage, format("token id %d is outside the model's vocabulary of %lld", token,
                                    static_cast<long long>(vocab_size)));
  if (std::ssize(tokens) > context)
    fail(ErrorKind::context_full,
         format("the prompt has %zu tokens, the context holds %lld", tokens.size(),
                static_cast<long long>(context)),
         "a larger context (-c) holds more");
}

}  // namespace dsv32
