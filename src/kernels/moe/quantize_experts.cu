// Quantization of experts' operands on the GPU, in three launches: the amax of each expert, its scale, and the data in
// tiles of 128 x 64 values, which may have rows of several experts. Amaxes are maxima and counters integers, so the
// order of the atomics does not matter. The launches do not overlap, so unlike quantize.cu they use one amax and one
// predicted scale of each state, not two that alternate, and may be captured in a CUDA graph.
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
    auto* const to = reinterpret_cast<uint32_t*>(amax + expert * stride);
    if (lane == 0 && bits > *static_cast<volatile uint32_t*>(to)) atomicMax(to, bits);
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
    finalize_state(s, amax, first, second_scale(s, amax, first));
    scale = s.state->scale;
    if (a.amax != nullptr && abs_bits(amax) > __float_as_uint(a.amax[e])) a.amax[e] = amax;
  }
  if (a.scale_inv != nullptr) a.scale_inv[e] = 1.0f / scale;
}

struct CastOutput {
  uint8_t *rowwise, *columnwise;  ///< [rows, cols], [cols, rows]; null: not written
  Fp8Counters* counters;          ///< null: none
};

struct CastShared {
  uint8_t columns[kTileCols][kPitch];
  int expert[kTileRows];  ///< -1: after the last expert
  unsigned saturated[kTileRows], flushed[kTileRows];
};

template <DType type, class T>
__device__ __forceinline__ uint2 quantized(const Vec8<T>& x, float scale) {
  uint32_t word[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t low = to_fp8x2<type>(x.get(4 * half) * scale, x.get(4 * half + 1) * scale);
    const uint32_t high = to_fp8x2<type>(x.get(4 * half + 2) * scale, x.get(4 * half + 3) * scale);
    word[half] = low | high << 16;
  }
  return make_uint2(word[0], word[1]);
}
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

/// The first row of each expert in the tile adds the counts of the expert's rows.
__device__ __forceinline__ void add_counts(const CastShared& s, Fp8Counters* counters, int64_t tile_cols) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kTileRows || s.expert[r] < 0 || (r > 0 && s.expert[r - 1] == s.expert[r])) return;
  unsigned long long saturated = 0, flushed = 0, count = 0;
  for (int row = r; row < kTileRows && s.expert[row] == s.expert[r]; ++row, ++count)
    saturated += s.saturated[row], flushed += s.flushed[row];
  Fp8Counters* const out = counters + s.expert[r];
  if (saturated > 0) atomicAdd(&out->saturated, saturated);
  if (flushed > 0) atomicAdd(&out->flushed, flushed);
  atomicAdd(&out->total, count * static_cast<unsigned long long>(tile_cols));
}

/// Writes the tile's columns, four rows at a time.
template <bool kAligned>
__device__ __forceinline__ void store_columns(const CastShared& s, uint8_t* columnwise, int64_t rows,
                                              int64_t row0, int64_t col0, int64_t cols) {
  for (int at = static_cast<int>(threadIdx.x); at < kTileCols * kTileRows / 4; at += kThreads) {
    const int column = at / (kTileRows / 4), r = at % (kTileRows / 4) * 4;
    if (col0 + column >= cols) break;
    uint8_t* const to = columnwise + (col0 + column) * rows + row0 + r;
    if (kAligned && s.expert[r + 3] >= 0) {
      *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(&s.columns[column][r]);
      continue;
    }
    for (int i = 0; i < 4; ++i)
      if (s.expert[r + i] >= 0) to[i] = s.columns[column][r + i];
  }
}

