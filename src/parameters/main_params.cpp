#include "parameters/main_params.h"

#include "kernels/param_split/param_split.h"
#include "parameters/parameter_store.h"

namespace te::parameters {

MainParams MainParams::part(int64_t first, int64_t count) const {
  if (fp32) return {.fp32 = ParameterStore::part(fp32, first, count)};
  return {.value = ParameterStore::part(value, first, count),
          .remainder = ParameterStore::part(remainder, first, count)};
}

void MainParams::copy_raw(const Context& context, void* raw) const {
  if (fp32) return context.copy_to_host(raw, fp32);
  context.copy_to_host(raw, value);
  context.copy_to_host(static_cast<uint16_t*>(raw) + count(), remainder);
}

const float* MainParams::from_raw(const void* raw, int64_t first, int64_t part, float* joined) const {
  if (fp32) return static_cast<const float*>(raw) + first;
  const auto* halves = static_cast<const uint16_t*>(raw);
  kernels::join_params_on_host(halves + first, halves + count() + first, part, joined);
  return joined;
}

void MainParams::write(const Context& context, const float* host, void* halves) const {
  if (fp32) {
    context.copy_to_device(fp32, host);
  } else {
    auto* upper = static_cast<uint16_t*>(halves);
    kernels::split_params_on_host(host, count(), upper, upper + count());
    context.copy_to_device(value, upper);
    context.copy_to_device(remainder, upper + count());
  }
  context.synchronize();  // the host memory may be reused
}

}  // namespace te::parameters
