#include "context/latent_cache.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

// Pages whose numbers follow one another are one copy.
void for_runs(std::span<const PoolPage> pages, int32_t PoolPage::*number,
              const std::function<void(size_t begin, size_t end)>& visit) {
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    for (end = begin + 1; end < pages.size() && pages[end].*number == pages[end - 1].*number + 1;) ++end;
    visit(begin, end);
  }
}

}  // namespace

uint64_t CachePlan::row_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_pages() * kPageTokens * layout.row_bytes());
}

uint64_t CachePlan::resident_bytes() const { return is_apart && n_slots() == 0 ? row_pool_bytes() : 0; }

uint64_t CachePlan::key_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_pages() * layout.key_page_bytes());
}

uint64_t CachePlan::buffer_bytes() const {
  return static_cast<uint64_t>(max_seqs * n_layers * n_slots() * (layout.row_bytes() + 2 * 4));
}

uint64_t CachePlan::window_bytes() const {
  return is_apart && n_slots() > 0 ? static_cast<uint64_t>(2 * n_pages() * kPageTokens * layout.row_bytes())
                                   : 0;
}

uint64_t CachePlan::table_bytes() const {
  const int64_t n_tables = window_bytes() > 0 ? 3 : 2;
  const int64_t n_buffers = n_slots() > 0 ? n_layers * max_seqs : 0;
  return static_cast<uint64_t>(n_tables * max_seqs * n_pages()) * sizeof(int32_t) +
         static_cast<uint64_t>(max_seqs) * sizeof(int64_t) +
         static_cast<uint64_t>(n_buffers) * sizeof(TopkBuffer);
}

LatentCache::LatentCache(Backend& backend, const CachePlan& plan) : backend_(backend), plan_(plan) {
  const int64_t n_pages = plan.n_pages();
  for (int64_t layer = 0; layer < plan.n_layers; ++layer) {
    rows_.emplace_back(backend, Place::host, n_pages * kPageTokens * plan.layout.row_bytes(),
                       "the latent rows");
    resident_.emplace_back(backend, Place::device, plan.resident_bytes() > 0 ? rows_.back().n() : 0,
                           "the resident latent rows");
    keys_.emplace_back(backend, Place::device, n_pages * plan.layout.key_page_bytes(), "the index keys");
    slots_.emplace_back(backend, Place::device, plan.max_seqs * plan.n_slots() * plan.layout.row_bytes(),
                        "the top-k buffer");
  }
  if (plan.window_bytes() > 0)
    for (Buffer<uint8_t>& window : windows_)
      window = {backend, Place::device, n_pages * kPageTokens * plan.layout.row_bytes(),
                "the windows of prefill"};
  row_pages_ = key_pages_ = PagePool(n_pages);
  for (int64_t number = plan.max_seqs; number-- > 0;) free_numbers_.push_back(number);
  row_tables_ = {backend, plan.max_seqs * n_pages}, key_tables_ = {backend, plan.max_seqs * n_pages};
  window_tables_ = {backend, windows_[0].n() > 0 ? plan.max_seqs * n_pages : 0};
  first_slots_ = {backend, plan.max_seqs};
  step_buffers_ = {backend, plan.n_slots() > 0 ? plan.n_layers * plan.max_seqs : 0};
}

std::unique_ptr<Sequence> LatentCache::open() {
  if (free_numbers_.empty())
    fail(ErrorKind::memory, format("all %lld sequences are in use", static_cast<long long>(plan_.max_seqs)));
  auto sequence = std::make_unique<Sequence>();
  sequence->number_ = free_numbers_.back();
  free_numbers_.pop_back();
  const int64_t n_slots = plan_.n_slots();
  if (n_slots == 0) return sequence;
  sequence->buffer_state_ = {backend_, Place::device, plan_.n_layers * n_slots * 2, "the top-k buffer"};
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer) {
    int32_t* state = sequence->buffer_state_.data() + layer * n_slots * 2;
    sequence->buffers_.push_back({static_cast<int32_t>(n_slots), state, state + n_slots});
  }
  truncate(*sequence, 0);
  return sequence;
}

