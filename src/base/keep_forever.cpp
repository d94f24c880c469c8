#include "base/keep_forever.h"

#include <mutex>
#include <utility>
#include <vector>

namespace dsv32 {

// On the heap, so that no static destructor empties it.
void keep_forever(std::shared_ptr<const void> thing) {
  static std::mutex& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard guard(mutex);
  kept.push_back(std::move(thing));
}

}  // namespace dsv32
