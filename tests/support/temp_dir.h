// A directory of its own for a test's files, removed with everything in it.
#pragma once

#include <filesystem>
#include <string>

#include <stdlib.h>

#include "base/error.h"

namespace dsv32 {

class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "dsv32-test-XXXXXX").string()) {
    if (!mkdtemp(path_.data())) fail(ErrorKind::io, "cannot make a temporary directory " + path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace dsv32
