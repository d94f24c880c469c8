#include "base/thread.h"

#include <exception>
#include <utility>

namespace dsv32 {

bool start_thread(std::thread& thread, std::function<void()> body) try {
  thread = std::thread(std::move(body));
  return true;
} catch (const std::exception&) {
  return false;
}

}  // namespace dsv32
