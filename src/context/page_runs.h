// Pages whose numbers follow one another are one copy.
#pragma once

#include <span>

#include "context/page_pool.h"

namespace dsv32 {

// visit(begin, end) for each longest run of pages[begin, end) whose numbers (PoolPage::row or PoolPage::key)
// ascend by one.
template <typename Visit>
void for_page_runs(std::span<const PoolPage> pages, int32_t PoolPage::*number, const Visit& visit) {
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    for (end = begin + 1; end < pages.size() && pages[end].*number == pages[end - 1].*number + 1;) ++end;
    visit(begin, end);
  }
}

}  // namespace dsv32
