// A small model that stays on disk as long as the program runs: for suites that open it many times.
#pragma once

#include <string>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace dsv32 {

struct KeptModel {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  explicit KeptModel(const TinyModel& shape) { write_tiny_model(path, shape); }
};

}  // namespace dsv32
