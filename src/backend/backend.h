// The interface of a device: its memory, and the closed set of operations that the forward pass consists of
// (ops.h, attention_ops.h, expert_ops.h, sampling.h). A new operation needs a sentence there on why existing
// ones cannot express it.
//
// A Backend is one device. src/backend/cpu_backend is plain and is the reference; cuda/ is fast.
//
// Operations are enqueued and may return before they are done; each sees the results of all operations
// enqueued before it. Of the other functions those wait whose comment says so; alloc() and free() may. Params
// structs are read before the call returns; the memory that they point to must stay until the work is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/attention_ops.h"
#include "backend/choose.h"
#include "backend/expert_ops.h"
#include "backend/ops.h"
#include "backend/sampling.h"

namespace dsv32 {

struct MemoryInfo {
  uint64_t n_bytes_total = 0;  // the machine's
  uint64_t n_bytes_free = 0;   // that can still be taken within the user's limit
  uint64_t n_bytes_used = 0;   // taken by this backend
};

// Recorded operations with their params. The memory that these point to must still exist at a replay; its
// contents may differ. The backend must outlive the recording.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // enqueues the operations
};

// A point behind work that was enqueued.
class Milestone {
 public:
  virtual ~Milestone() = default;
  virtual void wait() {}  // until that work is done; not for what was enqueued later
};

class Backend;

// y on another device = x. y is written after all work enqueued on `to` before; work enqueued on `to`
// afterwards sees it, and work enqueued here afterwards may change x. An operation because no other knows two
// devices.
struct HandOver {
  const float* x = nullptr;  // [n_values] of this backend
  Backend* to = nullptr;
  float* y = nullptr;  // [n_values] of `to`
  int64_t n_values = 0;
};

// Uploads by one thread, beside other threads' uploads.
class UploadLane {
 public:
  virtual ~UploadLane() = default;  // waits
  virtual void upload(void* device, const void* staged, size_t n_bytes) = 0;
  virtual void wait() = 0;  // until all uploads are complete
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual std::string device_name() const { return {}; }  // by its maker; empty: the host's processors
  // Names all that decides the bits of rows and keys besides the model: the backend, the properties of the
  // machine that its arithmetic depends on, and an epoch that rises whenever a change of the program changes
  // these bits. Equal strings promise equal bits.
  virtual std::string numerics() const = 0;
  // Whether Place::device is host memory too, so that nothing need be kept twice.
  virtual bool works_in_host_memory() const = 0;
  // Whether in decode the device computes a part of each host expert, uploaded over the link
  // (backend/link_share.h): true where the link adds to the bandwidth of the host's processors. Depends on
  // the machine alone.
  virtual bool link_adds() const { return false; }
  // Whether a token's bits are the same in both roles.
  virtual bool roles_agree() const = 0;

