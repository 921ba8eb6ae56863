// Grid of a job's ranks along the axes of tensor, context, data and pipeline parallelism. Pure arithmetic, no
// communication.
//
// Rank order: tensor fastest, then context, data, pipeline slowest, so that the ranks that communicate most (tensor)
// are adjacent and on one host:
//   rank = tensor + T * (context + C * (data + D * pipeline))
#pragma once

#include <string>
#include <vector>

namespace te::parallel {

/// A rank's index along each axis.
struct Coordinates {
  int tensor = 0, context = 0, data = 0, pipeline = 0;
  bool operator==(const Coordinates&) const = default;
  std::string str() const;  ///< "tensor 1, data 0, pipeline 3" (context only if it is not 0)
};

struct ProcessGrid {
  int world = 1, tensor = 1, context = 1, data = 1, pipeline = 1;
  bool operator==(const ProcessGrid&) const = default;

  /// The size of data parallelism is the world divided by the other sizes. UserError, with the arithmetic, if a size is
  /// below 1 or the world is not divisible.
  static ProcessGrid of(int world, int tensor, int context, int pipeline);

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  std::string str() const;  ///< "8 ranks: tensor 2 x data 2 x pipeline 2" (context only if it is above 1)

  // World ranks of the groups of a rank, ascending, including the rank itself. A group consists of all ranks that
  // differ from it only along the named axes.
  std::vector<int> tensor_group(int rank) const;
  std::vector<int> context_group(int rank) const;     ///< ranks that divide the tokens of their samples
  std::vector<int> microbatch_group(int rank) const;  ///< tensor and context: ranks with the same samples
  std::vector<int> data_group(int rank) const;        ///< data and context: ranks that reduce gradients
  std::vector<int> pipeline_group(int rank) const;    ///< one rank per stage, first stage first
  std::vector<int> stage_group(int rank) const;  ///< tensor, context, data: all ranks of a pipeline stage
  /// The ranks of the first and last stage, which share tied embeddings; only the rank itself in other stages or
  /// without a pipeline.
  std::vector<int> embedding_group(int rank) const;
};

}  // namespace te::parallel
