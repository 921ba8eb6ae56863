// The cut of a job's ranks into tensor, context, data and pipeline parallelism. Pure arithmetic, no communication.
//
// Rank order: tensor fastest, then context, data, pipeline slowest, so that the ranks that talk most (tensor)
// are neighbours and stay inside a host:
//   rank = tensor + T * (context + C * (data + D * pipeline))
#pragma once

#include <string>
#include <vector>

namespace te::parallel {

/// A rank's place along each axis.
struct Coordinates {
  int tensor = 0, context = 0, data = 0, pipeline = 0;
  bool operator==(const Coordinates&) const = default;
  std::string str() const;  ///< "tensor 1, data 0, pipeline 3" (context only where it is not 0)
};

struct ProcessGrid {
  int world = 1, tensor = 1, context = 1, data = 1, pipeline = 1;
  bool operator==(const ProcessGrid&) const = default;

  /// Data parallelism is what the other axes leave of the world. UserError, with the arithmetic shown, when a size
  /// is below 1 or the world is not divisible.
  static ProcessGrid of(int world, int tensor, int context, int pipeline);

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  std::string str() const;  ///< "8 ranks: tensor 2 x data 2 x pipeline 2" (context only where it is above 1)

  // World ranks of the groups that a rank belongs to, ascending, the rank itself among them. A "group" holds all
  // ranks that differ from it only along the named axes.
  std::vector<int> tensor_group(int rank) const;
  std::vector<int> context_group(int rank) const;     ///< those who share the tokens of their samples
  std::vector<int> microbatch_group(int rank) const;  ///< tensor and context: those who share samples
  std::vector<int> data_group(int rank) const;        ///< data and context: those who reduce gradients
  std::vector<int> pipeline_group(int rank) const;    ///< one rank per stage, first stage first
  std::vector<int> stage_group(int rank) const;  ///< tensor, context, data: all ranks of a pipeline stage
  /// First and last stage, which share tied embeddings; the rank alone in any other stage or without a pipeline.
  std::vector<int> embedding_group(int rank) const;
};

}  // namespace te::parallel
