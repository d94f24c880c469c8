#include "backend/backend.h"

#include <vector>

namespace dsv32 {

void Backend::hand_over(const HandOver& op) {
  std::vector<float> values(static_cast<size_t>(op.n_values));
  download(values.data(), op.x, values.size() * sizeof(float));
  op.to->upload(op.y, values.data(), values.size() * sizeof(float));
}

void Backend::matmuls(std::span<const Matmul> ops) {
  for (const Matmul& op : ops) matmul(op);
}

}  // namespace dsv32
