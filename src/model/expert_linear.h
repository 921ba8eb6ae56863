// A linear layer of a mixture of experts: y = x W^T of all experts in one grouped GEMM, where rows of x, ordered by
// experts (kernels/moe/permute.h), each meet their expert's weight; or of the shared expert, one GEMM of all tokens.
// Weights of all experts are one parameter, [experts * out, in], of which a rank of expert parallelism has the rows of
// its experts. Operands are quantized as in other linear layers, with the state of each expert (fp8/quantizer.h).
#pragma once

#include "model/linear.h"

namespace te::model {

/// Rows of an operand, in the order of the experts. The shared expert has no offsets.
struct ExpertRows {
  Tensor
      values;  ///< [rows, cols], or with source tokens, of which the rows are copies; FP8 if received as FP8
  Tensor offsets;  ///< i32 [experts + 1]
  Tensor source;   ///< i32 [rows] (kernels/moe/permute.h)
  int64_t topk = 1;
  Tensor numbers, selections;  ///< AdapterRows::numbers and source
  bool quantized = false;      ///< the producer has written its request (input_request()) instead of values
  AdapterRows of_adapter() const { return {offsets, numbers, selections}; }
  int64_t count() const { return source ? source.numel() : values.rows(); }
};

/// The gradient group of weights that tensor-parallel ranks do not divide: they multiply this rank's rows of the
/// residual stream.
inline GradientGroup full_weight_group(const parallel::TensorParallel& tensor) {
  return tensor.sequence() ? GradientGroup::stage : GradientGroup::dense;
}

class ExpertLinear : public Linear {
 public:
  /// `id.expert`: kSharedExpert for the shared expert, whose `experts` are ignored.
  ExpertLinear(const LinearId& id, const LayerConfig& config, const ExpertPartition& experts, int64_t in,
               double init_std, parameters::ParameterStore& parameters, Recipe& recipe,
               parallel::TensorParallel& tensor);

  /// Rows of each expert must start and end at multiples of this: of the blocks of rows of columnwise layouts, which
  /// inference has not, or of the vectors of values that share a scale; otherwise kExpertAlignment.
  int64_t row_alignment(bool inference) const;

  /// `high_precision_exists`: see Linear::plan_operand.
  void plan_input(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use,
                  bool high_precision_exists = false) const {
    plan_operand(plan, input, use, high_precision_exists);
  }
  /// For inference: the quantized input of `rows` rows; layers share the memory.
  void plan_inference_input(MemoryPlan& plan, Planned<Operand>& input, int64_t rows) const;
  /// `high_precision`: plan grad.high_precision; if false, dy has memory of its own.
  void plan_grad(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use, bool high_precision) const {
    plan_grad_operand(plan, grad, use, false, high_precision);
  }

  /// The input as rows that are copies of tokens; a quantizer that reads tokens makes no copies in high precision.
  /// `memory`: for the copies.
  ExpertRows input_rows(const Context& context, const ExpertRows& tokens, const Tensor& memory) const {
    return rows_of(context, input_quantizer_, tokens, memory);
  }
  /// The same for dy.
  ExpertRows grad_rows(const Context& context, const ExpertRows& tokens, const Tensor& memory) const {
    return rows_of(context, grad_quantizer_, tokens, memory);
  }

  /// True if the copies need no memory.
  bool input_from_tokens() const { return input_quantizer_.always_reads_tokens(); }
  bool grad_from_tokens() const { return grad_quantizer_.always_reads_tokens(); }

  /// For the producer of the input in forward() or in complete_input(), and of dy. Empty: it writes high precision.
  fp8::ExpertsRequest input_request(const Operand& input, const Pass& pass) const {
    return input_quantizer_.experts_request(input, input_mode(pass));
  }
  fp8::ExpertsRequest recomputed_input_request(const Operand& input, const Pass& pass) const {
    return input_quantizer_.experts_request(input, wgrad_input_mode(pass));
  }
  fp8::ExpertsRequest grad_request(const Operand& grad, const Pass& pass) const {
    return grad_quantizer_.experts_request(grad, pass.quantize_mode());
  }

  /// True if the ranks of the tokens quantize x, and dy, before they send them: see Quantizer::quantized_by_senders().
  /// An adapter reads high precision.
  bool input_sent_quantized() const { return !adapter_ && input_quantizer_.quantized_by_senders(); }
  bool grad_sent_quantized() const { return !adapter_ && grad_quantizer_.quantized_by_senders(); }
  /// Then: what the ranks need for the input in forward() or complete_input(), and for dy.
  kernels::Fp8Output sent_input(const Operand& input, const Pass& pass) const {
    return input_quantizer_.sent_output(input, input_mode(pass));
  }
  kernels::Fp8Output sent_grad(const Operand& grad, const Pass& pass) const {
    return grad_quantizer_.sent_output(grad, pass.quantize_mode());
  }

  /// y [rows, out] from x [rows, in]. Returns the input for backward().
  ReadyOperand forward(const Context& context, const Operand& input, const ExpertRows& x, const Tensor& y,
                       const Pass& pass);
  /// Completes a recomputed input for wgrad.
  ReadyOperand complete_input(const Context& context, const Operand& input, const ExpertRows& x,
                              const Pass& pass) const;
  /// dx [rows, in] = dy W; W's gradient += dy^T x.
  void backward(const Context& context, const Operand& grad, const ExpertRows& dy, const ReadyOperand& input,
                const Tensor& dx, const Pass& pass);

 private:
  bool grouped() const { return spec_.experts > 0; }
  static ExpertRows rows_of(const Context& context, const fp8::Quantizer& quantizer, const ExpertRows& tokens,
                            const Tensor& memory);
  void experts_wgrad(const Context& context, const ReadyOperand& grad, const ReadyOperand& input,
                     const Tensor& offsets) const;
};

}  // namespace te::model
