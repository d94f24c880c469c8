// make_tiny_model OUT.gguf [--seed N]: writes the default tiny model of tests/support/tiny_model.h.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tests/support/tiny_model.h"

int main(int argc, char** argv) {
  dsv32::TinyModel shape;
  const bool has_seed = argc == 4 && std::strcmp(argv[2], "--seed") == 0;
  if (argc != 2 && !has_seed) {
    std::fprintf(stderr, "usage: %s OUT.gguf [--seed N]\n", argv[0]);
    return 2;
  }
  if (has_seed) shape.seed = std::strtoull(argv[3], nullptr, 10);
  try {
    dsv32::write_tiny_model(argv[1], shape);
  } catch (const dsv32::Error& error) {
    std::fprintf(stderr, "make_tiny_model: %s\n", error.what());
    return dsv32::exit_code(error.kind());
  }
  return 0;
}
