// Embedding on the GPU. The forward pass and the position gradient are plain memory-bound kernels.
//
// The gradient of the table is a scatter-add. Atomic additions would be slow for frequent tokens and nondeterministic,
// so the (token, row) pairs are sorted first. The radix sort is stable, so the rows of a token stay in order; tokens of
// other ranks come last and are ignored. Then:
//   1. A block sums up the runs of equal tokens in a chunk of kChunk sorted pairs, for a tile of columns. A run that
//      lies inside the chunk is added to dtable. A run that began in an earlier chunk is stored in the chunk's slot 0,
//      a run that continues in the next chunk in slot 1.
//   2. For every run that crosses chunk borders, the block of the chunk in which it begins adds that chunk's slot 1
//      and slot 0 of the following chunks to dtable, in a fixed order.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/common/cuda_common.cuh"
#include "kernels/embedding/embedding_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 64;
constexpr int kUnroll = 8;  // rows loaded before they are added
static_assert(kChunk % kUnroll == 0 && kChunk <= kThreads);

/// Adds N floats to target[0, N), fp32 or bf16, with accesses of up to 16 bytes if N allows; target is then aligned.
template <int N, class Grad>
__device__ __forceinline__ void add_to(Grad* target, const float (&sum)[N]) {
  constexpr int kStep = N % 4 != 0 ? 1 : N < kVectorWidth<Grad> ? N : kVectorWidth<Grad>;
#pragma unroll
  for (int k = 0; k < N; k += kStep) {
    Vector<Grad, kStep> value = load_vector<Grad, kStep>(target + k);
#pragma unroll
    for (int j = 0; j < kStep; ++j) store_float(&value.v[j], load_float(&value.v[j]) + sum[k + j]);
    store_vector(target + k, value);
  }
}
/// target[0, N) = sum.
template <int N>
__device__ __forceinline__ void set_to(float* target, const float (&sum)[N]) {
  constexpr int kStep = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int k = 0; k < N; k += kStep) {
    Vector<float, kStep> value;
#pragma unroll
    for (int j = 0; j < kStep; ++j) value.v[j] = sum[k + j];
    store_vector(target + k, value);
  }
}

// --- forward -----------------------------------------------------------------------------------------------

template <class T, int width>
__global__ void forward_kernel(const int32_t* tokens, const T* table, int64_t first_token, int64_t held,
                               const T* positions, const int32_t* position_ids, int64_t rows, int64_t hidden,
                               int64_t seq, T* out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (r >= rows) return;
  const int64_t token = tokens[r] - first_token;
  const T* row = token >= 0 && token < held ? table + token * hidden : nullptr;  // null: held by another rank
  const T* position = nullptr;
  if (positions != nullptr)
    position = positions + (position_ids != nullptr ? position_ids[r] : r % seq) * hidden;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * width; c < hidden;
       c += static_cast<int64_t>(blockDim.x) * width) {
    Vector<T, width> value;
    if (row != nullptr) {
      value = load_vector<T, width>(row + c);
    } else {
#pragma unroll
      for (int k = 0; k < width; ++k) store_float(&value.v[k], 0.0f);
    }
    if (position != nullptr) {
      const Vector<T, width> shift = load_vector<T, width>(position + c);
#pragma unroll
      for (int k = 0; k < width; ++k)
        store_float(&value.v[k], load_float(&value.v[k]) + load_float(&shift.v[k]));
    }
    store_vector(out + r * hidden + c, value);
  }
}

template <class T, int width>
void launch_forward(const Context& context, const EmbeddingForward& args) {
  const int64_t rows = args.tokens.numel(), hidden = args.table.dim(1);
  unsigned across = 8;  // threads per row; the block's other threads process further rows
  while (across < 256 && static_cast<int64_t>(across) * width < hidden) across *= 2;
  const dim3 block(across, 256 / across);
  forward_kernel<T, width><<<ceil_div(rows, block.y), block, 0, cuda_stream(context)>>>(
      args.tokens.as<int32_t>(), args.table.as<T>(), args.first_token, args.table.dim(0),
      args.positions.as<T>(), args.position_ids.as<int32_t>(), rows, hidden, args.seq, args.out.as<T>());
  TE_CUDA_CHECK_LAUNCH();
}

