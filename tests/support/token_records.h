// The tokens of an answer and their log-probabilities, with those of the alternatives, to be compared.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace dsv32 {

using Records = std::vector<std::pair<int32_t, float>>;

inline Records records_of(const GenerationResult& result) {
  Records records;
  for (const TokenRecord& record : result.logprobs) {
    records.emplace_back(record.chosen.id, record.chosen.logprob);
    for (const TokenLogprob& other : record.top) records.emplace_back(other.id, other.logprob);
  }
  return records;
}

}  // namespace dsv32
