// Rows that are quantized before they are sent, on the GPU. A warp processes a token or a row, so the rows of an expert
// need no alignment. Amaxes are maxima and counts integers, so the order of the atomics does not matter. Received rows
// are ordered in tiles of 128 x 64 bytes (fp8_tile.cuh).
#include "kernels/moe/expert_quantize.cuh"
#include "kernels/moe/sent_scaling.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

/// Of an expert: first and end of its rows, first row and number of rows of all experts of its rank.
using Range = int4;

/// Thread e has expert e. All threads of a rank's experts sum the same counts, which are few.
__global__ void __launch_bounds__(kThreads)
    sent_ranges_kernel(const int32_t* counts, int ranks, int stride, int experts, int rank, int64_t begin,
                       int64_t end, Range* ranges) {
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e >= experts) return;
  const int own = experts / ranks, first_expert = e / own * own;
  Range range = make_int4(0, 0, 0, 0);
  int64_t position = 0;
  for (int other = first_expert; other < first_expert + own; ++other)
    for (int from = 0; from < ranks; ++from) {
      const int32_t* const first = counts + int64_t{from} * stride + other;
      const int64_t start = first[0], count = first[1] - start;
      if (from == rank) {
        const auto at = [&](int64_t limit) {
          return static_cast<int>(start + min(max(limit - position, int64_t{0}), count));
        };
        const int row = at(begin), stop = at(end);
        if (other == e) range.x = row, range.y = stop;
        if (range.w == 0) range.z = row;
        range.w += stop - row;
      }
      position += count;
    }
  ranges[e] = range;
}

/// The expert that has a row in the round, or -1. Ranges are in the order of the rows.
__device__ __forceinline__ int expert_of(const Range* ranges, int experts, int row) {
  int low = 0, high = experts;  // the first range that ends after the row
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ranges[middle].y > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low < experts && ranges[low].x <= row ? low : -1;
}

/// A warp processes a token.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    sent_amax_kernel(const T* x, int64_t tokens, int64_t cols, const int32_t* row_of, int topk,
                     const Range* ranges, int experts, float* amax) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (token >= tokens) return;
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t c = lane * 8; c < cols; c += kWarpSize * 8)
    load_vec8<kAligned>(x + token * cols + c, cols - c).update_amax(largest);
  const uint32_t bits = __reduce_max_sync(kAllLanes, Vec8<T>::amax_bits(largest));
  for (int slot = lane; slot < topk; slot += kWarpSize) {
    const int32_t row = row_of[token * topk + slot];
    const int e = row < 0 ? -1 : expert_of(ranges, experts, row);
    if (e >= 0) update_amax(bits, amax + e);
  }
}

/// Thread e has expert e.
__global__ void __launch_bounds__(kThreads)
    sent_scales_kernel(const float* gathered, int ranks, int experts, SentScaling scaling, float* amax,
                       float* scale) {
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e >= experts) return;
  const int own = experts / ranks;
  const int64_t stride = experts + own;
  uint32_t largest = 0;
  for (int rank = 0; rank < ranks; ++rank) largest = max(largest, abs_bits(gathered[rank * stride + e]));
  amax[e] = __uint_as_float(largest);
  scale[e] = scaling.scale(amax[e], gathered[e / own * stride + experts + e % own]);
}

/// The rows to quantize.
template <class T>
struct SentRows {
  const T* x;
  const int32_t* source;
  int topk;
  int64_t rows, cols;
  const Range* ranges;
  int experts;
  const float* scale;
  int64_t pitch;
  bool second;
};

