#include "model/parallel_linear.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "config/adapter.h"

namespace te::model {
namespace {

void adapt(Linear::Spec& spec, const LayerConfig& config) {
  spec.adapter = config.adapter;
  spec.ranks = config.ranks;
  spec.adapted = config::adapted_blocks(config.adapter, config.model, spec.id.kind);
}

Linear::Spec column_spec(LinearId id, const LayerConfig& config, int64_t in, bool bias, double init_std,
                         const parallel::TensorParallel& tensor) {
  const std::vector<int64_t> blocks = config::linear_blocks(config.model, id);
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  Linear::Spec spec{.id = id, .matrices = blocks, .bias = bias};
  adapt(spec, config);
  spec.weight = parameters::ParameterShard::of_rows({out, in}, blocks, tensor.rank(), tensor.size());
  spec.bias_shard = parameters::ParameterShard::of_rows({out}, blocks, tensor.rank(), tensor.size());
  spec.init_std = static_cast<float>(init_std);
  return spec;
}

// The bias is added to the sum, so all ranks have the full bias. Its gradient is a sum over tokens; with sequence
// parallelism each rank sums over its own tokens.
Linear::Spec row_spec(LinearId id, const LayerConfig& config, int64_t in, int64_t out, bool bias,
                      double init_std, const parallel::TensorParallel& tensor) {
  Linear::Spec spec{.id = id, .matrices = {out}, .bias = bias, .row_parallel = true};
  adapt(spec, config);
  spec.weight = parameters::ParameterShard::of_columns({out, in}, tensor.rank(), tensor.size());
  spec.bias_shard = parameters::ParameterShard::full({out});
  spec.bias_sharing = tensor.sequence() ? parameters::Sharing::partial : parameters::Sharing::replicated;
  spec.init_std = static_cast<float>(init_std);
  return spec;
}

}  // namespace

double output_std(const config::ModelConfig& model, LinearKind kind) {
  if (model.starts_with_zeros(kind)) return 0.0;
  return model.init_method_std / std::sqrt(2.0 * static_cast<double>(model.num_layers));
}

// --- column parallel ---------------------------------------------------------------------------------------

ColumnParallelLinear::ColumnParallelLinear(LinearId id, const LayerConfig& config, int64_t in, bool bias,
                                           double init_std, parameters::ParameterStore& parameters,
                                           Recipe& recipe, parallel::TensorParallel& tensor)
    : Linear(column_spec(id, config, in, bias, init_std, tensor), parameters, recipe, tensor) {}

void ColumnParallelLinear::plan_scratch(MemoryPlan& plan, const LinearUse& use) {
  plan_column_sums(plan, use, use.grad);
  if (!tensor_.sequence()) return;
  const auto add = [&](PlannedTensor& slot, const char* name, int64_t rows, Gathered what,
                       Lifetime lifetime) {
    plan.add(slot, spec_.name + name, MemoryKind::scratch, use.dims.dtype, {rows, in()},
             {use.tag / what, lifetime});
  };
  add(shard_high_precision_, ".shard", use.dims.residual_rows, Gathered::shard, use.input_life());
  gather_.plan(plan, input_quantizer_, spec_.name + ".shard", tensor_, use.dims.tokens, in(),
               {use.tag / Gathered::shard_layouts, use.input_life()});
  add(full_dx_, ".full_dx", use.dims.tokens, Gathered::full_dx, live(use.backward));
}

// The producer writes this rank's tokens to shard_. `input` has all tokens, without high-precision values if the ranks
// gather quantized rows.
void ColumnParallelLinear::plan_input(MemoryPlan& plan, Planned<Operand>& input, const LinearUse& use) const {
  const bool quantized = tensor_.sequence() && input_quantizer_.gathers_quantized(tensor_, use.dims.tokens);
  plan_operand(plan, input, use, quantized && !input_quantizer_.keeps_high_precision());
}

// A producer that quantizes needs no high-precision values, but calibration and in-place producers do.
void ColumnParallelLinear::plan_grad(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use,
                                     bool deferred, bool high_precision) const {
  plan_grad_operand(plan, grad, use, deferred, high_precision);
}

OperandRequest ColumnParallelLinear::input_request(const Operand& input, const Pass& pass) {
  if (!tensor_.sequence()) return input_quantizer_.request(input, input_mode(pass));
  shard_ = gather_.shard_of(input_quantizer_, input, shard_high_precision_, tensor_);
  if (!shard_.rowwise)
    if (const Tensor own = tensor_.shard_view(input.high_precision)) shard_.high_precision = own;
  return input_quantizer_.request(shard_, input_mode(pass));
}

ReadyOperand ColumnParallelLinear::forward(const Context& context, const Operand& input,
                                           const ProducedOperand& x, const Tensor& y, const Pass& pass,
                                           const EpilogueActivation& activation) {
  prepare_fprop_weight(context);
  const auto rows = [&](const ReadyOperand& ready, int64_t first, int64_t count) {
    fprop(context, ready, y, first, count, true, activation);
    adapter_fprop(context, ready, y, first, count, pass);
  };
  const fp8::QuantizeMode mode = input_mode(pass);
  if (tensor_.sequence())
    return gather_.gather(context, input_quantizer_, tensor_, shard_, x, input, mode, rows);
  ReadyOperand ready = input_quantizer_.complete(context, input, x, mode);
  rows(ready, 0, y.rows());
  return ready;
}

ReadyOperand ColumnParallelLinear::complete_input(const Context& context, const Operand& input,
                                                  const ProducedOperand& x, const Pass& pass) {
  const fp8::QuantizeMode mode = wgrad_input_mode(pass);
  if (tensor_.sequence())
    return gather_.gather(context, input_quantizer_, tensor_, shard_, x, input, mode, {});
  return input_quantizer_.complete(context, input, x, mode);
}

OperandRequest ColumnParallelLinear::grad_request(const Operand& grad, const Pass& pass) const {
  return grad_quantizer_.request(grad, pass.quantize_mode(), bias_sums());
}

ReadyOperand ColumnParallelLinear::backward(const Context& context, const Operand& grad,
                                            const ProducedOperand& dy, const ReadyOperand& input,
                                            const Tensor& dx, const Pass& pass, bool deferred) {
  // 1. Complete dy and the bias gradient, as far as dy's producer has not.
  ReadyOperand ready = grad_quantizer_.complete(context, grad, dy, pass.quantize_mode(), bias_sums());
  prepare_dgrad_weight(context);
  const Tensor full = tensor_.sequence() ? full_dx_ : dx;
  // 2. dgrad; 3. wgrad, overlapped with the reduction over the ranks.
  const auto rows = [&](int64_t first, int64_t count) {
    dgrad(context, ready, full, first, count);
    adapter_dgrad(context, ready, full, first, count, pass);
  };
  const auto weights = [&] {
    wgrad(context, ready, input);
    adapter_wgrad(context, ready, input, pass);
  };
  tensor_.reduce(context, full, dx, rows, deferred ? std::function<void()>{} : weights);
  return ready;
}

// --- row parallel ------------------------------------------------------------------------------------------

RowParallelLinear::RowParallelLinear(LinearId id, const LayerConfig& config, int64_t in, int64_t out,
                                     bool bias, double init_std, parameters::ParameterStore& parameters,
                                     Recipe& recipe, parallel::TensorParallel& tensor)
    : Linear(row_spec(id, config, in, out, bias, init_std, tensor), parameters, recipe, tensor) {}

void RowParallelLinear::plan_scratch(MemoryPlan& plan, const LinearUse& use) {
  plan_column_sums(plan, use, live(use.backward));
  if (!tensor_.sequence()) return;
  plan.add(full_y_, spec_.name + ".full_y", MemoryKind::scratch, use.dims.dtype, {use.dims.tokens, out()},
           {use.tag / Gathered::full_y, live(use.forward)});
  gather_.plan(plan, grad_quantizer_, spec_.name + ".shard_dy", tensor_, use.dims.tokens, out(),
               {use.tag / Gathered::shard_layouts, live(use.backward)});
}

// dy is the gradient of the residual stream, which other code keeps. Memory is needed only if it is gathered.
void RowParallelLinear::plan_grad(MemoryPlan& plan, Planned<Operand>& grad, const LinearUse& use,
                                  bool deferred) const {
  const bool gathers_high_precision = !grad_quantizer_.gathers_quantized(tensor_, use.dims.tokens);
  plan_grad_operand(plan, grad, use, deferred,
                    tensor_.sequence() && (gathers_high_precision || grad_quantizer_.keeps_high_precision()));
}

OperandRequest RowParallelLinear::input_request(const Operand& input, const Pass& pass) const {
  return input_quantizer_.request(input, input_mode(pass));
}

ReadyOperand RowParallelLinear::complete_input(const Context& context, const Operand& input,
                                               const ProducedOperand& x, const Pass& pass) const {
  return input_quantizer_.complete(context, input, x, wgrad_input_mode(pass));
}

ReadyOperand RowParallelLinear::forward(const Context& context, const Operand& input,
                                        const ProducedOperand& x, const Tensor& y, const Pass& pass) {
  ReadyOperand ready = input_quantizer_.complete(context, input, x, input_mode(pass));
  prepare_fprop_weight(context);
  const Tensor full = tensor_.sequence() ? full_y_ : y;
  tensor_.reduce(context, full, y, [&](int64_t first, int64_t count) {
    fprop(context, ready, full, first, count, tensor_.rank() == 0);
    adapter_fprop(context, ready, full, first, count, pass);
  });
  return ready;
}

// With sequence parallelism, the producer has dy of this rank's tokens. It can compute their column sums, which are
// this rank's bias gradient, but the operand has all tokens and is completed after the gather.
OperandRequest RowParallelLinear::grad_request(const Operand& grad, const Pass& pass) const {
  if (tensor_.sequence()) return {.sums = bias_sums()};
  return grad_quantizer_.request(grad, pass.quantize_mode(), bias_sums());
}

ReadyOperand RowParallelLinear::backward(const Context& context, const Operand& grad,
                                         const ProducedOperand& dy, const ReadyOperand& input,
                                         const Tensor& dx, const Pass& pass, bool deferred,
                                         const EpilogueActivation& activation) {
  const auto rows = [&](const ReadyOperand& ready, int64_t first, int64_t count) {
    dgrad(context, ready, dx, first, count, activation);
    adapter_dgrad(context, ready, dx, first, count, pass);
  };
  const fp8::QuantizeMode mode = pass.quantize_mode();
  prepare_dgrad_weight(context);
  ReadyOperand ready;
  if (!tensor_.sequence()) {
    // 1. Complete dy. Later steps change dy, so a deferred wgrad needs a copy.
    ProducedOperand produced = dy;
    if (deferred && (!grad_quantizer_.layouts().columnwise || grad_quantizer_.keeps_high_precision())) {
      context.copy(grad.high_precision, dy.high_precision);
      produced.high_precision = grad.high_precision;
    }
    ready = grad_quantizer_.complete(context, grad, produced, mode, bias_sums());
    rows(ready, 0, dx.rows());
  } else {
    // 1. Complete dy of this rank's tokens; 2. dgrad of all tokens as they arrive.
    const Operand shard = gather_.shard_of(grad_quantizer_, grad, dy.high_precision, tensor_);
    ready = gather_.gather(context, grad_quantizer_, tensor_, shard, dy, grad, mode, rows, bias_sums());
  }
  // 3. wgrad.
  if (deferred) return ready;
  wgrad(context, ready, input);
  adapter_wgrad(context, ready, input, pass);
  return ready;
}

}  // namespace te::model
