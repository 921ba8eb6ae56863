// Quantization of experts' operands in BF16 on the GPU, with one scale per expert, as a pipeline: while a block of 256
// threads quantizes a step of 128 rows x 64 columns, its copies of the next steps are in flight (cp.async). An `Input`
// says what is copied and computes the values: rows, copies of tokens, or the activation of the experts and its
// gradient. Threads copy what they read themselves, so the copies need no barrier; both layouts are written as by
// fp8_tile.cuh.
//
// Blocks stay resident and process items of 128 rows and some steps. All rows of the first columns come before the next
// columns, so that copies of a token are read from the L2 cache. Each warp has 16 rows of a step, which belong to one
// expert because the rows of each expert start at a multiple of 16.
//
// A quantization has two or three launches with the results of fp8_output.h:
//
//   1. find each expert's amax and, if there is a scale (of a history or predicted), quantize with it
//   2. compute each expert's scale; one thread each
//   3. quantize the rows of the experts whose scale is another one
#pragma once

#include <algorithm>

#include "kernels/common/row_blocks.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/quantize/fp8_tile.cuh"

namespace te::kernels::cuda {

constexpr int kUnitRows = kTileRows / kTileWarps;  ///< rows of a tile per warp, all of one expert

/// The plain read avoids most atomics.
__device__ __forceinline__ void update_amax(uint32_t bits, float* amax) {
  auto* const to = reinterpret_cast<uint32_t*>(amax);
  if (bits > *static_cast<volatile uint32_t*>(to)) atomicMax(to, bits);
}

/// Where a tile's columnwise values go: from row `row` on in a matrix [cols, rows].
struct ColumnwiseTile {
  uint8_t* values;
  int64_t rows, row;
};
/// `row_blocks`: the values are in blocks of rows, as high as a tile.
__device__ __forceinline__ ColumnwiseTile columnwise_tile(uint8_t* values, int64_t rows, int64_t cols,
                                                          int64_t tile_row, bool row_blocks) {
  static_assert(kTileRows == kRowBlock);
  if (!row_blocks) return {values, rows, tile_row};
  return {values + tile_row * cols, min(int64_t{kRowBlock}, rows - tile_row), 0};
}

struct RowsOfExperts {
  const int32_t* offsets;  ///< null: rows_each
  int experts;
  int64_t rows_each;

