// A file that appears under its name only when it is complete: written beside it, then renamed.
//
// "-" is standard output, and a path that is a device or a pipe is written directly: neither can be renamed
// over. Move and copy are off; a file that is not committed is removed.
#pragma once

#include <string>
#include <string_view>

namespace dsv32 {

class OutputFile {
 public:
  // Throws Error{io}; Error{usage} for "-" when standard output is a terminal.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);  // throws Error{io}
  void commit();                       // throws Error{io}

 private:
  [[noreturn]] void fail_io(const char* what) const;

  std::string path_, temporary_;  // temporary_ is empty when the path is written directly
  int fd_ = -1;
};

}  // namespace dsv32