/// A block processes a tile, eight threads a row of it. `stride`: elements between the scales of experts. kAligned: of
/// the rows of x and the outputs; rows of columnwise have a multiple of 4 bytes.
template <class T, DType type, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(InputRows<T> x, RowsOfExperts of_experts, int64_t rows, const float* scale, int64_t stride,
                CastOutput out) {
  __shared__ CastShared s;
  const int64_t across = (x.cols + kTileCols - 1) / kTileCols;
  const int64_t row0 = blockIdx.x / across * kTileRows, col0 = blockIdx.x % across * kTileCols;
  if (threadIdx.x < kTileRows)
    s.expert[threadIdx.x] = row0 + threadIdx.x < rows ? of_experts.expert_of(row0 + threadIdx.x) : -1;
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) % kRowThreads * 8;
  const int64_t valid = x.cols - col0 - column;
#pragma unroll
  for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
    const int r = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kRowThreads, e = s.expert[r];
    const T* const row = e < 0 ? nullptr : x.row(row0 + r);
    const float factor = e < 0 ? 0.0f : scale[e * stride];
    const Vec8<T> values = row == nullptr ? zero_vec8<T>() : load_vec8<kAligned>(row + col0 + column, valid);
    const uint2 bytes = quantized<type>(values, factor);
    if (e >= 0 && out.rowwise != nullptr)
      store_bytes<kAligned>(out.rowwise + (row0 + r) * x.cols + col0 + column, bytes, valid);
    if (out.columnwise != nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) s.columns[column + j][r] = byte_of(bytes, j);
    }
    if (out.counters != nullptr) count_row<type>(s, r, values, bytes, factor, valid);
  }
  __syncthreads();
  if (out.counters != nullptr) add_counts(s, out.counters, min(int64_t{kTileCols}, x.cols - col0));
  if (out.columnwise != nullptr) store_columns<kAligned>(s, out.columnwise, rows, row0, col0, x.cols);
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

template <class T>
void launch_amax(const Context& context, const QuantizeExperts& a) {
  Fp8CastState* const states = a.out.requantize.state;
  float* const amax = states != nullptr ? states->amax : a.out.amax;
  constexpr int64_t kStateStride = sizeof(Fp8CastState) / sizeof(float);
  if (amax == nullptr) return;
  const bool aligned = a.x.cols() % 8 == 0 && is_aligned(a.x.data, 16);
  auto* const kernel = aligned ? amax_kernel<T, true> : amax_kernel<T, false>;
  kernel<<<ceil_div(rows_of(a), kBlockRows), kThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows_of(a), amax, states != nullptr ? kStateStride : 1);
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

template <class T, DType type>
void launch_cast(const Context& context, const QuantizeExperts& a) {
  static_assert(sizeof(Fp8CastState) % sizeof(float) == 0);
  const Fp8CastState* const states = a.out.requantize.state;
  const int64_t rows = rows_of(a), cols = a.x.cols();
  const auto bytes = [](const Tensor& tensor) { return tensor.as<uint8_t>(); };
  const bool aligned = cols % 8 == 0 && rows % 4 == 0 && is_aligned(a.x.data, 16) &&
                       is_aligned(a.out.rowwise.data, 16) && is_aligned(a.out.columnwise.data, 16);
  auto* const kernel = aligned ? cast_kernel<T, type, true> : cast_kernel<T, type, false>;
  kernel<<<ceil_div(rows, kTileRows) * ceil_div(cols, kTileCols), kThreads, 0, cuda_stream(context)>>>(
      input_rows<T>(a), rows_of_experts(a), rows, states != nullptr ? &states->scale : a.out.scale,
      states != nullptr ? int64_t{sizeof(Fp8CastState) / sizeof(float)} : 1,
      {bytes(a.out.rowwise), bytes(a.out.columnwise), a.out.counters});
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void quantize_of(const Context& context, const QuantizeExperts& a) {
  launch_amax<T>(context, a);
  if (!a.out.wants_data()) return;
  const DType format = a.out.rowwise ? a.out.rowwise.dtype : a.out.columnwise.dtype;
  launch_scales(context, a, format);
  if (format == DType::e4m3) return launch_cast<T, DType::e4m3>(context, a);
  launch_cast<T, DType::e5m2>(context, a);
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