  /// Expert of a row, or -1 after the last one. All lanes of a warp must call it, with the same row.
  __device__ int expert_of(int64_t row) const {
    if (offsets == nullptr) return row < rows_each * experts ? static_cast<int>(row / rows_each) : -1;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    int ended = 0;  // experts that end before the row
#pragma unroll 4
    for (int first = 1; first <= experts; first += kWarpSize)
      ended += __popc(__ballot_sync(kAllLanes, first + lane <= experts && offsets[first + lane] <= row));
    return ended < experts ? ended : -1;
  }
  __device__ int64_t end() const {
    return offsets != nullptr ? offsets[experts] : rows_each * experts;
  }
};

/// An FP32 value per expert, `stride` elements apart; null: none.
struct ExpertValues {
  float* data = nullptr;
  int64_t stride = 0;
  __device__ float& operator[](int e) const { return data[e * stride]; }
};

/// What a launch writes.
struct ExpertOutput {
  uint8_t *rowwise, *columnwise;  ///< [rows, cols], [cols, rows]; null: not written
  bool row_blocks;                ///< of columnwise (row_blocks.h)
  ExpertValues scale;
  ExpertValues done;      ///< experts with this scale are left out (launch 3); null: none
  ExpertValues amax;      ///< updated
  Fp8Counters* counters;  ///< null: none
};

/// Where the amaxes of the experts are collected, and the scales of launch 1, if it quantizes.
ExpertValues amax_of(const Fp8Output& out);
ExpertValues first_scale_of(const Fp8Output& out);
/// The scales that launch 2 computes.
ExpertValues second_scale_of(const Fp8Output& out);
/// Launch 2. `amax`: fp32 [experts], of rows that other ranks quantize (send_fp8.h); null: launch 1 has found it.
void launch_scales(const Context& context, const RowsOfExperts& of_experts, const Fp8Output& out,
                   const float* amax = nullptr);

/// All launches of a quantization with a first scale. launch(ExpertOutput) is called for 1 and 3.
template <class Launch>
void quantize_at_once(const Context& context, const RowsOfExperts& of_experts, const Fp8Output& out,
                      Launch&& launch) {
  const bool corrected = out.requantize.state != nullptr;
  ExpertValues first = first_scale_of(out);
  ExpertOutput output{out.rowwise.as<uint8_t>(),
                      out.columnwise.as<uint8_t>(),
                      of_experts.offsets != nullptr,
                      first,
                      {},
                      amax_of(out),
                      corrected ? nullptr : out.counters};
  launch(output);
  launch_scales(context, of_experts, out);
  if (!corrected) return;
  if (out.requantize.current_scale != nullptr) ++first.data;  // launch 2 has replaced the first
  output.scale = second_scale_of(out), output.done = first, output.amax = {};
  launch(output);
}

__device__ __forceinline__ void copy_async(uint4* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// What a thread has copied.
__device__ __forceinline__ Vec8<__nv_bfloat16> staged_vec8(const uint4* stage) {
  const uint4 words = *stage;
  return {{words.x, words.y, words.z, words.w}};
}

/// Items: tiles of rows, and some steps of columns.
class StepGrid {
 public:
  StepGrid(int64_t rows, int64_t cols, int64_t item_cols)
      : rows_(rows),
        row_tiles_(ceil_div(rows, kTileRows)),
        items_(row_tiles_ * ceil_div(cols, item_cols)),
        item_steps_(static_cast<int>(ceil_div(item_cols, kTileCols))),
        steps_(static_cast<int>(ceil_div(cols, kTileCols))) {}
  /// Leaves out the tiles after the last expert.
  __device__ void end_at(int64_t row) {
    const unsigned across = items_ / max(row_tiles_, 1u);
    row_tiles_ = static_cast<unsigned>((row + kTileRows - 1) / kTileRows), items_ = row_tiles_ * across;
  }
  TE_HOST_DEVICE int64_t rows() const { return rows_; }
  TE_HOST_DEVICE unsigned items() const { return items_; }
  __device__ int64_t row(unsigned item) const { return int64_t{item % row_tiles_} * kTileRows; }
  __device__ int col(unsigned item) const { return first_step(item) * kTileCols; }
  __device__ int steps_of(unsigned item) const { return min(item_steps_, steps_ - first_step(item)); }

 private:
  __device__ int first_step(unsigned item) const { return static_cast<int>(item / row_tiles_) * item_steps_; }

  int64_t rows_;
  unsigned row_tiles_, items_;
  int item_steps_, steps_;
};

/// The quantized values of a block's steps.
template <DType type>
struct StepWriter {
  const ExpertOutput& out;
  Fp8TileShared& exchange;
  const int* experts;  ///< of the units of the tile, -1: not written
  int64_t rows, cols;
  float factor = 0.0f;  ///< of this thread's expert
  bool writes = false;  ///< it has one
  uint32_t largest = 0;

  /// Values of a row.
  __device__ __forceinline__ uint2 quantize(const Vec8<__nv_bfloat16>& values) {
    values.update_amax(largest);
    return to_fp8x8<type>(values, factor);
  }
  /// bytes: of this thread's rows in the tile at (tile_row, tile_col). All threads must call it.
  __device__ __forceinline__ void write(const uint2 (&bytes)[kThreadRows], int64_t tile_row, int tile_col,
                                        int64_t col_end) const {
    const int col = tile_col + static_cast<int>(threadIdx.x) % 8 * 8;
    if (writes && out.rowwise != nullptr && col < col_end) {
      uint8_t* to = out.rowwise + (tile_row + threadIdx.x / 8 * kThreadRows) * cols + col;
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i, to += cols) *reinterpret_cast<uint2*>(to) = bytes[i];
    }
    if (out.columnwise == nullptr) return;
    const ColumnwiseTile to = columnwise_tile(out.columnwise, rows, cols, tile_row, out.row_blocks);
    store_transposed<true>(bytes, to.values, to.rows, to.row, tile_col, col_end, exchange,
                           [&](int unit) { return experts[unit] >= 0; });
  }
};

/// Finds the items that a block processes: in launch 3 those with rows of an expert that is not done.
struct ItemSearch {
  const RowsOfExperts& of_experts;
  const StepGrid& grid;
  const ExpertOutput& out;

  /// The warp's expert in an item; -1: nothing to write.
  __device__ __forceinline__ int expert_of(unsigned item) const {
    const int e =
        of_experts.expert_of(grid.row(item) + static_cast<int>(threadIdx.x) / kWarpSize * kUnitRows);
    return e >= 0 && out.done.data != nullptr && out.done[e] == out.scale[e] ? -1 : e;
  }
  __device__ __forceinline__ unsigned from(unsigned item) const {
    if (out.done.data != nullptr)
      while (item < grid.items() && !__syncthreads_or(expert_of(item) >= 0)) item += gridDim.x;
    return item;
  }
  __device__ __forceinline__ unsigned after(unsigned item) const { return from(item + gridDim.x); }
};

/// The steps whose copies a block starts.
template <class Input>
class StepLoader {
 public:
  static constexpr int kStageUnits = Input::kVectors * kThreadRows * kTileThreads;
  __device__ __forceinline__ StepLoader(const Input& input, const ItemSearch& search, uint4* stages)
      : input_(input), search_(search), stages_(stages), end_(search.of_experts.end()) {
    enter(search.from(blockIdx.x));
  }
  /// Starts the copies of the next step, if there is one.
  __device__ __forceinline__ void next() {
    if (item_ < search_.grid.items()) {
      if (step_ == 0) input_.resolve(rows_, row_);
      input_.copy(stages_ + stage_ * kStageUnits, rows_, col_ + step_ * kTileCols);
      if (++step_ == steps_) enter(search_.after(item_));
    }
    commit_copies();
    if (++stage_ == Input::kStages) stage_ = 0;
  }

