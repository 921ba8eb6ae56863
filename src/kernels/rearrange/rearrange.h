// Copies that permute rows or split columns into blocks, before and after all-to-all communication. They move bytes, so
// they accept any dtype.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// Columns begin, ..., begin + chunks * cols - 1 of `full` form `chunks` equal chunks. Chunk p corresponds to columns
/// at, ..., at + cols - 1 of parts[p]:
///   parts[p, r, at + c] = full[r, begin + p * cols + c]
/// All other elements keep their values. `full` and `parts` must not overlap. On a GPU, cols, begin, at and both widths
/// must be multiples of 16 bytes.
struct ColumnChunks {
  Tensor full;   ///< [rows, width]
  Tensor parts;  ///< [chunks, rows, part width], the same dtype
  int64_t begin = 0, at = 0, cols = 0;
  bool join = false;  ///< copies from `parts` to `full` instead
};
void column_chunks(const Context& context, const ColumnChunks& args);

/// Blocks of rows and columns of `groups` matrices:
///   full[g, row + r, col + c] = part[g, part_row + r, c]   for r < rows, c < part width
/// All other elements keep their values. `full` and `part` must not overlap. On a GPU, col and both widths must be
/// multiples of 16 bytes.
struct CopyBlock {
  Tensor full;  ///< [groups, full rows, width]
  Tensor part;  ///< [groups, part rows, part width], the same dtype
  int64_t row = 0, col = 0, part_row = 0, rows = 0;
  bool to_full = true;  ///< false: from `full` to `part`
};
void copy_block(const Context& context, const CopyBlock& args);

/// Permutation of rows: ordered[index[r]] = rows[r]. `index` holds each number from 0 to rows - 1 exactly once; a GPU
/// does not check this. On a GPU the size of a row must be a multiple of 16 bytes.
struct RowOrder {
  Tensor rows;           ///< [n, cols]
  Tensor index;          ///< int32 [n]
  Tensor ordered;        ///< [n, cols], the same dtype; must not overlap rows
  bool inverse = false;  ///< the inverse permutation: rows[r] = ordered[index[r]]
};
void row_order(const Context& context, const RowOrder& args);

}  // namespace te::kernels
