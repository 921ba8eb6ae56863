// Quantization of experts' operands on the GPU in tiles of 128 x 64 values, which may have rows of several experts. The
// results are those of two launches per tensor (fp8_output.h):
//
//   1. find each expert's amax and, if there is a scale (of a history or predicted), quantize with it
//   2. compute each expert's scale; one thread each
//   3. quantize the rows of the experts whose scale is another one
//
// With counters, 1 does not quantize. Amaxes are maxima and counters integers, so the order of the atomics does not
// matter. The launches do not overlap, so unlike quantize.cu they use one amax of each state and may be captured in a
// CUDA graph; the second predicted scale holds that of step 1.
#include <algorithm>
#include <limits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/quantize/requantize.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpRows = 4;  ///< of the amax kernel, per warp
constexpr int kBlockRows = kThreads / kWarpSize * kWarpRows;
constexpr int kTileRows = 128, kTileCols = 64;
constexpr int kRowThreads = kTileCols / 8;           ///< of a tile's row
constexpr int kRowsAtOnce = kThreads / kRowThreads;  ///< of a tile
constexpr int kBlocksPerSm = 4;                      ///< of step 3, which usually has nothing to do
constexpr int kPitch = kTileRows + 4;                ///< of a transposed tile: spreads columns over the banks

struct RowsOfExperts {
  const int32_t* offsets;  ///< null: rows_each
  int experts;
  int64_t rows_each;

  __device__ int expert_of(int64_t row) const {
    if (offsets == nullptr) return static_cast<int>(row / rows_each);
    if (row >= offsets[experts]) return -1;
    int first = 0, end = experts;  // offsets[first] <= row < offsets[end]
    while (end - first > 1) {
      const int middle = (first + end) / 2;
      (offsets[middle] <= row ? first : end) = middle;
    }
    return first;
  }
};

template <class Args>
RowsOfExperts rows_of_experts(const Args& a) {
  return {a.offsets.template as<int32_t>(), static_cast<int>(a.experts), a.x.rows() / a.experts};
}

/// The rows to quantize: those of x, or with `source` copies of them (permute.h).
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
template <class T>
InputRows<T> input_rows(const QuantizeExperts& a) {
  return {a.x.as<T>(), a.source.as<int32_t>(), static_cast<int>(a.topk), a.x.cols()};
}
int64_t rows_of(const QuantizeExperts& a) {
  return a.source ? a.source.numel() : a.x.rows();
}

/// The plain read avoids most atomics.
__device__ __forceinline__ void update_amax(uint32_t bits, float* amax) {
  auto* const to = reinterpret_cast<uint32_t*>(amax);
  if (bits > *static_cast<volatile uint32_t*>(to)) atomicMax(to, bits);
}

/// A warp processes some rows. `stride`: elements between the amaxes of experts.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(InputRows<T> x, RowsOfExperts of_experts, int64_t rows, float* amax, int64_t stride) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = int64_t{blockIdx.x} * kBlockRows + warp * kWarpRows;
  uint32_t largest = 0;
  int expert = -1;
  const auto flush = [&] {
    const uint32_t bits = __reduce_max_sync(0xffffffffu, Vec8<T>::amax_bits(largest));
    if (lane == 0) update_amax(bits, amax + expert * stride);
    largest = 0;
  };
  for (int64_t r = first; r < min(first + kWarpRows, rows); ++r) {
    const int e = of_experts.expert_of(r);
    if (e < 0) break;
    if (expert >= 0 && e != expert) flush();
    expert = e;
    const T* const row = x.row(r);
    if (row == nullptr) continue;
#pragma unroll 4
    for (int64_t c = lane * 8; c < x.cols; c += kWarpSize * 8)
      load_vec8<kAligned>(row + c, x.cols - c).update_amax(largest);
  }
  if (expert >= 0) flush();
}

/// The arrays of an Fp8Output of experts.
struct ExpertScales {
  Fp8CastState* states;  ///< null: given scales
  const float* scale;
  float *current_scale, *predicted, *current_amax, *used_scale, *scale_inv, *amax;
  Fp8Counters* counters;
  float fp8_max, margin_factor;
};

__global__ void scales_kernel(ExpertScales a, int experts) {
  const int e = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (e >= experts) return;
  float scale = 0.0f;
  if (a.states == nullptr) {
    scale = a.scale[e];
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
    const float amax = s.state->amax[0], first = s.scale != nullptr ? *s.scale : 0.0f;
    if (predicted != nullptr) predicted[1] = first;
    finalize_state(s, amax, first, second_scale(s, amax, first));
    scale = s.state->scale;
    if (a.amax != nullptr && abs_bits(amax) > __float_as_uint(a.amax[e])) a.amax[e] = amax;
  }
  if (a.scale_inv != nullptr) a.scale_inv[e] = 1.0f / scale;
}

