// Quantization of experts' operands on the GPU: a pipeline for BF16 without counters (expert_quantize.cuh), otherwise
// tiles of 128 x 64 values (fp8_tile.cuh), one per block. With counters, the first launch does not quantize. Amaxes are
// maxima and counters integers, so the order of the atomics does not matter. The launches do not overlap, so unlike
// quantize.cu they use one amax of each state and may be captured in a CUDA graph. After the second launch, the second
// predicted scale is that of the first launch.
#include <algorithm>
#include <type_traits>

#include "kernels/moe/expert_quantize.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kWarpRows = 4;  ///< of the amax kernel, per warp
constexpr int kBlockRows = kTileWarps * kWarpRows;
constexpr int kBlocksPerSm = 4;  ///< of the last launch, which usually has nothing to do

template <class Args>
RowsOfExperts rows_of_experts(const Args& a) {
  return {a.offsets.template as<int32_t>(), static_cast<int>(a.experts), a.x.rows() / a.experts};
}

/// The rows to quantize: the rows of x, or with `source` copies of them (permute.h).
template <class T>
struct InputRows {
  const T* x;
  const int32_t* source;
  int topk;
  int64_t cols;

  /// Null: a row of zeros.
  __device__ const T* row(int64_t r) const {
    if (source == nullptr) return x + r * cols;
    const int32_t from = source[r];
    return from < 0 ? nullptr : x + int64_t{from / topk} * cols;
  }
};
template <class T, class Args>
InputRows<T> input_rows(const Args& a) {
  return {a.x.template as<T>(), a.source.template as<int32_t>(), static_cast<int>(a.topk), a.x.cols()};
}
template <class Args>
int64_t rows_of(const Args& a) {
  return a.source ? a.source.numel() : a.x.rows();
}

/// The same for the pipeline.
struct CopiedRows {
  static constexpr int kVectors = 1, kStages = 3, kBlocks = 3;
  const __nv_bfloat16* x;
  const int32_t* source;
  unsigned topk;
  int cols;

  /// What row_of() makes the rows of x, or -1: four rows of the output from `row` on.
  __device__ int4 rows_at(int64_t row) const {
    if (source != nullptr) return *reinterpret_cast<const int4*>(source + row);
    const int first = static_cast<int>(row);
    return make_int4(first, first + 1, first + 2, first + 3);
  }
  __device__ void resolve(int4& rows, int64_t) const {
    if (source == nullptr) return;
    for (int* const row : {&rows.x, &rows.y, &rows.z, &rows.w})
      if (*row >= 0) *row = static_cast<int>(static_cast<unsigned>(*row) / topk);
  }
  __device__ __forceinline__ void copy(uint4* to, const int4& rows, int tile_col) const {
    const int col = tile_col + static_cast<int>(threadIdx.x) % 8 * 8;
    const auto one = [&](int i, int row) {
      const bool valid = row >= 0 && col < cols;
      copy_async(to + i * kTileThreads + threadIdx.x, valid ? x + int64_t{row} * cols + col : x, valid);
    };
    one(0, rows.x), one(1, rows.y), one(2, rows.z), one(3, rows.w);
  }
  struct Rows {
    __device__ Rows(const CopiedRows&, int64_t, bool) {}
    __device__ void finish(const CopiedRows&) const {}
  };
  template <class Writer>
  __device__ __forceinline__ void write(const uint4* stage, Rows&, int64_t tile_row, int tile_col,
                                        Writer& writer) const {
    uint2 bytes[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i)
      bytes[i] = writer.quantize(staged_vec8(stage + i * kTileThreads + threadIdx.x));
    writer.write(bytes, tile_row, tile_col, cols);
  }
};

