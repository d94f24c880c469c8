// A user's settings file.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/plain_files.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

// While it lives this is the user's file.
struct SettingsFile {
  explicit SettingsFile(const std::string& text) {
    std::filesystem::create_directories(dir.file("dsv32"));
    write_file(dir.file("dsv32/config"), text);
    setenv("XDG_CONFIG_HOME", dir.file("").c_str(), 1);
  }
  ~SettingsFile() { setenv("XDG_CONFIG_HOME", before.c_str(), 1); }
  TempDir dir;
  std::string before = std::getenv("XDG_CONFIG_HOME");
};

}  // namespace dsv32
