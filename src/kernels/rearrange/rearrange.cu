// CUDA kernels of the rearranging copies: each thread moves 16 bytes.
#include "core/cuda_check.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/rearrange/rearrange.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Sizes and offsets in units of 16 bytes.
struct Chunks {
  uint4 *full, *parts;
  int64_t rows, width, part_width, begin, at, cols, total;
};

template <bool kJoin>
__global__ void __launch_bounds__(kThreads) move_chunks(Chunks p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.total) return;
  const int64_t column = i % p.cols, row = i / p.cols % p.rows, chunk = i / (p.cols * p.rows);
  uint4& part = p.parts[(chunk * p.rows + row) * p.part_width + p.at + column];
  uint4& full = p.full[row * p.width + p.begin + chunk * p.cols + column];
  if (kJoin) {
    full = part;
  } else {
    part = full;
  }
}

/// Sizes and offsets in units of 16 bytes; `full` and `part` point to the first rows of the block.
struct Block {
  uint4 *full, *part;
  int64_t rows, cols, width, full_stride, part_stride, total;  ///< strides: from group to group
};

template <bool kToFull>
__global__ void __launch_bounds__(kThreads) move_block(Block p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.total) return;
  const int64_t column = i % p.cols, row = i / p.cols % p.rows, group = i / (p.cols * p.rows);
  uint4& part = p.part[group * p.part_stride + row * p.cols + column];
  uint4& full = p.full[group * p.full_stride + row * p.width + column];
  if (kToFull) {
    full = part;
  } else {
    part = full;
  }
}

template <bool kInverse>
__global__ void __launch_bounds__(kThreads)
    move_rows(uint4* rows, const int32_t* index, uint4* ordered, int64_t cols, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t place = index[i / cols] * cols + i % cols;
  if (kInverse) {
    rows[i] = ordered[place];
  } else {
    ordered[place] = rows[i];
  }
}

}  // namespace

void column_chunks(const Context& context, const ColumnChunks& args) {
  const auto units = [&](int64_t elements) {
    return elements * static_cast<int64_t>(dtype_size(args.full.dtype)) / static_cast<int64_t>(sizeof(uint4));
  };
  const int64_t chunks = args.parts.dim(0), rows = args.full.dim(0), cols = units(args.cols);
  const Chunks p{args.full.as<uint4>(),    args.parts.as<uint4>(), rows,           units(args.full.dim(1)),
                 units(args.parts.dim(2)), units(args.begin),      units(args.at), cols,
                 chunks * rows * cols};
  if (p.total == 0) return;
  (args.join ? move_chunks<true>
             : move_chunks<false>)<<<ceil_div(p.total, kThreads), kThreads, 0, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
}

void copy_block(const Context& context, const CopyBlock& args) {
  const auto units = [&](int64_t elements) {
    return elements * static_cast<int64_t>(dtype_size(args.full.dtype)) / static_cast<int64_t>(sizeof(uint4));
  };
  const int64_t width = units(args.full.dim(2)), cols = units(args.part.dim(2));
  const Block p{args.full.as<uint4>() + args.row * width + units(args.col),
                args.part.as<uint4>() + args.part_row * cols,
                args.rows,
                cols,
                width,
                args.full.dim(1) * width,
                args.part.dim(1) * cols,
                args.full.dim(0) * args.rows * cols};
  if (p.total == 0) return;
  (args.to_full ? move_block<true>
                : move_block<false>)<<<ceil_div(p.total, kThreads), kThreads, 0, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
}

void row_order(const Context& context, const RowOrder& args) {
  const int64_t cols = args.rows.dim(1) * static_cast<int64_t>(dtype_size(args.rows.dtype)) /
                       static_cast<int64_t>(sizeof(uint4));
  const int64_t total = args.rows.dim(0) * cols;
  if (total == 0) return;
  (args.inverse ? move_rows<true>
                : move_rows<false>)<<<ceil_div(total, kThreads), kThreads, 0, cuda_stream(context)>>>(
      args.rows.as<uint4>(), args.index.as<int32_t>(), args.ordered.as<uint4>(), cols, total);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
