// Reads and writes whole files without the code under test.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace dsv32 {

// Empty when there is no such file.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace dsv32
