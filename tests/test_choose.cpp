// Which kernels a GPU runs, as a table: no GPU is needed to know.
#include <boost/test/unit_test.hpp>

#include "backend/choose.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(choose)

namespace {

constexpr auto kHopper = KernelFamily::hopper, kGeneric = KernelFamily::generic;

bool is_choice(const DecodeChoice& choice, DecodeKernel kernel, int n_together, int width) {
  BOOST_TEST_INFO("kernel " << static_cast<int>(choice.kernel) << ", " << choice.n_together << " of "
                            << choice.width);
  return choice.kernel == kernel && choice.n_together == n_together && choice.width == width;
}

}  // namespace

BOOST_AUTO_TEST_CASE(products_of_decode) {
  using enum DecodeKernel;
  using enum TensorType;
  const struct {
    TensorType type;
    int n_tokens, n_uses;
    KernelFamily family;
    DecodeKernel kernel;
    int n_together, width;
  } table[] = {
      {f32, 1, 0, kHopper, float_rows, 1, 1},   {f32, 8, 0, kHopper, float_rows, 1, 1},
      {f32, 9, 0, kHopper, float_tiles, 9, 9},  {f16, 1, 0, kHopper, rows, 1, 8},
      {bf16, 33, 0, kHopper, rows, 16, 16},     {q4_k, 1, 0, kHopper, rows, 1, 8},
      {q4_k, 8, 0, kGeneric, rows, 8, 8},       {q4_k, 9, 0, kHopper, columns, 9, 16},
      {q4_k, 16, 0, kHopper, columns, 16, 16},  {q4_k, 17, 0, kHopper, wide, 17, 32},
      {q6_k, 33, 0, kHopper, wide, 33, 40},     {q6_k, 33, 0, kGeneric, columns, 11, 16},
      {q8_0, 48, 0, kHopper, wide, 48, 48},     {q8_0, 65, 0, kHopper, wide, 65, 80},
      {q8_0, 80, 0, kHopper, wide, 80, 80},     {q8_0, 81, 0, kHopper, wide, 41, 48},
      {iq1_s, 33, 0, kHopper, wide, 33, 64},    {iq1_s, 65, 0, kHopper, wide, 33, 64},
      {iq4_xs, 33, 0, kHopper, wide, 33, 40},   {mxfp4, 65, 0, kHopper, wide, 33, 64},
      {iq2_xxs, 33, 0, kHopper, wide, 17, 32},  {iq3_s, 65, 0, kHopper, wide, 22, 32},
      {nvfp4, 20, 0, kHopper, wide, 20, 32},    {q4_k, 1, 5, kHopper, columns, 5, 8},
      {q2_k, 33, 0, kHopper, wide, 33, 40},     {q3_k, 8, 0, kHopper, rows, 8, 8},
      {q4_k, 1, 16, kGeneric, columns, 16, 16},
  };
  for (const auto& of : table) {
    BOOST_TEST_CONTEXT(type_name(of.type) << ", " << of.n_tokens << " tokens, runs of " << of.n_uses)
    BOOST_TEST(is_choice(choose_decode(of.type, of.n_tokens, of.n_uses, of.family), of.kernel, of.n_together,
                         of.width));
  }
}

// Whatever a block needs beside its ring, what is chosen fits the memory that it was chosen for.
BOOST_AUTO_TEST_CASE(blocks_of_rows_fit_their_memory) {
  constexpr int kRoom = 227 << 10, kHalf = 113 << 10;
  const RowsBytes few{4000, 1024, 10 << 10}, many{30000, 8192, 20 << 10}, large{200000, 8192, 20 << 10};
  const auto is = [](const RowsBlocks& blocks, int n_stages, int n_together, int n_teams) {
    return blocks.n_stages == n_stages && blocks.n_together == n_together && blocks.n_teams == n_teams;
  };
  BOOST_TEST(is(choose_rows_blocks(few, kRoom, kHalf, false, true), 10, 2, 1));
  BOOST_TEST(is(choose_rows_blocks(few, kRoom, kHalf, true, true), 22, 1, 1));
  BOOST_TEST(is(choose_rows_blocks(many, kRoom, kHalf, false, true), 4, 1, 2));
  BOOST_TEST(is(choose_rows_blocks(many, kRoom, kHalf, false, false), 3, 2, 1));
  BOOST_TEST(choose_rows_blocks(large, kRoom, kHalf, false, true).n_stages < 2);
  for (int n_static = 0; n_static < 12 << 10; n_static += 128)
    for (int x = 320; x < 240 << 10; x += 4960)
      for (const int stage : {5120, 10240, 23040})
        for (const int own : {0, 1}) {
          const RowsBytes bytes{x, 2048, stage};
          const int room = (99 << 10) - n_static, half = (49 << 10) - n_static;
          const RowsBlocks blocks = choose_rows_blocks(bytes, room, half, own, x % 3 == 0);
          BOOST_REQUIRE((blocks.n_stages < 2 || bytes.of_block(blocks.n_stages, blocks.n_teams) <=
                                                    (blocks.n_together == 2 ? half : room)));
        }
}

