// The parts of a model on one rank: all of them, or with pipeline parallelism the layers of its stage in one or more
// chunks. The first stage has the embedding, the last one the final norm and the output layer. ModelStage trains a
// stack, generate::Decoder appends tokens to sequences with it.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "model/embedding.h"
#include "model/expert_dispatch.h"
#include "model/layer_config.h"
#include "model/output_layer.h"
#include "model/transformer_layer.h"
#include "parallel/groups.h"

namespace te::model {

struct Stack {
  /// Builds the parts and registers their parameters in the order of the forward pass, so that the gradients of flat
  /// ranges finish from the end. recipe, tensor and ranks must outlive the stack.
  Stack(const config::Config& run, const parallel::Groups& groups, fp8::Recipe& recipe,
        parallel::TensorParallel& tensor, const ContextParallel& ranks,
        const FeedForwardFactory& make_feed_forward);
  Stack(const Stack&) = delete;

  /// Layers of this rank that follow one another in the model.
  struct Chunk {
    size_t first = 0, count = 0;  ///< of `layers`
  };
  /// Parameters that are used and finished together: embedding, a layer, or final norm and output layer.
  struct Unit {
    size_t first = 0, end = 0;  ///< of the store's parameters
  };
  size_t unit_of_layer(size_t layer) const { return layer + (embedding ? 1 : 0); }
  size_t last_unit() const { return units.size() - 1; }
  std::vector<parameters::Bucket> ranges_of(size_t unit) const {
    return parameters.ranges(units[unit].first, units[unit].end);
  }

  std::unique_ptr<ExpertRanks> expert_ranks;  ///< null: one rank has all experts
  LayerConfig config;
  parameters::ParameterStore parameters;
  RotaryEmbedding rope;
  std::unique_ptr<VocabParallelEmbedding> embedding;  ///< first stage only
  std::deque<TransformerLayer> layers;
  std::unique_ptr<Norm> final_layernorm;  ///< last stage only, like output_layer
  std::unique_ptr<OutputLayer> output_layer;
  std::vector<Chunk> chunks;
  std::vector<Unit> units;  ///< in the order of the parameters
};

}  // namespace te::model