/// A warp processes some rows of one expert. `stride`: elements between the amaxes of experts.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kTileThreads)
    amax_kernel(InputRows<T> x, RowsOfExperts of_experts, int64_t rows, float* amax, int64_t stride) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = int64_t{blockIdx.x} * kBlockRows + warp * kWarpRows;
  const int expert = of_experts.expert_of(first);
  if (expert < 0) return;
  uint32_t largest = 0;
  for (int64_t r = first; r < min(first + kWarpRows, rows); ++r) {
    const T* const row = x.row(r);
    if (row == nullptr) continue;
#pragma unroll 4
    for (int64_t c = lane * 8; c < x.cols; c += kWarpSize * 8)
      load_vec8<kAligned>(row + c, x.cols - c).update_amax(largest);
  }
  const uint32_t bits = __reduce_max_sync(kAllLanes, Vec8<T>::amax_bits(largest));
  if (lane == 0) update_amax(bits, amax + expert * stride);
}

/// The arrays of an Fp8Output of experts.
struct ExpertScales {
  Fp8TensorState* states;  ///< null: given scales
  const float* scale;
  float *current_scale, *predicted, *current_amax, *used_scale, *scale_inv, *amax;
  Fp8Counters* counters;
  float fp8_max, margin_factor;
  const float* found;  ///< amaxes, if not in the states
};

__global__ void scales_kernel(ExpertScales a, RowsOfExperts of_experts) {
  const int e = static_cast<int>(blockIdx.x * kTileThreads + threadIdx.x);
  if (e >= of_experts.experts) return;
  if (of_experts.offsets != nullptr && of_experts.offsets[e] % kUnitRows != 0) __trap();
  float scale = 0.0f;
  if (a.states == nullptr) {
    scale = a.scale[e];
    if (a.found != nullptr && a.amax != nullptr && abs_bits(a.found[e]) > __float_as_uint(a.amax[e]))
      a.amax[e] = a.found[e];
  } else {
    const bool current = a.current_scale != nullptr;
    const auto at = [e](float* of_first) { return of_first != nullptr ? of_first + e : nullptr; };
    float* const predicted = a.predicted != nullptr ? a.predicted + 2 * e : nullptr;
    Fp8ScaleFinalization s;
    s.state = a.states + e;
    s.next_amax = &s.state->amax[0];
    s.next_predicted_scale = predicted;
    s.scale = current ? predicted : a.scale + e;
    s.fp8_max = a.fp8_max, s.margin_factor = a.margin_factor;
    s.current_scale = at(a.current_scale), s.current_amax = at(a.current_amax);
    s.used_scale = at(a.used_scale);
    s.counters = a.counters != nullptr ? a.counters + e : nullptr;
    const float amax = a.found != nullptr ? a.found[e] : s.state->amax[0],
                first = s.scale != nullptr ? *s.scale : 0.0f;
    if (predicted != nullptr) predicted[1] = first;
    finalize_state(s, amax, first, second_scale(s, amax, first));
    scale = s.state->scale;
    if (a.amax != nullptr && abs_bits(amax) > __float_as_uint(a.amax[e])) a.amax[e] = amax;
  }
  if (a.scale_inv != nullptr) a.scale_inv[e] = 1.0f / scale;
}

/// Instantiations of the kernel: counting, and a loop over tiles, would cost the others registers.
enum class QuantizePass : uint8_t {
  all,
  counted,
  requantize  ///< of the experts that are not done; without amax
};

struct QuantizeShared {
  Fp8TileShared tile;
  int expert[kTileWarps];  ///< of each warp's rows; -1: not quantized
  unsigned saturated[kTileWarps], flushed[kTileWarps];
  uint32_t amax[kTileWarps];
};

/// The first warp of each expert in the tile adds the counts and the amaxes of the expert's rows.
__device__ __forceinline__ void add_units(const QuantizeShared& s, const ExpertOutput& out,
                                          int64_t tile_cols) {
  const int w = static_cast<int>(threadIdx.x);
  if (w >= kTileWarps || s.expert[w] < 0 || (w > 0 && s.expert[w - 1] == s.expert[w])) return;
  const int e = s.expert[w];
  uint32_t largest = 0;
  unsigned long long saturated = 0, flushed = 0;
  int end = w;
  for (; end < kTileWarps && s.expert[end] == e; ++end) {
    if (out.amax.data != nullptr) largest = max(largest, s.amax[end]);
    if (out.counters != nullptr) saturated += s.saturated[end], flushed += s.flushed[end];
  }
  if (out.amax.data != nullptr) update_amax(largest, &out.amax[e]);
  if (out.counters == nullptr) return;
  if (saturated > 0) atomicAdd(&out.counters[e].saturated, saturated);
  if (flushed > 0) atomicAdd(&out.counters[e].flushed, flushed);
  atomicAdd(&out.counters[e].total, static_cast<unsigned long long>((end - w) * kUnitRows * tile_cols));
}

