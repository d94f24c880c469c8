#include "context/latent_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace dsv32 {

LatentCache::LatentCache(std::span<const StageLayers> stages, const CachePlan& plan)
    : plan_(plan), pages_(plan.n_pages()), slot_pages_(plan.has_buffers() ? plan.n_slot_pages() : 0) {
  int64_t first_layer = 0;
  roles_agree_ = !plan.layout.has_bounds;  // prompts do without Quest
  for (const StageLayers& stage : stages) {
    roles_agree_ = roles_agree_ && stage.backend->roles_agree();
    StageCache* first = stage.member.number > 0 ? stages_.front().get() : nullptr;
    stages_.push_back(
        std::make_unique<StageCache>(*stage.backend, plan, first ? 0 : first_layer, stage.end_layer, first));
    for (; first_layer < stage.end_layer; ++first_layer) stage_of_layer_.push_back(stages_.back().get());
  }
  for (int64_t number = plan.max_seqs; number-- > 0;) free_numbers_.push_back(number);
}

std::unique_ptr<CachedSequence> LatentCache::open() {
  if (free_numbers_.empty())
    fail(ErrorKind::memory, format("all %lld sequences are in use", as_ll(plan_.max_seqs)));
  auto sequence = std::make_unique<CachedSequence>();
  sequence->number_ = free_numbers_.back();
  free_numbers_.pop_back();
  sequence->most_slot_pages_ = plan_.buffer_pages();
  return sequence;
}

void LatentCache::close(CachedSequence& sequence) {
  truncate(sequence, 0);
  free_numbers_.push_back(sequence.number_);
}

int64_t LatentCache::slot_pages_for(const CachedSequence& sequence, int64_t n_pages) const {
  return plan_.has_buffers() ? std::min(n_pages, sequence.most_slot_pages_) : 0;
}

void LatentCache::check_slots(const CachedSequence& sequence, int64_t n_pages) const {
  const int64_t n_wanted = slot_pages_for(sequence, n_pages);
  if (n_wanted > std::ssize(sequence.slot_pages_) + slot_pages_.n_free())
    fail(ErrorKind::context_full,
         format("%lld rows do not fit the slots of top-k buffers", as_ll(n_wanted * kPageTokens)));
}

// Gives the sequence the slots that its pages call for, and fills or resets them. `keeps`: the present
// slots still hold rows of the sequence, which stay if they fit.
void LatentCache::give_slots(CachedSequence& sequence, bool keeps) {
  if (!plan_.has_buffers()) return;
  const int64_t n_pages = std::ssize(sequence.pages_), n_slots = slot_pages_for(sequence, n_pages);
  const bool is_resident = n_slots == n_pages,
             was_resident = std::exchange(sequence.is_resident_, is_resident);
  keeps =
      keeps && is_resident == was_resident && (is_resident || n_slots == std::ssize(sequence.slot_pages_));
  slot_pages_.resize(sequence.slot_pages_, n_slots);
  if (keeps) return;
  sequence.n_claimed_ = 0;
  for (const auto& stage : stages_) is_resident ? stage->fill_slots(sequence) : stage->reset_buffer(sequence);
}

void LatentCache::set_most_slots(CachedSequence& sequence, int64_t n_pages) {
  const int64_t n_before = std::exchange(sequence.most_slot_pages_, n_pages);
  try {
    check_slots(sequence, std::ssize(sequence.pages_));
  } catch (...) {
    sequence.most_slot_pages_ = n_before;
    throw;
  }
  give_slots(sequence, true);
}

void LatentCache::reserve(CachedSequence& sequence, int64_t n_tokens) {
  const int64_t n_pages = pages_for(n_tokens);
  const auto n_lacking = [&] {
    const bool writes_shared = n_tokens > sequence.n_tokens() && last_page_is_shared(sequence);
    return std::max<int64_t>(0, n_pages - std::ssize(sequence.pages_)) + writes_shared - pages_.n_free();
  };
  if (n_tokens <= plan_.max_context) make_free(n_lacking);
  if (n_tokens > plan_.max_context || n_lacking() > 0)
    fail(ErrorKind::context_full,
         format("%lld tokens do not fit the context of %lld", as_ll(n_tokens),
                as_ll(std::min(plan_.max_context, plan_.pool_tokens))),
         "a larger context (-c) holds more");
  check_slots(sequence, n_pages);
  if (n_tokens > sequence.n_tokens() && last_page_is_shared(sequence)) own_last_page(sequence);
  if (n_pages <= std::ssize(sequence.pages_)) return;
  pages_.resize(sequence.pages_, n_pages);
  give_slots(sequence, true);
}

bool LatentCache::has_spare(const CachedSequence& sequence, int64_t n_tokens, int64_t n_sequences) const {
  const int64_t n_pages = pages_for(n_tokens),
                n_new = n_pages - std::ssize(sequence.pages_) + last_page_is_shared(sequence),
                n_new_slots = slot_pages_for(sequence, n_pages) - std::ssize(sequence.slot_pages_);
  return n_tokens <= plan_.max_context && pages_.n_free() - n_new >= n_sequences &&
         (n_new_slots <= 0 || slot_pages_.n_free() - n_new_slots >= n_sequences);
}

