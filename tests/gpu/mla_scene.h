// Something to attend to, for the tests of sparse MLA: a cache, queries and selected rows, in host memory and
// on the GPU, and what the CPU backend makes of them.
//
// Rows and key pages hold bytes that decode to NaN or huge values wherever no token was stored, pages and
// slots are shuffled, and the entries past n_selected are no addresses: what is read by mistake shows.
#pragma once

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

namespace dsv32::mla_test {

// What attends to what.
struct Shape {
  KvType kv_type = KvType::fp8;
  int64_t n_heads = 128, n_tokens = 1, n_seqs = 1, context = 2300, topk = 2048;
  std::vector<int32_t> n_selected = {2048};  // of token 0, 1, ...; repeats
  bool has_slots = false;
  bool is_dominated = false;  // every head's query is one of the selected rows, many times longer
  int64_t rank = 512, rope_dim = 64;
  int64_t n_queries = 1 << 30;  // from this token on queries repeat
  float query_size = 1;         // other than 1: heads differ by up to 4 as well
  float latent_size = 1;        // the scale makes up for both
  Role role = Role::decode;
};

inline std::vector<int32_t> shuffled(int64_t n, Rng& rng) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.next() % i]);
  return order;
}

// A cache with everything stored, and what is to be attended to, in host memory.
class Scene {
 public:
  explicit Scene(const Shape& shape) : shape_(shape), rng_(7) {
    layout_ = {shape.kv_type, shape.rank, shape.rope_dim, 128};
    n_seq_pages_ = (shape.context + kPageTokens - 1) / kPageTokens;
    n_pages_ = shape.n_seqs * n_seq_pages_ + 3;
    rows_.assign(static_cast<size_t>(n_pages_ * kPageTokens * layout_.row_bytes()), 0xff);
    key_pages_.assign(static_cast<size_t>(n_pages_ * layout_.key_page_bytes()), 0xfe);
    pages_ = shuffled(n_pages_, rng_);
    store_rows();
    copy_to_slots();
    select();
    make_queries();
  }

  // The operation over these arrays, or over copies of them; tokens first ... first + n_tokens - 1.
  struct Arrays {
    const uint8_t *rows, *slots, *key_pages;
    const int32_t *pages, *seq, *selected, *n_selected;
    const int64_t* row_ids;
    const float *q_c, *q_pe;
  };
  Attend attend(const Arrays& a, float* o_c, int64_t first, int64_t n_tokens) const {
    Attend op;
    op.step.n_tokens = n_tokens, op.step.n_seqs = shape_.n_seqs, op.step.max_pos = 1 << 20;
    op.step.seq = a.seq + first, op.step.role = shape_.role;
    op.cache.layout = layout_;
    op.cache.slots = const_cast<uint8_t*>(shape_.has_slots ? a.slots : a.rows);
    op.cache.key_pages = const_cast<uint8_t*>(a.key_pages);
    op.cache.pages = a.pages, op.cache.max_pages = n_seq_pages_;
    op.n_heads = shape_.n_heads, op.topk = shape_.topk, op.scale = scale_;
    op.q_c = a.q_c + first * shape_.n_heads * shape_.rank;
    op.q_pe_head_stride = q_stride(), op.q_pe_token_stride = q_stride() * shape_.n_heads;
    op.q_pe = a.q_pe + first * op.q_pe_token_stride + kNope;
    op.selected = a.selected + first * shape_.topk, op.n_selected = a.n_selected + first;
    op.row_ids = a.row_ids + first * shape_.topk;
    op.o_c = o_c;
    return op;
  }

  // The oracle's o_c of one token: [n_heads, rank].
  std::vector<float> expected(int64_t t) const {
    std::vector<float> o_c(static_cast<size_t>(shape_.n_heads * shape_.rank));
    CpuBackend cpu(0);
    cpu.attend(attend(host(), o_c.data(), t, 1));
    return o_c;
  }

  // row_ids as they are without slots.
  std::vector<int64_t> resident_ids() const {
    std::vector<int64_t> ids = row_ids_;
    for (int64_t t = 0; t < shape_.n_tokens; ++t)
      for (int32_t j = 0; j < n_selected_[static_cast<size_t>(t)]; ++j) {
        const auto at = static_cast<size_t>(t * shape_.topk + j);
        ids[at] = place(pages_, seq_[static_cast<size_t>(t)], selected_[at]);
      }
    return ids;
  }

