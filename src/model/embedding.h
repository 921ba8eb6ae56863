// Word embedding and, for GPT, learned positions, followed by a norm (model.embedding_norm), noise (NEFTune, Jain et
// al., arXiv 2310.05914) and dropout. Each tensor-parallel rank has a shard of the vocabulary: tokens of other shards
// give zeros, and the sum over the ranks is the embedding.
#pragma once

#include <functional>
#include <memory>

#include "core/device.h"
#include "core/memory_plan.h"
#include "model/context_parallel.h"
#include "model/layer_config.h"
#include "model/norm.h"
#include "model/pass.h"
#include "parameters/parameter_store.h"

namespace te::model {

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const LayerConfig& config, parameters::ParameterStore& parameters,
                         parallel::TensorParallel& tensor, const ContextParallel& ranks);

  /// What a pass saves for the backward pass; empty without model.embedding_norm.
  struct Activations {
    Tensor raw;  ///< [residual_rows, hidden]: input of the norm
    Norm::Statistics statistics;
  };
  void plan(MemoryPlan& plan, const Context& context);
  void plan_activations(MemoryPlan& plan, PlannedTensor& raw, Planned<Norm::Statistics>& statistics) const;
  /// x [residual_rows, hidden] from tokens int32 [tokens].
  void forward(const Context& context, const Tensor& tokens, const Tensor& x, const Activations& activations,
               const Pass& pass);
  /// `d_x`: the gradient of x; overwritten.
  void backward(const Context& context, const Tensor& tokens, const Tensor& d_x,
                const Activations& activations, const Pass& pass);

  parameters::Parameter* words() const { return words_; }

 private:
  void dropout(const Context& context, const Tensor& x, const Pass& pass) const;
  void noise(const Context& context, const Tensor& x, const Pass& pass) const;
  enum class Buffer : uint8_t { workspace, full, d_positions };

  parallel::TensorParallel& tensor_;
  const ContextParallel& ranks_;
  Dimensions dims_;
  float scale_;  ///< of the word embeddings: 1, or sqrt(hidden_size) with model.scale_embedding
  float dropout_;
  float noise_;  ///< amplitude of NEFTune's noise (training.neftune_noise_alpha)
  parameters::Parameter* words_ = nullptr;
  parameters::Parameter* positions_ = nullptr;
  std::unique_ptr<Norm> norm_;  ///< null: none
  PlannedTensor workspace_;     ///< scratch of the kernel
  PlannedTensor full_;          ///< scratch [tokens, hidden], only with sequence parallelism: all tokens
  /// Scratch [tokens of a sequence on this rank, hidden], only with context parallelism: gradients of the positions, in
  /// the order of the tokens.
  PlannedTensor d_positions_;
};

/// Calls work for ranges of this rank's rows of the residual stream that are contiguous in the full microbatch: their
/// first row, that in the full microbatch, and their number.
void for_residual_rows(const Dimensions& dims, const parallel::TensorParallel& tensor,
                       const ContextParallel& ranks,
                       const std::function<void(int64_t row, int64_t full, int64_t count)>& work);

/// Hidden dropout of this rank's rows of the residual stream. The mask depends only on the token's position in the
/// global batch. `stream`: stream of random numbers.
void residual_dropout(const Context& context, const Tensor& x, const Tensor& y, float probability,
                      uint64_t stream, const Pass& pass, const Dimensions& dims,
                      const parallel::TensorParallel& tensor, const ContextParallel& ranks);

}  // namespace te::model
