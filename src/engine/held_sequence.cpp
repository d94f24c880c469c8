#include "engine/held_sequence.h"

#include <algorithm>
#include <utility>

#include "base/stopwatch.h"

namespace dsv32 {

void CloseSequence::operator()(CachedSequence* sequence) const {
  if (engine->forward().n_under_way(*sequence) > 0) engine->forward().abandon();
  if (PrefixCache* prefixes = engine->prefix_cache()) prefixes->forget(*sequence);
  engine->cache().close(*sequence);
  delete sequence;
}

void HeldSequence::enter(OpenSequence cached) {
  cached_ = cached ? std::move(cached) : OpenSequence(engine_.cache().open().release(), {&engine_});
}

// Hundreds of sequences may wait for the disk, and the loop calls this before every step: asks the cache
// again only when n_changes() has risen.
bool HeldSequence::is_ready(std::span<const int32_t> prompt, std::span<const TokenRun> decoded) {
  PrefixCache* prefixes = engine_.prefix_cache();
  if (!prefixes) return true;
  if (waits_since_ == prefixes->n_changes()) return false;
  const PrefixCache::Readiness readiness = prefixes->readiness(prompt, decoded);
  waits_since_.reset();
  uses_disk_ = readiness != PrefixCache::Readiness::waits_for_it;
  if (!uses_disk_) waits_since_ = prefixes->n_changes();
  return readiness == PrefixCache::Readiness::is_ready;
}

// Never keeps the prompt's last token, because its logits are needed: it is computed again.
int64_t HeldSequence::hold(std::span<const int32_t> prompt, int64_t n_reusable,
                           std::span<const TokenRun> decoded) {
  uses_disk_ = true;
  engine_.check_prompt(prompt);
  await_chunks();
  int64_t n = std::ranges::mismatch(prompt, tokens()).in1 - prompt.begin();
  if (n == std::ssize(prompt)) --n;
  if (n < cached_->n_tokens()) engine_.cache().truncate(*cached_, n);
  n_reusable_ = n_reusable;
  waits_since_.reset();
  if (PrefixCache* prefixes = engine_.prefix_cache()) n = prefixes->restore(*cached_, prompt, n, decoded);
  uses_disk_ = false;
  return n;
}

const char* HeldSequence::why_none_cached() const {
  const PrefixCache* prefixes = engine_.prefix_cache();
  return prefixes ? prefixes->why_none() : "the prefix cache is off";
}

int64_t HeldSequence::read_chunk(std::span<const int32_t> prompt, int64_t n) {
  const auto start = std::chrono::steady_clock::now();
  Forward& forward = engine_.forward();
  const int64_t n_before = cached_->n_tokens(), n_left = std::ssize(prompt) - n_before;
  n = std::min(n, n_left);
  const int64_t n_through = n_before - forward.n_under_way(*cached_);
  const auto chunk = prompt.subspan(static_cast<size_t>(n_before), static_cast<size_t>(n));
  try {
    forward.run({Role::prefill, {cached_.get()}, {chunk.begin(), chunk.end()}, n == n_left});
    forward.wait();  // done means computed, also for measurements
  } catch (...) {
    forward.abandon();
    forward.wait();  // its pages are about to be free
    engine_.cache().truncate(*cached_, n_through);
    throw;
  }
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->note_prefill(n, seconds_since(start));
  remember();
  return cached_->n_tokens();
}

void HeldSequence::set_shrunk(bool shrunk) {
  is_shrunk_ = shrunk;
  const int64_t n_pages = engine_.plan().cache.buffer_pages();
  engine_.cache().set_most_slots(*cached_, shrunk ? least_buffer_pages(engine_.args()) : n_pages);
}

void HeldSequence::save_prefix() {
  await_chunks();
  remember();
}

void HeldSequence::await_chunks() {
  if (engine_.forward().n_under_way(*cached_) == 0) return;
  engine_.forward().finish();
  engine_.forward().wait();  // the host may be about to write to its pages, or to read them
}

void HeldSequence::discard_prefix() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->discard(cached_->history());
}

std::span<const int32_t> HeldSequence::reusable() const {
  const std::span<const int32_t> history = cached_->history();
  const int64_t n_through = std::ssize(history) - engine_.forward().n_under_way(*cached_);
  return history.first(static_cast<size_t>(std::min(n_reusable_, n_through)));
}

void HeldSequence::remember() {
  if (PrefixCache* prefixes = engine_.prefix_cache()) prefixes->remember(*cached_, reusable());
}

std::vector<TokenRun> HeldSequence::decoded() const {
  std::vector<TokenRun> runs;
  const std::span<const int32_t> history = reusable();
  for (int64_t i = 0; i < std::ssize(history); ++i) {
    if (!(history[static_cast<size_t>(i)] & kMadeByDecode)) continue;
    if (runs.empty() || runs.back().end < i) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  return runs;
}

// --- By hand

int64_t ByHand::sync(std::span<const int32_t> prompt) {
  const int64_t n = hold(prompt);
  while (read_chunk(prompt, engine().plan().chunk) < std::ssize(prompt)) continue;
  return n;
}

void ByHand::step(int32_t token) {
  engine().check_prompt({&token, 1});
  engine().forward().run({Role::decode, {&cached()}, {token}});
}

const std::vector<float>& ByHand::logits() {
  Forward& forward = engine().forward();
  logits_.resize(static_cast<size_t>(engine().args().vocab_size));
  forward.last_backend().download(logits_.data(), forward.logits_row(forward.n_logits() - 1),
                                  logits_.size() * sizeof(float));
  return logits_;
}

std::vector<float> ByHand::all_logits(std::span<const int32_t> tokens) {
  engine().check_prompt(tokens);
  std::vector<float> all;
  const auto chunk = static_cast<size_t>(engine().plan().chunk);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::span<const int32_t> some = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    engine().forward().run({Role::prefill, {&cached()}, {some.begin(), some.end()}, std::ssize(some)});
    const std::vector<float> logits = engine().forward().logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace dsv32