void LatentCache::close(Sequence& sequence) {
  truncate(sequence, 0);
  free_numbers_.push_back(sequence.number_);
}

void LatentCache::reserve(Sequence& sequence, int64_t n_tokens) {
  const int64_t n_pages = pages_for(n_tokens);
  const auto n_more = [&] {
    const bool writes_shared = n_tokens > sequence.n_tokens_ && last_page_is_shared(sequence);
    return std::max<int64_t>(0, n_pages - std::ssize(sequence.row_pages_)) + writes_shared;
  };
  make_free(n_more);
  if (n_more() > n_free_pages())
    fail(ErrorKind::context_full,
         format("%lld tokens do not fit the context of %lld", static_cast<long long>(n_tokens),
                static_cast<long long>(plan_.max_tokens)),
         "a larger context (-c) holds more");
  if (n_tokens > sequence.n_tokens_ && last_page_is_shared(sequence)) own_last_page(sequence);
  if (n_pages <= std::ssize(sequence.row_pages_)) return;
  row_pages_.resize(sequence.row_pages_, n_pages);
  key_pages_.resize(sequence.key_pages_, n_pages);
}

int64_t LatentCache::n_free_pages() const { return std::min(row_pages_.n_free(), key_pages_.n_free()); }

// What is wanted may become less on the way: the last page is no longer shared.
void LatentCache::make_free(const std::function<int64_t()>& n_wanted) {
  while (reclaim_ && n_wanted() > n_free_pages())
    if (reclaim_(n_wanted() - n_free_pages()) == 0) return;
}

// The next token would go to a page that others read too.
bool LatentCache::last_page_is_shared(const Sequence& sequence) const {
  if (sequence.n_tokens_ % kPageTokens == 0) return false;
  const PoolPage last = page(sequence, sequence.n_tokens_ / kPageTokens);
  return row_pages_.n_users(last.row) > 1 || key_pages_.n_users(last.key) > 1;
}

void LatentCache::own_last_page(Sequence& sequence) {
  const int64_t last = sequence.n_tokens_ / kPageTokens;
  const PoolPage shared = page(sequence, last), own{row_pages_.take(), key_pages_.take()};
  const std::vector<std::vector<uint8_t>> keys = download_keys({&shared, 1});
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer)
    std::memcpy(page_rows(own, layer), page_rows(shared, layer),
                static_cast<size_t>(kPageTokens * plan_.layout.row_bytes()));
  publish({&own, 1}, keys);
  sequence.row_pages_[static_cast<size_t>(last)] = own.row;
  sequence.key_pages_[static_cast<size_t>(last)] = own.key;
  release(shared);
}

void LatentCache::retain(const PoolPage& page) { row_pages_.retain(page.row), key_pages_.retain(page.key); }

void LatentCache::release(const PoolPage& page) {
  row_pages_.release(page.row), key_pages_.release(page.key);
}

PoolPage LatentCache::page(const Sequence& sequence, int64_t i) const {
  return {sequence.row_pages_[static_cast<size_t>(i)], sequence.key_pages_[static_cast<size_t>(i)]};
}

std::optional<PoolPage> LatentCache::take_page() {
  make_free([] { return int64_t{1}; });
  if (n_free_pages() < 1) return std::nullopt;
  return PoolPage{row_pages_.take(), key_pages_.take()};
}

void LatentCache::adopt(Sequence& sequence, std::span<const PoolPage> pages, int64_t n_tokens) {
  sequence.row_pages_.reserve(pages.size()), sequence.key_pages_.reserve(pages.size());
  for (const PoolPage& shared : pages) retain(shared);  // first: they may be the sequence's own
  try {
    truncate(sequence, 0);
  } catch (...) {
    for (const PoolPage& shared : pages) release(shared);
    throw;
  }
  for (const PoolPage& shared : pages) {
    sequence.row_pages_.push_back(shared.row);
    sequence.key_pages_.push_back(shared.key);
  }
  sequence.n_tokens_ = n_tokens;
}

