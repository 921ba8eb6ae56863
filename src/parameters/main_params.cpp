#include "parameters/main_params.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/param_split/param_split.h"
#include "parameters/parameter_store.h"

namespace te::parameters {

MainParams MainParams::part(int64_t first, int64_t count) const {
  if (fp32) return {.fp32 = ParameterStore::part(fp32, first, count)};
  return {.value = ParameterStore::part(value, first, count),
          .remainder = remainder ? ParameterStore::part(remainder, first, count) : Tensor{}};
}

void MainParams::copy_raw(const Context& context, void* raw) const {
  if (fp32) return context.copy_to_host(raw, fp32);
  context.copy_to_host(raw, value);
  if (remainder) context.copy_to_host(static_cast<uint16_t*>(raw) + count(), remainder);
}

const void* MainParams::from_raw(const void* raw, int64_t first, int64_t part, float* joined) const {
  if (fp32) return static_cast<const float*>(raw) + first;
  const auto* halves = static_cast<const uint16_t*>(raw);
  if (!remainder && value.dtype == DType::bf16) return halves + first;
  if (!remainder) {
    const auto* values = static_cast<const float16*>(raw) + first;
    std::transform(values, values + part, joined, [](float16 one) { return to_float(one); });
    return joined;
  }
  kernels::join_params_on_host(halves + first, halves + count() + first, part, joined);
  return joined;
}

void MainParams::write(const Context& context, const float* host, void* halves) const {
  if (fp32) {
    context.copy_to_device(fp32, host);
  } else if (!remainder) {
    visit_high_precision(value.dtype, [&](auto zero) {
      using T = decltype(zero);
      std::transform(host, host + count(), static_cast<T*>(halves), from_float<T>);
    });
    context.copy_to_device(value, halves);
  } else {
    auto* upper = static_cast<uint16_t*>(halves);
    kernels::split_params_on_host(host, count(), upper, upper + count());
    context.copy_to_device(value, upper);
    context.copy_to_device(remainder, upper + count());
  }
  context.synchronize();  // the host memory may be reused
}

}  // namespace te::parameters
