// A low-rank adapter of a linear layer (LoRA, Hu et al., arXiv 2106.09685; config/adapter.h):
//
//   y += scale * dropout(x) A^T B^T        A [targets * rank, in], B [rows of the targets, rank]
//
// The layer's own weight is not trained. All targets of a layer (q, k and v) share two GEMMs: h = x A^T has `rank`
// columns per target, and y += h W_b^T, where W_b [out, targets * rank] has B's rows at the columns of their target and
// zeros elsewhere. The backward pass computes h again from x, which is cheaper than saving it per microbatch.
//
// Under tensor parallelism the adapter needs no communication of its own: a column-parallel layer has all of A and its
// rows of B, a row-parallel layer its columns of A and all of B, so the adapter's result is a part or a summand of y
// like that of the weight. The gradient of the matrix that all ranks have is a sum over them (Sharing::partial).
//
// The adapters of a layer's experts are stacked by expert, A [experts * targets * rank, in] and B [experts * rows of
// the targets, rank], so that a range of experts is a range of rows, as of the weights (model/expert_linear.h). The
// same GEMMs are then grouped GEMMs of the experts' rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "model/context_parallel.h"
#include "model/layer_config.h"
#include "model/pass.h"
#include "parallel/tensor_parallel.h"
#include "parameters/parameter_store.h"

namespace te::model {

/// Row ranges of the experts start at multiples of this, the values that an instruction of BF16 tensor cores contracts
/// over, or of more with FP8 (ExpertLinear::row_alignment).
constexpr int64_t kExpertAlignment = 16;

/// The experts of a layer, and the part of them that this rank has.
struct ExpertPartition {
  int64_t all = 1;
  int rank = 0, ranks = 1;
  int64_t own() const { return all / ranks; }
  int64_t first() const { return rank * own(); }
};

/// What a pass knows of an adapter's rows. Of a linear layer that all tokens use: nothing.
struct AdapterRows {
  Tensor
      offsets;  ///< of the experts' rows (kernels/moe/grouped_gemm.h), which are all processed at once; or empty
  Tensor numbers, source;  ///< for dropout, as in kernels/dropout/dropout.h; or empty
};

class LoraAdapter {
 public:
  struct Spec {
    config::AdapterConfig adapter;
    LinearId id;
    std::vector<int64_t> blocks;             ///< rows of each block of the full weight, of one expert
    std::vector<size_t> targets;             ///< the blocks with an adapter, ascending
    int64_t in = 0;                          ///< columns of the full weight
    const ContextParallel* ranks = nullptr;  ///< null: one rank
    bool row_parallel = false;
    std::optional<ExpertPartition> experts{};  ///< weights that tensor-parallel ranks do not divide
    GradientGroup group = GradientGroup::dense;
  };
  /// Registers A and B after the parameters of their linear layer.
  LoraAdapter(Spec spec, parameters::ParameterStore& parameters, const parallel::TensorParallel& tensor);

  /// `rows`: of x and y. `scratch`: lifetime of the steps in which forward(), dgrad() and wgrad() run.
  void plan(MemoryPlan& plan, const Dimensions& dims, int64_t rows, ScratchTag tag, Lifetime scratch,
            bool training);
  /// After every change of B, before the first pass that uses it.
  void prepare(const Context& context) const;

  /// Rows [first, first + count) of y += ... from the same rows of x, high precision.
  void forward(const Context& context, const Tensor& x, const Tensor& y, int64_t first, int64_t count,
               const Pass& pass, const AdapterRows& rows = {}) const;
  /// The same rows of dx += ... from those of dy. wgrad() of all rows must follow in the same step.
  void dgrad(const Context& context, const Tensor& dy, const Tensor& dx, int64_t first, int64_t count,
             const Pass& pass, const AdapterRows& rows = {}) const;
  /// Adds to the gradients of A and B.
  void wgrad(const Context& context, const Tensor& dy, const Tensor& x, const Pass& pass,
             const AdapterRows& rows = {}) const;

 private:
  enum class Buffer : uint8_t { h, dh, dropped, wide_grad, target_grad };
  /// One target: its rows of the layer's output on this rank and of B.
  struct Target {
    int64_t out_row = 0, row = 0, rows = 0;
  };
  bool block_diagonal() const { return wide_.is_planned(); }
  Tensor wide() const { return block_diagonal() ? Tensor(wide_) : b_->value; }
  Tensor drop(const Context& context, const Tensor& x, int64_t first, const Pass& pass,
              const AdapterRows& rows) const;
  Tensor compress(const Context& context, const Tensor& x, int64_t first, const Pass& pass,
                  const AdapterRows& rows) const;
  void mask(const Context& context, const Tensor& x, const Tensor& y, int64_t first, const Pass& pass,
            const AdapterRows& rows) const;
  /// Copies each target's block between [out, targets * rank] and `compact` [rows of the targets, rank].
  void copy_blocks(const Context& context, const Tensor& wide, const Tensor& compact, bool to_wide) const;
  int64_t experts() const { return spec_.experts ? spec_.experts->own() : 1; }

  Spec spec_;
  std::string name_;
  float scale_ = 1.0f, dropout_ = 0.0f;
  uint64_t dropout_id_ = 0;     ///< stream of random numbers
  int64_t out_ = 0, rows_ = 0;  ///< rows of this rank's y and of the targets, of one expert
  int64_t columns_ = 0, seq_ = 0;
  std::vector<Target> targets_;
  parameters::Parameter *a_ = nullptr, *b_ = nullptr;
  PlannedTensor wide_;  ///< W_b, unless it equals B
  // Scratch:
  PlannedTensor h_, dh_;   ///< [rows, targets * rank]
  PlannedTensor dropped_;  ///< [rows, in], with dropout
  PlannedTensor wide_grad_,
      target_grad_;  ///< gradients of W_b and of B of one microbatch, with block_diagonal()
};

}  // namespace te::model