std::vector<std::vector<uint8_t>> LatentCache::download_keys(std::span<const PoolPage> pages) {
  const auto n_bytes = static_cast<size_t>(plan_.layout.key_page_bytes());
  std::vector<std::vector<uint8_t>> keys(pages.size(),
                                         std::vector<uint8_t>(static_cast<size_t>(plan_.n_layers) * n_bytes));
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer)
    for_runs(pages, &PoolPage::key, [&](size_t begin, size_t end) {
      backend_.download(run.data(), key_page(pages[begin], layer), (end - begin) * n_bytes);
      for (size_t i = begin; i < end; ++i)
        std::memcpy(keys[i].data() + static_cast<size_t>(layer) * n_bytes, run.data() + (i - begin) * n_bytes,
                    n_bytes);
    });
  backend_.download(nullptr, nullptr, 0);  // also of a model without keys
  return keys;
}

void LatentCache::publish(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys) {
  const auto n_bytes = static_cast<size_t>(plan_.layout.key_page_bytes());
  const auto row_bytes = static_cast<size_t>(kPageTokens * plan_.layout.row_bytes());
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer) {
    const size_t offset = static_cast<size_t>(layer) * n_bytes;
    for_runs(pages, &PoolPage::key, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        std::memcpy(run.data() + (i - begin) * n_bytes, keys[i].data() + offset, n_bytes);
      backend_.upload(key_page(pages[begin], layer), run.data(), (end - begin) * n_bytes);
    });
    Buffer<uint8_t>& resident = resident_[static_cast<size_t>(layer)];
    if (resident.n() == 0) continue;
    for_runs(pages, &PoolPage::row, [&](size_t begin, size_t end) {
      backend_.upload(resident.data() + static_cast<size_t>(pages[begin].row) * row_bytes,
                      page_rows(pages[begin], layer), (end - begin) * row_bytes);
    });
  }
}

uint8_t* LatentCache::key_page(const PoolPage& page, int64_t layer) const {
  return keys_[static_cast<size_t>(layer)].data() + int64_t{page.key} * plan_.layout.key_page_bytes();
}

uint8_t* LatentCache::page_rows(const PoolPage& page, int64_t layer) const {
  return rows_[static_cast<size_t>(layer)].data() +
         int64_t{page.row} * kPageTokens * plan_.layout.row_bytes();
}

// Slots may hold rows of forgotten positions, which other rows will take: the buffers start anew.
void LatentCache::truncate(Sequence& sequence, int64_t n_tokens) {
  std::vector<int32_t> fresh(static_cast<size_t>(sequence.buffer_state_.n()));  // before anything changes
  sequence.n_tokens_ = n_tokens;
  row_pages_.resize(sequence.row_pages_,
                    std::min<int64_t>(pages_for(n_tokens), std::ssize(sequence.row_pages_)));
  key_pages_.resize(sequence.key_pages_,
                    std::min<int64_t>(pages_for(n_tokens), std::ssize(sequence.key_pages_)));
  if (sequence.buffers_.empty()) return;
  for (int64_t layer = 0; layer < plan_.n_layers; ++layer) {
    int32_t* state = fresh.data() + layer * plan_.n_slots() * 2;
    reset({static_cast<int32_t>(plan_.n_slots()), state, state + plan_.n_slots()});
  }
  backend_.upload(sequence.buffer_state_.data(), fresh.data(), sequence.buffer_state_.n_bytes());
}

