// The two ways to share a linear layer among the tensor ranks (Shoeybi et al., Megatron-LM, arXiv 1909.08053):
//
//   ColumnParallelLinear   a rank has some of the outputs. All of x goes in, a part of y comes out: linear_qkv (whole
//                          heads) and linear_fc1.
//   RowParallelLinear      a rank has some of the inputs. A part of x goes in, and y is the sum of what the ranks
//                          find: linear_proj and linear_fc2.
//
// A pair of them needs the ranks to talk once in each direction of each pass. With sequence parallelism an
// all-gather before the first brings the tokens that the ranks hold, in FP8 bytes where a rank can quantize its own,
// and a reduce-scatter behind the second sums (parallel/tensor_parallel.h). One rank has all of both, and
// nothing is sent.
#pragma once

#include "model/linear.h"

namespace te::model {

/// Projections back into the residual stream start smaller, by the depth of the stream (GPT-2's rule).
double output_std(const config::ModelConfig& model);

class ColumnParallelLinear : public Linear {
 public:
  /// Outputs come in blocks (q, k, v; gate, up), each cut among the ranks; a block's height in `blocks`.
  ColumnParallelLinear(std::string name, int layer, const std::vector<int64_t>& blocks, int64_t in, bool bias,
                       double init_std, parameters::ParameterStore& parameters, Recipe& recipe,
                       parallel::TensorParallel& tensor);

  void plan_scratch(MemoryPlan& plan, const LinearUse& use);
  void plan_input(MemoryPlan& plan, Operand& input, const LinearUse& use) const;
  /// `high_precision`: grad.high_precision is memory of its own; else the caller sets it, unless a weight gradient that
  /// is put off reads it.
  void plan_grad(MemoryPlan& plan, Operand& grad, const LinearUse& use, bool deferred,
                 bool high_precision = true) const;

  /// True when forward() takes an activation, in the passes that run now; a quantized linear's is cast by it.
  bool fuses_forward_activation() const { return !runs_quantized() || quantizes_activation(); }
  /// And in some passes of the run at least.
  bool can_fuse_forward_activation() const { return can_run_unquantized() || quantizes_activation(); }

  /// The target for the producer of x, [stream, in].
  Target input_target(Operand& input, const Pass& pass);
  /// y [tokens, out] = x W^T + b, and the activation of y, if that is asked for.
  void forward(const Context& context, Operand& input, const Tensor& y, const Pass& pass,
               const EpilogueActivation& activation = {});
  /// Makes an input ready for wgrad when it was recomputed and not run through forward().
  void complete_input(const Context& context, Operand& input, const Pass& pass);

  /// The target for the producer of dy [tokens, out].
  Target grad_target(Operand& grad, const Pass& pass) const;
  /// dx [stream, in] = dy W; W's gradient += dy^T x unless that is deferred; b's gradient += column sums of dy, unless
  /// the producer has added them.
  void backward(const Context& context, Operand& grad, const Operand& input, const Tensor& dx,
                const Pass& pass, bool deferred);

 private:
  /// Quantized, with scales that the fused kernel multiplies with, and all rows in one GEMM, as one cast wants them.
  bool quantizes_activation() const {
    return input_quantizer_.has_one_scale() && weight_quantizer_.has_one_scale() && tensor_.gathers_at_once();
  }
  void complete_rows(const Context& context, Operand& input, const Pass& pass,
                     const parallel::TensorParallel::Work& work);
  // Scratch of sequence parallelism:
  Operand shard_;  ///< [stream, in]: this rank's tokens of the input in work, in its memory or here:
  Tensor shard_high_precision_;
  fp8::ShardMemory shard_memory_;
  Tensor full_dx_;  ///< [tokens, in]: what this rank adds to dx
};

class RowParallelLinear : public Linear {
 public:
  RowParallelLinear(std::string name, int layer, int64_t in, int64_t out, bool bias, double init_std,
                    parameters::ParameterStore& parameters, Recipe& recipe, parallel::TensorParallel& tensor);

  void plan_scratch(MemoryPlan& plan, const LinearUse& use);
  void plan_input(MemoryPlan& plan, Operand& input, const LinearUse& use,
                  bool high_precision_exists = false) const {
    plan_operand(plan, input, use, high_precision_exists);
  }
  void plan_grad(MemoryPlan& plan, Operand& grad, const LinearUse& use, bool deferred) const;

  /// The target for the producer of x, [tokens, in].
  Target input_target(Operand& input, const Pass& pass) const;
  void complete_input(const Context& context, Operand& input, const Pass& pass) const;
  /// y [stream, out] = the sum over the ranks of x W^T, + b.
  void forward(const Context& context, Operand& input, const Tensor& y, const Pass& pass);

  /// The target for the producer of dy [stream, out], which keeps dy itself.
  Target grad_target(Operand& grad, const Pass& pass) const;
  /// From dy [stream, out]: dx [tokens, in] = dy W; W's gradient += dy^T x unless that is deferred; b's gradient. With
  /// `activation`, unless the linear is quantized: instead of dx, which is scratch then, the gradient of the activation
  /// that made x.
  void backward(const Context& context, const Tensor& dy, Operand& grad, const Operand& input,
                const Tensor& dx, const Pass& pass, bool deferred, const EpilogueActivation& activation = {});

 private:
  // Scratch of sequence parallelism:
  Tensor full_y_;                  ///< [tokens, out]: what this rank adds to y
  fp8::ShardMemory shard_memory_;  ///< [stream, out]: dy, quantized
};

}  // namespace te::model
