#include "kernels/param_split/param_split.h"

#include <bit>

#include "core/error.h"
#include "kernels/common/checks.h"

namespace te::kernels {

void split_params_on_host(const float* main_param, int64_t count, uint16_t* value, uint16_t* remainder) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    const SplitFloat split = split_float(std::bit_cast<uint32_t>(main_param[i]));
    value[i] = split.value;
    remainder[i] = split.remainder;
  }
}

void join_params_on_host(const uint16_t* value, const uint16_t* remainder, int64_t count, float* main_param) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i)
    main_param[i] = std::bit_cast<float>(join_float({value[i], remainder[i]}));
}

void split_params(const Context& context, const ParamSplit& args) {
  const int64_t n = args.main_param.numel();
  check_dtype("split_params", "main_param", args.main_param, DType::f32);
  check_dtype("split_params", "value", args.value, DType::bf16);
  check_dtype("split_params", "remainder", args.remainder, DType::u16);
  check_shape("split_params", "value", args.value, {n});
  check_shape("split_params", "remainder", args.remainder, {n});
  if (n == 0) return;
  TE_DISPATCH_CUDA(context, split_params, args);
  split_params_on_host(args.main_param.as<float>(), n, args.value.as<uint16_t>(),
                       args.remainder.as<uint16_t>());
}

}  // namespace te::kernels
