// What the lab is asked: the product's options and flags where they mean the same, and a table of its own.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"
#include "tests/tools/lab/answers.h"

namespace dsv32 {

struct LabOptions : Options {
  std::vector<Chooser> choosers{Chooser::indexer};
  int64_t n_passages = 0;  // of each file; 0: all
  bool shows_wrong = false;

  std::string token_list;  // logits: ids, or @FILE

  int64_t n_rows = 18432, n_cols = 7168;  // of the matrix
  int64_t n_runs = 9;
  std::vector<TensorType> types;  // empty: all

  std::string folder = ".";  // on the disk that is measured
};

// Runs what the words ask for and returns the exit code. Throws Error.
int run_lab(const std::vector<std::string>& words);

}  // namespace dsv32
