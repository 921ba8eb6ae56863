// Transposed FP8 output of the norm: tiles of 128 x 128 bytes go through shared memory; they are read along rows and
// written along columns in full 128-byte lines. Blocks of four rows by four columns are transposed in registers, and
// the tile's words are swizzled to avoid bank conflicts on both sides.
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"

namespace te::kernels::cuda {

namespace {

constexpr int kTile = 128;
constexpr int kThreads = 256;

/// Four FP8 bytes of a row, read from the rowwise output.
struct RowwiseBytes {
  const uint8_t* data;
  int64_t rows, cols;
  bool aligned;

  __device__ __forceinline__ uint32_t operator()(int64_t row, int64_t col) const {
    if (row >= rows || col >= cols) return 0;
    const uint8_t* p = data + row * cols + col;
    if (aligned) return *reinterpret_cast<const uint32_t*>(p);
    uint32_t word = 0;
    for (int i = 0; i < 4 && col + i < cols; ++i) word |= uint32_t{p[i]} << (8 * i);
    return word;
  }
};

/// Four FP8 bytes of a row, recomputed from the norm's input and statistics with the same formula, so bitwise equal.
template <class T>
struct NormedBytes {
  const T* x;
  const T* gamma;
  const T* beta;
  const float* mean;
  const float* rstd;
  const float* scale;
  int64_t rows, cols;
  bool layer, zero_centered, e5m2, aligned;

  __device__ __forceinline__ uint32_t operator()(int64_t row, int64_t col) const {
    if (row >= rows || col >= cols) return 0;
    Vector<T, 4> values = {};
    const T* p = x + row * cols + col;
    if (aligned) {
      values = load_vector<T, 4>(p);
    } else {
      for (int i = 0; i < 4; ++i)
        if (col + i < cols) values.v[i] = p[i];
    }
    const float row_mean = layer ? mean[row] : 0.0f, row_rstd = rstd[row], row_scale = *scale;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (col + i >= cols) continue;
      const float shift = layer ? load_float(beta + col + i) : 0.0f;
      const float gain = norm_gain(zero_centered, load_float(gamma + col + i));
      const float y =
          round_to<T>(norm_element(layer, load_float(&values.v[i]), row_mean, row_rstd, gain, shift));
      const float scaled = __fmul_rn(y, row_scale);
      word |= uint32_t{e5m2 ? to_fp8<DType::e5m2>(scaled) : to_fp8<DType::e4m3>(scaled)} << (8 * i);
    }
    return word;
  }
};

/// out[col, row] = bytes(row, col). Grid: x for tiles of rows, y for tiles of columns.
template <class Bytes>
__global__ void __launch_bounds__(kThreads)
    transpose_bytes(Bytes bytes, uint8_t* out, int64_t rows, int64_t cols, bool aligned) {
  __shared__ uint32_t tile[kTile][kTile / 4];  // [column][group of four rows, swizzled by column / 4]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t row0 = int64_t{blockIdx.x} * kTile, col0 = int64_t{blockIdx.y} * kTile;
#pragma unroll
  for (int group = warp; group < kTile / 4; group += kThreads / kWarpSize) {
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) word[j] = bytes(row0 + 4 * group + j, col0 + 4 * lane);
    uint32_t column[4];
    transpose_4x4(word, column);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[4 * lane + j][group ^ lane] = column[j];
  }
  __syncthreads();
  const int64_t row = row0 + 4 * lane;
#pragma unroll 4
  for (int c = warp; c < kTile; c += kThreads / kWarpSize) {
    if (col0 + c >= cols || row >= rows) continue;
    const uint32_t word = tile[c][lane ^ (c / 4)];
    uint8_t* p = out + (col0 + c) * rows + row;
    if (aligned) {
      *reinterpret_cast<uint32_t*>(p) = word;
    } else {
      for (int i = 0; i < 4 && row + i < rows; ++i) p[i] = static_cast<uint8_t>(word >> (8 * i));
    }
  }
}

template <class Bytes>
void launch(const Context& context, const Bytes& bytes, const Tensor& out, int64_t rows, int64_t cols) {
  const dim3 grid(ceil_div(rows, kTile), ceil_div(cols, kTile));
  const bool aligned = rows % 4 == 0 && is_aligned(out.data, 4);
  transpose_bytes<<<grid, kThreads, 0, cuda_stream(context)>>>(bytes, out.as<uint8_t>(), rows, cols, aligned);
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
NormedBytes<T> normed_bytes(const NormForward& a, const Tensor& input) {
  NormedBytes<T> bytes;
  bytes.x = input.as<T>();
  bytes.gamma = a.gamma.as<T>();
  bytes.beta = a.beta.as<T>();
  bytes.mean = a.mean.as<float>();
  bytes.rstd = a.rstd.as<float>();
  bytes.scale = a.y_fp8.scale;
  bytes.rows = a.x.rows();
  bytes.cols = a.x.cols();
  bytes.layer = a.kind == NormKind::layer;
  bytes.zero_centered = a.kind == NormKind::rms_zero_centered;
  bytes.e5m2 = a.y_fp8.columnwise.dtype == DType::e5m2;
  bytes.aligned = bytes.cols % 4 == 0 && is_aligned(input.data, 4 * sizeof(T));
  return bytes;
}

}  // namespace

void norm_columnwise(const Context& context, const NormForward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const Tensor& out = args.y_fp8.columnwise;
  if (args.y_fp8.rowwise) {
    const uint8_t* data = args.y_fp8.rowwise.as<uint8_t>();
    const RowwiseBytes bytes{data, rows, cols, cols % 4 == 0 && is_aligned(data, 4)};
    return launch(context, bytes, out, rows, cols);
  }
  const Tensor& input = args.delta ? args.sum : args.x;
  visit_high_precision(input.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    launch(context, normed_bytes<T>(args, input), out, rows, cols);
  });
}

}  // namespace te::kernels::cuda
