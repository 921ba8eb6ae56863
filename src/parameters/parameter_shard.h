// The part of a full parameter that a rank holds. Initial weights, checkpoints and conversions use full parameters with
// global indices; this maps between the two.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace te::parameters {

/// Ranges of rows, and one range of columns for all of them. A vector [n] counts as [n, 1].
struct ParameterShard {
  struct Rows {
    int64_t first = 0;  ///< row of the full parameter
    int64_t count = 0;
  };
  Shape global;            ///< shape of the full parameter
  std::vector<Rows> rows;  ///< in the order in which the rank stores them
  int64_t first_col = 0;
  int64_t cols = 1;

  static ParameterShard full(Shape shape);
  /// Part `rank` of `ranks` equal parts of every block of rows. `blocks`: number of rows per block, from the top (q, k
  /// and v of linear_qkv; gate and up of linear_fc1).
  static ParameterShard of_rows(Shape global, const std::vector<int64_t>& blocks, int rank, int ranks);
  static ParameterShard of_columns(Shape global, int rank, int ranks);

  int64_t global_cols() const { return global.rank() > 1 ? global[1] : 1; }
  int64_t num_rows() const;
  Shape local() const;
  bool is_full() const { return local() == global; }

  /// Contiguous local elements that belong to one row range of the full parameter.
  struct Extent {
    int64_t local = 0;  ///< flat index of the first element in the shard
    int64_t count = 0;
    int64_t row = 0;       ///< global row of the row range's first row
    int64_t in_range = 0;  ///< flat index of the first element within the row range (rows of `cols`)
  };
  /// Elements [begin, end) of the shard, flat, as one extent per row range that they touch.
  std::vector<Extent> extents(int64_t begin, int64_t end) const;
};

}  // namespace te::parameters