/// An FP32 value per expert, `stride` elements apart; null: none.
struct ExpertValues {
  float* data = nullptr;
  int64_t stride = 0;
  __device__ float& operator[](int e) const { return data[e * stride]; }
};

struct CastOutput {
  uint8_t *rowwise, *columnwise;  ///< [rows, cols], [cols, rows]; null: not written
  ExpertValues scale;
  ExpertValues done;      ///< experts with this scale are left out
  ExpertValues amax;      ///< updated
  Fp8Counters* counters;  ///< null: none
};

struct CastShared {
  uint8_t columns[kTileCols][kPitch];
  int expert[kTileRows];  ///< -1: not quantized
  unsigned saturated[kTileRows], flushed[kTileRows];
  uint32_t amax[kTileRows];
};

__device__ __forceinline__ uint8_t byte_of(const uint2& bytes, int j) {
  return static_cast<uint8_t>((j < 4 ? bytes.x : bytes.y) >> (j % 4 * 8));
}

/// Writes the bytes of a row, up to eight.
template <bool kAligned>
__device__ __forceinline__ void store_bytes(uint8_t* to, const uint2& bytes, int64_t valid) {
  if constexpr (kAligned) {
    if (valid > 0) *reinterpret_cast<uint2*>(to) = bytes;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) to[j] = byte_of(bytes, j);
  }
}

/// Counts of a row's eight values, summed over the threads of the row.
template <DType type, class T>
__device__ __forceinline__ void count_row(CastShared& s, int row, const Vec8<T>& x, const uint2& bytes,
                                          float scale, int64_t valid) {
  ThreadCounters own;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (j < valid) count_value<type>(x.get(j), x.get(j) * scale, byte_of(bytes, j), own);
#pragma unroll
  for (int offset = kRowThreads / 2; offset > 0; offset /= 2) {
    own.saturated += __shfl_xor_sync(0xffffffffu, own.saturated, offset);
    own.flushed += __shfl_xor_sync(0xffffffffu, own.flushed, offset);
  }
  if (threadIdx.x % kRowThreads == 0) s.saturated[row] = own.saturated, s.flushed[row] = own.flushed;
}

/// Maximum of a row's magnitudes over the threads of the row.
template <class T>
__device__ __forceinline__ void find_row_amax(CastShared& s, int row, const Vec8<T>& x) {
  uint32_t largest = 0;
  x.update_amax(largest);
  largest = Vec8<T>::amax_bits(largest);
#pragma unroll
  for (int offset = kRowThreads / 2; offset > 0; offset /= 2)
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (threadIdx.x % kRowThreads == 0) s.amax[row] = largest;
}

/// The first row of each expert in the tile adds the counts and the amaxes of the expert's rows.
__device__ __forceinline__ void add_rows(const CastShared& s, const CastOutput& out, int64_t tile_cols) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kTileRows || s.expert[r] < 0 || (r > 0 && s.expert[r - 1] == s.expert[r])) return;
  const int e = s.expert[r];
  int end = r;
  while (end < kTileRows && s.expert[end] == e) ++end;
  if (out.amax.data != nullptr) {
    uint32_t largest = 0;
    for (int row = r; row < end; ++row) largest = max(largest, s.amax[row]);
    update_amax(largest, &out.amax[e]);
  }
  if (out.counters == nullptr) return;
  unsigned long long saturated = 0, flushed = 0;
  for (int row = r; row < end; ++row) saturated += s.saturated[row], flushed += s.flushed[row];
  if (saturated > 0) atomicAdd(&out.counters[e].saturated, saturated);
  if (flushed > 0) atomicAdd(&out.counters[e].flushed, flushed);
  atomicAdd(&out.counters[e].total, static_cast<unsigned long long>(end - r) * tile_cols);
}

/// Writes the tile's columns, four rows at a time.
template <bool kAligned>
__device__ __forceinline__ void store_columns(const CastShared& s, uint8_t* columnwise, int64_t rows,
                                              int64_t row0, int64_t col0, int64_t cols) {
  for (int at = static_cast<int>(threadIdx.x); at < kTileCols * kTileRows / 4; at += kThreads) {
    const int column = at / (kTileRows / 4), r = at % (kTileRows / 4) * 4;
    if (col0 + column >= cols) break;
    uint8_t* const to = columnwise + (col0 + column) * rows + row0 + r;
    if (kAligned && min(min(s.expert[r], s.expert[r + 1]), min(s.expert[r + 2], s.expert[r + 3])) >= 0) {
      *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(&s.columns[column][r]);
      continue;
    }
    for (int i = 0; i < 4; ++i)
      if (s.expert[r + i] >= 0) to[i] = s.columns[column][r + i];
  }
}

