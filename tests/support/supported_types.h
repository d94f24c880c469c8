// All supported storage types, ordered by number.
#pragma once

#include <vector>

#include "gguf/quant.h"

namespace dsv32 {

inline std::vector<TensorType> supported_types() {
  std::vector<TensorType> types;
  for (uint32_t number = 0; number < 300; ++number)
    if (const TypeTraits* found = find_traits(static_cast<TensorType>(number)); found && found->is_supported)
      types.push_back(static_cast<TensorType>(number));
  return types;
}

}  // namespace dsv32