void LatentCache::begin_step(std::span<Sequence* const> sequences, bool use_buffers) {
  step_uses_buffers_ = use_buffers && plan_.n_slots() > 0;
  step_uses_windows_ = !step_uses_buffers_ && windows_[0].n() > 0;
  const size_t n_pages = static_cast<size_t>(plan_.n_pages());
  std::vector<int32_t> rows(static_cast<size_t>(row_tables_.n())), keys(rows.size());
  std::vector<int64_t> first_slots(static_cast<size_t>(first_slots_.n()));
  std::vector<TopkBuffer> buffers(static_cast<size_t>(step_buffers_.n()));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    std::ranges::copy(sequence.row_pages_, rows.begin() + static_cast<int64_t>(i * n_pages));
    std::ranges::copy(sequence.key_pages_, keys.begin() + static_cast<int64_t>(i * n_pages));
    first_slots[i] = sequence.number_ * plan_.n_slots();
    for (size_t layer = 0; layer < sequence.buffers_.size(); ++layer)
      buffers[layer * static_cast<size_t>(plan_.max_seqs) + i] = sequence.buffers_[layer];
  }
  row_tables_.upload(rows), key_tables_.upload(keys);
  first_slots_.upload(first_slots), step_buffers_.upload(buffers);
  if (step_uses_windows_) begin_windows(sequences);
}

// Each sequence's pages follow one another in a window, so that what it held before the step is a few long
// copies.
void LatentCache::begin_windows(std::span<Sequence* const> sequences) {
  runs_.clear();
  std::vector<int32_t> tables(static_cast<size_t>(window_tables_.n()));
  int32_t next_page = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    for (size_t page = 0; page < sequence.row_pages_.size(); ++page, ++next_page) {
      tables[i * static_cast<size_t>(plan_.n_pages()) + page] = next_page;
      const int64_t first_pos = static_cast<int64_t>(page) * kPageTokens;
      const int64_t n_rows = std::min(kPageTokens, sequence.n_tokens_ - first_pos);
      const int64_t from_row = int64_t{sequence.row_pages_[page]} * kPageTokens;
      if (n_rows <= 0) continue;
      const bool continues =
          page > 0 && !runs_.empty() && runs_.back().from_row + runs_.back().n_rows == from_row;
      if (continues)
        runs_.back().n_rows += n_rows;
      else
        runs_.push_back({from_row, int64_t{next_page} * kPageTokens, n_rows});
    }
  }
  window_tables_.upload(tables);
  stream_layer(0);
}

void LatentCache::stream_layer(int64_t layer) {
  copies_.clear();
  const int64_t row_bytes = plan_.layout.row_bytes();
  if (layer < plan_.n_layers)
    for (const Run& run : runs_)
      copies_.push_back({windows_[layer % 2].data() + run.to_row * row_bytes,
                         rows_[static_cast<size_t>(layer)].data() + run.from_row * row_bytes,
                         static_cast<size_t>(run.n_rows * row_bytes)});
  backend_.stream_rows({copies_.data(), static_cast<int64_t>(copies_.size())});
}

CacheView LatentCache::enter(int64_t layer) {
  const size_t i = static_cast<size_t>(layer);
  if (step_uses_windows_) stream_layer(layer + 1);
  CacheView view;
  view.layout = plan_.layout;
  view.rows = rows_[i].data();
  view.key_pages = keys_[i].data();
  view.row_pages = view.resident_pages = row_tables_.data();
  view.key_page_ids = key_tables_.data();
  view.max_pages = plan_.n_pages();
  view.resident = resident_[i].n() > 0 ? resident_[i].data() : view.rows;
  if (step_uses_windows_) {
    view.resident = windows_[layer % 2].data();
    view.resident_pages = window_tables_.data();
  }
  if (!step_uses_buffers_) return view;
  view.slots = slots_[i].data();
  view.n_slots = plan_.n_slots();
  view.first_slots = first_slots_.data();
  view.buffers = step_buffers_.data() + layer * plan_.max_seqs;
  return view;
}

}  // namespace dsv32
