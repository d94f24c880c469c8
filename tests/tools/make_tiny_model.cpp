// make_tiny_model OUT.gguf [--seed N]: writes the default tiny model of tests/support/tiny_model.h.
// make_tiny_model OUT.gguf --wide N: one of the 671B model's width with N layers, the first of them dense, in
// Q4_K: some 6.5 GB each, to time what reads files.
// make_tiny_model --split IN.gguf OUT.gguf INDEXER.gguf: a model's file without its indexer, as deepseek2,
// and a file of the indexer alone. make_tiny_model --fuzz-corpus DIR: writes the fuzzer's seeds, sound and
// damaged files, into an existing folder.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "tests/support/damaged_gguf.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/tiny_model.h"

namespace {

using namespace dsv32;

// A model of one token's width: every key and every kind of tensor in a few kilobytes.
GgufWriter smallest_model() {
  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.dim = 32, shape.inter_dim = 32,
  shape.moe_inter_dim = 32;
  shape.n_heads = 1, shape.q_lora_rank = 32, shape.kv_lora_rank = 32;
  shape.qk_nope_head_dim = 32, shape.qk_rope_head_dim = 8, shape.v_head_dim = 8;
  shape.index_n_heads = 1, shape.index_head_dim = 8, shape.n_routed_experts = 2, shape.n_expert_groups = 1;
  shape.has_mtp = false;
  shape.only_types = {TensorType::q4_0};
  shape.without = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
                   "token_embd.weight", "output.weight"};
  return tiny_model(shape);
}

void write_fuzz_corpus(const std::string& dir) {
  sound_gguf().write(dir + "/sound");
  smallest_model().write(dir + "/smallest_model");
  GgufWriter().write(dir + "/nothing");
  GgufWriter part = sound_gguf();
  part.add("split.no", uint16_t{0});
  part.add("split.count", uint16_t{3});
  part.add("split.tensors.count", int32_t{9});
  part.write(dir + "/split_part");
  GgufWriter aligned = sound_gguf();
  aligned.add("general.alignment", uint32_t{64});
  aligned.set_alignment(64);
  aligned.write(dir + "/aligned_64");
  for (const DamagedGguf& damaged : damaged_ggufs())
    GgufImage{damaged.bytes, {}}.write(dir + "/" + damaged.name);
}

TinyModel wide_model(uint32_t n_layers) {
  TinyModel shape;
  shape.n_layers = n_layers, shape.n_dense_layers = 1, shape.has_mtp = false;
  shape.dim = 7168, shape.inter_dim = 18432, shape.moe_inter_dim = 2048;
  shape.n_heads = 128, shape.q_lora_rank = 1536, shape.index_n_heads = 64, shape.index_topk = 2048;
  shape.n_routed_experts = 256, shape.n_activated_experts = 8;
  shape.n_expert_groups = 8, shape.n_limited_groups = 4;
  shape.only_types = {TensorType::q4_k};
  return shape;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_corpus = argc == 3 && std::strcmp(argv[1], "--fuzz-corpus") == 0;
  const bool has_seed = argc == 4 && std::strcmp(argv[2], "--seed") == 0;
  const bool is_split = argc == 5 && std::strcmp(argv[1], "--split") == 0;
  const bool is_wide = argc == 4 && std::strcmp(argv[2], "--wide") == 0;
  if (argc != 2 && !has_seed && !is_wide && !is_split && !is_corpus) {
    std::fprintf(stderr,
                 "usage: make_tiny_model OUT.gguf [--seed N | --wide N]\n"
                 "       make_tiny_model --split IN.gguf OUT.gguf INDEXER.gguf\n"
                 "       make_tiny_model --fuzz-corpus DIR\n");
    return 2;
  }
  try {
    TinyModel shape;
    if (is_wide) shape = wide_model(static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)));
    if (has_seed) shape.seed = std::strtoull(argv[3], nullptr, 10);
    if (is_split) {
      const GgufFile model(argv[2]);
      without_indexer(model, "deepseek2").write(argv[3]);
      indexer_of(model).write(argv[4]);
    } else if (is_corpus)
      write_fuzz_corpus(argv[2]);
    else
      write_tiny_model(argv[1], shape);
  } catch (const Error& error) {
    std::fprintf(stderr, "make_tiny_model: %s\n", error.what());
    return exit_code(error.kind());
  }
  return 0;
}
