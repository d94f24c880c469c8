// What a thread may use that cannot be ended: it is never freed, and the process goes with it.
#pragma once

#include <memory>

namespace dsv32 {

// Any thread.
void keep_forever(std::shared_ptr<const void> thing);

}  // namespace dsv32
