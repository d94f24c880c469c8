// The GGUF file: header, metadata and tensor directory, over one or several memory-mapped parts.
//
// Owns the mappings; tensors are views into them and live as long as the GgufFile. Version 3, little-endian.
// Every count, length, offset and product is checked against the file before it is used, so a damaged or
// hostile file gives one Error{model} that names file, field and offset. Immutable after opening: any number
// of threads may read it. The metadata of a split model is that of its first part; a model with tensors of
// another file may have keys of that file too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "gguf/metadata.h"
#include "gguf/quant.h"

namespace dsv32 {

struct GgufTensor {
  std::string name;
  TensorType type{};
  std::array<uint64_t, 4> ne{1, 1, 1, 1};  // ne[0] is contiguous (the input dimension)
  uint32_t n_dims = 0;
  const uint8_t* data = nullptr;  // into the mapping
  uint64_t n_bytes = 0;           // 0: dsv32 does not support the type
  int part = 0;                   // index of its file
  uint64_t offset = 0;            // of the data in that file
};

class GgufFile : public Metadata {
 public:
  // Opens `path` and, when it is the first of a split model, all its parts. Throws Error{model}.
  explicit GgufFile(const std::string& path);
  // One part alone, over bytes in memory that must outlive it. `name` appears in messages.
  GgufFile(std::span<const uint8_t> bytes, const std::string& name) : Metadata(name) { read(bytes); }

  // Takes the tensors of another model that are wanted, and the keys that begin with `keys` (empty: none) and
  // are not here; its parts follow this one's. Throws Error{model} when a tensor's name is here already.
  void take(GgufFile other, const std::function<bool(const GgufTensor&)>& is_wanted,
            std::string_view keys = {});

  uint64_t n_bytes() const { return n_bytes_; }  // of all parts
  size_t n_parts() const { return files_.empty() ? 1 : files_.size(); }
  const std::vector<MappedFile>& files() const { return files_; }  // [n_parts]; empty over bytes in memory
  // Throws Error{model} when a part was written to since it was opened (base/file.h).
  void check_unchanged() const;
  bool is_unchanged() const { return std::ranges::all_of(files_, &MappedFile::is_unchanged); }
  void mark_changed() const { std::ranges::for_each(files_, &MappedFile::mark_changed); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order, part after part
  const GgufTensor* find_tensor(std::string_view name) const;          // nullptr when absent
  const std::string& path_of(const GgufTensor& tensor) const {         // of its part
    return files_.empty() ? path() : files_[static_cast<size_t>(tensor.part)].path();
  }

 private:
  explicit GgufFile(MappedFile file);
  void read(std::span<const uint8_t> bytes);
  void read_tensors(Cursor& cursor, uint64_t n_tensors);
  void append(GgufFile part, uint32_t no, uint32_t count);

  uint64_t n_bytes_ = 0;
  std::vector<MappedFile> files_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_ids_;  // name -> index in tensors_
};

}  // namespace dsv32