// --- gradient of the positions -----------------------------------------------------------------------------

template <class T, class Grad, int width>
__global__ void __launch_bounds__(kThreads)
    positions_kernel(const T* dout, int64_t rows, int64_t hidden, int64_t seq, Grad* dpositions) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * width;
  const int64_t size = seq * hidden;  // per sample
  if (i >= size) return;
  float sum[width] = {};
#pragma unroll 4
  for (int64_t offset = i; offset < rows * hidden; offset += size) {
    const Vector<T, width> value = load_vector<T, width>(dout + offset);
#pragma unroll
    for (int k = 0; k < width; ++k) sum[k] += load_float(&value.v[k]);
  }
  add_to<width>(dpositions + i, sum);
}

// --- gradient of the table ---------------------------------------------------------------------------------

/// Writes the pairs to sort: row i, and its token relative to the first one of the slice. Tokens of other ranks get the
/// key `held`, so that they come last.
__global__ void __launch_bounds__(kThreads)
    pairs_kernel(const int32_t* tokens, int64_t first_token, uint32_t held, int n, uint32_t* keys,
                 int32_t* order) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t token = tokens[i] - first_token;
  keys[i] = token >= 0 && token < held ? static_cast<uint32_t>(token) : held;
  order[i] = static_cast<int32_t>(i);
}

/// Sums the runs of one chunk; see the top of the file. Grid: (chunks, column tiles).
template <class T, class Grad, int width>
__global__ void __launch_bounds__(kThreads)
    chunk_kernel(const uint32_t* keys, const int32_t* order, int rows, uint32_t held, const T* dout,
                 int64_t hidden, Grad* dtable, float* partials) {
  __shared__ int32_t source[kChunk];
  // Destination of the sum of a run that ends at this pair: a row of dtable to add to, or a slot.
  __shared__ Grad* row[kChunk];
  __shared__ float* slot[kChunk];
  const int64_t chunk = blockIdx.x;
  const int begin = static_cast<int>(chunk * kChunk);
  int count = min(kChunk, rows - begin);
  if (keys[begin] >= held) return;  // uniform in the block: only other ranks' tokens follow
  if (threadIdx.x < kChunk) {
    const int k = threadIdx.x;
    source[k] = k < count ? order[begin + k] : -1;
    row[k] = nullptr;
    slot[k] = nullptr;
    if (k < count) {
      const int i = begin + k;
      const uint32_t key = keys[i];
      const bool last = k == count - 1;
      if (last || keys[i + 1] != key) {
        const bool began_before = begin > 0 && keys[begin - 1] == key;
        const bool goes_on = last && i + 1 < rows && keys[i + 1] == key;
        if (!began_before && !goes_on) {
          row[k] = dtable + static_cast<int64_t>(key) * hidden;
        } else {
          slot[k] = partials + (chunk * 2 + (began_before ? 0 : 1)) * hidden;
        }
      }
    }
  }
  // Pairs with tokens of other ranks are the last ones of the chunk.
  count = __syncthreads_count(threadIdx.x < count && keys[begin + threadIdx.x] < held);
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * width;
  if (c >= hidden) return;
  float sum[width] = {};
  for (int first = 0; first < count; first += kUnroll) {
    Vector<T, width> values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u < count)
        values[u] = load_vector<T, width>(dout + static_cast<int64_t>(source[first + u]) * hidden + c);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u >= count) break;
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] += load_float(&values[u].v[k]);
      if (row[first + u] == nullptr && slot[first + u] == nullptr) continue;
      if (row[first + u] != nullptr) {
        add_to<width>(row[first + u] + c, sum);
      } else {
        set_to<width>(slot[first + u] + c, sum);
      }
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] = 0.0f;
    }
  }
}

constexpr int kSlices = 8;  // slices of a long run's chunks: summed in parallel, then added in order

