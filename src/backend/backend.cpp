#include "backend/backend.h"

#include <vector>

namespace dsv32 {
namespace {

// For backends whose uploads any thread may ask for.
class PlainLane : public UploadLane {
 public:
  explicit PlainLane(Backend& backend) : backend_(backend) {}
  void upload(void* device, const void* staged, size_t n_bytes) override {
    backend_.upload(device, staged, n_bytes);
  }
  void wait() override { backend_.download(nullptr, nullptr, 0); }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<UploadLane> Backend::upload_lane() { return std::make_unique<PlainLane>(*this); }

void Backend::hand_over(const HandOver& op) {
  std::vector<float> values(static_cast<size_t>(op.n_values));
  download(values.data(), op.x, values.size() * sizeof(float));
  op.to->upload(op.y, values.data(), values.size() * sizeof(float));
}

void Backend::matmuls(std::span<const Matmul> ops) {
  for (const Matmul& op : ops) matmul(op);
}

}  // namespace dsv32
