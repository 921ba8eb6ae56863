#include "model/parameter_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/random.h"
#include "kernels/common/granule.h"
#include "kernels/elementwise/elementwise.h"

namespace te::model {

Parameter* ParameterStore::add(std::string name, Shape shape, Init init, float std, bool decay) {
  const int64_t granule = kernels::kAdamWGranule;
  Parameter parameter{std::move(name), shape, init, std, decay, flat_size_, {}, {}, {}};
  count_ += shape.numel();
  flat_size_ += (shape.numel() + granule - 1) / granule * granule;
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

void ParameterStore::plan(MemoryPlan& plan, DType dtype) {
  dtype_ = dtype;
  if (dtype != DType::f32) plan.add(values, "parameters", MemoryKind::parameters, dtype, {flat_size_});
  plan.add(mains, "main_params", MemoryKind::main_params, DType::f32, {flat_size_});
  plan.add(grads, "main_grads", MemoryKind::main_grads, DType::f32, {flat_size_});
  plan.add(flags, "granule_flags", MemoryKind::optimizer, DType::u8, {kernels::granules_of(flat_size_)});
}

void ParameterStore::bind(const Context& context) {
  std::vector<uint8_t> host_flags(static_cast<size_t>(flags.numel()), kernels::kGranuleCounted);
  const auto part = [](const Tensor& flat, const Parameter& parameter) {
    char* data =
        static_cast<char*>(flat.data) + static_cast<size_t>(parameter.offset) * dtype_size(flat.dtype);
    return Tensor{data, flat.dtype, parameter.shape};
  };
  for (Parameter& parameter : parameters_) {
    parameter.main = part(mains, parameter);
    parameter.grad = part(grads, parameter);
    parameter.value = values ? part(values, parameter) : parameter.main;
    if (!parameter.decay) continue;
    const int64_t first = parameter.offset / kernels::kAdamWGranule;
    const int64_t count = kernels::granules_of(parameter.shape.numel());
    for (int64_t i = first; i < first + count; ++i)
      host_flags[static_cast<size_t>(i)] |= kernels::kGranuleDecays;
  }
  context.copy_to_device(flags, host_flags.data());
  context.synchronize();  // the host vector must outlive the copy
}

void ParameterStore::initialize(const Context& context, uint64_t seed) {
  for (const Parameter& parameter : parameters_) {
    const Tensor flat = parameter.main.view({parameter.main.numel()});
    if (parameter.init == Init::normal) {
      kernels::fill_normal(context, flat, parameter.std, seed, stream_of(parameter.name), 0);
    } else {
      kernels::fill_value(context, flat, parameter.init == Init::ones ? 1.0f : 0.0f);
    }
  }
  cast_values(context);
}

void ParameterStore::cast_values(const Context& context) {
  if (values) kernels::cast(context, mains, values);
}

}  // namespace te::model