/// First index after the run of `key` that contains index `i` of the sorted keys.
__device__ __forceinline__ int run_end(const uint32_t* keys, int rows, int i, uint32_t key) {
  int low = i + 1, high = rows;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (keys[middle] == key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Adds the runs that cross chunk borders. Grid: (chunks, column tiles); block: (kWarpSize, kSlices).
template <class Grad, int width>
__global__ void __launch_bounds__(kWarpSize* kSlices)
    combine_kernel(const uint32_t* keys, int rows, uint32_t held, int64_t hidden, const float* partials,
                   Grad* dtable) {
  __shared__ float shared[kSlices][kWarpSize * width];
  const int64_t chunk = blockIdx.x;
  const int begin = static_cast<int>(chunk * kChunk);
  const int last = begin + kChunk - 1;
  // Returns unless a run begins in this chunk and continues in the next one; uniform in the block.
  if (last + 1 >= rows) return;
  const uint32_t key = keys[last];
  if (key >= held || keys[last + 1] != key || (begin > 0 && keys[begin - 1] == key)) return;
  const int64_t end_chunk = (run_end(keys, rows, last + 1, key) - 1) / kChunk;

  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kWarpSize + threadIdx.x) * width;
  float sum[width] = {};
  if (c < hidden) {
#pragma unroll 4
    for (int64_t other = chunk + threadIdx.y; other <= end_chunk; other += kSlices) {
      const int slot = other == chunk ? 1 : 0;
      const Vector<float, width> value =
          load_vector<float, width>(partials + (other * 2 + slot) * hidden + c);
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] += value.v[k];
    }
  }
#pragma unroll
  for (int k = 0; k < width; ++k) shared[threadIdx.y][threadIdx.x * width + k] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0 || c >= hidden) return;
  for (int slice = 1; slice < kSlices; ++slice)
#pragma unroll
    for (int k = 0; k < width; ++k) sum[k] += shared[slice][threadIdx.x * width + k];
  add_to<width>(dtable + static_cast<int64_t>(key) * hidden + c, sum);
}

// --- workspace and launches --------------------------------------------------------------------------------

struct Workspace {
  size_t keys_in, keys, order_in, order, partials, sort, sort_bytes, total;  // offsets and sizes in bytes
};

size_t sort_bytes(int rows, int bits, cudaStream_t stream) {
  size_t bytes = 0;
  TE_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
      static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr), rows, 0, bits, stream));
  return bytes;
}

/// The interface has no vocabulary size, so the plan covers a sort by all 32 bits; fewer bits need no more memory.
Workspace plan_workspace(int64_t rows, int64_t hidden, cudaStream_t stream) {
  TE_CHECK(rows <= INT32_MAX - kChunk, "embedding_backward: {} rows do not fit into 32 bits", rows);
  const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const size_t list = aligned(static_cast<size_t>(rows) * sizeof(int32_t));
  const size_t chunks = ceil_div(rows, kChunk);
  Workspace w;
  w.keys_in = 0;
  w.keys = list;
  w.order_in = 2 * list;
  w.order = 3 * list;
  w.partials = 4 * list;
  w.sort = w.partials + aligned(chunks * 2 * static_cast<size_t>(hidden) * sizeof(float));
  w.sort_bytes = sort_bytes(static_cast<int>(rows), 32, stream);
  w.total = w.sort + aligned(w.sort_bytes);
  return w;
}

/// Number of bits, at least 1, that distinguish the keys 0 .. held.
int key_bits(int64_t held) {
  int bits = 1;
  while (bits < 32 && (int64_t{1} << bits) <= held) ++bits;
  return bits;
}

