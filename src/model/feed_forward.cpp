// One layer's MLP: dense in the first layers, routed experts plus a shared one in the others.
#include "model/stage.h"

namespace dsv32 {

// in: x [n, dim] after ffn_norm; out: act_.out [n, dim]
void Stage::feed_forward(int64_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  if (w.is_dense) return mlp(w.mlp, act_.out.data());
  lap("other");
  experts(w.experts);
  lap("experts");
}

// out = w2 (silu(w1 x) * w3 x)
void Stage::mlp(const MlpWeights& w, float* out) {
  const int64_t n = step_.n_tokens, inter_dim = w.w1.n_rows;
  matmul(w.w1, act_.x, act_.gate);
  matmul(w.w3, act_.x, act_.up);
  backend_.silu_mul({act_.gate.data(), act_.up.data(), act_.gate.data(), n * inter_dim});
  backend_.matmul({w.w2, act_.gate.data(), inter_dim, out, n, step_.role});
}

// out = sum over the chosen experts, weighted, + the shared expert
void Stage::experts(const ExpertWeights& w) {
  const int64_t n = step_.n_tokens, n_activated = args_.n_activated_experts;
  matmul(w.gate, act_.x, act_.route_logits);
  backend_.route_experts({act_.route_logits.data(), w.bias.data(), n, args_.n_routed_experts, n_activated,
                          args_.n_expert_groups, args_.n_limited_groups, args_.normalize_expert_weights,
                          args_.route_scale, act_.experts.data(), act_.expert_weights.data()});
  observe_ints("experts", act_.experts.data(), n_activated);
  observe("expert_weights", act_.expert_weights.data(), n_activated);
  backend_.run_experts({w.routed, act_.x.data(), act_.experts.data(), act_.expert_weights.data(), n,
                        n_activated, act_.out.data(), step_.role});
  if (args_.n_shared_experts == 0) return;
  mlp(w.shared, act_.x.data());  // x has served its turn
  backend_.add({act_.x.data(), act_.out.data(), n * args_.dim});
}

}  // namespace dsv32
