#include "parallel/process_grid.h"

#include "core/error.h"

namespace te::parallel {
namespace {

/// Axes along which the members of a group differ.
struct FreeAxes {
  bool tensor = false, context = false, data = false, pipeline = false;
};

std::vector<int> members(const ProcessGrid& grid, int rank, FreeAxes free) {
  const Coordinates at = grid.coordinates(rank);
  std::vector<int> ranks;
  for (int other = 0; other < grid.world; ++other) {
    const Coordinates c = grid.coordinates(other);
    const bool member = (free.tensor || c.tensor == at.tensor) && (free.context || c.context == at.context) &&
                        (free.data || c.data == at.data) && (free.pipeline || c.pipeline == at.pipeline);
    if (member) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace

std::string Coordinates::str() const {
  return fmt::format("tensor {}, {}data {}, pipeline {}", tensor,
                     context == 0 ? "" : fmt::format("context {}, ", context), data, pipeline);
}

ProcessGrid ProcessGrid::of(int world, int tensor, int context, int pipeline) {
  TE_CHECK(world >= 1, "process grid: world of {} ranks", world);
  if (tensor < 1 || context < 1 || pipeline < 1) {
    user_error("parallel: tensor {}, context {} and pipeline {} must each be at least 1", tensor, context,
               pipeline);
  }
  const int64_t model = int64_t{tensor} * context * pipeline;
  if (world % model != 0) {
    const std::string sizes =
        context == 1 ? fmt::format("tensor {} x pipeline {}", tensor, pipeline)
                     : fmt::format("tensor {} x context {} x pipeline {}", tensor, context, pipeline);
    user_error(
        "parallel: {} ranks cannot be divided into {} = {} ranks per copy of the model (remainder {}); start "
        "a multiple of {} ranks or change parallel.tensor, parallel.context or parallel.pipeline",
        world, sizes, model, world % model, model);
  }
  return {world, tensor, context, static_cast<int>(world / model), pipeline};
}

Coordinates ProcessGrid::coordinates(int rank) const {
  TE_CHECK(rank >= 0 && rank < world, "process grid: rank {} of {}", rank, world);
  Coordinates at;
  at.tensor = rank % tensor;
  at.context = rank / tensor % context;
  at.data = rank / (tensor * context) % data;
  at.pipeline = rank / (tensor * context * data);
  return at;
}

int ProcessGrid::rank(const Coordinates& at) const {
  TE_CHECK(at.tensor >= 0 && at.tensor < tensor && at.context >= 0 && at.context < context && at.data >= 0 &&
               at.data < data && at.pipeline >= 0 && at.pipeline < pipeline,
           "process grid: coordinates {} are outside of {}", at.str(), str());
  return at.tensor + tensor * (at.context + context * (at.data + data * at.pipeline));
}

std::string ProcessGrid::str() const {
  return fmt::format("{} rank{}: tensor {} x {}data {} x pipeline {}", world, world == 1 ? "" : "s", tensor,
                     context == 1 ? "" : fmt::format("context {} x ", context), data, pipeline);
}

std::vector<int> ProcessGrid::tensor_group(int rank) const {
  return members(*this, rank, {.tensor = true});
}

std::vector<int> ProcessGrid::context_group(int rank) const {
  return members(*this, rank, {.context = true});
}

std::vector<int> ProcessGrid::microbatch_group(int rank) const {
  return members(*this, rank, {.tensor = true, .context = true});
}

std::vector<int> ProcessGrid::data_group(int rank) const {
  return members(*this, rank, {.context = true, .data = true});
}

std::vector<int> ProcessGrid::pipeline_group(int rank) const {
  return members(*this, rank, {.pipeline = true});
}

std::vector<int> ProcessGrid::stage_group(int rank) const {
  return members(*this, rank, {.tensor = true, .context = true, .data = true});
}

std::vector<int> ProcessGrid::embedding_group(int rank) const {
  const std::vector<int> stages = pipeline_group(rank);
  const bool end = rank == stages.front() || rank == stages.back();
  if (!end || stages.size() == 1) return {rank};
  return {stages.front(), stages.back()};
}

}  // namespace te::parallel
