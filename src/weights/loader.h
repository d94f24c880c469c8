// Loads the bytes of a model file into host and device memory.
//
// One list has all pieces in file order, over all parts. Each reader takes the next piece and reads it
// to its final place or, for a device, into the reader's own pinned memory, and uploads it from there. So the
// disk sees one stream of large reads, and each link carries its own device's weights. The page cache keeps
// what was read only if there is room for both.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "backend/backend.h"
#include "gguf/gguf.h"
#include "weights/made_matrix.h"

namespace dsv32 {

using Vector = Buffer<float>;  // a one-dimensional tensor, f32

// Called a few times a second while weights are loaded, by the thread that called Loader::run().
using LoadProgress = std::function<void(uint64_t n_bytes_done, uint64_t n_bytes)>;

class Loader {
 public:
  explicit Loader(const GgufFile& file) : file_(file) {}  // `file` must outlive it

  // Adds n_bytes of the tensor, from `offset` on, which go to `to`, memory of `backend`
  // (Backend::alloc_weights). In any order.
  void add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
           uint8_t* to) {
    add(tensor, offset, n_bytes, backend, place, to, nullptr);
  }
  // Adds a matrix that is computed from a tensor's mapped values.
  void add(MadeMatrix made, Backend& backend, Place place, uint8_t* to);

  // Whether the page cache keeps what is read. `automatic`: if it has most of it already, or room for all.
  enum class Caching { automatic, kept, passed_by };
  // Loads all that was added. Throws Error{model} when the file has changed or cannot be read, and what a
  // backend throws.
  void run(const LoadProgress& progress = {}, Caching caching = Caching::automatic) const;

  // What one read loads.
  struct Piece {
    int part;
    uint64_t offset;  // in the part
    const uint8_t* mapped;
    size_t n_bytes;
    Backend* backend;
    Place place;
    uint8_t* to;
    const MadeMatrix* made;
    uint64_t first_made;  // byte of `made`
  };

 private:
  void add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
           uint8_t* to, const MadeMatrix* made);

  const GgufFile& file_;
  std::vector<Piece> pieces_;
  std::deque<MadeMatrix> made_;
  std::set<const GgufTensor*> tensors_;  // that pieces are of
};

}  // namespace dsv32