  const Shape& shape() const { return shape_; }
  Arrays host() const {
    return {rows_.data(),     slots_.data(),      key_pages_.data(), pages_.data(), seq_.data(),
            selected_.data(), n_selected_.data(), row_ids_.data(),   q_c_.data(),   q_pe_.data()};
  }

 private:
  friend class DeviceScene;
  static constexpr int64_t kNope = 12;  // values before a head's q_pe, as in the model, where q is one array
  int64_t q_stride() const { return kNope + shape_.rope_dim; }

  int64_t place(const std::vector<int32_t>& pages, int64_t seq, int64_t pos) const {
    return pages[static_cast<size_t>(seq * n_seq_pages_ + pos / kPageTokens)] * kPageTokens +
           pos % kPageTokens;
  }

  // Latents whose tiles and tokens differ in size, so that neighbouring scales do.
  void store_rows() {
    std::vector<int32_t> pos(static_cast<size_t>(shape_.context)), seq(pos.size());
    std::vector<float> c(pos.size() * static_cast<size_t>(shape_.rank));
    std::vector<float> k_pe(pos.size() * static_cast<size_t>(shape_.rope_dim));
    for (int64_t s = 0; s < shape_.n_seqs; ++s) {
      for (size_t i = 0; i < pos.size(); ++i)
        pos[i] = static_cast<int32_t>(i), seq[i] = static_cast<int32_t>(s);
      for (size_t i = 0; i < c.size(); ++i) {
        const size_t token = i / static_cast<size_t>(shape_.rank),
                     tile = i % static_cast<size_t>(shape_.rank) / 128;
        c[i] = shape_.latent_size * rng_.unit() *
               std::exp2(static_cast<float>((token * 5 + tile * 3) % 7) / 2 - 2);
      }
      for (float& value : k_pe) value = shape_.latent_size * rng_.unit();
      StepTokens step;
      step.n_tokens = shape_.context, step.n_seqs = shape_.n_seqs;
      step.pos = pos.data(), step.seq = seq.data();
      CacheView cache;
      cache.layout = layout_, cache.rows = cache.slots = rows_.data();
      cache.key_pages = key_pages_.data();
      cache.pages = pages_.data(), cache.max_pages = n_seq_pages_;
      CpuBackend(0).store_latents(step, cache, c.data(), k_pe.data(), shape_.rope_dim);
      latents_.push_back(c), ropes_.push_back(k_pe);
    }
  }

  void copy_to_slots() {
    slots_.assign(rows_.size(), 0xff);
    if (!shape_.has_slots) return;
    slot_of_ = shuffled(n_pages_ * kPageTokens, rng_);
    const auto row_bytes = static_cast<size_t>(layout_.row_bytes());
    for (size_t i = 0; i < slot_of_.size(); ++i)
      std::copy_n(&rows_[i * row_bytes], row_bytes, &slots_[static_cast<size_t>(slot_of_[i]) * row_bytes]);
  }

  void select() {
    const auto n = static_cast<size_t>(shape_.n_tokens * shape_.topk);
    selected_.assign(n, -1'000'000'007), row_ids_.assign(n, int64_t{1} << 52);
    for (int64_t t = 0; t < shape_.n_tokens; ++t) {
      seq_.push_back(static_cast<int32_t>(t * 3 % shape_.n_seqs));
      const int64_t n_wanted = shape_.n_selected[static_cast<size_t>(t) % shape_.n_selected.size()];
      n_selected_.push_back(static_cast<int32_t>(n_wanted));
      int64_t j = 0;  // position p is taken with the probability that leaves an even choice among the rest
      for (int64_t p = 0; p < shape_.context && j < n_wanted; ++p) {
        if (static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(shape_.context - p)) >= n_wanted - j)
          continue;
        const auto at = static_cast<size_t>(t * shape_.topk + j++);
        const int64_t row = place(pages_, seq_.back(), p);
        selected_[at] = static_cast<int32_t>(p);
        row_ids_[at] = shape_.has_slots ? slot_of_[static_cast<size_t>(row)] : row;
      }
    }
  }