/// Quantizes this thread's part of a tile and writes it, if its expert is `e` >= 0. All threads of the block must call
/// it.
template <class T, DType type, bool kAligned, QuantizePass kPass>
__device__ __forceinline__ void quantize_tile(QuantizeShared& s, int e, const InputRows<T>& x, int64_t rows,
                                              TileCoords tile, const ExpertOutput& out) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t row = tile.row + threadIdx.x / 8 * kThreadRows, col = tile.col + threadIdx.x % 8 * 8;
  const float factor = e < 0 ? 0.0f : out.scale[e];
  if (lane == 0) s.expert[warp] = e;
  Vec8<T> values[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const T* const from = e < 0 ? nullptr : x.row(row + i);
    values[i] = from == nullptr ? zero_vec8<T>() : load_vec8<kAligned>(from + col, x.cols - col);
  }
  if (kPass != QuantizePass::requantize && out.amax.data != nullptr) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) values[i].update_amax(largest);
    largest = __reduce_max_sync(kAllLanes, Vec8<T>::amax_bits(largest));
    if (lane == 0) s.amax[warp] = largest;
  }
  uint2 bytes[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    values[i].clobber_registers();
    bytes[i] = to_fp8x8<type>(values[i], factor);
    if (e >= 0 && out.rowwise != nullptr)
      store_bytes<kAligned>(bytes[i], out.rowwise + (row + i) * x.cols + col, x.cols - col);
  }
  if constexpr (kPass == QuantizePass::counted) {
    ThreadCounters own;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) count_values<type>(values[i], bytes[i], factor, own);
    own.saturated = __reduce_add_sync(kAllLanes, own.saturated);
    own.flushed = __reduce_add_sync(kAllLanes, own.flushed);
    if (lane == 0) s.saturated[warp] = own.saturated, s.flushed[warp] = own.flushed;
  }
  if (out.columnwise != nullptr) {
    const ColumnwiseTile to = columnwise_tile(out.columnwise, rows, x.cols, tile.row, out.row_blocks);
    store_transposed<kAligned>(bytes, to.values, to.rows, to.row, tile.col, x.cols, s.tile,
                               [&](int unit) { return s.expert[unit] >= 0; });
  }
  if constexpr (kPass == QuantizePass::requantize) return;
  __syncthreads();
  add_units(s, out, min(int64_t{kTileCols}, x.cols - tile.col));
}

/// Quantizes one tile per block (requantize: its share of the tiles). kAligned: of the rows of x and the outputs;
/// rows of columnwise have a multiple of 16 bytes.
template <class T, DType type, bool kAligned, QuantizePass kPass>
__global__ void __launch_bounds__(kTileThreads, kPass == QuantizePass::all ? kTileBlocks<T, kAligned>
                                                                           : kRequantizeBlocks<T, kAligned>)
    quantize_kernel(const __grid_constant__ InputRows<T> x, RowsOfExperts of_experts, int64_t rows,
                    unsigned tiles, const __grid_constant__ ExpertOutput out) {
  __shared__ QuantizeShared s;
  const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * kUnitRows;
  if constexpr (kPass != QuantizePass::requantize) {
    const TileCoords tile = tile_coords(blockIdx.x, x.cols);
    return quantize_tile<T, type, kAligned, kPass>(s, of_experts.expert_of(tile.row + first_row), x, rows,
                                                   tile, out);
  }
  bool any = false;
  for (int e = threadIdx.x; e < of_experts.experts; e += kTileThreads)
    any = any || out.done[e] != out.scale[e];
  if (!__syncthreads_or(any)) return;
  for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
    const TileCoords tile = tile_coords(index, x.cols);
    int e = of_experts.expert_of(tile.row + first_row);
    if (e >= 0 && out.done[e] == out.scale[e]) e = -1;
    if (__syncthreads_or(e >= 0)) quantize_tile<T, type, kAligned, kPass>(s, e, x, rows, tile, out);
    __syncthreads();
  }
}

