#include "weights/shares.h"

#include "weights/layer_bytes.h"

namespace dsv32 {

ModelBytes share_of(const ModelBytes& whole, int64_t n_members) {
  if (n_members == 1) return whole;
  const auto n = static_cast<uint64_t>(n_members);
  const auto divide = [n](uint64_t& bytes, uint64_t& divided) {
    bytes = bytes - divided + divided / n;
    divided /= n;
  };
  ModelBytes share = whole;
  for (LayerBytes& layer : share.layers) {
    divide(layer.core, layer.divided);
    layer.heads_unread = layer.heads - layer.heads / n;
    layer.experts /= n, layer.experts_read /= n;
    layer.link_read = layer.link_window = 0;
  }
  if (!divides_rows(whole.vocab_size, n_members)) return share;
  divide(share.head, share.head_divided);
  divide(share.draft, share.draft_divided);
  share.tied /= n;
  return share;
}

}  // namespace dsv32
