#include "context/windows.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {

Windows::Windows(Backend& backend, const CachePlan& plan, const RowPool& rows, int64_t first_layer,
                 int64_t end_layer)
    : backend_(&backend),
      rows_(&rows),
      first_layer_(first_layer),
      end_layer_(end_layer),
      row_bytes_(plan.layout.row_bytes()) {
  for (Buffer<uint8_t>& window : windows_)
    window = {backend, Place::device, plan.window_pages() * kPageTokens * row_bytes_,
              "the windows of prefill"};
}

std::vector<int32_t> Windows::begin(std::span<Timeline* const> timelines, std::span<const int64_t> n_held) {
  runs_.clear();
  int64_t n_pages = 0;
  for (const Timeline* timeline : timelines) n_pages += std::ssize(timeline->row_pages());
  if (n_pages * kPageTokens * row_bytes_ > windows_[0].n())
    fail(ErrorKind::internal, format("a prefill step of %zu timelines has %lld pages, more than its windows",
                                     timelines.size(), static_cast<long long>(n_pages)));
  std::vector<int32_t> first_pages;
  int32_t next_page = 0;
  for (size_t i = 0; i < timelines.size(); ++i) {
    first_pages.push_back(next_page);
    const std::vector<int32_t>& pages = timelines[i]->row_pages();
    for (size_t page = 0; page < pages.size(); ++page, ++next_page) {
      const int64_t n_left = n_held[i] - static_cast<int64_t>(page) * kPageTokens;
      const int64_t n_rows = std::min(kPageTokens, n_left), from_row = int64_t{pages[page]} * kPageTokens;
      if (n_rows <= 0) continue;
      if (page > 0 && runs_.back().from_row + runs_.back().n_rows == from_row)
        runs_.back().n_rows += n_rows;
      else
        runs_.push_back({from_row, int64_t{next_page} * kPageTokens, n_rows});
    }
  }
  stream(first_layer_);
  return first_pages;
}

uint8_t* Windows::enter(int64_t layer) {
  stream(layer + 1);
  return windows_[layer % 2].data();
}

// Also behind the last layer, with nothing to copy: the layer before is waited for.
void Windows::stream(int64_t layer) {
  copies_.clear();
  if (layer < end_layer_)
    for (const Run& run : runs_)
      copies_.push_back({windows_[layer % 2].data() + run.to_row * row_bytes_,
                         rows_->layer(layer) + run.from_row * row_bytes_,
                         static_cast<size_t>(run.n_rows * row_bytes_)});
  backend_->stream_rows({copies_.data(), std::ssize(copies_)});
}

}  // namespace dsv32