// Every number of tokens has a width in which it fits, and no more launches than the widest would need.
BOOST_AUTO_TEST_CASE(widths_hold_their_tokens) {
  for (const TensorType type : {TensorType::q4_k, TensorType::q8_0, TensorType::iq4_xs, TensorType::iq1_s,
                                TensorType::iq2_s, TensorType::q4_0, TensorType::mxfp4})
    for (int n = 17; n <= 256; ++n) {
      const DecodeChoice choice = choose_decode(type, n, 0, kHopper);
      BOOST_REQUIRE(choice.n_together <= choice.width);
      BOOST_REQUIRE((n + choice.n_together - 1) / choice.n_together == (n + widest(type) - 1) / widest(type));
    }
}

// Other numbers give other bits.
BOOST_AUTO_TEST_CASE(cuts_of_sums) {
  const struct {
    int n_bands, n_steps, n_problems, log_warps, n_split;
  } table[] = {{128, 28, 1, 3, 2}, {448, 64, 1, 3, 1}, {448, 8, 8, 1, 1}, {32, 1, 128, 0, 1},
               {1536, 6, 1, 1, 1}, {36, 28, 1, 3, 4},  {8, 28, 1, 3, 4}};
  for (const auto& of : table) {
    BOOST_TEST(choose_log_warps(of.n_bands, of.n_problems, of.n_steps) == of.log_warps);
    BOOST_TEST(choose_split(of.n_bands, of.n_steps, of.log_warps, kHopper) == of.n_split);
    BOOST_TEST(choose_split(of.n_bands, of.n_steps, of.log_warps, kGeneric) == 1);
  }
  BOOST_TEST(choose_splits(576, 7168) == 2);
  BOOST_TEST(choose_splits(2112, 7168) == 1);
  BOOST_TEST(choose_splits(256, 7168) == 8);
  BOOST_TEST(choose_splits(512, 2048) == 4);
}

BOOST_AUTO_TEST_CASE(blocks_of_a_launch) {
  const auto always = [](int) { return true; };
  const auto never = [](int) { return false; };
  BOOST_TEST(choose_parts(28, 3, 16, 264, always) == 8);
  BOOST_TEST(choose_parts(28, 3, 16, 264, never) == 1);
  BOOST_TEST(choose_parts(28, 3, 1000, 264, always) == 1);
  const auto sides = [](int n_rows, int n_tokens) {
    const FloatSides of = choose_float_sides(n_rows, n_tokens, 1, 132);
    return 10 * of.n_rows + of.n_tokens;
  };
  BOOST_TEST(sides(256, 9) == 22);
  BOOST_TEST(sides(256, 64) == 44);
  BOOST_TEST(sides(512, 33) == 43);
  BOOST_TEST(choose_shares_of_rows(1, 32, 132) == 32);
  BOOST_TEST(choose_shares_of_rows(8, 32, 132) == 16);
  BOOST_TEST(choose_shares_of_rows(132, 32, 132) == 1);
  BOOST_TEST(choose_add_columns(2, 1, 132) == 64);
  BOOST_TEST(choose_add_columns(20, 10, 132) == 128);
  BOOST_TEST(choose_add_columns(128, 64, 132) == 256);
  BOOST_TEST(topk_blocks(8, 132) == 8);
  BOOST_TEST(topk_blocks(9, 132) == 4);
  BOOST_TEST(topk_blocks(64, 132) == 2);
  BOOST_TEST(sample_blocks(1, 129280, 132) == 8);
  BOOST_TEST(sample_blocks(32, 129280, 132) == 4);
  BOOST_TEST(sample_blocks(128, 129280, 132) == 2);
  BOOST_TEST(gather_blocks(0, 512, 132) == 1);
  BOOST_TEST(gather_blocks(8192, 512, 132) == 16);
  BOOST_TEST(gather_blocks(100000, 512, 132) == 49);
  BOOST_TEST(gather_blocks(10000000, 512, 132) == 264);
  const InboxWidths v32{18432, 7168, true};
  BOOST_TEST(goes_by_inbox(true, 7, 8, v32));
  BOOST_TEST(!goes_by_inbox(true, 8, 8, v32));
  BOOST_TEST(!goes_by_inbox(false, 1, 8, v32));
  BOOST_TEST(!goes_by_inbox(true, 1, 1, v32));
  BOOST_TEST(!goes_by_inbox(true, 1, 2, {18432, 7168, false}));
  BOOST_TEST(!goes_by_inbox(true, 1, 8, {18432, 7176, true}));
  BOOST_TEST(!goes_by_inbox(true, 4, 2, {40000, 7168, true}));
  BOOST_TEST(goes_by_inbox(true, 3, 2, {40000, 7168, true}));
  BOOST_TEST(fetches_in_resolve(4, 16));
  BOOST_TEST(!fetches_in_resolve(5, 16));
  BOOST_TEST(!fetches_in_resolve(4, 15));
}

