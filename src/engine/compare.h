// The same prompt in several ways on one engine, or on two: whether the bits are the same, or how far apart
// and from where on.
//
// Prefill is computed in chunks and the prompt's last tokens one at a time, so that both kinds of step take
// part.
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

// Prefills all but the prompt's last tokens and decodes those, in two engines one after the other.
DecodeEquality compare_decode(const GgufFile& file, const EngineOptions& options,
                              const EngineOptions& reference, std::span<const int32_t> tokens);

struct CutEquality {
  int64_t n_ways = 0;         // compared with the prompt computed in steps of the engine's chunk
  std::string first_unequal;  // the first whose last logits are not the same finite numbers; empty: none
};

// Prefills the prompt in several ways: in steps of other sizes, behind a beginning that is held already, with
// the last token in a step of its own. The engine must hold the tokens and have no sequence.
CutEquality compare_cuts(Engine& engine, std::span<const int32_t> tokens);

// Deviations are relative: of a row of values, the largest difference over the reference's largest magnitude
// (infinite when something is not finite); of a row of selected positions, the share that the other lacks.
constexpr double kDeviationTolerance = 2e-2;

struct Deviation {
  int64_t n_rows = 0, n_same_choice = 0;  // rows of logits, and those with the same likeliest token
  double largest = 0;                     // of the rows of logits
  int64_t largest_pos = 0;
  int64_t first_pos = -1;  // the first row beyond the tolerance; -1: none
  int64_t layer = -1;      // at that position the first stage beyond it; -1: none, only the logits are
  std::string stage;       // as the forward pass names it to its observer
  double stage_deviation = 0;
};

// Runs both engines side by side, prefill and then decode. Each must hold the tokens and have no sequence.
Deviation compare_engines(Engine& engine, Engine& reference, std::span<const int32_t> tokens);

}  // namespace dsv32
