// The order in which the blocks of a persistent grid, or its clusters, work on the tiles of a result.
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

/// The tiles of a result, each the work of a cluster.
struct TileGrid {
  int rows, columns;
  int group_rows;  ///< rows that take turns at a column, so that operands are found in the L2 cache
  int count;

  TileGrid(int rows_, int columns_, int group_rows_)
      : rows(rows_), columns(columns_), group_rows(group_rows_), count(rows_ * columns_) {}
};

struct TileCoord {
  int row, column;
};

/// The tiles of this cluster, one after the other.
template <int kCluster>
class PersistentTileScheduler {
 public:
  explicit __device__ PersistentTileScheduler(const TileGrid& grid)
      : grid_(grid), at_(static_cast<int>(blockIdx.x) / kCluster) {}
  __device__ bool end() const { return at_ >= grid_.count; }
  __device__ void next(int count = 1) { at_ += count * static_cast<int>(gridDim.x) / kCluster; }
  __device__ TileCoord coord() const {
    const int of_group = grid_.group_rows * grid_.columns, group = at_ / of_group,
              within = at_ - group * of_group;
    const int first = group * grid_.group_rows, rows = min(grid_.group_rows, grid_.rows - first);
    return {first + within % rows, within / rows};
  }

 private:
  const TileGrid& grid_;
  int at_;
};

}  // namespace te::kernels::hopper
