// Computes a prompt in several ways on one engine, or on two, and says whether the bits are the same, or how
// far they deviate and from which position on.
//
// Prefill is computed in chunks and the prompt's last tokens one at a time, so that both roles take part.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"

namespace dsv32 {

struct DecodeEquality {
  int64_t n_steps = 0;             // decode steps compared, the last of the prompt
  int64_t first_unequal_pos = -1;  // the first whose logits are not the same finite numbers; -1: none
  Forward::BufferTally tally;      // of the first engine
};

// Prefills the prompt but for its last tokens and decodes these, in two engines one after the other.
DecodeEquality compare_decode(const GgufFile& file, const EngineOptions& options,
                              const EngineOptions& reference, std::span<const int32_t> tokens);

struct CutEquality {
  int64_t n_ways = 0;         // compared with the prompt computed in steps of the engine's chunk
  std::string first_unequal;  // the first whose last logits are not the same finite numbers; empty: none
};

// Prefills the prompt in several ways: in steps of other sizes, after a beginning that the sequence holds
// already, with the last token in a step of its own. The engine must hold the tokens and have no sequence.
CutEquality compare_cuts(Engine& engine, std::span<const int32_t> tokens);

// Deviations are relative: of a row of values, the largest difference over the reference's largest magnitude
// (infinite when something is not finite); of a row of selected positions, the share of the reference's that
// it lacks.
constexpr double kDeviationTolerance = 2e-2;

struct Deviation {
  int64_t n_rows = 0, n_same_choice = 0;  // rows of logits, and those with the same likeliest token
  double largest = 0;                     // of the rows of logits
  int64_t largest_pos = 0;
  int64_t first_pos = -1;  // the first row beyond the tolerance; -1: none
  // The first intermediate beyond the tolerance there: its layer, -1 if only the logits are beyond it; as the
  // forward pass names it to its observer; how far it is.
  int64_t layer = -1;
  std::string name;
  double deviation = 0;
};

// Runs both engines side by side, prefill and then decode. Each must hold the tokens and have no sequence.
Deviation compare_engines(Engine& engine, Engine& reference, std::span<const int32_t> tokens);

// What decode loses by selecting rows, over a prompt's last tokens: dense decode is the reference.
struct SelectionLoss {
  int64_t n_steps = 0, n_same_choice = 0;  // steps, and those with the same likeliest token
  double kept = 0, least_kept = 1;  // share of the attention's weight on selected rows: mean of all steps,
                                    // layers and heads; mean of the heads of the worst step and layer
  double mean_difference = 0, largest_difference = 0;  // of the log-probability of the prompt's next token
};

// `options` select rows.
SelectionLoss compare_selection(const GgufFile& file, const EngineOptions& options,
                                std::span<const int32_t> tokens);

}  // namespace dsv32
