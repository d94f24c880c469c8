// CPUs as the members of a team: each works on its share, and copies what the others have from their memory.
// What a team of GPUs computes is so compared with one device, without a GPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"
#include "backend/cpu_matmul.h"

namespace dsv32 {

class TeamBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  bool can_team_with(const Backend& other) const override { return numerics() == other.numerics(); }
  void gather(const Gather& op) override {
    constexpr size_t kWord = 4;
    const std::span<const void* const> all = op.member.team->meet(op.member.number, &op);
    const auto [n_rows, width] = std::pair(op.pieces[0].n_rows, op.pieces[0].width);
    const int64_t first_wanted = op.is_to_owners ? op.member.begin(n_rows) : 0,
                  end_wanted = op.is_to_owners ? op.member.end(n_rows) : n_rows;
    for (size_t m = 0; m < all.size(); ++m) {
      const auto& from = *static_cast<const Gather*>(all[m]);
      for (size_t k = 0; k < std::size(op.pieces); ++k) {
        const Gather::Piece &its = from.pieces[k], &own = op.pieces[k];
        const bool by_rows = own.is_by_rows;
        const int64_t first_row = by_rows ? from.member.begin(own.n_rows) : 0,
                      end_row = by_rows ? from.member.end(own.n_rows) : own.n_rows,
                      first = by_rows ? 0 : from.member.begin(own.width),
                      n = by_rows ? own.width : from.member.end(own.width) - first;
        for (int64_t row = std::max(first_row, k == 0 ? first_wanted : 0);
             row < std::min(end_row, k == 0 ? end_wanted : own.n_rows); ++row)
          std::memmove(
              static_cast<uint8_t*>(own.whole) + static_cast<size_t>(row * own.width + first) * kWord,
              static_cast<const uint8_t*>(its.part) + static_cast<size_t>((row - first_row) * n) * kWord,
              static_cast<size_t>(n) * kWord);
      }
    }
    op.member.team->meet(op.member.number, nullptr);  // nobody goes on before all have copied
    const int64_t at = first_wanted * width;
    if (op.sum)
      CpuBackend::add({static_cast<const float*>(op.pieces[0].whole) + at, op.sum + at,
                       (end_wanted - first_wanted) * width});
    if (op.norm.out) CpuBackend::rms_norm(op.norm);
  }

  // Every use by itself. All members have the hidden values of all uses before they go on.
  void run_experts(const RunExperts& op) override {
    if (op.member.is_alone()) return CpuBackend::run_experts(op);
    const int64_t n_uses = op.n_tokens * op.n_activated, inter = op.w1.n_rows, dim = op.w2.n_rows;
    std::vector<float> hidden(static_cast<size_t>(n_uses * inter));
    for (int64_t use = 0; use < n_uses; ++use) hide(op, use, hidden.data() + use * inter);
    auto* whole = reinterpret_cast<float*>(op.hidden);
    float* behind = whole + n_uses * op.w2.n_cols;
    Matmul shared = op.shared;
    Gather all{op.member, {{hidden.data(), whole, n_uses, op.w2.n_cols}, {}}};
    if (shared.weight.data) all.pieces[1] = {shared.x, behind, op.n_tokens, shared.weight.n_cols};
    TeamBackend::gather(all);
    std::fill_n(op.y, op.n_tokens * dim, 0.0f);
    std::vector<float> out(static_cast<size_t>(dim));
    for (int64_t use = 0; use < n_uses; ++use) {
      multiply(op.w2, op.experts[use], whole + use * op.w2.n_cols, out.data());
      cpu_axpy(op.weights[use], out.data(), op.y + use / op.n_activated * dim, dim);
    }
    shared.x = behind, shared.x_stride = shared.weight.n_cols;
    if (shared.weight.data) CpuBackend::matmul(shared);
  }

 private:
  static void multiply(const WeightMatrix& weight, int64_t mat, const float* x, float* y) {
    cpu_matmul_rows({weight, mat, x, weight.n_cols, y, weight.n_rows, 1}, 0, weight.n_rows);
  }
  static void hide(const RunExperts& op, int64_t use, float* hidden) {
    const int32_t expert = op.experts[use];
    const float* x = op.x + use / op.n_activated * op.w1.n_cols;
    std::vector<float> up(static_cast<size_t>(op.w3.n_rows));
    multiply(op.w1, expert, x, hidden);
    multiply(op.w3, expert, x, up.data());
    for (size_t i = 0; i < up.size(); ++i)
      hidden[i] = cpu_silu_mul(hidden[i], up[i], op.scales ? op.scales + 2 * expert : nullptr);
  }
};

}  // namespace dsv32
