// The bytes of a model file on their way into the memories that have a place for them.
//
// The one idea: one list of pieces in the order of the file, over all its parts. Readers take the next piece
// each and read it where it belongs, or, for a device, into a slot of pinned memory of their own, from which
// they send it. So the disk sees one stream of large reads, every link carries its own device's weights, what
// a reader sends is still in its CPU's caches, and nothing lies in memory twice: the system keeps what was
// read only where there is room for it beside.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "gguf/gguf.h"
#include "weights/made_matrix.h"

namespace dsv32 {

using Vector = Buffer<float>;  // a one-dimensional tensor, f32

// Called now and then while weights are loaded, by the thread that loads.
using LoadProgress = std::function<void(uint64_t n_bytes_done, uint64_t n_bytes)>;

class Loader {
 public:
  explicit Loader(const GgufFile& file) : file_(file) {}  // which must outlive it

  // The tensor's bytes are to go there: memory of that backend (Backend::alloc_weights). Tensors in any
  // order.
  void add(const GgufTensor& tensor, Backend& backend, Place place, uint8_t* to);
  // Of its bytes n_bytes from `offset` on.
  void add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
           uint8_t* to);
  // What is made of a tensor's values, as they are mapped.
  void add(MadeMatrix made, Backend& backend, Place place, uint8_t* to);

  // Whether the system is to keep what is read. `automatic`: when it has it already, or has room for all.
  enum class Caching { automatic, kept, passed_by };
  // Returns when all is there. Throws Error{model} when the file has changed or cannot be read, and what a
  // backend throws.
  void run(const LoadProgress& progress = {}, Caching caching = Caching::automatic) const;

 private:
  struct Job {
    const GgufTensor* tensor;
    uint64_t offset, n_bytes;
    Backend* backend;
    Place place;
    uint8_t* to;
    std::optional<MadeMatrix> made = {};
  };
  bool is_cached() const;
  bool fits_cache() const;

  const GgufFile& file_;
  std::vector<Job> jobs_;
};

}  // namespace dsv32