/// Processes a tile, eight threads a row of it.
template <class T, DType type, bool kAligned>
__device__ __forceinline__ void cast_tile(CastShared& s, const InputRows<T>& x, int64_t rows, int64_t row0,
                                          int64_t col0, const CastOutput& out) {
  const int column = static_cast<int>(threadIdx.x) % kRowThreads * 8;
  const int64_t valid = x.cols - col0 - column;
#pragma unroll
  for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
    const int r = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kRowThreads, e = s.expert[r];
    const T* const row = e < 0 ? nullptr : x.row(row0 + r);
    const float factor = e < 0 ? 0.0f : out.scale[e];
    const Vec8<T> values = row == nullptr ? zero_vec8<T>() : load_vec8<kAligned>(row + col0 + column, valid);
    const uint2 bytes = to_fp8x8<type>(values, factor);
    if (e >= 0 && out.rowwise != nullptr)
      store_bytes<kAligned>(out.rowwise + (row0 + r) * x.cols + col0 + column, bytes, valid);
    if (out.columnwise != nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) s.columns[column + j][r] = byte_of(bytes, j);
    }
    if (out.amax.data != nullptr) find_row_amax(s, r, values);
    if (out.counters != nullptr) count_row<type>(s, r, values, bytes, factor, valid);
  }
  __syncthreads();
  add_rows(s, out, min(int64_t{kTileCols}, x.cols - col0));
  if (out.columnwise != nullptr) store_columns<kAligned>(s, out.columnwise, rows, row0, col0, x.cols);
}

/// kAligned: of the rows of x and the outputs; rows of columnwise have a multiple of 4 bytes.
template <class T, DType type, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(InputRows<T> x, RowsOfExperts of_experts, int64_t rows, int64_t tiles, CastOutput out) {
  __shared__ CastShared s;
  if (out.done.data != nullptr) {
    bool any = false;
    for (int e = threadIdx.x; e < of_experts.experts; e += kThreads) any = any || out.done[e] != out.scale[e];
    if (!__syncthreads_or(any)) return;
  }
  const int64_t across = (x.cols + kTileCols - 1) / kTileCols;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row0 = tile / across * kTileRows, col0 = tile % across * kTileCols;
    bool wanted = false;
    if (threadIdx.x < kTileRows) {
      const int64_t row = row0 + threadIdx.x;
      int e = row < rows ? of_experts.expert_of(row) : -1;
      if (e >= 0 && out.done.data != nullptr && out.done[e] == out.scale[e]) e = -1;
      s.expert[threadIdx.x] = e;
      wanted = e >= 0;
    }
    if (__syncthreads_or(wanted)) cast_tile<T, type, kAligned>(s, x, rows, row0, col0, out);
    __syncthreads();
  }
}

/// A block processes a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const T* x, RowsOfExperts of_experts, int64_t rows, int64_t cols, const uint8_t* rowwise,
                 const uint8_t* columnwise, float* amax, Fp8Counters* counters) {
  __shared__ uint32_t shared[kWarpSize];
  const int64_t r = blockIdx.x;
  const int e = of_experts.expert_of(r);
  if (e < 0) return;
  ThreadCounters own;
  unsigned elements = 0;
  uint32_t bits = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads, ++elements) {
    const float value = load_float(x + r * cols + c);
    const uint8_t q = rowwise != nullptr ? rowwise[r * cols + c] : columnwise[c * rows + r];
    bits = max(bits, abs_bits(value));
    own.flushed += value != 0.0f && (q & 0x7f) == 0 ? 1u : 0u;
  }
  add_counters(own, elements, counters + e);
  if (amax != nullptr) block_update_amax(bits, amax + e, shared);
}

constexpr int64_t kStateStride = sizeof(Fp8CastState) / sizeof(float);
static_assert(sizeof(Fp8CastState) % sizeof(float) == 0);

/// Where the amaxes of the experts are collected.
ExpertValues amax_of(const QuantizeExperts& a) {
  if (a.out.requantize.state == nullptr) return {a.out.amax, 1};
  return {a.out.requantize.state->amax, kStateStride};
}

/// The scales of step 1; none if it only finds the amax.
ExpertValues first_scale_of(const QuantizeExperts& a) {
  const Fp8Requantize& own = a.out.requantize;
  if (own.current_scale == nullptr) return {const_cast<float*>(a.out.scale), 1};
  return {own.predicted_scales, own.predicted_scales != nullptr ? 2 : 0};
}