  // Memory. alloc returns zeroed memory aligned to 128 bytes, or throws Error{memory} naming `what`, the
  // bytes wanted and the bytes free.
  virtual void* alloc(Place place, size_t n_bytes, const char* what) = 0;
  virtual void free(Place place, void* memory) = 0;
  virtual void upload(void* device, const void* host, size_t n_bytes) = 0;
  virtual void download(void* host, const void* device,
                        size_t n_bytes) = 0;           // waits for all work, even with 0 bytes
  virtual std::unique_ptr<Milestone> milestone() = 0;  // behind all work enqueued so far
  virtual MemoryInfo memory_info(Place place) const = 0;
  // Memory for weights, freed with the backend; products may read past its end. Place::host: for experts that
  // stay in host memory. Each n_part_bytes there (an expert's matrix) are divided over the NUMA nodes
  // (base/numa.h); 0: not divided. Throws Error{memory}.
  virtual uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) = 0;
  // Waits until this memory of Place::host lies on its NUMA nodes. Call it before filling the memory. Throws
  // Error{memory}.
  virtual void await_weights(const uint8_t*) {}
  // Announces the bytes that later calls of alloc_weights() will take in Place::device, so that one
  // allocation serves them. Throws Error{memory}.
  virtual void expect_weights(size_t) {}
  // Whether Place::device has its matrices in bands (matrix.h) where their shape allows it.
  virtual bool keeps_bands() const { return false; }
  // Puts a stack's matrices, uploaded as whole rows, into bands.
  virtual void put_in_bands(const WeightMatrix&) {}
  // Waits until the device, and any other, can use this memory of Place::host.
  virtual void await_pinned(const uint8_t*) {}
  // Whether this device and the other can be members of a team: gather() works between them.
  virtual bool can_team_with(const Backend&) const { return false; }
  // Pinned host memory to upload from, also to other devices; empty when the backend works in host memory.
  virtual std::span<uint8_t> staging() { return {}; }
  // Null when the backend works in host memory.
  virtual std::unique_ptr<UploadLane> upload_lane() { return nullptr; }

  // Called while an operation computes on the host: true ends the operation with Interrupted, and the step's
  // results are invalid. Null: never called. Must outlive the operations that follow.
  virtual void set_interrupt(const std::function<bool()>*) {}

  // Whether this member of a team or another did not come to a gather() in time: what they have computed
  // since is invalid. Until all begin anew their gathers wait for nobody.
  virtual bool missed_gather() const { return false; }
  // Begins anew, once the device's work is done. Called for all members, one after the other, while none
  // enqueues, and then for all once more, because the work of a member that was late may still have written
  // to the others. Throws Error{device} when the device's work does not end.
  virtual void restart_gathers() {}

  // Called before a step's first operation: what operations of an earlier step, which may have failed in its
  // midst, left for later ones of that step is forgotten. Their work is done before this step's.
  virtual void begin_step() {}

  // Records the operations that a body enqueues, without doing them; the body neither allocates nor waits.
  // Null, without calling the body: this backend does not record.
  virtual std::unique_ptr<Recording> record(const std::function<void()>&) { return nullptr; }

  // For measuring: a point in time after all work enqueued before it and before all work enqueued after it.
  // Must not be recorded.
  virtual void mark() = 0;
  // Seconds between successive marks since the last call. Waits for all work.
  virtual std::vector<double> laps() = 0;

  virtual void embed(const Embed&) = 0;
  virtual void rms_norm(const RmsNorm&) = 0;
  virtual void matmul(const Matmul&) = 0;
  // Products of the same x, in any order or together; without `plus` and `sum`. A product's bits do not
  // depend on the others.
  virtual void matmuls(std::span<const Matmul> ops) {
    for (const Matmul& op : ops) matmul(op);
  }
  virtual void matmul_gated(const GatedMatmul&) = 0;
  virtual void matmul_heads(const MatmulHeads&) = 0;
  // The next products make the members' parts of this gather, which itself follows as ever; a backend may let
  // them send their results at once. `part` may be null where only the maker knows it; `whole` is for the
  // products behind the gather alone, as their x. Announced gathers without and with a sum alternate; one of
  // each may be announced at a time, and then follows. All members announce the same, and of a step all
  // gathers within its layers or none (goes_by_inbox()).
  virtual void announce(const Gather&) {}
  virtual void gather(const Gather&) = 0;
  virtual void add(const Add&) = 0;
  // Work enqueued from now on waits for the previous call's copies; this call's copies begin when all work
  // enqueued before the call is done. So two windows take turns: one fills while the other is read.
  virtual void stream_rows(std::span<const RowCopy>) = 0;
  virtual void save_rows(std::span<const RowCopy>) = 0;
  virtual void store_tokens(const StoreTokens&) = 0;
  virtual void turn_queries(const TurnQueries&) = 0;
  virtual void indexer_scores(const IndexerScores&) = 0;
  virtual void quest_scores(const QuestScores&) = 0;
  virtual void select_topk(const SelectTopk&) = 0;
  virtual void resolve(const Resolve&) = 0;
  virtual void fetch_latents(const FetchLatents&) = 0;
  virtual void attend(const Attend&) = 0;
  virtual void route_experts(const RouteExperts&) = 0;
  virtual void run_experts(const RunExperts&) = 0;
  virtual void sample(const Sample&) = 0;
  // By way of the host, which waits; a backend that can reach the other's memory overrides this.
  virtual void hand_over(const HandOver& op) {
    std::vector<float> values(static_cast<size_t>(op.n_values));
    download(values.data(), op.x, values.size() * sizeof(float));
    op.to->upload(op.y, values.data(), values.size() * sizeof(float));
  }
};

// Owns memory of a backend; move-only.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& backend, Place place, int64_t n, const char* what)
      : n_(n),
        data_(n ? static_cast<T*>(backend.alloc(place, static_cast<size_t>(n) * sizeof(T), what)) : nullptr,
              {&backend, place}) {}
  T* data() const { return data_.get(); }
  int64_t n() const { return n_; }
  size_t n_bytes() const { return static_cast<size_t>(n_) * sizeof(T); }

 private:
  struct Free {
    Backend* backend = nullptr;
    Place place = Place::device;
    void operator()(T* data) const { backend->free(place, data); }
  };
  int64_t n_ = 0;
  std::unique_ptr<T, Free> data_;
};

}  // namespace dsv32
