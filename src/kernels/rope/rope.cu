// Rotary embedding in place: a thread rotates one vector of pairs (16 bytes from each half of a head), so that both
// halves are read and written once. Multiplications are rounded separately, for bitwise equal results on the CPU.
#include <limits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope_cuda.h"

namespace te::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
struct RopeParams {
  T* qkv;
  const float* cos;
  const float* sin;
  const int32_t* positions;  ///< null: row % seq
  int64_t columns;           ///< of qkv
  int64_t work;              ///< number of vectors to rotate: rows * heads * vectors per half head
  unsigned seq;
  unsigned heads;  ///< heads to rotate: q and k
  unsigned half;
  float sign;
};

/// Index is unsigned if the work fits into 32 bits, because 32-bit division is several times faster.
template <class T, int N, class Index>
__global__ void __launch_bounds__(kThreads) rope_vectors(RopeParams<T> p) {
  const Index item = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= static_cast<Index>(p.work)) return;
  const unsigned vectors = p.half / N;
  const Index head_row = item / vectors;
  const unsigned offset = static_cast<unsigned>(item - head_row * vectors) * N;
  const Index row = head_row / p.heads;
  const unsigned head = static_cast<unsigned>(head_row - row * p.heads);
  T* first = p.qkv + static_cast<int64_t>(row) * p.columns + int64_t{head} * 2 * p.half + offset;
  T* second = first + p.half;
  const int64_t position = p.positions != nullptr ? p.positions[row] : static_cast<int64_t>(row % p.seq);
  const int64_t angle = position * p.half + offset;
  Vector<T, N> a = load_vector<T, N>(first), b = load_vector<T, N>(second);
  constexpr int kQuad = N < 4 ? N : 4;  // floats of a table per access
#pragma unroll
  for (int i = 0; i < N; i += kQuad) {
    const Vector<float, kQuad> cos = load_vector<float, kQuad>(p.cos + angle + i);
    const Vector<float, kQuad> sin = load_vector<float, kQuad>(p.sin + angle + i);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const float x = load_float(&a.v[i + j]), y = load_float(&b.v[i + j]);
      const float c = cos.v[j], s = p.sign * sin.v[j];
      store_float(&a.v[i + j], __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)));
      store_float(&b.v[i + j], __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s)));
    }
  }
  store_vector<T, N>(first, a);
  store_vector<T, N>(second, b);
}

template <class T, int N>
void launch(const Context& context, const RopeParams<T>& p) {
  const unsigned blocks = ceil_div(p.work, kThreads);
  const cudaStream_t stream = cuda_stream(context);
  if (p.work <= std::numeric_limits<unsigned>::max() - kThreads) {
    rope_vectors<T, N, unsigned><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    rope_vectors<T, N, uint64_t><<<blocks, kThreads, 0, stream>>>(p);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_rope(const Context& context, const Rope& a) {
  constexpr int N = kVectorWidth<T>;
  RopeParams<T> p;
  p.qkv = a.qkv.as<T>();
  p.cos = a.cos.as<float>();
  p.sin = a.sin.as<float>();
  p.columns = a.qkv.cols();
  p.positions = a.positions.as<int32_t>();
  p.seq = static_cast<unsigned>(a.seq);
  p.heads = static_cast<unsigned>(a.num_heads + a.num_query_groups);
  p.half = static_cast<unsigned>(a.head_dim / 2);
  p.sign = a.backward ? -1.0f : 1.0f;
  const int64_t pairs = a.qkv.rows() * p.heads * p.half;
  // half % N == 0 makes every head, and thus every row, a multiple of 16 bytes.
  const bool vectors =
      p.half % N == 0 && is_aligned(p.qkv, 16) && is_aligned(p.cos, 16) && is_aligned(p.sin, 16);
  p.work = vectors ? pairs / N : pairs;
  if (p.work == 0) return;
  vectors ? launch<T, N>(context, p) : launch<T, 1>(context, p);
}

}  // namespace

void rope(const Context& context, const Rope& args) {
  if (args.out && rope_quantize(context, args)) return;
  visit_high_precision(args.qkv.dtype, [&](auto zero) {
    launch_rope<typename DeviceType<decltype(zero)>::type>(context, args);
  });
  if (args.out)
    kernels::quantize(context,
                      {.x = args.qkv, .out = args.out, .dbias = args.dbias, .scratch = args.scratch});
}

}  // namespace te::kernels::cuda
