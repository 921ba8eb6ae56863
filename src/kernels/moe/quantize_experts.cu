// Quantization of experts' operands on the GPU, in three launches: the amax of each expert, its scale, and the data in
// tiles of 32 x 32 values. Amaxes are maxima and counters integers, so the order of the atomics does not matter. The
// launches do not overlap, so unlike quantize.cu they use one amax and one predicted scale of each state, not two that
// alternate, and may be captured in a CUDA graph.
#include "kernels/common/cuda_common.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/quantize/requantize.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSide = kWarpSize, kTileWarps = 8;

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

RowsOfExperts rows_of_experts(const Tensor& x, const Tensor& offsets, int64_t experts) {
  return {offsets.as<int32_t>(), static_cast<int>(experts), x.rows() / experts};
}

/// A block processes a row. `stride`: elements between the amaxes of experts.
template <class T>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const T* x, RowsOfExperts rows, int64_t cols, float* amax, int64_t stride) {
  __shared__ uint32_t shared[kWarpSize];
  const int e = rows.expert_of(blockIdx.x);
  if (e < 0) return;
  const T* const row = x + int64_t{blockIdx.x} * cols;
  uint32_t bits = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) bits = max(bits, abs_bits(load_float(row + c)));
  block_update_amax(bits, amax + e * stride, shared);
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

/// A block processes a tile, a warp one row of it at a time. `stride`: elements between the scales of experts.
template <class T, DType type>
__global__ void __launch_bounds__(kSide* kTileWarps)
    cast_kernel(const T* x, RowsOfExperts of_experts, int64_t rows, int64_t cols, const float* scale,
                int64_t stride, uint8_t* rowwise, uint8_t* columnwise, Fp8Counters* counters) {
  __shared__ uint8_t tile[kSide][kSide + 1];
  __shared__ int expert[kSide];
  const int64_t across = (cols + kSide - 1) / kSide;
  const int64_t row0 = blockIdx.x / across * kSide, col0 = blockIdx.x % across * kSide;
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  if (warp == 0) expert[lane] = row0 + lane < rows ? of_experts.expert_of(row0 + lane) : -1;
  __syncthreads();
  for (int r = warp; r < kSide; r += kTileWarps) {
    const int e = expert[r];
    if (e < 0) continue;
    const int64_t at = (row0 + r) * cols + col0 + lane;
    const bool inside = col0 + lane < cols;
    ThreadCounters own;
    if (inside) {
      const float value = load_float(x + at), scaled = value * scale[e * stride];
      const uint8_t q = to_fp8<type>(scaled);
      if (rowwise != nullptr) rowwise[at] = q;
      tile[r][lane] = q;
      count_value<type>(value, scaled, q, own);
    }
    if (counters != nullptr) add_counters(own, inside ? 1 : 0, counters + e);
  }
  if (columnwise == nullptr) return;
  __syncthreads();
  if (expert[lane] < 0) return;
  for (int c = warp; c < kSide; c += kTileWarps)
    if (col0 + c < cols) columnwise[(col0 + c) * rows + row0 + lane] = tile[lane][c];
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
  amax_kernel<T><<<static_cast<unsigned>(a.x.rows()), kThreads, 0, cuda_stream(context)>>>(
      a.x.as<T>(), rows_of_experts(a.x, a.offsets, a.experts), a.x.cols(), amax,
      states != nullptr ? kStateStride : 1);
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
  const unsigned tiles = ceil_div(a.x.rows(), kSide) * ceil_div(a.x.cols(), kSide);
  cast_kernel<T, type><<<tiles, dim3(kSide, kTileWarps), 0, cuda_stream(context)>>>(
      a.x.as<T>(), rows_of_experts(a.x, a.offsets, a.experts), a.x.rows(), a.x.cols(),
      states != nullptr ? &states->scale : a.out.scale,
      states != nullptr ? int64_t{sizeof(Fp8CastState) / sizeof(float)} : 1, a.out.rowwise.as<uint8_t>(),
      a.out.columnwise.as<uint8_t>(), a.out.counters);
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
      a.x.as<T>(), rows_of_experts(a.x, a.offsets, a.experts), a.x.rows(), a.x.cols(),
      a.rowwise.as<uint8_t>(), a.columnwise.as<uint8_t>(), a.amax, a.counters);
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