BOOST_AUTO_TEST_CASE(uses_of_experts) {
  BOOST_TEST(choose_run(4, 256, true, kHopper) == 0);
  BOOST_TEST(choose_run(5, 256, true, kHopper) == 5);
  BOOST_TEST(choose_run(128, 256, true, kHopper) == 16);
  BOOST_TEST(choose_run(128, 256, true, kGeneric) == 8);
  BOOST_TEST(choose_run(129, 256, true, kGeneric) == 16);
  BOOST_TEST(choose_run(6, 256, true, kGeneric) == 6);
  BOOST_TEST(choose_run(128, 256, false, kHopper) == 0);
  BOOST_TEST(choose_run(128, kMostSorted + 1, true, kHopper) == 0);
  BOOST_TEST(routes_beside(4, 132));
  BOOST_TEST(!routes_beside(5, 132));
  BOOST_TEST(routes_beside(2, 2));  // one waits
  BOOST_TEST(!routes_beside(3, 2));
  BOOST_TEST(has_double_tiles(160 * 256, 256));
  BOOST_TEST(!has_double_tiles(160 * 256 - 1, 256));
  BOOST_TEST(chooses_all_experts(512, 256));
  BOOST_TEST(!chooses_all_experts(511, 256));
}

BOOST_AUTO_TEST_CASE(products_of_prompts) {
  BOOST_TEST(!expands_rows(7168, 1, 256));
  BOOST_TEST(expands_rows(7168, 1, 257));
  BOOST_TEST(expands_rows(2048, 1, 1));
  BOOST_TEST(!expands_rows(512, 128, 256));
  BOOST_TEST(uses_library(512));
  BOOST_TEST(!uses_library(511));
}

BOOST_AUTO_TEST_CASE(shares_of_attention) {
  BOOST_TEST((choose_division(true, 1, 2) == Division::heads));
  BOOST_TEST((choose_division(true, 7, 4) == Division::heads));
  BOOST_TEST((choose_division(true, 8, 2) == Division::tokens));
  BOOST_TEST((choose_division(true, 8, 8) == Division::tokens));
  BOOST_TEST((choose_division(false, 15, 2) == Division::none));
  BOOST_TEST((choose_division(false, 16, 2) == Division::tokens));
  BOOST_TEST((choose_division(false, 31, 4) == Division::none));
}

BOOST_AUTO_TEST_CASE(attention_and_its_positions) {
  BOOST_CHECK(choose_attention(true, true, kHopper) == AttentionKernel::hopper_decode);
  BOOST_CHECK(choose_attention(false, true, kHopper) == AttentionKernel::hopper_prompt);
  BOOST_CHECK(choose_attention(false, true, kGeneric) == AttentionKernel::generic);
  BOOST_CHECK(choose_attention(true, false, kHopper) == AttentionKernel::plain);
  BOOST_TEST(choose_head_tiles(2048, 128, 132) == 4);
  BOOST_TEST(choose_head_tiles(2048, 33, 132) == 4);
  BOOST_TEST(choose_head_tiles(2048, 32, 132) == 2);
  BOOST_TEST(choose_head_tiles(2048, 16, 132) == 1);
  BOOST_TEST(choose_head_tiles(8, 128, 132) == 1);
  BOOST_TEST(choose_head_tiles(40, 128, 132) == 2);
  BOOST_TEST(choose_few_heads(1, 128, 2048, 132) == 32);
  BOOST_TEST(choose_few_heads(2, 128, 2048, 132) == 64);
  BOOST_TEST(choose_few_heads(4, 128, 2048, 132) == 64);
  BOOST_TEST(choose_few_heads(5, 128, 2048, 132) == 0);
  BOOST_TEST(choose_few_heads(1, 128, 2112, 132) == 0);
  BOOST_TEST(widens_rows(163840, 640));  // V3.2's longest prompt
  BOOST_TEST(!widens_rows(163841, 640));
  BOOST_TEST(widens_rows(kMostWideRows, 2048));
  BOOST_TEST(!widens_rows(kMostWideRows + 1, 2048));
  BOOST_CHECK(choose_scores(64, true, kHopper) == ScoreKernel::hopper);
  BOOST_CHECK(choose_scores(65, true, kHopper) == ScoreKernel::generic);
  BOOST_CHECK(choose_scores(64, false, kHopper) == ScoreKernel::plain);
  BOOST_CHECK(choose_scores(256, true, kGeneric) == ScoreKernel::generic);
  BOOST_CHECK(choose_scores(257, true, kGeneric) == ScoreKernel::plain);
  BOOST_TEST(topk_threads(true, 1 << 18) == 512);
  BOOST_TEST(topk_threads(true, (1 << 18) + 1) == 1024);
  BOOST_TEST(topk_threads(false, 4096) == 1024);
  BOOST_TEST(fetch_parts(1) == 1);
  BOOST_TEST(fetch_parts(31) == 1);
  BOOST_TEST(fetch_parts(32) == 2);
}

BOOST_AUTO_TEST_SUITE_END()
