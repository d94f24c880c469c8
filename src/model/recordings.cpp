#include "model/recordings.h"

#include <algorithm>
#include <utility>

namespace dsv32 {

void Recordings::run(const Key& key, const std::function<void()>& step) {
  auto known = std::ranges::find(recorded_, key, &Recorded::key);
  if (known == recorded_.end()) {
    std::unique_ptr<Recording> recording = backend_.record(step);
    if (!recording) return step();
    if (recorded_.size() == kMost) recorded_.pop_back();
    recorded_.push_back({key, std::move(recording)});
    known = recorded_.end() - 1;
  }
  std::rotate(recorded_.begin(), known, known + 1);
  recorded_.front().recording->replay();
}

}  // namespace dsv32