void LatentCache::append(CachedSequence& sequence, std::span<const int32_t> tokens, Role role) {
  const int32_t mark = role == Role::decode && !roles_agree_ ? kMadeByDecode : 0;
  // A prompt's rows do not go to the buffer, where rows of tokens that were cut off may be in their place.
  if (role == Role::prefill && !sequence.is_resident_ && sequence.n_claimed_ > sequence.n_tokens())
    give_slots(sequence, false);
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
  for (const int32_t token : tokens) sequence.history_.push_back(token | mark);
  if (role == Role::decode) sequence.n_claimed_ = std::max(sequence.n_claimed_, sequence.n_tokens());
  sequence.has_hidden_ = true;
}

void LatentCache::cut(CachedSequence& sequence, int64_t n_tokens) {
  sequence.tokens_.resize(static_cast<size_t>(n_tokens));
  sequence.history_.resize(static_cast<size_t>(n_tokens));
}

std::vector<int32_t> LatentCache::history(std::span<const int32_t> tokens,
                                          std::span<const TokenRun> decoded) const {
  std::vector<int32_t> history(tokens.begin(), tokens.end());
  if (roles_agree_) return history;
  for (const TokenRun& run : decoded)
    for (int64_t i = run.begin; i < std::min(run.end, std::ssize(history)); ++i)
      history[static_cast<size_t>(i)] |= kMadeByDecode;
  return history;
}

// n_lacking is asked after each reclaim: it may fall by more than the released pages, as a last page that is
// no longer shared needs no copy.
void LatentCache::make_free(const std::function<int64_t()>& n_lacking) {
  while (reclaim_ && n_lacking() > 0)
    if (reclaim_(n_lacking()) == 0) return;
}

// Whether the next token would go to a page that has other users.
bool LatentCache::last_page_is_shared(const CachedSequence& sequence) const {
  if (sequence.n_tokens() % kPageTokens == 0) return false;
  return pages_.n_users(sequence.page(sequence.n_tokens() / kPageTokens).number) > 1;
}

void LatentCache::own_last_page(CachedSequence& sequence) {
  const int64_t last = sequence.n_tokens() / kPageTokens;
  const PoolPage shared = sequence.page(last), own{pages_.take()};
  const std::vector<std::vector<uint8_t>> keys = download_keys({&shared, 1});
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer)
    std::memcpy(page_rows(own, layer), page_rows(shared, layer),
                static_cast<size_t>(kPageTokens * plan_.layout.row_bytes()));
  publish({&own, 1}, keys);
  sequence.pages_[static_cast<size_t>(last)] = own.number;
  release(shared);
}

void LatentCache::retain(const PoolPage& page) { pages_.retain(page.number); }

void LatentCache::release(const PoolPage& page) { pages_.release(page.number); }

std::optional<PoolPage> LatentCache::take_page() {
  make_free([this] { return 1 - pages_.n_free(); });
  if (pages_.n_free() < 1) return std::nullopt;
  return PoolPage{pages_.take()};
}

void LatentCache::adopt(CachedSequence& sequence, std::span<const PoolPage> pages,
                        std::span<const int32_t> history) {
  check_slots(sequence, std::ssize(pages));
  sequence.pages_.reserve(pages.size());
  sequence.tokens_.reserve(history.size()), sequence.history_.reserve(history.size());
  const std::vector<int32_t> begun(history.begin(), history.end());  // `history` may be the sequence's own
  for (const PoolPage& shared : pages) retain(shared);               // first: so may `pages`
  try {
    truncate(sequence, 0);
  } catch (...) {
    for (const PoolPage& shared : pages) release(shared);
    throw;
  }
  for (const PoolPage& shared : pages) sequence.pages_.push_back(shared.number);
  for (const int32_t token : begun) sequence.tokens_.push_back(token & ~kMadeByDecode);
  sequence.history_ = begun, sequence.has_hidden_ = false;
  give_slots(sequence, false);
}

uint8_t* LatentCache::page_rows(const PoolPage& page, int64_t layer) const {
  return stage_of_layer_[static_cast<size_t>(layer)]->rows().page(page.number, layer);
}

std::vector<std::vector<uint8_t>> LatentCache::download_keys(std::span<const PoolPage> pages) {
  const int64_t n_bytes = plan_.n_layers * plan_.layout.key_page_bytes();
  std::vector<std::vector<uint8_t>> keys(pages.size(), std::vector<uint8_t>(static_cast<size_t>(n_bytes)));
  for (const auto& stage : stages_) stage->download_keys(pages, keys);
  return keys;
}

void LatentCache::publish(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys) {
  for (const auto& stage : stages_) {
    stage->upload_keys(pages, keys);
    stage->publish_rows(pages);
  }
}

// A buffer may hold rows of removed positions, which other tokens will take, so it is reset.
void LatentCache::truncate(CachedSequence& sequence, int64_t n_tokens) {
  sequence.has_hidden_ = sequence.has_hidden_ && n_tokens == sequence.n_tokens();
  sequence.tokens_.resize(static_cast<size_t>(n_tokens));
  sequence.history_.resize(static_cast<size_t>(n_tokens));
  pages_.resize(sequence.pages_, pages_for(n_tokens));
  give_slots(sequence, sequence.is_resident_);
}

}  // namespace dsv32
