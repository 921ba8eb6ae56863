// Copies that change the order of rows or take columns apart, for exchanges among ranks. They move bytes: any dtype.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

/// The columns begin, ..., begin + pieces * cols - 1 of `whole` are `pieces` equal pieces, and piece p is columns at,
/// ..., at + cols - 1 of parts[p]:
///   parts[p, r, at + c] = whole[r, begin + p * cols + c]
/// All else stays as it is. `whole` and `parts` do not overlap. On a GPU cols, begin, at and both widths are multiples
/// of 16 bytes.
struct ColumnPieces {
  Tensor full;   ///< [rows, width]
  Tensor parts;  ///< [pieces, rows, part width], the same dtype
  int64_t begin = 0, at = 0, cols = 0;
  bool join = false;  ///< the other way: whole from parts
};
void column_pieces(const Context& context, const ColumnPieces& args);

/// Rows to other places: ordered[index[r]] = rows[r]. index holds each number from 0 to rows - 1 once; what is in it is
/// not checked on a GPU. On a GPU a row is a multiple of 16 bytes.
struct RowOrder {
  Tensor rows;           ///< [n, cols]
  Tensor index;          ///< int32 [n]
  Tensor ordered;        ///< [n, cols], the same dtype; does not overlap rows
  bool inverse = false;  ///< the other way: rows[r] = ordered[index[r]]
};
void row_order(const Context& context, const RowOrder& args);

}  // namespace te::kernels