 private:
  /// The rows are used one step later, so that the latency of their load is hidden.
  __device__ __forceinline__ void enter(unsigned item) {
    item_ = item, step_ = 0;
    if (item >= search_.grid.items()) return;
    steps_ = search_.grid.steps_of(item), col_ = search_.grid.col(item);
    row_ = search_.grid.row(item) + threadIdx.x / 8 * kThreadRows;
    rows_ = row_ < end_ ? input_.rows_at(row_) : make_int4(-1, -1, -1, -1);
  }

  const Input& input_;
  const ItemSearch& search_;
  uint4* const stages_;
  const int64_t end_;
  unsigned item_ = 0;
  int step_ = 0, steps_ = 0, stage_ = 0, col_ = 0;
  int64_t row_ = 0;
  int4 rows_{};
};

template <class Input, DType type>
__global__ void __launch_bounds__(kTileThreads, Input::kBlocks)
    quantize_steps_kernel(const __grid_constant__ Input input, RowsOfExperts of_experts, StepGrid grid,
                          int64_t cols, const __grid_constant__ ExpertOutput out) {
  extern __shared__ uint4 memory[];
  __shared__ int unit_experts[kTileWarps];
  constexpr int kUnits = Input::kStages * StepLoader<Input>::kStageUnits;
  auto& exchange = reinterpret_cast<Fp8TileShared&>(memory[kUnits]);
  bool wanted = out.done.data == nullptr;
  if (of_experts.offsets != nullptr) {
    auto* const offsets = reinterpret_cast<int32_t*>(&exchange + 1);
    for (int e = threadIdx.x; e <= of_experts.experts; e += kTileThreads) offsets[e] = of_experts.offsets[e];
    of_experts.offsets = offsets;
  }
  if (!wanted)
    for (int e = threadIdx.x; e < of_experts.experts; e += kTileThreads)
      wanted = wanted || out.done[e] != out.scale[e];
  if (!__syncthreads_or(wanted)) return;
  grid.end_at(of_experts.end());

  const ItemSearch search{of_experts, grid, out};
  StepLoader<Input> loader(input, search, memory);
  for (int i = 0; i < Input::kStages - 1; ++i) loader.next();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int stage = 0;
  for (unsigned item = search.from(blockIdx.x); item < grid.items(); item = search.after(item)) {
    const int e = search.expert_of(item);
    if (lane == 0) unit_experts[warp] = e;
    const int64_t tile_row = grid.row(item);
    typename Input::Rows rows(input, tile_row + threadIdx.x / 8 * kThreadRows, e >= 0);
    StepWriter<type> writer{out,   exchange, unit_experts, grid.rows(), cols, e < 0 ? 0.0f : out.scale[e],
                            e >= 0};
    const int steps = grid.steps_of(item), col = grid.col(item);
    for (int step = 0; step < steps; ++step) {
      loader.next();
      wait_for_copies<Input::kStages - 1>();
      input.write(memory + stage * StepLoader<Input>::kStageUnits, rows, tile_row, col + step * kTileCols,
                  writer);
      if (++stage == Input::kStages) stage = 0;
    }
    if (out.amax.data != nullptr && e >= 0) {
      const uint32_t bits = __reduce_max_sync(kAllLanes, Vec8<__nv_bfloat16>::amax_bits(writer.largest));
      if (lane == 0) atomicMax(reinterpret_cast<unsigned*>(&out.amax[e]), bits);
    }
    rows.finish(input);
  }
}

/// Shared memory of a block.
template <class Input>
size_t step_bytes(int experts) {
  constexpr size_t kStages = Input::kStages * StepLoader<Input>::kStageUnits * sizeof(uint4);
  return kStages + sizeof(Fp8TileShared) + (static_cast<size_t>(experts) + 1) * sizeof(int32_t);
}

/// Columns of an item: many, so that its rows are found once, unless there are too few items for all SMs.
template <class Input>
int64_t item_cols(const Context& context, int64_t rows, int64_t cols) {
  constexpr int64_t kMany = 4 * kTileCols;
  const int64_t items = int64_t{ceil_div(rows, kTileRows)} * ceil_div(cols, kMany);
  return items >= int64_t{2} * Input::kBlocks * sm_count(context) ? kMany : kTileCols;
}

/// Launches 1 or 3. cols: of the output.
template <class Input, DType type>
void launch_steps(const Context& context, const Input& input, const RowsOfExperts& of_experts,
                  const StepGrid& grid, int64_t cols, const ExpertOutput& out) {
  if (grid.items() == 0) return;
  const size_t bytes = step_bytes<Input>(of_experts.experts);
  auto* const kernel = quantize_steps_kernel<Input, type>;
  allow_shared_memory(context, kernel, bytes);
  const unsigned blocks = std::min(grid.items(), static_cast<unsigned>(Input::kBlocks * sm_count(context)));
  kernel<<<blocks, kTileThreads, bytes, cuda_stream(context)>>>(input, of_experts, grid, cols, out);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