template <class T>
void launch_amax(const Context& context, const QuantizeExperts& a) {
  const ExpertValues amax = amax_of(a);
  if (amax.data == nullptr) return;
  const bool aligned = a.x.cols() % 8 == 0 && is_aligned(a.x.data, 16);
  auto* const kernel = aligned ? amax_kernel<T, true> : amax_kernel<T, false>;
  kernel<<<ceil_div(rows_of(a), kBlockRows), kThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows_of(a), amax.data, amax.stride);
  TE_CUDA_CHECK_LAUNCH();
}

void launch_scales(const Context& context, const QuantizeExperts& a, DType format) {
  const Fp8Requantize& own = a.out.requantize;
  const ExpertScales scales{own.state,        a.out.scale,     own.current_scale, own.predicted_scales,
                            own.current_amax, own.used_scale,  a.out.scale_inv,   a.out.amax,
                            a.out.counters,   fp8_max(format), own.margin_factor};
  scales_kernel<<<ceil_div(a.experts, kThreads), kThreads, 0, cuda_stream(context)>>>(
      scales, static_cast<int>(a.experts));
  TE_CUDA_CHECK_LAUNCH();
  for (int64_t e = 0; own.num_casts != nullptr && e < a.experts; ++e) ++own.num_casts[e];
}

/// `most`: blocks.
template <class T, DType type>
void launch_cast(const Context& context, const QuantizeExperts& a, CastOutput out, int64_t most) {
  const int64_t rows = rows_of(a), cols = a.x.cols();
  out.rowwise = a.out.rowwise.as<uint8_t>(), out.columnwise = a.out.columnwise.as<uint8_t>();
  const bool aligned = cols % 8 == 0 && rows % 4 == 0 && is_aligned(a.x.data, 16) &&
                       is_aligned(out.rowwise, 16) && is_aligned(out.columnwise, 16);
  auto* const kernel = aligned ? cast_kernel<T, type, true> : cast_kernel<T, type, false>;
  const int64_t tiles = int64_t{ceil_div(rows, kTileRows)} * ceil_div(cols, kTileCols);
  kernel<<<static_cast<unsigned>(std::min(tiles, most)), kThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows, tiles, out);
  TE_CUDA_CHECK_LAUNCH();
}

template <class T, DType type>
void quantize_to(const Context& context, const QuantizeExperts& a) {
  Fp8CastState* const states = a.out.requantize.state;
  const ExpertValues first = first_scale_of(a);
  const bool at_once = first.data != nullptr && (states == nullptr || a.out.counters == nullptr);
  constexpr int64_t kAll = std::numeric_limits<int32_t>::max();
  if (at_once)
    launch_cast<T, type>(context, a,
                         {.scale = first,
                          .done = {},
                          .amax = amax_of(a),
                          .counters = states == nullptr ? a.out.counters : nullptr},
                         kAll);
  else
    launch_amax<T>(context, a);
  launch_scales(context, a, type);
  if (states == nullptr) return;
  ExpertValues done;
  if (at_once) done = first;
  if (at_once && a.out.requantize.current_scale != nullptr)
    ++done.data;  // scales_kernel() has replaced the first
  launch_cast<T, type>(
      context, a,
      {.scale = {&states->scale, kStateStride}, .done = done, .amax = {}, .counters = a.out.counters},
      at_once ? int64_t{kBlocksPerSm} * sm_count(context) : kAll);
}

template <class T>
void quantize_of(const Context& context, const QuantizeExperts& a) {
  if (!a.out.wants_data()) return launch_amax<T>(context, a);
  const DType format = a.out.rowwise ? a.out.rowwise.dtype : a.out.columnwise.dtype;
  if (format == DType::e4m3) return quantize_to<T, DType::e4m3>(context, a);
  quantize_to<T, DType::e5m2>(context, a);
}

template <class T>
void count_of(const Context& context, const CountQuantizedExperts& a) {
  count_kernel<T><<<static_cast<unsigned>(a.x.rows()), kThreads, 0, cuda_stream(context)>>>(
      a.x.as<T>(), rows_of_experts(a), a.x.rows(), a.x.cols(), a.rowwise.as<uint8_t>(),
      a.columnwise.as<uint8_t>(), a.amax, a.counters);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void quantize_experts(const Context& context, const QuantizeExperts& args) {
  if (args.x.dtype == DType::f32) return quantize_of<float>(context, args);
  quantize_of<__nv_bfloat16>(context, args);
}

void count_quantized_experts(const Context& context, const CountQuantizedExperts& args) {
  if (args.x.dtype == DType::f32) return count_of<float>(context, args);
  count_of<__nv_bfloat16>(context, args);
}

}  // namespace te::kernels::cuda
