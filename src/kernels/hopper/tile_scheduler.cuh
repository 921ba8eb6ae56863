// Order in which the blocks or clusters of a persistent grid work on the tiles of a result.
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

/// Tiles of a result; a cluster computes each of them.
struct TileGrid {
  int rows, columns;
  int group_rows;  ///< consecutive rows of tiles per column, so that operands are reused from the L2 cache
  int count;

  TileGrid(int rows_, int columns_, int group_rows_)
      : rows(rows_), columns(columns_), group_rows(group_rows_), count(rows_ * columns_) {}
};

struct TileCoord {
  int row, column;
};

/// Iterates over the tiles of this cluster.
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