/// A warp processes a row.
template <class T, DType type, bool kAligned, bool kCounted>
__global__ void __launch_bounds__(kThreads)
    quantize_sent_kernel(const __grid_constant__ SentRows<T> sent, uint8_t* out, unsigned long long* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (row >= sent.rows) return;
  const int e = expert_of(sent.ranges, sent.experts, static_cast<int>(row));
  if (e < 0) return;
  const Range range = sent.ranges[e];
  const int64_t place = row + (sent.pitch - 1) * range.z + (sent.second ? range.w : 0);
  const T* const from = sent.x + int64_t{sent.source[row] / sent.topk} * sent.cols;
  uint8_t* const to = out + place * sent.cols;
  const float factor = sent.scale[e];
  ThreadCounters own;
#pragma unroll 4
  for (int64_t c = lane * 8; c < sent.cols; c += kWarpSize * 8) {
    const Vec8<T> values = load_vec8<kAligned>(from + c, sent.cols - c);
    const uint2 bytes = to_fp8x8<type>(values, factor);
    store_bytes<kAligned>(bytes, to + c, sent.cols - c);
    if constexpr (kCounted) count_values<type>(values, bytes, factor, own);
  }
  if constexpr (kCounted) {
    own.saturated = __reduce_add_sync(kAllLanes, own.saturated);
    own.flushed = __reduce_add_sync(kAllLanes, own.flushed);
    if (lane != 0) return;
    if (own.saturated > 0) atomicAdd(counts + 2 * e, static_cast<unsigned long long>(own.saturated));
    if (own.flushed > 0) atomicAdd(counts + 2 * e + 1, static_cast<unsigned long long>(own.flushed));
  }
}

/// The bytes of eight values of a row, zeros after the first `valid`.
template <bool kAligned>
__device__ __forceinline__ uint2 load_bytes(const uint8_t* from, int64_t valid) {
  uint2 bytes = make_uint2(0, 0);
  if constexpr (kAligned) {
    if (valid > 0) bytes = *reinterpret_cast<const uint2*>(from);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) (j < 4 ? bytes.x : bytes.y) |= uint32_t{from[j]} << (j % 4 * 8);
  }
  return bytes;
}

/// A block orders a tile of the rows before `*end`.
template <bool kAligned>
__global__ void __launch_bounds__(kTileThreads)
    order_received_kernel(const uint8_t* x, const int32_t* source, const int32_t* end, int64_t rows,
                          int64_t cols, uint8_t* rowwise, uint8_t* columnwise) {
  __shared__ Fp8TileShared shared;
  const TileCoords tile = tile_coords(blockIdx.x, cols);
  const int64_t row = tile.row + threadIdx.x / 8 * kThreadRows, col = tile.col + threadIdx.x % 8 * 8;
  const int64_t row_end = *end;
  if (tile.row >= row_end) return;
  uint2 bytes[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int32_t from = row + i < row_end ? source[row + i] : -1;
    bytes[i] = from < 0 ? make_uint2(0, 0) : load_bytes<kAligned>(x + from * cols + col, cols - col);
    if (rowwise != nullptr && row + i < row_end)
      store_bytes<kAligned>(bytes[i], rowwise + (row + i) * cols + col, cols - col);
  }
  if (columnwise == nullptr) return;
  const ColumnwiseTile to = columnwise_tile(columnwise, rows, cols, tile.row, true);
  store_transposed<kAligned>(bytes, to.values, to.rows, to.row, tile.col, cols, shared,
                             [&](int unit) { return tile.row + unit * kUnitRows < row_end; });
}

__global__ void __launch_bounds__(kThreads)
    count_sent_kernel(const unsigned long long* counts, int ranks, int all, int first_expert,
                      const int32_t* offsets, int experts, int64_t cols, Fp8Counters* counters) {
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e >= experts) return;
  for (int rank = 0; rank < ranks; ++rank) {
    const unsigned long long* const of_rank = counts + 2 * (int64_t{rank} * all + first_expert + e);
    counters[e].saturated += of_rank[0], counters[e].flushed += of_rank[1];
  }
  counters[e].total += static_cast<unsigned long long>((offsets[e + 1] - offsets[e]) * cols);
}

