#include "context/stage_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace dsv32 {

template <typename T>
void Table<T>::set_line(int64_t line, std::span<const T> values) {
  const auto is_same = [](const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  T* known = uploaded_.data() + line * width_;
  size_t begin = 0, end = values.size();
  while (begin < end && is_same(known[begin], values[begin])) ++begin;
  while (end > begin && is_same(known[end - 1], values[end - 1])) --end;
  if (begin == end) return;
  std::memcpy(known + begin, values.data() + begin, (end - begin) * sizeof(T));
  backend_.upload(buffer_.data() + line * width_ + static_cast<int64_t>(begin), known + begin,
                  (end - begin) * sizeof(T));
}

StageCache::StageCache(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t end_layer,
                       StageCache* first_member)
    : backend_(backend),
      first_member_(first_member),
      plan_(plan),
      first_layer_(first_layer),
      end_layer_(end_layer),
      row_bytes_(plan.layout.row_bytes()),
      most_slots_(plan.buffer_pages() * kPageTokens),
      rows_(backend, Place::host, first_layer, end_layer, first_member ? 0 : plan.n_pages(),
            kPageTokens * row_bytes_, "the latent rows"),
      keys_(backend, Place::device, first_layer, end_layer, plan.n_pages(), plan.layout.key_page_bytes(),
            "the index keys"),
      slots_(backend, Place::device, first_layer, end_layer, plan.n_slot_pages(), kPageTokens * row_bytes_,
             "the slots of rows"),
      states_(backend, Place::device, plan.max_seqs * (end_layer - first_layer) * most_slots_ * 2,
              "the top-k buffers"),
      page_table_(backend, plan.max_step_tokens(), plan.context_pages()),
      slot_table_(backend, plan.has_buffers() ? plan.max_step_tokens() : 0, plan.context_pages()),
      buffer_table_(backend, plan.has_buffers() ? end_layer - first_layer : 0, plan.max_step_tokens()) {
  for (Buffer<uint8_t>& window : windows_)
    window = {backend, Place::device, plan.window_pages() * kPageTokens * row_bytes_,
              "the windows of prefill"};
}

// --- Steps

// A device knows only of its own memory whether it is pinned.
uint8_t* StageCache::pinned_rows(int64_t layer) const {
  uint8_t* its = rows().layer(layer);
  if (first_member_) first_member_->backend_.await_pinned(its);
  return its;
}

// Decode reads slots, and so does prefill of a resident sequence. Other rows are streamed through windows in
// prefill, or read in the row pool.
void StageCache::begin_step(std::span<CachedSequence* const> sequences, int64_t n_held, int64_t n_new,
                            Role role, int64_t first) {
  prompt_ = role == Role::prefill ? sequences.front() : nullptr;
  prompt_begin_ = n_held, prompt_end_ = n_held + n_new;
  const auto n_long = std::ranges::count(sequences, false, &CachedSequence::is_resident);
  const bool reads_slots = role == Role::decode || n_long == 0;
  has_buffers_ = reads_slots && n_long > 0;
  source_ = !reads_slots && windows_[0].n() > 0       ? Source::windows
            : reads_slots && plan_.n_slot_pages() > 0 ? Source::slots
                                                      : Source::rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto line = static_cast<int64_t>(i);
    page_table_.set_line(line, sequences[i]->pages());
    if (source_ == Source::slots) slot_table_.set_line(line, sequences[i]->slot_pages());
  }
  for (int64_t layer = first; has_buffers_ && layer < end_layer_; ++layer) {
    std::vector<TopkBuffer> buffers(sequences.size());  // a resident sequence has none
    for (size_t i = 0; i < sequences.size(); ++i) {
      int32_t* its = state(sequences[i]->number(), layer);
      if (!sequences[i]->is_resident()) buffers[i] = {sequences[i]->n_slots(), its, its + most_slots_};
    }
    buffer_table_.set_line(layer - first_layer_, buffers);
  }
  if (source_ == Source::windows) begin_windows(*sequences.front(), n_held);
}

// In a window the sequence's pages are in order, so that its earlier rows are a few long copies.
void StageCache::begin_windows(const CachedSequence& sequence, int64_t n_held) {
  runs_.clear();
  const std::vector<int32_t>& pages = sequence.pages();
  std::vector<int32_t> places(pages.size());
  std::iota(places.begin(), places.end(), 0);
  slot_table_.set_line(0, places);
  const auto follows = [&](size_t i) { return pages[i] == pages[i - 1] + 1; };
  for_runs(static_cast<size_t>(pages_for(n_held)), follows, [&](size_t begin, size_t end) {
    const int64_t to_row = static_cast<int64_t>(begin) * kPageTokens,
                  n_rows = std::min(static_cast<int64_t>(end) * kPageTokens, n_held) - to_row;
    runs_.push_back({pages[begin] * kPageTokens, to_row, n_rows});
  });
  stream(first_layer_);
}

// Also called with end_layer_: nothing is copied then, but the last layer's copies are waited for. In prefill
// the block for drafts reads no rows.
void StageCache::stream(int64_t layer) {
  copies_.clear();
  if (layer < std::min(end_layer_, plan_.n_layers - plan_.n_draft_layers))
    for (const Run& run : runs_)
      copies_.push_back({windows_[layer % 2].data() + run.to_row * row_bytes_,
                         pinned_rows(layer) + run.from_row * row_bytes_,
                         static_cast<size_t>(run.n_rows * row_bytes_)});
  backend_.stream_rows(copies_);
}

