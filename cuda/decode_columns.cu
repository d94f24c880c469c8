// Multiplies weight rows by up to sixteen vectors at a time, with the same bits as decode_rows.cuh.
//
// A block computes eight bands of 16 rows, a band per warp, for up to 16 columns. A column is a token of a
// problem, or a use of an expert. A warp copies its own weights and takes their codes apart once for all
// columns; the warps take turns to copy the steps of x, which a kernel before rounded. The tile of a gated
// product has eight rows of W0, then the same eight rows of W1.
//
// The order of additions decides the bits. The steps of a unit (a W-th of all steps) make one sum, as in a
// warp of decode_rows.cuh, and sum_units() adds the units. A block does its units in order, so it reads a
// row's bytes in order. Where there are too few tiles for the device, the blocks of a cluster divide the
// units and add all of them at the end.

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda {
namespace decode {
namespace {

constexpr int kTiles = kMostTogether / kGroupTokens;  // of 8 columns
constexpr int kMostStages = 4;
constexpr int kLogTileRows = 4;
static_assert(kBandTile == 1 << kLogTileRows);

// x of all columns, records [n_columns, n_steps] (Record). Problems that share x have their columns here
// once.
struct ColumnX {
  uint8_t* records;
  int n_columns, n_steps;
};

// How the work is divided.
struct Cut {
  bool is_gated;
  int n_parts;    // blocks of a cluster that divide a tile's units
  int n_slots;    // sums that each part keeps: one per half of all units, or one per unit
  int log_units;  // log2 of the units that are added into one sum

  int n_stages;   // of the rings
  int n_columns;  // room of a block, whole tiles of 8 columns

  // The row stride puts eight rows' sums into different banks.
  __host__ __device__ int row_sums() const { return n_columns + 2; }
  __host__ __device__ int slot_sums() const { return kWarps * kBandTile * row_sums(); }
};

// Rounds x. A team of lanes makes a step of a column; grid: teams. Layout: as ColumnX. Bound by
// bytes: 1024 read and some 550 written per step of 256.
template <TensorType kType>
__global__ void make_columns_kernel(const __grid_constant__ DecodeRows rows, const ColumnX to,
                                    bool is_x_aligned) {
  using X = Record<kType>;
  let_next_start();
  wait_for_inputs();
  const int64_t team = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / X::kLanes;
  const int64_t column = team / to.n_steps;
  const int lane = threadIdx.x % X::kLanes, step = static_cast<int>(team % to.n_steps);
  const bool is_there = column < to.n_columns;
  const float* x =
      rows.x + column / rows.n_tokens * rows.x_problem_stride + column % rows.n_tokens * rows.x_token_stride;
  float4 v[2];
  load_x8<kHalvesApart<kType>>(x, step * Steps<kType>::kCols + column_of<kType>(lane / 4, lane % 4),
                               is_there ? rows.n_cols : 0, is_x_aligned, v);
  make_record<kType>(v, to.records + team * X::kBytes, is_there);
}

// The items of a block, each a matrix and some columns. With runs: the runs of the block's share that have
// uses; without: one chunk of a problem's tokens.
struct BlockItems {
  static constexpr int kMost = 32, kMostColumns = 256;
  UseRuns::Run at[kMost + 1];        // the loop reads one past the last
  uint32_t x_records[kMostColumns];  // [item, most columns] first record of each column of x

  // Returns the number of items. With runs, it reads what a kernel before wrote. All threads call it.
  DSV32_DEVICE int find(const DecodeRows& rows, const UseRuns& runs, int chunk, int most) {
    const int k = static_cast<int>(threadIdx.x), z = static_cast<int>(blockIdx.z);
    bool is_there = false;
    if (runs.runs) {
      const int run = z + k * static_cast<int>(gridDim.z);
      if (k < kMost && run < runs.n_runs) at[k] = runs.runs[run], is_there = at[k].n > 0;
    } else if (k == 0) {
      at[0] = {z, chunk * most, min(most, rows.n_tokens - chunk * most)}, is_there = true;
    }
    return __syncthreads_count(is_there);
  }
  DSV32_DEVICE void find_columns(const DecodeRows& rows, const UseRuns& runs, int n_items, int most,
                                 int n_steps) {
    for (int k = threadIdx.x; k < n_items * most; k += kThreads) {
      const UseRuns::Run& item = at[k / most];
      const int c = k % most;
      if (c >= item.n) continue;
      const int column = runs.runs ? runs.uses[item.first + c] / rows.x_sharing
                                   : item.mat / rows.x_sharing * rows.n_tokens + item.first + c;
      x_records[k] = static_cast<uint32_t>(column * n_steps);
    }
  }
};

// Starts a warp's copies of one step of n columns of x. from: the lane's 16 bytes in the step's record of
// column 0; numbers: shared address of the columns' record numbers.
template <TensorType kType>
DSV32_DEVICE void copy_records(const uint8_t* from, uint32_t numbers, int n, int lane, uint32_t to) {
  constexpr int kBytes = Record<kType>::kBytes;
#pragma unroll 4
  for (int c = 0; c < n; ++c) {
    const uint8_t* record = from + uint64_t{load_shared_u32(numbers + 4 * c)} * kBytes;
    DSV32_UNROLL for (int k = 0; k < Record<kType>::kUsed; k += 512) if (k + 16 * lane < Record<kType>::kUsed)
        copy_line_async(to + c * kBytes + k, record + k);
  }
}

// Adds a unit's sums of n_columns columns to a slot and resets them to zero.
template <TensorType kType>
DSV32_DEVICE void flush_sums(float (&sums)[kTiles][4], int n_columns, int row_sums, float* to) {
  const int lane = threadIdx.x % 32;
  to += lane / 4 * row_sums;
  DSV32_UNROLL for (int n = 0; n < kTiles; ++n) {
    if (8 * n >= n_columns) continue;
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      to[k / 2 * 8 * row_sums + 8 * n + token_of_sum<kType>(lane % 4, k)] += sums[n][k];
      sums[n][k] = 0;
    }
  }
}

// The value at the place of `value` in another block of the cluster. Not by Team::of(): a pointer to either
// loses a hundredth of the speed of many sequences.
DSV32_DEVICE float value_of_part(const float* value, int part, int n_parts) {
#if __CUDA_ARCH__ >= 900
  if (n_parts > 1) return *shared_of_block(value, part);
#endif
  return *value;
}

// Waits until writes of all parts' warps of the same rows are visible.
DSV32_DEVICE void sync_parts(int n_parts) { n_parts > 1 ? sync_cluster() : __syncwarp(); }

// A warp's rows of each item's matrix: a tile of 16, or eight rows of each matrix of a gated product.
struct WarpRows {
  const DecodeRows::Matrix* matrix;
  int first, log_n;
  int part;

  DSV32_DEVICE WarpRows(const DecodeRows& rows, const Cut& cut, int warp)
      : log_n(cut.is_gated ? kLogTileRows - 1 : kLogTileRows),
        part(static_cast<int>(blockIdx.x) % cut.n_parts) {
    int first_group;
    matrix = &matrix_of(rows, static_cast<int>(blockIdx.y), &first_group);
    first = ((static_cast<int>(blockIdx.y) - first_group) * kWarps + warp) << log_n;
  }
  // Place of a step in the first matrix.
  template <TensorType kType>
  DSV32_DEVICE StepPlace place(const DecodeRows& rows, const Cut& cut, int step) const {
    StepPlace at = place_step<kType>(rows, *matrix, 0, first, step, 1 << log_n);
    if (cut.is_gated) at.next = rows.gate_offset;
    return at;
  }
};

// slots: those of the warp's rows.
DSV32_DEVICE void clear_slots(const Cut& cut, int lane, float* slots) {
  for (int slot = 0; slot < cut.n_slots; ++slot)
    for (int k = lane; k < kBandTile * cut.row_sums(); k += 32) slots[slot * cut.slot_sums() + k] = 0;
  __syncwarp();
}

// Adds up the parts' slots, writes y of an item's rows, each part a share of them, and clears the slots.
// slots: those of the warp's rows.
DSV32_DEVICE void finish_item(const DecodeRows& rows, const UseRuns& runs, const Cut& cut,
                              const WarpRows& own, const UseRuns::Run& item, bool is_split, int lane,
                              float* slots) {
  sync_parts(cut.n_parts);
  const auto sum_of = [&](int at) {
    const auto value = [&](int k) {
      return value_of_part(slots + k % cut.n_slots * cut.slot_sums() + at, k / cut.n_slots, cut.n_parts);
    };
    float total = 0;
    if (is_split) {
      for (int part = 0; part < cut.n_parts; ++part)
        total += sum_units(cut.n_slots, [&](int k) { return value(part * cut.n_slots + k); });
      return total;
    }
    const int n = cut.n_parts * cut.n_slots;
    float values[kWarps];  // an array, so that the loads overlap
    DSV32_UNROLL for (int k = 0; k < kWarps; ++k) values[k] = k < n ? value(k) : 0;
    return sum_units(n, [&](int k) { return values[k]; });
  };
  const int n_rows = 1 << own.log_n;
  for (int k = own.part * 32 + lane; k < n_rows * item.n; k += cut.n_parts * 32) {
    const int c = k >> own.log_n, r = k & (n_rows - 1), row = own.first + r;
    if (row >= own.matrix->n_rows) continue;
    const int problem = runs.runs ? runs.uses[item.first + c] : item.mat,
              token = runs.runs ? 0 : item.first + c, at = r * cut.row_sums() + c;
    if (cut.is_gated) {
      const float totals[2] = {sum_of(at), sum_of(at + n_rows * cut.row_sums())};
      finish_row<2>(rows, *own.matrix, totals, problem, token, row);
    } else {
      const float totals[1] = {sum_of(at)};
      finish_row<1>(rows, *own.matrix, totals, problem, token, row);
    }
  }
  sync_parts(cut.n_parts);  // until all slots are read
  clear_slots(cut, lane, slots);
}

// y as in decode_rows_kernel, for chunks of tokens or runs of uses.
// Grid (parts of chunks, groups of 8 tiles, problems or shares of the runs); clusters of parts.
// Layout: head of this file; stages of the ring [weights of 8 warps, x], then the slots. Copies run ahead
// across items, those of x one step less.
// Bound by issue slots and shared memory: Q4_K takes some 220 instructions for 16 x 256 weights and 40 for
// each 8 columns. Measured (H200, 2026-11-24): Q4_K 7168 x 16384 of 8 and 16 tokens 37 and 45 us; the 222
// experts that 64 tokens choose at random 2.0 ms, 2.7 TB/s, 64 % of the issue slots busy.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 2)
    decode_columns_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ Layout layout,
                          const __grid_constant__ UseRuns runs, const __grid_constant__ ColumnX x,
                          const __grid_constant__ Cut cut) {
  using Step = Steps<kType>;
  constexpr int kWarpStage = kBandTile * Step::kSlot, kRecord = Record<kType>::kBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  __shared__ BlockItems items;
  __shared__ Pipe<kMostStages> x_pipe;  // for the stages of x, which all warps read
  const uint32_t thread = opaque(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int n_stage_bytes = kWarps * kWarpStage + cut.n_columns * kRecord;
  float* slots =
      reinterpret_cast<float*>(shared + cut.n_stages * n_stage_bytes) + warp * kBandTile * cut.row_sums();
  let_next_start();
  fill_grid<kType>(grid);
  if (thread == 0) x_pipe.init(32, kWarps);
  if (runs.runs) wait_for_inputs();  // the runs come from a kernel
  const int n_items = items.find(rows, runs, static_cast<int>(blockIdx.x) / cut.n_parts, cut.n_columns);
  const WarpRows own(rows, cut, warp);
  // The block's units: all of its share of a split tile's steps, else some of all steps.
  const StepShare share(layout, layout.n_split > 1 ? own.part : 0);
  const int n_units = (layout.n_split << layout.log_warps) / cut.n_parts,
            first_unit = layout.n_split > 1 ? 0 : own.part * n_units;
  const int first_step = share.begin_of(layout, first_unit),
            end_step = share.begin_of(layout, first_unit + n_units);
  const StepPlace first = own.place<kType>(rows, cut, first_step);
  const auto start_item = [&](int item) {
    StepPlace at = first;
    at.row += items.at[item].mat * rows.mat_bytes;
    return at;
  };
  const uint32_t ring = opaque(shared_address(shared)), own_ring = opaque(ring + warp * kWarpStage),
                 x_ring = opaque(ring + kWarps * kWarpStage + 16 * lane),
                 numbers = opaque(shared_address(items.x_records));
  const uint8_t* x_lane = x.records + 16 * lane;

  StepPlace put = start_item(0);
  int put_item = 0;
  const auto copy_weights = [&](int stage) {
    if (put_item < n_items) {
      copy_step<kType, 1>(rows, layout, put, lane, own_ring + stage * n_stage_bytes);
      if (++put.step < end_step)
        put.row += step_apart<kType>(rows);
      else
        put = start_item(++put_item);  // past the last item the place is not used
    }
    commit_copies();
  };
  RingWalk x_walk;
  int x_item = 0, x_step = first_step, x_warp = 0;  // x_warp: which warp copies next
  const auto copy_x = [&] {
    if (x_item == n_items) return;
    if (x_warp == warp) {
      x_pipe.wait_empty(x_walk);
      copy_records<kType>(x_lane + x_step * kRecord, numbers + 4 * x_item * cut.n_columns, items.at[x_item].n,
                          lane, x_ring + x_walk.stage * n_stage_bytes);
      arrive_when_copied(&x_pipe.full[x_walk.stage]);
    }
    x_walk.advance(cut.n_stages);
    x_warp = (x_warp + 1) % kWarps;
    if (++x_step == end_step) x_step = first_step, ++x_item;
  };
  for (int stage = 0; stage < cut.n_stages - 1; ++stage) copy_weights(stage);
  clear_slots(cut, lane, slots);
  if (!runs.runs) wait_for_inputs();
  items.find_columns(rows, runs, n_items, cut.n_columns, x.n_steps);
  __syncthreads();
  copy_x();
  for (int k = 3; k < cut.n_stages; ++k) copy_x();  // a stage less than weights: warps may drift apart

  Sums<1, kTiles> sums = {};
  const auto lane_x = LaneXOf<kType>::template of<kType>(shared + kWarps * kWarpStage, lane, 7);
  const Lane<kType> quarter(lane % 4);
  const bool has_rows = own.first < own.matrix->n_rows;
  RingWalk walk;
  for (int item = 0; item < n_items; ++item) {
    StepPlace take = start_item(item);  // the step that is multiplied next
    int unit = first_unit;
    for (int step = first_step; step < end_step; ++step) {
      wait_until_pending(cut.n_stages - 2);
      __syncwarp();
      copy_weights(walk.stage == 0 ? cut.n_stages - 1 : walk.stage - 1);
      copy_x();
      x_pipe.wait_full(walk);
      const int stage_at = walk.stage * n_stage_bytes;
      if (has_rows) {
        const uint8_t* rows_at[1][2];
        find_step<kType>(rows, take, lane, shared + stage_at + warp * kWarpStage, rows_at[0]);
        add_step_of<kType>(items.at[item].n, sums, rows_at, lane_x.after(stage_at), quarter, grid);
      }
      __syncwarp();
      if (lane == 0) arrive(&x_pipe.empty[walk.stage]);
      walk.advance(cut.n_stages);
      take.row += step_apart<kType>(rows);
      // With few steps some units are empty.
      while (unit < first_unit + n_units && share.begin_of(layout, unit + 1) <= step + 1) {
        float* slot = slots + ((unit++ - first_unit) >> cut.log_units) * cut.slot_sums();
        flush_sums<kType>(sums[0], cut.n_columns, cut.row_sums(), slot);
      }
    }
    finish_item(rows, runs, cut, own, items.at[item], layout.n_split > 1, lane, slots);
  }
}

template <TensorType kType>
void launch_columns(DecodeRows rows, const Layout& layout, const UseRuns& runs, bool is_gated, int n_together,
                    const Launch& launch) {
  using X = Record<kType>;
  const auto kernel = decode_columns_kernel<kType>;
  const int n_problems = runs.runs ? runs.n_runs : rows.n_problems;
  const int n_groups = number_groups(rows, kWarps / (is_gated ? 2 : 1));
  const int64_t n_columns = int64_t{rows.n_problems} / rows.x_sharing * rows.n_tokens;

  const int64_t n_records = n_columns * layout.n_steps;
  const ColumnX x = {launch.workspace->take<uint8_t>(n_records * X::kBytes), static_cast<int>(n_columns),
                     layout.n_steps};
  launch_kernel(make_columns_kernel<kLikeX<kType>>, {ceil_div(n_records, kThreads / X::kLanes), kThreads},
                launch, rows, x, layout.is_x_aligned);

  Cut cut{is_gated, 1, 1, 0, 0, ceil_div(n_together, 8) * 8};
  const int n_chunks = runs.runs ? 1 : ceil_div(rows.n_tokens, cut.n_columns);
  const int n_stage_bytes = kWarps * kBandTile * Steps<kType>::kSlot + cut.n_columns * X::kBytes;
  const int place = most_shared_bytes(kernel, 2), block_limit = most_shared_bytes(kernel);
  const auto stages_in = [&](int room, int n_slots) {
    return (room - n_slots * cut.slot_sums() * 4) / n_stage_bytes;
  };
  // A sum per half of the units; or per unit, if a part has less than a half.
  const auto slots_of = [&](int n_parts) {
    const int n_units = (layout.n_split << layout.log_warps) / n_parts;
    return layout.n_split > 1 || n_parts == 1 ? std::min(n_units, 2) : n_parts == 2 ? 1 : n_units;
  };
  const auto fits = [&](int n) { return card().has_clusters && stages_in(place, slots_of(n)) >= 2; };
  cut.n_parts = layout.n_split > 1
                    ? layout.n_split
                    : choose_parts(layout.n_steps, layout.log_warps,
                                   int64_t{n_groups} * n_chunks * n_problems, 2 * launch.n_sms, fits);
  cut.n_slots = slots_of(cut.n_parts);
  while ((layout.n_split << layout.log_warps) / cut.n_parts > cut.n_slots << cut.log_units) ++cut.log_units;
  const int room = stages_in(place, cut.n_slots) >= 2 ? place : block_limit;
  // Several times as many blocks as run at once, because some have less to do.
  const int n_items = std::min(BlockItems::kMost, BlockItems::kMostColumns / cut.n_columns);
  const int n_z = runs.runs
                      ? std::clamp(8 * launch.n_sms / n_groups, ceil_div(n_problems, n_items), n_problems)
                      : n_problems;
  const int64_t n_steps = ceil_div(layout.n_steps, cut.n_parts) * ceil_div(n_problems, n_z);
  cut.n_stages = static_cast<int>(
      std::min<int64_t>({stages_in(room, cut.n_slots), kMostStages, std::max<int64_t>(2, n_steps + 1)}));
  if (cut.n_stages < 2)
    fail(ErrorKind::internal,
         format("%d bytes of shared memory a block are too few for products with %s weights", block_limit,
                type_name(kType)));
  const int n_bytes = cut.n_stages * n_stage_bytes + cut.n_slots * cut.slot_sums() * 4;
  launch_kernel(kernel, {{n_chunks * cut.n_parts, n_groups, n_z}, kThreads, n_bytes, cut.n_parts}, launch,
                rows, layout, runs, x, cut);
}

// Run p = problem p alone, of the matrix that was chosen for it.
// A thread per problem. Bound by latency. It lets the next kernel start late, so that all kernels after it
// may read mats without waiting (DecodeRows::is_known).
__global__ void list_chosen_kernel(const int32_t* mats, int n, UseRuns::Run* runs, int32_t* uses) {
  wait_for_inputs();
  let_next_start();
  const int p = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (p < n) runs[p] = {mats[p], p, 1}, uses[p] = p;
}

// Problems with chosen matrices, and the shared one, which has neither factor nor sum, if there is one.
void multiply_chosen(DecodeRows rows, bool is_gated, TensorType type, const Launch& launch) {
  if (rows.shared_weights) {
    DecodeRows shared = rows;
    shared.n_problems = 1, --rows.n_problems;
    shared.n_tokens = rows.n_shared_tokens;
    shared.matrices[0].weights = rows.shared_weights, shared.x = rows.shared_x;
    shared.matrices[0].y += rows.n_problems * rows.y_problem_stride;
    shared.mats = nullptr, shared.shared_weights = rows.shared_weights = nullptr;
    multiply_columns(shared, {}, is_gated, shared.n_tokens, type, launch);
  }
  auto* runs = launch.workspace->take<UseRuns::Run>(rows.n_problems);
  auto* uses = launch.workspace->take<int32_t>(rows.n_problems);
  launch_kernel(list_chosen_kernel, {ceil_div(rows.n_problems, kThreads), kThreads}, launch, rows.mats,
                rows.n_problems, runs, uses);
  rows.mats = nullptr;
  multiply_columns(rows, {runs, uses, rows.n_problems, 1}, is_gated, 1, type, launch);
}

}  // namespace

void multiply_columns(const DecodeRows& rows, const UseRuns& runs, bool is_gated, int n_together,
                      TensorType type, const Launch& launch) {
  if (rows.mats) return multiply_chosen(rows, is_gated, type, launch);
  with_type(type, [&]<TensorType kType>() {
    if constexpr (!kIsFloat<kType>)
      launch_columns<kType>(rows, layout_of<kType>(rows, is_gated ? 2 : 1), runs, is_gated, n_together,
                            launch);
  });
}

}  // namespace decode
}  // namespace dsv32::cuda
