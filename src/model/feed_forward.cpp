// One layer's MLP: dense in the first layers, routed experts plus a shared one in the others.
#include "model/stage.h"

namespace dsv32 {

// y = w2 (silu(w1 x) * w3 x) (+ plus);  h += y.  x: x() [n, dim] of the piece; y may be x
Stage::LeftSum Stage::mlp(const Piece& p, const MlpWeights& w, const float* plus, float* y) {
  const int64_t n = p.tokens.n_tokens, n_cols = w.w2.n_cols;
  const Gather all_gate = columns(act_.gate.data(), act_.all_gate.data(), n, n_cols);
  announce(all_gate), announce(sum_of_parts(p, act_.part.data()));
  backend_.matmul_gated({w.w1, w.w3, x(p), act_.up.data(), act_.gate.data(), n, step_.role, w.scales.data()});
  if (!is_alone()) {
    backend_.gather(all_gate);
    backend_.matmul({w.w2, act_.all_gate.data(), n_cols, act_.part.data(), n, step_.role, plus});
    return add_parts(p, act_.part.data(), "ffn_out");
  }
  backend_.matmul({w.w2, act_.gate.data(), n_cols, y, n, step_.role, plus, h(p)});
  observe(p, "ffn_out", y, args_.dim);
  return {};
}

// Whether the shared expert is computed beside the router and the routed experts: in decode, if all tokens of
// the step are one piece.
bool Stage::runs_shared_beside() const {
  return args_.n_shared_experts > 0 && step_.role == Role::decode && step_.n_tokens <= act_.piece_tokens;
}

// in: x() [n, dim] after ffn_norm; out: the experts of the piece's tokens, and their weights
void Stage::route(const Piece& p, const ExpertWeights& w) {
  const int64_t n = p.tokens.n_tokens, n_activated = args_.n_activated_experts, first = p.first * n_activated;
  lap("other");
  RouteExperts op{act_.route_logits.data(),
                  w.bias.data(),
                  n,
                  args_.n_routed_experts,
                  n_activated,
                  args_.n_expert_groups,
                  args_.n_limited_groups,
                  args_.normalize_expert_weights,
                  args_.route_scale,
                  act_.experts.data() + first,
                  act_.expert_weights.data() + first};
  op.gate = product(p, w.gate, x(p), act_.route_logits.data());
  op.scales = w.output_scales.data();
  if (runs_shared_beside())
    op.beside = {w.shared.w1,      w.shared.w3, x(p),       act_.up.data(),
                 act_.gate.data(), n,           step_.role, w.shared.scales.data()};
  if (!is_alone()) {
    announce(hidden_values(w));
    announce(sum_of_parts(p, runs_shared_beside() ? act_.part.data() : routed_sum(p.first)));
  }
  backend_.route_experts(op);
  observe_ints(p, "experts", act_.experts.data() + first, n_activated);
  observe(p, "expert_weights", act_.expert_weights.data() + first, n_activated);
}

// out = weighted sum over the chosen experts, for all tokens of the step: each expert is read once
void Stage::routed_experts(const ExpertWeights& w) {
  RunExperts op = experts_op(w.routed);
  op.x = act_.x.data(), op.experts = act_.experts.data(), op.weights = act_.expert_weights.data();
  op.n_tokens = step_.n_tokens, op.y = routed_sum(0);
  op.member = member_, op.hidden = act_.all_hidden.data();
  if (const int32_t* experts = forced().experts)
    op.experts = experts + (layer_ - cache_.first_layer()) * forced_.n_tokens * op.n_activated;
  op.place = w.place;
  if (w.place == Place::host)
    op.next = host_experts_after(layer_);
  else
    op.window = act_.expert_window(), op.n_window_bytes = act_.n_expert_window_bytes();
  if (runs_shared_beside() && w.place == Place::device) op.shared = shared_output(w);
  backend_.run_experts(op);
}

// The routed experts' sums from a token of the step on; in a team the member's share of them.
float* Stage::routed_sum(int64_t first) {
  return (is_alone() ? act_.out() : act_.expert_part.data()) + first * args_.dim / member_.n();
}

// x = w2 of the shared expert + the routed experts' sum;  h += x.  For all tokens of the step. In a team the
// member's part of that, without a sum.
Matmul Stage::shared_output(const ExpertWeights& w) {
  const WeightMatrix& w2 = w.shared.w2;
  float* y = is_alone() ? act_.x.data() : act_.part.data();
  Matmul op{w2, act_.gate.data(), w2.n_cols, y, step_.n_tokens, step_.role, routed_sum(0)};
  if (is_alone()) op.sum = act_.h.data();
  return op;
}

// h += the routed experts' sum + the shared expert, for the piece, as far as routed_experts() has not done it
Stage::LeftSum Stage::shared_expert(const Piece& p, const ExpertWeights& w) {
  const bool is_beside = runs_shared_beside();
  if (args_.n_shared_experts > 0 && !is_beside) return mlp(p, w.shared, routed_sum(p.first), x(p));
  if (is_beside && w.place == Place::host) backend_.matmul(shared_output(w));
  if (!is_alone()) return add_parts(p, is_beside ? act_.part.data() : routed_sum(p.first), "ffn_out");
  observe(p, "ffn_out", is_beside ? x(p) : out(p), args_.dim);
  if (!is_beside) backend_.add({out(p), h(p), p.tokens.n_tokens * args_.dim});
  return {};
}

RunExperts Stage::experts_op(const ExpertStacks& stacks) {
  RunExperts op{stacks};
  op.n_activated = args_.n_activated_experts, op.role = step_.role;
  op.window = expert_window_.data(), op.n_window_bytes = expert_window_.n_bytes();
  op.n_link_bytes = n_link_bytes_;
  return op;
}

// Lets the link bring the first experts in host memory while the layers before them compute.
void Stage::announce_host_experts() {
  if (step_.role == Role::decode || expert_window_.n() == 0) return;
  RunExperts op = experts_op({});
  op.place = Place::host, op.next = host_experts_after(cache_.first_layer() - 1);
  backend_.run_experts(op);
}

// The host experts that are streamed next in this stage: of a later layer, or of an earlier layer in the
// prompt's next step. Null in decode; and after a step with logits no next step is known.
const ExpertStacks* Stage::host_experts_after(int64_t layer) const {
  if (step_.role == Role::decode) return nullptr;
  const auto on_host = [&](int64_t l) -> const ExpertStacks* {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
    const bool is_streamed = !w.is_dense && w.experts.place == Place::host && !leaves_rows_only(l);
    return is_streamed ? &w.experts.routed : nullptr;
  };
  for (int64_t l = layer + 1; l < cache_.end_layer(); ++l)
    if (const ExpertStacks* found = on_host(l)) return found;
  for (int64_t l = cache_.first_layer(); n_logits_ == 0 && l <= layer; ++l)
    if (const ExpertStacks* found = on_host(l)) return found;
  return nullptr;
}

}  // namespace dsv32