CacheView StageCache::enter(int64_t layer) {
  if (source_ == Source::windows) stream(layer + 1);
  const bool has_slot_table = source_ != Source::rows && plan_.has_buffers();
  CacheView view;
  view.layout = plan_.layout;
  view.rows = pinned_rows(layer);
  view.slots = source_ == Source::rows    ? view.rows
               : source_ == Source::slots ? slots_.layer(layer)
                                          : windows_[layer % 2].data();
  view.key_pages = keys_.layer(layer);
  view.pages = page_table_.line(0);
  view.slot_pages = (has_slot_table ? slot_table_ : page_table_).line(0);
  view.max_pages = plan_.context_pages();
  if (has_buffers_) view.buffers = buffer_table_.line(layer - first_layer_), view.most_slots = most_slots_;
  return view;
}

CacheView StageCache::storing(const CacheView& view) const {
  CacheView without_pool = view;
  if (first_member_ || prompt_) without_pool.rows = nullptr;
  return without_pool;
}

// The rows of a prompt's step, from their slots: page by page, or several that follow each other in both.
void StageCache::save_rows(const CacheView& view) {
  if (first_member_ || !prompt_) return;
  const std::vector<int32_t>& pages = prompt_->pages();
  const auto page_in_slots = [&](int64_t page) {
    const auto i = static_cast<size_t>(page);
    if (source_ == Source::windows) return static_cast<int32_t>(page);
    return plan_.has_buffers() ? prompt_->slot_pages()[i] : pages[i];
  };
  std::vector<RowCopy> copies;
  for (int64_t pos = prompt_begin_, n = 0; pos < prompt_end_; pos += n) {
    n = std::min(kPageTokens - pos % kPageTokens, prompt_end_ - pos);
    const int64_t page = pos / kPageTokens, in_page = pos % kPageTokens;
    uint8_t* to = view.rows + (pages[static_cast<size_t>(page)] * kPageTokens + in_page) * row_bytes_;
    const uint8_t* from = view.slots + (page_in_slots(page) * kPageTokens + in_page) * row_bytes_;
    const auto n_bytes = static_cast<size_t>(n * row_bytes_);
    if (!copies.empty() && copies.back().to + copies.back().n_bytes == to &&
        copies.back().from + copies.back().n_bytes == from)
      copies.back().n_bytes += n_bytes;
    else
      copies.push_back({to, from, n_bytes});
  }
  backend_.save_rows(copies);
}

// --- Pages

void StageCache::download_keys(std::span<const PoolPage> pages, std::span<std::vector<uint8_t>> keys) {
  if (first_member_) return backend_.download(nullptr, nullptr, 0);
  const auto n_bytes = static_cast<size_t>(keys_.page_bytes());
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = first_layer_; layer < end_layer_; ++layer)
    for_page_runs(pages, [&](size_t begin, size_t end) {
      backend_.download(run.data(), keys_.page(pages[begin].number, layer), (end - begin) * n_bytes);
      for (size_t i = begin; i < end; ++i)
        std::memcpy(keys[i].data() + static_cast<size_t>(layer) * n_bytes, run.data() + (i - begin) * n_bytes,
                    n_bytes);
    });
  backend_.download(nullptr, nullptr, 0);  // waits, even if the model has no keys
}

void StageCache::upload_keys(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys) {
  const auto n_bytes = static_cast<size_t>(keys_.page_bytes());
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = first_layer_; layer < end_layer_; ++layer)
    for_page_runs(pages, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        std::memcpy(run.data() + (i - begin) * n_bytes, keys[i].data() + static_cast<size_t>(layer) * n_bytes,
                    n_bytes);
      backend_.upload(keys_.page(pages[begin].number, layer), run.data(), (end - begin) * n_bytes);
    });
}

void StageCache::publish_rows(std::span<const PoolPage> pages) {
  if (plan_.has_buffers() || !plan_.is_apart) return;
  for (int64_t layer = first_layer_; layer < end_layer_; ++layer)
    for_page_runs(pages, [&](size_t begin, size_t end) {
      const int32_t first = pages[begin].number;
      backend_.upload(slots_.page(first, layer), rows().page(first, layer),
                      (end - begin) * static_cast<size_t>(rows_.page_bytes()));
    });
}

void StageCache::fill_slots(const CachedSequence& sequence) {
  const std::vector<int32_t>&to = sequence.slot_pages(), &from = sequence.pages();
  const auto follows = [&](size_t i) { return to[i] == to[i - 1] + 1 && from[i] == from[i - 1] + 1; };
  std::vector<RowCopy> copies;
  for (int64_t layer = first_layer_; layer < end_layer_; ++layer)
    for_runs(to.size(), follows, [&](size_t begin, size_t end) {
      copies.push_back({slots_.page(to[begin], layer), pinned_rows(layer) + from[begin] * rows_.page_bytes(),
                        (end - begin) * static_cast<size_t>(rows_.page_bytes())});
    });
  backend_.stream_rows(copies);
  backend_.stream_rows({});  // later work waits for the copies
}

int32_t* StageCache::state(int64_t sequence, int64_t layer) const {
  return states_.data() + (sequence * (end_layer_ - first_layer_) + layer - first_layer_) * most_slots_ * 2;
}

void StageCache::reset_buffer(const CachedSequence& sequence) {
  std::vector<int32_t> fresh(static_cast<size_t>((end_layer_ - first_layer_) * most_slots_ * 2));
  for (int64_t i = 0; i < end_layer_ - first_layer_; ++i) {
    int32_t* its = fresh.data() + i * most_slots_ * 2;
    reset({sequence.n_slots(), its, its + most_slots_});
  }
  backend_.upload(state(sequence.number(), first_layer_), fresh.data(), fresh.size() * sizeof(int32_t));
}

}  // namespace dsv32