/// A block processes a row.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    count_kernel(InputRows<T> x, RowsOfExperts of_experts, int64_t rows, const uint8_t* rowwise,
                 const uint8_t* columnwise, float* amax, Fp8Counters* counters) {
  __shared__ uint32_t shared[kWarpSize];
  const int64_t r = blockIdx.x, cols = x.cols;
  const T* const row = x.row(r);
  const int e = of_experts.expert_of(r);
  if (e < 0) return;
  const bool row_blocks = of_experts.offsets != nullptr;
  ThreadCounters own;
  unsigned elements = 0;
  uint32_t bits = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kTileThreads, ++elements) {
    const float value = row != nullptr ? load_float(row + c) : 0.0f;
    const uint8_t q = rowwise != nullptr ? rowwise[r * cols + c]
                      : row_blocks       ? columnwise[row_block_index(c, r, cols, rows)]
                                         : columnwise[c * rows + r];
    bits = max(bits, abs_bits(value));
    own.flushed += value != 0.0f && (q & 0x7f) == 0 ? 1u : 0u;
  }
  add_counters(own, elements, counters + e);
  if (amax != nullptr) block_update_amax(bits, amax + e, shared);
}

template <class T>
void launch_amax(const Context& context, const QuantizeExperts& a) {
  const ExpertValues amax = amax_of(a.out);
  if (amax.data == nullptr) return;
  const bool aligned = a.x.cols() % 8 == 0 && is_aligned(a.x.data, 16);
  auto* const kernel = aligned ? amax_kernel<T, true> : amax_kernel<T, false>;
  kernel<<<ceil_div(rows_of(a), kBlockRows), kTileThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows_of(a), amax.data, amax.stride);
  TE_CUDA_CHECK_LAUNCH();
}

/// Offsets are checked on the device.
void check_equal_parts(const QuantizeExperts& a) {
  TE_CHECK(a.offsets || a.x.rows() / a.experts % kUnitRows == 0,
           "quantize_experts: {} rows of each expert are not a multiple of {}", a.x.rows() / a.experts,
           kUnitRows);
}

bool is_vectorized(const QuantizeExperts& a) {
  return a.x.cols() % 8 == 0 && rows_of(a) % 16 == 0 && is_aligned(a.x.data, 16) &&
         is_aligned(a.source.data, 16) && is_aligned(a.out.rowwise.data, 8) &&
         is_aligned(a.out.columnwise.data, 16);
}

template <class T>
constexpr bool kHasPipeline = std::is_same_v<T, __nv_bfloat16>;

template <class T, DType type, QuantizePass kPass>
void launch_tiles(const Context& context, const QuantizeExperts& a, const ExpertOutput& out) {
  const int64_t rows = rows_of(a), cols = a.x.cols();
  auto* kernel = quantize_kernel<T, type, false, kPass>;
  if constexpr (!kHasPipeline<T> || kPass == QuantizePass::counted)
    if (is_vectorized(a)) kernel = quantize_kernel<T, type, true, kPass>;
  const unsigned tiles = tile_count(rows, cols), resident = kBlocksPerSm * sm_count(context);
  const unsigned blocks = kPass == QuantizePass::requantize ? std::min(tiles, resident) : tiles;
  kernel<<<blocks, kTileThreads, 0, cuda_stream(context)>>>(input_rows<T>(a), rows_of_experts(a), rows, tiles,
                                                            out);
  TE_CUDA_CHECK_LAUNCH();
}

/// One launch that quantizes.
template <class T, DType type>
void launch_quantize(const Context& context, const QuantizeExperts& a, const ExpertOutput& out) {
  if (out.counters != nullptr) return launch_tiles<T, type, QuantizePass::counted>(context, a, out);
  if constexpr (kHasPipeline<T>) {
    if (is_vectorized(a)) {
      const int64_t rows = rows_of(a), cols = a.x.cols();
      const CopiedRows input{a.x.as<T>(), a.source.as<int32_t>(), static_cast<unsigned>(a.topk),
                             static_cast<int>(cols)};
      const StepGrid grid(rows, cols, item_cols<CopiedRows>(context, rows, cols));
      return launch_steps<CopiedRows, type>(context, input, rows_of_experts(a), grid, cols, out);
    }
  }
  if (out.done.data == nullptr)
    launch_tiles<T, type, QuantizePass::all>(context, a, out);
  else
    launch_tiles<T, type, QuantizePass::requantize>(context, a, out);
}

