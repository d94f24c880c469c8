// A member's share of a layer, and how the members of a team put their shares together (backend/team.h).
//
//   attention by heads (few tokens)   o = all heads' o;  h += out = wo o, each member some rows of wo
//   attention by tokens               each member has h of some tokens: its own kv and keys, then its own x
//   MLP, experts, head                each member some rows of every product
//
// A member's part of a product has some rows of the matrix, and all columns. In steps of few tokens gathers
// are announced before the products that make the parts. A gather writes a buffer on every member: all_o,
// all_gate, all_hidden, out or the logits, and with attention by tokens kv, index_k, x or h. Gather requires
// that two gathers which write the same buffer have another one between them. In a layer that only stores
// rows, two gathers of kv would follow each other; so there every member has h of all tokens, and no kv is
// gathered.
#include "model/stage.h"

namespace dsv32 {

// The member's rows of a matrix that it has whole.
WeightMatrix Stage::own_rows(const WeightMatrix& weight) const {
  const int64_t first = member_.begin(weight.n_rows);
  return some_rows(weight, first, member_.end(weight.n_rows) - first);
}

// The member's heads of a stack, with attention by heads; else all.
WeightMatrix Stage::own_heads(const Piece& p, const WeightMatrix& stack) const {
  if (p.share.division != Division::heads) return stack;
  return some_mats(stack, member_.begin(stack.n_mats), p.share.n_heads);
}

// whole [n_rows, width] = the members' parts [n_rows, share of width], beside each other
Gather Stage::columns(const float* part, float* whole, int64_t n_rows, int64_t width) const {
  return {member_, {{part, whole, n_rows, width}, {}}};
}

// The hidden values of all uses, whose parts run_experts() has, and the shared expert's.
Gather Stage::hidden_values(const ExpertWeights& w) const {
  const int64_t n = step_.n_tokens, n_uses = n * args_.n_activated_experts, width = w.routed.w2.n_cols;
  auto* whole = reinterpret_cast<float*>(act_.all_hidden.data());
  Gather gather = columns(nullptr, whole, n_uses, width);
  if (args_.n_shared_experts > 0)
    gather.pieces[1] = {act_.gate.data(), whole + n_uses * width, n, w.shared.w2.n_cols};
  return gather;
}

// h += out = the members' parts, of the piece's tokens
Gather Stage::sum_of_parts(const Piece& p, const float* part) {
  Gather gather = columns(part, out(p), p.tokens.n_tokens, args_.dim);
  gather.sum = h(p), gather.is_to_owners = p.share.is_by_tokens();
  return gather;
}

// Whether the gathers of the step's layers are announced. Who observes sees what they gather.
bool Stage::announces_gathers() const {
  if (is_alone() || observer_) return false;
  const int64_t all_o = args_.n_heads * args_.v_head_dim,
                experts = (args_.n_activated_experts + args_.n_shared_experts) * args_.moe_inter_dim;
  const auto is_even = [&](int64_t width) { return width % member_.n() == 0 && width % 4 == 0; };
  return goes_by_inbox(step_.role == Role::decode, step_.n_tokens, member_.n(),
                       {std::max({all_o, args_.inter_dim, experts}), args_.dim,
                        is_even(all_o) && is_even(args_.inter_dim) && is_even(args_.moe_inter_dim)});
}

// The products that follow may send what they make of this gather.
void Stage::announce(const Gather& gather) {
  if (announces_gathers()) backend_.announce(gather);
}

// Adds the members' parts to h, or leaves that. Who observes sees `out`, which the sum may overwrite.
Stage::LeftSum Stage::add_parts(const Piece& p, const float* part, const char* name) {
  const int64_t n = p.tokens.n_tokens;
  const Gather gather = sum_of_parts(p, part);
  if (observer_) {
    backend_.gather(columns(part, out(p), n, args_.dim));
    observe(p, name, out(p), args_.dim);
    backend_.add({out(p), h(p), n * args_.dim});
    return {};
  }
  if (n == step_.n_tokens && !gather.is_to_owners) return gather;
  backend_.gather(gather);
  return {};
}

// y [n, n_rows] = weight @ x(), of the member's tokens.
Matmul Stage::product_of_owned(const Piece& p, const WeightMatrix& weight, float* y) {
  const int64_t first = p.share.first;
  Matmul op = product(p, weight, x(p) + first * weight.n_cols, y + first * weight.n_rows);
  op.n_tokens = p.share.n_tokens;
  return op;
}

// A vector [n, width] in which each member has its share of the piece's tokens.
Gather::Piece Stage::by_tokens(const Piece& p, float* values, int64_t width) const {
  return {values + p.share.first * width, values, p.tokens.n_tokens, width, true};
}

// Makes vectors whole, if each member has them of its tokens alone.
void Stage::gather_owned(const Piece& p, const Gather::Piece& values, const Gather::Piece& others) {
  if (p.share.is_by_tokens()) backend_.gather({member_, {values, others}});
}

// In a buffer every new row has claimed a slot. The tokens that other members attend for select nothing here.
void Stage::claim_others(const Piece& p, const CacheView& cache) {
  if (!p.share.is_by_tokens()) return;
  const int64_t end = p.share.first + p.share.n_tokens;
  claim_slots(some_of(p.tokens, 0, p.share.first), cache);
  claim_slots(some_of(p.tokens, end, p.tokens.n_tokens - end), cache);
}

}  // namespace dsv32