template <class T>
void amax_of_tokens(const Context& context, const SentAmax& a) {
  const int64_t tokens = a.x.rows(), cols = a.x.cols();
  if (tokens == 0) return;
  auto* const kernel =
      cols % 8 == 0 && is_aligned(a.x.data, 16) ? sent_amax_kernel<T, true> : sent_amax_kernel<T, false>;
  kernel<<<ceil_div(tokens, kWarps), kThreads, 0, cuda_stream(context)>>>(
      a.x.as<T>(), tokens, cols, a.row_of.as<int32_t>(), static_cast<int>(a.row_of.cols()),
      a.ranges.as<Range>(), static_cast<int>(a.ranges.rows()), a.amax.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

template <class T, DType type, bool kAligned>
void launch_quantize_sent(const Context& context, const QuantizeSent& a) {
  const SentRows<T> sent{.x = a.x.as<T>(),
                         .source = a.source.as<int32_t>(),
                         .topk = static_cast<int>(a.topk),
                         .rows = a.source.numel(),
                         .cols = a.x.cols(),
                         .ranges = a.ranges.as<Range>(),
                         .experts = static_cast<int>(a.ranges.rows()),
                         .scale = a.scale.as<float>(),
                         .pitch = a.pitch,
                         .second = a.second};
  if (sent.rows == 0) return;
  auto* const kernel = a.counts ? quantize_sent_kernel<T, type, kAligned, true>
                                : quantize_sent_kernel<T, type, kAligned, false>;
  kernel<<<ceil_div(sent.rows, kWarps), kThreads, 0, cuda_stream(context)>>>(
      sent, a.rows.as<uint8_t>(), a.counts.as<unsigned long long>());
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void quantize_sent_of(const Context& context, const QuantizeSent& a) {
  const bool aligned = a.x.cols() % 8 == 0 && is_aligned(a.x.data, 16) && is_aligned(a.rows.data, 8);
  const auto launch = [&]<DType type>() {
    if (aligned) return launch_quantize_sent<T, type, true>(context, a);
    launch_quantize_sent<T, type, false>(context, a);
  };
  if (a.rows.dtype == DType::e4m3) return launch.template operator()<DType::e4m3>();
  launch.template operator()<DType::e5m2>();
}

}  // namespace

void sent_ranges(const Context& context, const SentRanges& a) {
  const auto experts = static_cast<int>(a.ranges.rows());
  TE_CHECK(is_aligned(a.ranges.data, 16), "sent_ranges: ranges must be aligned to 16 bytes");
  sent_ranges_kernel<<<ceil_div(experts, kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.counts.as<int32_t>(), static_cast<int>(a.counts.rows()), static_cast<int>(a.counts.cols()), experts,
      static_cast<int>(a.rank), a.round * a.capacity, (a.round + 1) * a.capacity, a.ranges.as<Range>());
  TE_CUDA_CHECK_LAUNCH();
}

void sent_amax(const Context& context, const SentAmax& a) {
  if (a.x.dtype == DType::f32) return amax_of_tokens<float>(context, a);
  amax_of_tokens<__nv_bfloat16>(context, a);
}

void finalize_expert_scales(const Context& context, const FinalizeExpertScales& a) {
  const int64_t experts = a.scale.numel(), own = experts / a.gathered.rows();
  sent_scales_kernel<<<ceil_div(experts, kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.gathered.as<float>(), static_cast<int>(a.gathered.rows()), static_cast<int>(experts),
      SentScaling(a.out), a.amax.as<float>(), a.scale.as<float>());
  TE_CUDA_CHECK_LAUNCH();
  launch_scales(context, {nullptr, static_cast<int>(own), 0}, a.out, a.amax.as<float>() + a.rank * own);
}

void quantize_sent(const Context& context, const QuantizeSent& a) {
  if (a.x.dtype == DType::f32) return quantize_sent_of<float>(context, a);
  quantize_sent_of<__nv_bfloat16>(context, a);
}

void order_received(const Context& context, const OrderReceived& a) {
  const int64_t rows = a.source.numel(), cols = a.x.cols();
  if (rows == 0) return;
  const bool aligned = cols % 8 == 0 && rows % 16 == 0 && is_aligned(a.x.data, 8) &&
                       is_aligned(a.rowwise.data, 8) && is_aligned(a.columnwise.data, 16);
  auto* const kernel = aligned ? order_received_kernel<true> : order_received_kernel<false>;
  kernel<<<tile_count(rows, cols), kTileThreads, 0, cuda_stream(context)>>>(
      a.x.as<uint8_t>(), a.source.as<int32_t>(), a.offsets.as<int32_t>() + a.offsets.numel() - 1, rows, cols,
      a.rowwise.as<uint8_t>(), a.columnwise.as<uint8_t>());
  TE_CUDA_CHECK_LAUNCH();
}

void count_sent(const Context& context, const CountSent& a) {
  const auto experts = static_cast<int>(a.offsets.numel() - 1);
  count_sent_kernel<<<ceil_div(experts, kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.counts.as<unsigned long long>(), static_cast<int>(a.counts.dim(0)), static_cast<int>(a.counts.dim(1)),
      static_cast<int>(a.first_expert), a.offsets.as<int32_t>(), experts, a.cols, a.counters);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
