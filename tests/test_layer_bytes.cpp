// The bytes that placement goes by, against the tensors of a file and against the sizes of the real model.
#include <boost/test/unit_test.hpp>

#include "base/error.h"
#include "gguf/gguf.h"
#include "tests/support/contains.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "weights/config.h"
#include "weights/layer_bytes.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(layer_bytes)

// From the tensors' names, as the file spells them.
BOOST_AUTO_TEST_CASE(the_bytes_of_a_file_are_counted_where_they_go) {
  const TempDir dir;
  for (const bool is_fused : {false, true})
    for (const bool is_tied : {false, true}) {
      TinyModel shape;
      shape.fuse_gate_up = is_fused;
      if (is_tied) shape.without.insert("output.weight");
      write_tiny_model(dir.file("tiny.gguf"), shape);
      const GgufFile file(dir.file("tiny.gguf"));
      const ModelArgs args = read_model_args(file);
      const ModelBytes bytes = model_bytes(file, args);
      const auto of = [&](const std::string& prefix, const std::string& part) {
        uint64_t n = 0;
        for (const GgufTensor& tensor : file.tensors())
          if (tensor.name.starts_with(prefix) && contains(tensor.name, part)) n += tensor.n_bytes;
        return n;
      };
      BOOST_TEST_REQUIRE(std::ssize(bytes.layers) == args.n_layers + 1);
      for (size_t i = 0; i < bytes.layers.size(); ++i) {
        const std::string blk = format("blk.%zu.", i);
        BOOST_TEST(bytes.layers[i].is_draft == (i == 5));
        const uint64_t n_experts = i < 5 ? of(blk, "_exps.") : 0;  // the block's are part of its core
        BOOST_TEST(bytes.layers[i].experts == n_experts);
        BOOST_TEST(bytes.layers[i].core == of(blk, "") - n_experts - of(blk, "nextn."));
        // 4 of 16; a step without guesses does not read the block for drafts
        BOOST_TEST(bytes.layers[i].experts_read == (i < 5 ? of(blk, "_exps.") / 4 : 0));
        BOOST_TEST(bytes.layers[i].core_read() == (i < 5 ? bytes.layers[i].core : 0));
      }
      BOOST_TEST(bytes.draft == of("blk.5.nextn.", ""));
      BOOST_TEST(bytes.draft_embedding == (is_tied ? 0 : bytes.embedding));
      const ModelBytes less = model_bytes(file, args.without_draft());
      BOOST_TEST(std::ssize(less.layers) == args.n_layers);
      BOOST_TEST(total_bytes(bytes) - total_bytes(less) == of("blk.5.", ""));
      BOOST_TEST(total_bytes(without_draft(bytes)) == total_bytes(less));
      BOOST_TEST(bytes.embedding == of("token_embd.weight", ""));
      BOOST_TEST(bytes.embedding_read * static_cast<uint64_t>(args.vocab_size) == bytes.embedding);
      BOOST_TEST(bytes.head ==
                 of(is_tied ? "token_embd.weight" : "output.weight", "") + of("output_norm", ""));
      BOOST_TEST(bytes.tied == (is_tied ? bytes.embedding : 0));
    }
}

BOOST_AUTO_TEST_CASE(the_bytes_of_random_weights_are_those_that_they_will_take) {
  const ModelArgs args = full_size_args(61, 3);
  const SyntheticTypes types{TensorType::q2_k, TensorType::q8_0};
  const ModelBytes bytes = model_bytes(args, types);
  BOOST_TEST(bytes.layers[2].experts == 0u);
  BOOST_TEST(bytes.layers[3].experts == uint64_t{256} * 3 * 2048 * 7168 / 256 * 84);
  BOOST_TEST(bytes.layers[3].experts_read == bytes.layers[3].experts / 32);
  BOOST_TEST(4 * bytes.layers[3].link_read == bytes.layers[3].experts_read);
  BOOST_TEST(bytes.tied == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
