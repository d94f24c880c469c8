// The bytes of a model file on their way into the memories that have a place for them.
//
// One list of pieces in the order of the file, over all its parts. Readers take the next piece each and read
// it where it belongs or, for a device, into pinned memory of their own, from which they send it.
// So the disk sees one stream of large reads, every link carries its own device's weights, and nothing lies
// in memory twice: the system keeps what was read only where there is room for it beside.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
  void add(const GgufTensor& tensor, Backend& backend, Place place, uint8_t* to) {
    add(tensor, 0, tensor.n_bytes, backend, place, to);
  }
  // Of its bytes n_bytes from `offset` on.
  void add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
           uint8_t* to) {
    add(tensor, offset, n_bytes, backend, place, to, nullptr);
  }
  // What is made of a tensor's values, as they are mapped.
  void add(MadeMatrix made, Backend& backend, Place place, uint8_t* to);

  // Whether the system is to keep what is read. `automatic`: when it has it already, or has room for all.
  enum class Caching { automatic, kept, passed_by };
  // Returns when all is there. Throws Error{model} when the file has changed or cannot be read, and what a
  // backend throws.
  void run(const LoadProgress& progress = {}, Caching caching = Caching::automatic) const;

  // What one read brings.
  struct Piece {
    int part;
    uint64_t offset;  // in the part
    const uint8_t* mapped;
    size_t n_bytes;
    Backend* backend;
    Place place;
    uint8_t* to;
    const MadeMatrix* made;
    uint64_t first_made;  // byte
  };

 private:
  void add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
           uint8_t* to, const MadeMatrix* made);

  const GgufFile& file_;
  std::vector<Piece> pieces_;
  std::deque<MadeMatrix> made_;
  std::vector<const GgufTensor*> tensors_;  // of each add()
};

}  // namespace dsv32