template <class T, DType type>
void quantize_to(const Context& context, const QuantizeExperts& a) {
  const Fp8Output& out = a.out;
  const auto launch = [&](const ExpertOutput& output) { launch_quantize<T, type>(context, a, output); };
  const RowsOfExperts of_experts = rows_of_experts(a);
  const bool corrected = out.requantize.state != nullptr;
  if (first_scale_of(out).data != nullptr && !(corrected && out.counters != nullptr))
    return quantize_at_once(context, of_experts, out, launch);
  launch_amax<T>(context, a);
  launch_scales(context, of_experts, out);
  launch({out.rowwise.as<uint8_t>(),
          out.columnwise.as<uint8_t>(),
          of_experts.offsets != nullptr,
          second_scale_of(out),
          {},
          {},
          out.counters});
}

template <class T>
void quantize_of(const Context& context, const QuantizeExperts& a) {
  check_equal_parts(a);
  if (!a.out.wants_data()) return launch_amax<T>(context, a);
  const DType format = a.out.rowwise ? a.out.rowwise.dtype : a.out.columnwise.dtype;
  if (format == DType::e4m3) return quantize_to<T, DType::e4m3>(context, a);
  quantize_to<T, DType::e5m2>(context, a);
}

template <class T>
void count_of(const Context& context, const CountQuantizedExperts& a) {
  count_kernel<T><<<static_cast<unsigned>(rows_of(a)), kTileThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows_of(a), a.rowwise.as<uint8_t>(), a.columnwise.as<uint8_t>(),
      a.amax, a.counters);
  TE_CUDA_CHECK_LAUNCH();
}

constexpr int64_t kStateStride = sizeof(Fp8TensorState) / sizeof(float);
static_assert(sizeof(Fp8TensorState) % sizeof(float) == 0);

}  // namespace

ExpertValues amax_of(const Fp8Output& out) {
  if (out.requantize.state == nullptr) return {out.amax, 1};
  return {out.requantize.state->amax, kStateStride};
}

ExpertValues first_scale_of(const Fp8Output& out) {
  const Fp8Requantize& own = out.requantize;
  if (own.current_scale == nullptr) return {const_cast<float*>(out.scale), 1};
  return {own.predicted_scales, own.predicted_scales != nullptr ? 2 : 0};
}

ExpertValues second_scale_of(const Fp8Output& out) {
  return {&out.requantize.state->scale, kStateStride};
}

void launch_scales(const Context& context, const RowsOfExperts& of_experts, const Fp8Output& out,
                   const float* amax) {
  const Fp8Requantize& own = out.requantize;
  const DType format = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  const ExpertScales scales{own.state,        out.scale,       own.current_scale, own.predicted_scales,
                            own.current_amax, own.used_scale,  out.scale_inv,     out.amax,
                            out.counters,     fp8_max(format), own.margin_factor, amax};
  scales_kernel<<<ceil_div(of_experts.experts, kTileThreads), kTileThreads, 0, cuda_stream(context)>>>(
      scales, of_experts);
  TE_CUDA_CHECK_LAUNCH();
  for (int e = 0; own.num_quantizations != nullptr && e < of_experts.experts; ++e) ++own.num_quantizations[e];
}

void quantize_experts(const Context& context, const QuantizeExperts& args) {
  if (args.x.dtype == DType::f32) return quantize_of<float>(context, args);
  quantize_of<__nv_bfloat16>(context, args);
}

void count_quantized_experts(const Context& context, const CountQuantizedExperts& args) {
  if (args.x.dtype == DType::f32) return count_of<float>(context, args);
  count_of<__nv_bfloat16>(context, args);
}

}  // namespace te::kernels::cuda
