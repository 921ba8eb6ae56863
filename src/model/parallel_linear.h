// Linear layers under tensor parallelism (Shoeybi et al., Megatron-LM, arXiv 1909.08053):
//
//   ColumnParallelLinear   a rank has some of the outputs; it reads all of x and computes a part of y: linear_qkv
//                          (complete heads) and linear_fc1.
//   RowParallelLinear      a rank has some of the inputs; it reads a part of x, and y is the sum over the ranks:
//                          linear_proj and linear_fc2.
//
// Each pair needs one all-reduce per pass. With sequence parallelism, an all-gather before the first layer collects the
// tokens of the ranks, in FP8 if a rank can quantize its tokens, and a reduce-scatter after the second layer sums
// (parallel/tensor_parallel.h). With one rank there is no communication.
#pragma once

#include "model/linear.h"
#include "model/operand_gather.h"

namespace te::model {

/// Initial standard deviation of projections to the residual stream, which decreases with the depth of the model
/// (GPT-2's rule).
double output_std(const config::ModelConfig& model, LinearKind kind);

class ColumnParallelLinear : public Linear {
 public:
  /// Each block of outputs (config::linear_blocks: q, k, v; gate, up) is partitioned among the ranks.
  ColumnParallelLinear(LinearId id, const LayerConfig& config, int64_t in, bool bias, double init_std,
                       parameters::ParameterStore& parameters, Recipe& recipe,
                       parallel::TensorParallel& tensor);

  void plan_scratch(MemoryPlan& plan, const LinearUse& use);
  void plan_input(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use) const;
  /// `high_precision`: plan grad.high_precision; if false, the caller sets it, except if a deferred wgrad reads it.
  void plan_grad(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use, bool deferred,
                 bool high_precision = true) const;

  /// True if forward() supports an activation in the current passes; a quantized layer also quantizes its output.
  bool fuses_forward_activation() const { return !adapter_ && (!runs_quantized() || quantizes_activation()); }
  /// True if it does in some passes of the run.
  bool can_fuse_forward_activation() const {
    return !adapter_ && (can_run_unquantized() || quantizes_activation());
  }

  /// For the producer of x, [residual_rows, in].
  OperandRequest input_request(const Operand& input, const Pass& pass);
  /// y [tokens, out] = x W^T + b, and the activation of y, if requested. Returns the input for backward().
  ReadyOperand forward(const Context& context, const Operand& input, const ProducedOperand& x,
                       const Tensor& y, const Pass& pass, const EpilogueActivation& activation = {});
  /// Completes a recomputed input for wgrad without running forward().
  ReadyOperand complete_input(const Context& context, const Operand& input, const ProducedOperand& x,
                              const Pass& pass);

  /// For the producer of dy [tokens, out].
  OperandRequest grad_request(const Operand& grad, const Pass& pass) const;
  /// dx [residual_rows, in] = dy W; W's gradient += dy^T x unless deferred; b's gradient += column sums of dy, unless
  /// the producer has added them. Returns dy for a deferred wgrad.
  ReadyOperand backward(const Context& context, const Operand& grad, const ProducedOperand& dy,
                        const ReadyOperand& input, const Tensor& dx, const Pass& pass, bool deferred);

 private:
  /// The fused kernel supports one scale per tensor and quantizes all rows of one GEMM.
  bool quantizes_activation() const {
    const fp8::OperandLayouts &input = input_quantizer_.layouts(), &weight = weight_quantizer_.layouts();
    return input.rowwise && input.one_scale() && weight.rowwise && weight.one_scale() &&
           tensor_.gathers_at_once();
  }
  enum class Gathered : uint8_t { shard, shard_layouts, full_dx };
  // Scratch of sequence parallelism:
  Operand
      shard_;  ///< [residual_rows, in]: this rank's tokens of the current input, in the input's memory or here:
  PlannedTensor shard_high_precision_;
  OperandGather gather_;
  PlannedTensor full_dx_;  ///< [tokens, in]: this rank's summand of dx
};

class RowParallelLinear : public Linear {
 public:
  RowParallelLinear(LinearId id, const LayerConfig& config, int64_t in, int64_t out, bool bias,
                    double init_std, parameters::ParameterStore& parameters, Recipe& recipe,
                    parallel::TensorParallel& tensor);

  void plan_scratch(MemoryPlan& plan, const LinearUse& use);
  void plan_input(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use,
                  bool high_precision_exists = false) const {
    plan_operand(plan, input, use, high_precision_exists);
  }
  void plan_grad(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use, bool deferred) const;

  /// For the producer of x, [tokens, in].
  OperandRequest input_request(const Operand& input, const Pass& pass) const;
  ReadyOperand complete_input(const Context& context, const Operand& input, const ProducedOperand& x,
                              const Pass& pass) const;
  /// y [residual_rows, out] = sum over the ranks of x W^T, + b. Returns the input for backward().
  ReadyOperand forward(const Context& context, const Operand& input, const ProducedOperand& x,
                       const Tensor& y, const Pass& pass);

  /// For the producer of dy [residual_rows, out], which keeps dy in its own memory.
  OperandRequest grad_request(const Operand& grad, const Pass& pass) const;
  /// From dy [residual_rows, out]: dx [tokens, in] = dy W; W's gradient += dy^T x unless deferred; b's gradient. With
  /// `activation` (not if quantized), computes the gradient of the activation that produced x; dx is then scratch.
  /// Returns dy for a deferred wgrad.
  ReadyOperand backward(const Context& context, const Operand& grad, const ProducedOperand& dy,
                        const ReadyOperand& input, const Tensor& dx, const Pass& pass, bool deferred,
                        const EpilogueActivation& activation = {});

 private:
  enum class Gathered : uint8_t { full_y, shard_layouts };
  // Scratch of sequence parallelism:
  PlannedTensor full_y_;  ///< [tokens, out]: this rank's summand of y
  OperandGather gather_;  ///< [residual_rows, out]: quantized dy
};

}  // namespace te::model