  void make_queries() {
    const int64_t n_rows = shape_.n_tokens * shape_.n_heads, rank = shape_.rank;
    q_c_.resize(static_cast<size_t>(n_rows * rank));
    q_pe_.assign(static_cast<size_t>(n_rows * q_stride()), NAN);
    scale_ = 1.0f / std::sqrt(static_cast<float>(rank)) / shape_.query_size / shape_.latent_size;
    for (int64_t r = 0; r < n_rows; ++r) {
      float* q_c = &q_c_[static_cast<size_t>(r * rank)];
      float* q_pe = &q_pe_[static_cast<size_t>(r * q_stride() + kNope)];
      const int64_t t = r / shape_.n_heads, n_apart = shape_.n_queries * shape_.n_heads;
      if (t >= shape_.n_queries) {
        std::copy_n(q_c - n_apart * rank, rank, q_c);
        std::copy_n(q_pe - n_apart * q_stride(), shape_.rope_dim, q_pe);
        continue;
      }
      const float size =
          shape_.query_size == 1 ? 1.0f : shape_.query_size * std::exp2(-static_cast<float>(r % 3));
      for (int64_t i = 0; i < rank; ++i) q_c[i] = size * rng_.unit();
      for (int64_t i = 0; i < shape_.rope_dim; ++i) q_pe[i] = size * rng_.unit();
      if (!shape_.is_dominated) continue;
      const auto at = static_cast<size_t>(t * shape_.topk + r * 37 % n_selected_[static_cast<size_t>(t)]);
      const auto seq = static_cast<size_t>(seq_[static_cast<size_t>(t)]);
      for (int64_t i = 0; i < rank; ++i)
        q_c[i] = 100 * latents_[seq][static_cast<size_t>(selected_[at] * rank + i)];
      for (int64_t i = 0; i < shape_.rope_dim; ++i)
        q_pe[i] = 100 * ropes_[seq][static_cast<size_t>(selected_[at] * shape_.rope_dim + i)];
    }
  }

  Shape shape_;
  Rng rng_;
  CacheLayout layout_;
  int64_t n_seq_pages_ = 0, n_pages_ = 0;
  float scale_ = 0;
  std::vector<uint8_t> rows_, slots_, key_pages_;
  std::vector<int32_t> pages_, slot_of_, seq_, selected_, n_selected_;
  std::vector<int64_t> row_ids_;
  std::vector<float> q_c_, q_pe_;
  std::vector<std::vector<float>> latents_, ropes_;  // as they were stored, of each sequence
};

// The same in device memory.
class DeviceScene {
 public:
  explicit DeviceScene(const Scene& scene)
      : scene_(scene),
        rows_(scene.rows_),
        slots_(scene.slots_),
        key_pages_(scene.key_pages_),
        pages_(scene.pages_),
        seq_(scene.seq_),
        selected_(scene.selected_),
        n_selected_(scene.n_selected_),
        row_ids_(scene.row_ids_),
        q_c_(scene.q_c_),
        q_pe_(scene.q_pe_),
        o_c_(scene.q_c_.size()) {}

  Attend attend() const { return attend(0, scene_.shape().n_tokens); }
  // Of tokens [first, first + n_tokens), whose outputs are the first in o_c().
  Attend attend(int64_t first, int64_t n_tokens) const {
    return scene_.attend({rows_.data(), slots_.data(), key_pages_.data(), pages_.data(), seq_.data(),
                          selected_.data(), n_selected_.data(), row_ids_.data(), q_c_.data(), q_pe_.data()},
                         o_c_.data(), first, n_tokens);
  }
  // The same of rows that lie in the slots of their positions, as a step finds them without a buffer.
  Attend attend_by_position() const { return by_position(attend()); }
  Attend by_position(Attend op) const {
    op.row_ids = nullptr;
    op.cache.slots = rows_.data(), op.cache.slot_pages = pages_.data();
    op.step.max_pos = scene_.shape().context - 1;
    return op;
  }
  std::vector<float> run(TestLaunch& launch) const { return run(attend(), launch); }
  std::vector<float> run(const Attend& op, TestLaunch& launch) const {
    cuda::attend(op, launch.launch());
    return o_c_.values();
  }
  uint8_t* rows() const { return rows_.data(); }
  const DeviceArray<float>& o_c() const { return o_c_; }

 private:
  const Scene& scene_;
  DeviceArray<uint8_t> rows_, slots_, key_pages_;
  DeviceArray<int32_t> pages_, seq_, selected_, n_selected_;
  DeviceArray<int64_t> row_ids_;
  DeviceArray<float> q_c_, q_pe_, o_c_;
};

}  // namespace dsv32::mla_test