template <class T, class Grad, int width>
void launch_table_backward(const Context& context, const EmbeddingBackward& args) {
  const cudaStream_t stream = cuda_stream(context);
  const int64_t hidden = args.dtable.dim(1), rows64 = args.tokens.numel();
  const Workspace w = plan_workspace(rows64, hidden, stream);
  TE_CHECK(args.workspace.bytes() >= w.total, "embedding_backward: workspace has {} bytes, needs {}",
           args.workspace.bytes(), w.total);
  TE_CHECK(is_aligned(args.workspace.data, 16), "embedding_backward: workspace must be 16-byte aligned");
  const int rows = static_cast<int>(rows64);
  char* base = args.workspace.as<char>();
  const auto held = static_cast<uint32_t>(args.dtable.dim(0));
  uint32_t* keys_in = reinterpret_cast<uint32_t*>(base + w.keys_in);
  uint32_t* keys = reinterpret_cast<uint32_t*>(base + w.keys);
  int32_t* order_in = reinterpret_cast<int32_t*>(base + w.order_in);
  int32_t* order = reinterpret_cast<int32_t*>(base + w.order);
  float* partials = reinterpret_cast<float*>(base + w.partials);

  pairs_kernel<<<ceil_div(rows, kThreads), kThreads, 0, stream>>>(args.tokens.as<int32_t>(), args.first_token,
                                                                  held, rows, keys_in, order_in);
  TE_CUDA_CHECK_LAUNCH();
  size_t available = w.sort_bytes;
  TE_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(base + w.sort, available, keys_in, keys, order_in, order,
                                                rows, 0, key_bits(held), stream));
  const unsigned chunks = ceil_div(rows, kChunk);
  const T* dout = args.dout.as<T>();
  Grad* dtable = args.dtable.as<Grad>();
  const dim3 chunk_grid(chunks, ceil_div(hidden, int64_t{kThreads} * width));
  chunk_kernel<T, Grad, width>
      <<<chunk_grid, kThreads, 0, stream>>>(keys, order, rows, held, dout, hidden, dtable, partials);
  TE_CUDA_CHECK_LAUNCH();
  if (chunks > 1) {
    constexpr int kCombineWidth = width == 1 ? 1 : 4;
    const dim3 grid(chunks, ceil_div(hidden, int64_t{kWarpSize} * kCombineWidth));
    combine_kernel<Grad, kCombineWidth>
        <<<grid, dim3(kWarpSize, kSlices), 0, stream>>>(keys, rows, held, hidden, partials, dtable);
    TE_CUDA_CHECK_LAUNCH();
  }
}

template <class T, class Grad, int width>
void launch_backward(const Context& context, const EmbeddingBackward& args) {
  if (args.dtable) launch_table_backward<T, Grad, width>(context, args);
  if (!args.dpositions) return;
  const int64_t hidden = args.dout.dim(1);
  const unsigned blocks = ceil_div(args.seq * hidden, int64_t{kThreads} * width);
  positions_kernel<T, Grad, width><<<blocks, kThreads, 0, cuda_stream(context)>>>(
      args.dout.as<T>(), args.tokens.numel(), hidden, args.seq, args.dpositions.as<Grad>());
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  visit_high_precision(args.table.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const bool vectors = args.table.dim(1) % kVectorWidth<T> == 0 && is_aligned(args.table.data, 16) &&
                         is_aligned(args.positions.data, 16) && is_aligned(args.out.data, 16);
    if (vectors) {
      launch_forward<T, kVectorWidth<T>>(context, args);
    } else {
      launch_forward<T, 1>(context, args);
    }
  });
}

void embedding_backward(const Context& context, const EmbeddingBackward& args) {
  visit_high_precision(args.dout.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const bool vectors = args.dout.dim(1) % kVectorWidth<T> == 0 && is_aligned(args.dout.data, 16) &&
                         is_aligned(args.dtable.data, 16) && is_aligned(args.dpositions.data, 16);
    visit_grad((args.dtable ? args.dtable : args.dpositions).dtype, [&](auto grad_zero) {
      using Grad = typename DeviceType<decltype(grad_zero)>::type;
      if (vectors) {
        launch_backward<T, Grad, kVectorWidth<T>>(context, args);
      } else {
        launch_backward<T, Grad, 1>(context, args);
      }
    });
  });
}

int64_t embedding_backward_workspace_bytes(const Context& context, int64_t rows, int64_t hidden) {
  return static_cast<int64_t>(plan_workspace(rows, hidden, cuda_stream(context)).total);
}

}  // namespace te::kernels::cuda
