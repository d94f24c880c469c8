// See replace_file.h.
#include "base/replace_file.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>

namespace dsv32 {

int replace_file(FileSystem& fs, int directory, const std::string& name, const std::string& temporary,
                 std::string_view bytes) {
  const OwnedFd file(fs, fs.open_at(directory, temporary, O_WRONLY | O_CREAT | O_EXCL));
  if (!file.is_open()) return file.error();
  int result = write_fully(fs, file.get(), {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 0);
  if (result == 0) result = fs.fsync(file.get());
  if (result == 0 && renameat(directory, temporary.c_str(), directory, name.c_str()) != 0) result = -errno;
  if (result != 0) return fs.unlink(directory, temporary), result;
  return fs.fsync(directory);
}

}  // namespace dsv32
