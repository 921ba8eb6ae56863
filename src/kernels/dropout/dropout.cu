// CUDA kernels of dropout and noise. The tensor is one run of consecutive Philox indices, or one run per row if it has
// only some columns. A thread processes 16 bytes, which are one (fp32) or two (bf16) whole groups of four. If the first
// index or a pointer is not aligned, a thread processes one group element by element.
#include <algorithm>

#include "core/random.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/dropout/dropout_rule.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// One group of four indices, clipped to [begin, end).
template <class T>
__device__ __forceinline__ void drop_group(const T* x, T* y, uint64_t group, uint64_t begin, uint64_t end,
                                           uint64_t seed, uint64_t stream, const DropoutRule& rule) {
  const Philox4 random = philox(seed, stream, group);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t i = group * 4 + k;
    if (i < begin || i >= end) continue;
    const float value = random.word[k] >= rule.threshold ? load_float(x + (i - begin)) * rule.scale : 0.0f;
    store_float(y + (i - begin), value);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_groups(const T* x, T* y, int64_t n, uint64_t seed, uint64_t stream, DropoutRule rule) {
  const uint64_t begin = rule.first_index, end = begin + static_cast<uint64_t>(n);
  const uint64_t group = begin / 4 + static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group * 4 < end) drop_group(x, y, group, begin, end, seed, stream, rule);
}

// rule.first_index is a multiple of 4 and both pointers are aligned to 16 bytes. With rule.skip, a row is a multiple of
// a thread's elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_vectors(const T* x, T* y, int64_t n, uint64_t seed, uint64_t stream, DropoutRule rule) {
  constexpr int kWidth = kVectorWidth<T>;
  const int64_t offset = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (offset >= n) return;
  const int64_t skipped = rule.skip > 0 ? offset / rule.cols * rule.skip : 0;
  const uint64_t first_group = (rule.first_index + static_cast<uint64_t>(offset + skipped)) / 4;
  if (offset + kWidth > n) {
    const uint64_t begin = rule.first_index, end = begin + static_cast<uint64_t>(n);
#pragma unroll
    for (int g = 0; g < kWidth / 4; ++g) drop_group(x, y, first_group + g, begin, end, seed, stream, rule);
    return;
  }
  Vector<T, kWidth> values = load_vector<T, kWidth>(x + offset);
#pragma unroll
  for (int g = 0; g < kWidth / 4; ++g) {
    const Philox4 random = philox(seed, stream, first_group + g);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      T& value = values.v[4 * g + k];
      store_float(&value, random.word[k] >= rule.threshold ? load_float(&value) * rule.scale : 0.0f);
    }
  }
  store_vector(y + offset, values);
}

// blockIdx.y: the row. A thread processes one group of four indices.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_numbered(const T* x, T* y, const uint32_t* numbers, const int32_t* source, uint64_t seed,
                     uint64_t stream, DropoutRule rule) {
  const int64_t row = blockIdx.y, at = source != nullptr ? source[row] : row;
  x += row * rule.cols, y += row * rule.cols;
  const uint64_t cols = static_cast<uint64_t>(rule.cols), begin = at < 0 ? 0 : numbers[at] * cols,
                 end = begin + cols;
  const uint64_t group = begin / 4 + static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group * 4 >= end) return;
  if (at < 0) {
    for (uint64_t i = group * 4; i < group * 4 + 4 && i < end; ++i) store_float(y + i, 0.0f);
    return;
  }
  drop_group(x, y, group, begin, end, seed, stream, rule);
}

__global__ void __launch_bounds__(kThreads)
    number_rows(uint32_t* numbers, const uint32_t* columns, int64_t count, int64_t n, uint64_t first_row,
                uint64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  numbers[i] = static_cast<uint32_t>((first_row + i / n) * width) + (columns != nullptr ? columns[i] : 0);
}

template <class T>
void launch_numbered(const Context& context, const Dropout& args) {
  constexpr int64_t kMaxRows = 65535;  // of a grid
  const DropoutRule rule = dropout_rule(args);
  const unsigned blocks = ceil_div(rule.cols / 4 + 2, kThreads);  // a partial group at either end
  for (int64_t row = 0; row < args.x.rows(); row += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, args.x.rows() - row);
    dropout_numbered<<<dim3(blocks, static_cast<unsigned>(rows)), kThreads, 0, cuda_stream(context)>>>(
        args.x.as<T>() + row * rule.cols, args.y.as<T>() + row * rule.cols,
        args.numbers.as<uint32_t>() + (args.source ? 0 : row),
        args.source ? args.source.as<int32_t>() + row : nullptr, args.seed, args.stream, rule);
    TE_CUDA_CHECK_LAUNCH();
  }
}

template <class T>
void launch(const Context& context, const Dropout& args) {
  const DropoutRule rule = dropout_rule(args);
  const int64_t n = args.x.numel();
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  if (rule.first_index % 4 == 0 && is_aligned(x, 16) && is_aligned(y, 16)) {
    const unsigned blocks = ceil_div(n, int64_t{kThreads} * kVectorWidth<T>);
    dropout_vectors<<<blocks, kThreads, 0, cuda_stream(context)>>>(x, y, n, args.seed, args.stream, rule);
  } else {
    const unsigned blocks = ceil_div(n / 4 + 2, kThreads);  // a partial group at either end
    dropout_groups<<<blocks, kThreads, 0, cuda_stream(context)>>>(x, y, n, args.seed, args.stream, rule);
  }
  TE_CUDA_CHECK_LAUNCH();
}

// One group of four indices per thread, as in drop_group.
template <class T>
__global__ void __launch_bounds__(kThreads)
    noise_groups(T* x, uint64_t begin, int64_t n, float amplitude, uint64_t seed, uint64_t stream) {
  const uint64_t end = begin + static_cast<uint64_t>(n);
  const uint64_t group = begin / 4 + static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group * 4 >= end) return;
  const Philox4 random = philox(seed, stream, group);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t i = group * 4 + k;
    if (i < begin || i >= end) continue;
    T* at = x + (i - begin);
    // Rounded like the CPU's product and sum, which no compiler may contract.
    store_float(at, __fadd_rn(load_float(at), __fmul_rn(amplitude, signed_uniform(random.word[k]))));
  }
}

}  // namespace

void dropout(const Context& context, const Dropout& args) {
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    args.numbers ? launch_numbered<T>(context, args) : launch<T>(context, args);
  });
}

void row_numbers(const Context& context, const RowNumbers& args) {
  const int64_t count = args.numbers.numel();
  number_rows<<<ceil_div(count, kThreads), kThreads, 0, cuda_stream(context)>>>(
      args.numbers.as<uint32_t>(), args.columns ? args.columns.as<uint32_t>() : nullptr, count,
      args.numbers.cols(), args.first_row, static_cast<uint64_t>(args.width));
  TE_CUDA_CHECK_LAUNCH();
}

void uniform_noise(const Context& context, const UniformNoise& args) {
  visit_high_precision(args.x.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const int64_t n = args.x.numel();
    const unsigned blocks = ceil_div(n / 4 + 2, kThreads);  // a partial group at either end
    noise_groups<<<blocks, kThreads, 0, cuda_stream(context)>>>(
        args.x.as<T>(), args.first_row * static_cast<uint64_t>(args.x.cols()), n, args.amplitude, args.seed,
        args.stream);
    TE_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace te::kernels::cuda
