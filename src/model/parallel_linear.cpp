#include "model/parallel_linear.h"

#include <numeric>
#include <utility>

namespace te::model {
namespace {

using fp8::Operand;

Linear::Spec column_spec(std::string name, int layer, const std::vector<int64_t>& blocks, int64_t in,
                         bool bias, double init_std, const parallel::TensorParallel& tensor) {
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  Linear::Spec spec{.name = std::move(name), .layer = layer, .bias = bias};
  spec.weight = parameters::ParameterShard::of_rows({out, in}, blocks, tensor.rank(), tensor.size());
  spec.bias_shard = parameters::ParameterShard::of_rows({out}, blocks, tensor.rank(), tensor.size());
  spec.init_std = static_cast<float>(init_std);
  return spec;
}

// The bias is added to the sum, so all ranks have all of it. Its gradient is a sum over tokens: with sequence
// parallelism each rank sees its own.
Linear::Spec row_spec(std::string name, int layer, int64_t in, int64_t out, bool bias, double init_std,
                      const parallel::TensorParallel& tensor) {
  Linear::Spec spec{.name = std::move(name), .layer = layer, .bias = bias};
  spec.weight = parameters::ParameterShard::of_columns({out, in}, tensor.rank(), tensor.size());
  spec.bias_shard = parameters::ParameterShard::whole({out});
  spec.bias_sharing = tensor.sequence() ? parameters::Sharing::partial : parameters::Sharing::replicated;
  spec.init_std = static_cast<float>(init_std);
  return spec;
}

}  // namespace

// --- column parallel ---------------------------------------------------------------------------------------

ColumnParallelLinear::ColumnParallelLinear(std::string name, int layer, const std::vector<int64_t>& blocks,
                                           int64_t in, bool bias, double init_std,
                                           parameters::ParameterStore& parameters, fp8::Recipe& recipe,
                                           parallel::TensorParallel& tensor)
    : Linear(column_spec(std::move(name), layer, blocks, in, bias, init_std, tensor), parameters, recipe,
             tensor) {}

// The producer writes this rank's tokens; input holds all of them, and in FP8 no high-precision form.
void ColumnParallelLinear::plan_input(MemoryPlan& plan, Operand& input, const Dimensions& dims,
                                      Scratch& scratch, bool saved, bool hp_exists) const {
  plan_operand(plan, input, dims, scratch, saved, hp_exists || (tensor_.sequence() && fp8()));
}

void ColumnParallelLinear::plan_share(MemoryPlan& plan, const Dimensions& dims, Scratch& scratch) {
  if (!tensor_.sequence()) return;
  plan.alias(share_.hp, scratch.share_hp, dims.dtype, {dims.stream, in()});
  if (fp8())
    plan.alias(share_.q.rowwise, scratch.share_rowwise, input_quantizer_.format(), {dims.stream, in()});
}

void ColumnParallelLinear::plan_grad(MemoryPlan& plan, Operand& grad, const Dimensions& dims,
                                     Scratch& scratch, bool deferred) const {
  const Shape shape{dims.tokens, out()};
  if (deferred && !fp8()) {
    plan.add(grad.hp, spec_.name + ".grad_output", MemoryKind::activations, dims.dtype, shape);
  } else {
    plan.alias(grad.hp, scratch.d_wide, dims.dtype, shape);
  }
  plan_grad_operand(plan, grad, dims, scratch, deferred);
}

OperandTarget ColumnParallelLinear::input_target(Operand& input, const Pass& pass) {
  Operand& target = tensor_.sequence() ? share_ : input;
  if (tensor_.sequence()) share_.q.scale_inv = input.q.scale_inv;
  fp8::QuantizedTensor storage = target.q;
  if (pass.evaluating()) storage.columnwise = {};  // no wgrad will follow
  target.quantized = input_quantizer_.fused();
  input.quantized = target.quantized;
  return {target.quantized ? Tensor{} : target.hp,
          input_quantizer_.producer_output(storage, pass.quantize_mode())};
}

// A share is cast before it travels, so that bytes travel; the transposed copy is made where they arrive.
void ColumnParallelLinear::gather_input(const Context& context, Operand& input, const Pass& pass,
                                        const parallel::TensorParallel::Work& work) {
  if (!tensor_.sequence()) {
    input_quantizer_.complete(context, input, pass.quantize_mode());
    return tensor_.gather(context, input.hp, fp8() ? input.q.rowwise : input.hp, work);
  }
  input_quantizer_.complete(context, share_, pass.quantize_mode());
  if (!fp8()) return tensor_.gather(context, share_.hp, input.hp, work);
  tensor_.gather(context, share_.q.rowwise, input.q.rowwise, work);
  if (!pass.evaluating()) kernels::transpose_fp8(context, input.q.rowwise, input.q.columnwise);
  input.quantized = true;
}

void ColumnParallelLinear::forward(const Context& context, Operand& input, const Tensor& y, const Pass& pass,
                                   const ActivationOutput& activation) {
  gather_input(context, input, pass, [&](int64_t first, int64_t count) {
    fprop(context, input, y, first, count, true, activation);
  });
}

void ColumnParallelLinear::complete_input(const Context& context, Operand& input, const Pass& pass) {
  gather_input(context, input, pass, {});
}

OperandTarget ColumnParallelLinear::grad_target(Operand& grad, const Pass& pass) const {
  grad.quantized = grad_quantizer_.fused();
  grad.bias_summed = false;
  return {grad.quantized ? Tensor{} : grad.hp, grad_quantizer_.producer_output(grad.q, pass.quantize_mode())};
}

void ColumnParallelLinear::backward(const Context& context, Operand& grad, const Operand& input,
                                    const Tensor& dx, const Pass& pass, const Scratch& scratch,
                                    bool deferred) {
  // 1. dy as the products need it, and the bias gradient, as far as dy's producer has not seen to it.
  const Tensor dbias = grad.bias_summed ? Tensor{} : bias_gradient();
  TE_CHECK(!grad.quantized || !dbias, "{}: dy came in FP8 without its column sums", spec_.name);
  if (!grad.quantized) {
    grad_quantizer_.complete(context, grad, pass.quantize_mode(), dbias, scratch.column_sums);
  }
  // 2. dgrad; while the sum over the ranks travels, 3. wgrad.
  const auto products = [&](int64_t first, int64_t count) {
    dgrad(context, grad, tensor_.sequence() ? scratch.whole : dx, first, count);
  };
  tensor_.reduce(context, tensor_.sequence() ? scratch.whole : dx, dx, products, [&] {
    if (!deferred) wgrad(context, grad, input);
  });
}

// --- row parallel ------------------------------------------------------------------------------------------

RowParallelLinear::RowParallelLinear(std::string name, int layer, int64_t in, int64_t out, bool bias,
                                     double init_std, parameters::ParameterStore& parameters,
                                     fp8::Recipe& recipe, parallel::TensorParallel& tensor)
    : Linear(row_spec(std::move(name), layer, in, out, bias, init_std, tensor), parameters, recipe, tensor) {}

void RowParallelLinear::plan_grad(MemoryPlan& plan, Operand& grad, const Dimensions& dims, Scratch& scratch,
                                  bool deferred) const {
  const Shape shape{dims.tokens, out()};
  if (deferred && !fp8()) {
    plan.add(grad.hp, spec_.name + ".grad_output", MemoryKind::activations, dims.dtype, shape);
  } else if (tensor_.sequence() && !fp8()) {
    plan.alias(grad.hp, scratch.whole, dims.dtype, shape);
  }
  plan_grad_operand(plan, grad, dims, scratch, deferred);
}

OperandTarget RowParallelLinear::input_target(Operand& input, const Pass& pass) const {
  fp8::QuantizedTensor storage = input.q;
  if (pass.evaluating()) storage.columnwise = {};
  input.quantized = input_quantizer_.fused();
  return {input.hp, input_quantizer_.producer_output(storage, pass.quantize_mode())};
}

void RowParallelLinear::complete_input(const Context& context, Operand& input, const Pass& pass) const {
  input_quantizer_.complete(context, input, pass.quantize_mode());
}

void RowParallelLinear::forward(const Context& context, Operand& input, const Tensor& y, const Pass& pass,
                                const Scratch& scratch) {
  complete_input(context, input, pass);
  const Tensor whole = tensor_.sequence() ? scratch.whole : y;
  tensor_.reduce(context, whole, y, [&](int64_t first, int64_t count) {
    fprop(context, input, whole, first, count, tensor_.rank() == 0);
  });
}

// With sequence parallelism dy is that of this rank's tokens: its column sums are this rank's bias gradient, but the
// operand holds all tokens, and the transposed form is made where they arrive.
GradExtras RowParallelLinear::grad_extras(Operand& grad, const Pass& pass) const {
  grad.bias_summed = bias_ != nullptr;
  grad.quantized = grad_quantizer_.fused() && !tensor_.sequence();
  if (!grad.quantized) return {bias_gradient(), {}};
  return {bias_gradient(), grad_quantizer_.producer_output(grad.q, pass.quantize_mode())};
}

void RowParallelLinear::backward(const Context& context, const Tensor& dy, Operand& grad,
                                 const Operand& input, const Tensor& dx, const Pass& pass,
                                 const Scratch& scratch, bool deferred,
                                 const ActivationGradient& activation) {
  const auto products = [&](int64_t first, int64_t count) {
    dgrad(context, grad, dx, first, count, activation);
  };
  const fp8::QuantizeMode mode = pass.quantize_mode();
  const Tensor dbias = grad.bias_summed ? Tensor{} : bias_gradient();
  TE_CHECK(!grad.quantized || !dbias, "{}: dy came in FP8 without its column sums", spec_.name);
  if (!tensor_.sequence()) {
    // 1. dy as the products need it. Later steps change dy, so a deferred wgrad keeps a copy.
    const bool copies = deferred && !fp8();
    if (copies) context.copy(grad.hp, dy);
    if (!copies) grad.hp = dy;
    grad_quantizer_.complete(context, grad, mode, dbias, scratch.column_sums);
    products(0, dx.rows());
  } else {
    // 1. The same for this rank's tokens; 2. dgrad of all tokens, as they arrive.
    Operand share{.hp = dy};
    if (fp8()) {
      share.q.rowwise = {scratch.share_grad_rowwise.data, grad_quantizer_.format(), dy.shape};
      share.q.scale_inv = grad.q.scale_inv;
    }
    grad_quantizer_.complete(context, share, mode, dbias, scratch.column_sums);
    tensor_.gather(context, fp8() ? share.q.rowwise : dy, fp8() ? grad.q.rowwise : grad.hp, products);
    if (fp8()) kernels::transpose_fp8(context, grad.q.rowwise, grad.q.columnwise);
  }
  // What the producer did holds for this dy alone; the next one may come from another producer.
  grad.quantized = grad.bias_summed = false;
  // 3. wgrad.
  if (!deferred) wgrad(context, grad, input);
}

}  // namespace te::model
