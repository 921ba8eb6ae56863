// Checks, dispatch and CPU reference of the rearranging copies.
#include "kernels/rearrange/rearrange.h"

#include <cstring>

#include "core/error.h"
#include "kernels/common/checks.h"

namespace te::kernels {

#ifdef TE_WITH_CUDA
namespace cuda {
void column_chunks(const Context& context, const ColumnChunks& args);
void copy_block(const Context& context, const CopyBlock& args);
void row_order(const Context& context, const RowOrder& args);
}  // namespace cuda
#endif

namespace {

constexpr int64_t kGpuBytes = 16;

int64_t element_bytes(const Tensor& tensor) {
  return static_cast<int64_t>(dtype_size(tensor.dtype));
}

bool divides_16(const Context& context, const Tensor& tensor, int64_t elements) {
  return !context.is_cuda() || elements * element_bytes(tensor) % kGpuBytes == 0;
}

void check_chunks(const Context& context, const ColumnChunks& a) {
  const char* op = "column_chunks";
  TE_CHECK(a.full && a.parts, "{}: full and parts are required", op);
  check_dtype(op, "parts", a.parts, a.full.dtype);
  TE_CHECK(a.full.shape.rank() == 2 && a.parts.shape.rank() == 3 && a.parts.dim(1) == a.full.dim(0),
           "{}: full {} and parts {} must be [rows, width] and [chunks, rows, part width]", op,
           a.full.shape.str(), a.parts.shape.str());
  TE_CHECK(a.cols > 0 && a.begin >= 0 && a.begin + a.parts.dim(0) * a.cols <= a.full.dim(1),
           "{}: {} chunks of {} columns from column {} exceed the {} columns of full", op, a.parts.dim(0),
           a.cols, a.begin, a.full.dim(1));
  TE_CHECK(a.at >= 0 && a.at + a.cols <= a.parts.dim(2),
           "{}: {} columns from column {} exceed the {} columns of parts", op, a.cols, a.at, a.parts.dim(2));
  TE_CHECK(!overlap(a.full, a.parts), "{}: full and parts overlap", op);
  for (const int64_t size : {a.cols, a.begin, a.at, a.full.dim(1), a.parts.dim(2)})
    TE_CHECK(divides_16(context, a.full, size), "{}: {} columns are not a multiple of 16 bytes", op, size);
}

void check_block(const Context& context, const CopyBlock& a) {
  const char* op = "copy_block";
  TE_CHECK(a.full && a.part, "{}: full and part are required", op);
  check_dtype(op, "part", a.part, a.full.dtype);
  TE_CHECK(a.full.shape.rank() == 3 && a.part.shape.rank() == 3 && a.part.dim(0) == a.full.dim(0),
           "{}: full {} and part {} must be [groups, rows, width]", op, a.full.shape.str(),
           a.part.shape.str());
  TE_CHECK(a.rows >= 0 && a.row >= 0 && a.row + a.rows <= a.full.dim(1) && a.part_row >= 0 &&
               a.part_row + a.rows <= a.part.dim(1),
           "{}: {} rows from row {} of full and row {} of part exceed {} or {}", op, a.rows, a.row,
           a.part_row, a.full.shape.str(), a.part.shape.str());
  TE_CHECK(a.col >= 0 && a.col + a.part.dim(2) <= a.full.dim(2),
           "{}: {} columns from column {} exceed the {} columns of full", op, a.part.dim(2), a.col,
           a.full.dim(2));
  TE_CHECK(!overlap(a.full, a.part), "{}: full and part overlap", op);
  for (const int64_t size : {a.col, a.full.dim(2), a.part.dim(2)})
    TE_CHECK(divides_16(context, a.full, size), "{}: {} columns are not a multiple of 16 bytes", op, size);
}

void check_order(const Context& context, const RowOrder& a) {
  const char* op = "row_order";
  TE_CHECK(a.rows && a.rows.shape.rank() == 2, "{}: rows must be [n, cols]", op);
  check_tensor(op, "ordered", a.ordered, a.rows.dtype, a.rows.shape);
  check_tensor(op, "index", a.index, DType::i32, {a.rows.dim(0)});
  TE_CHECK(!overlap(a.rows, a.ordered), "{}: rows and ordered overlap", op);
  TE_CHECK(divides_16(context, a.rows, a.rows.dim(1)), "{}: {} columns are not a multiple of 16 bytes", op,
           a.rows.dim(1));
}

void copy_bytes(char* part, char* full, int64_t bytes, bool to_full) {
  std::memcpy(to_full ? full : part, to_full ? part : full, static_cast<size_t>(bytes));
}

}  // namespace

void column_chunks(const Context& context, const ColumnChunks& args) {
  check_chunks(context, args);
  TE_DISPATCH_CUDA(context, column_chunks, args);
  const int64_t chunks = args.parts.dim(0), rows = args.full.dim(0), size = element_bytes(args.full);
  const int64_t width = args.full.dim(1) * size, part_width = args.parts.dim(2) * size,
                bytes = args.cols * size;
#pragma omp parallel for collapse(2)
  for (int64_t p = 0; p < chunks; ++p) {
    for (int64_t r = 0; r < rows; ++r) {
      copy_bytes(args.parts.as<char>() + (p * rows + r) * part_width + args.at * size,
                 args.full.as<char>() + r * width + args.begin * size + p * bytes, bytes, args.join);
    }
  }
}

void copy_block(const Context& context, const CopyBlock& args) {
  check_block(context, args);
  TE_DISPATCH_CUDA(context, copy_block, args);
  const int64_t size = element_bytes(args.full), width = args.full.dim(2) * size,
                bytes = args.part.dim(2) * size;
#pragma omp parallel for collapse(2)
  for (int64_t g = 0; g < args.full.dim(0); ++g) {
    for (int64_t r = 0; r < args.rows; ++r) {
      copy_bytes(args.part.as<char>() + (g * args.part.dim(1) + args.part_row + r) * bytes,
                 args.full.as<char>() + (g * args.full.dim(1) + args.row + r) * width + args.col * size,
                 bytes, args.to_full);
    }
  }
}

void row_order(const Context& context, const RowOrder& args) {
  check_order(context, args);
  TE_DISPATCH_CUDA(context, row_order, args);
  const int64_t rows = args.rows.dim(0), bytes = args.rows.dim(1) * element_bytes(args.rows);
  const int32_t* index = args.index.as<int32_t>();
  for (int64_t r = 0; r < rows; ++r)
    TE_CHECK(index[r] >= 0 && index[r] < rows, "row_order: index {} of row {} must be from 0 to {}", index[r],
             r, rows - 1);
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    copy_bytes(args.rows.as<char>() + r * bytes, args.ordered.as<char>() + index[r] * bytes, bytes,
               !args.inverse);
}

}  // namespace te::kernels
