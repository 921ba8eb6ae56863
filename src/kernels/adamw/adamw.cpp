// AdamW: checks, dispatch and the CPU reference.
#include "kernels/adamw/adamw.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/adamw/adamw_math.h"
#include "kernels/common/checks.h"

namespace te::kernels {
namespace {

void check(const AdamW& args, int64_t n) {
  for (const auto& [name, tensor] : {std::pair{"exp_avg", &args.exp_avg}, {"exp_avg_sq", &args.exp_avg_sq}}) {
    check_dtype("adamw", name, *tensor, DType::f32);
    check_shape("adamw", name, *tensor, {n});
  }
  if (args.remainder) {
    TE_CHECK(!args.main_param, "adamw: main_param and remainder exclude each other");
    check_dtype("adamw", "remainder", args.remainder, DType::u16);
    check_shape("adamw", "remainder", args.remainder, {n});
    check_dtype("adamw", "param", args.param, DType::bf16);
  } else {
    check_dtype("adamw", "main_param", args.main_param, DType::f32);
    check_shape("adamw", "main_param", args.main_param, {n});
  }
  check_hp("adamw", "main_grad", args.main_grad);
  check_shape("adamw", "main_grad", args.main_grad, {n});
  if (args.param) {
    check_hp("adamw", "param", args.param);
    check_shape("adamw", "param", args.param, {n});
  }
  check_dtype("adamw", "flags", args.flags, DType::u8);
  check_shape("adamw", "flags", args.flags, {granules_of(n)});
  TE_CHECK(args.step >= 1, "adamw: step {} must be at least 1", args.step);
}

/// Param is the type of the model's copy, Grad that of the main gradients.
template <class Param, class Grad>
void adamw_cpu(const AdamW& args, int64_t n) {
  if (args.skip != nullptr && *args.skip != 0) return;
  const AdamWConstants c = adamw_constants(args);
  const float multiplier = args.grad_multiplier != nullptr ? *args.grad_multiplier : 1.0f;
  float* main_param = args.main_param.as<float>();
  uint16_t* remainder = args.remainder.as<uint16_t>();
  uint16_t* upper = args.param.as<uint16_t>();  // with remainder
  const Grad* main_grad = args.main_grad.as<Grad>();
  float* exp_avg = args.exp_avg.as<float>();
  float* exp_avg_sq = args.exp_avg_sq.as<float>();
  Param* param = args.param.as<Param>();
  const uint8_t* flags = args.flags.as<uint8_t>();
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < n; begin += kAdamWGranule) {
    const float decay = (flags[begin / kAdamWGranule] & kGranuleDecays) != 0 ? c.decay : 0.0f;
    const int64_t end = std::min(begin + kAdamWGranule, n);
    if (remainder != nullptr) {
      for (int64_t i = begin; i < end; ++i) {
        SplitFloat split{upper[i], remainder[i]};
        adamw_split(c, decay, to_float(main_grad[i]) * multiplier, split, exp_avg[i], exp_avg_sq[i]);
        upper[i] = split.value, remainder[i] = split.remainder;
      }
      continue;
    }
    for (int64_t i = begin; i < end; ++i)
      adamw_element(c, decay, to_float(main_grad[i]) * multiplier, main_param[i], exp_avg[i], exp_avg_sq[i]);
    if (param != nullptr)
      for (int64_t i = begin; i < end; ++i) param[i] = from_float<Param>(main_param[i]);
  }
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  const int64_t n = args.exp_avg.numel();
  if (n == 0) return;  // a rank whose shard is empty
  check(args, n);
  TE_DISPATCH_CUDA(context, adamw, args);
  visit_hp(args.param ? args.param.dtype : DType::f32, [&](auto param_zero) {
    visit_hp(args.main_grad.dtype,
             [&](auto grad_zero) { adamw_cpu<decltype(param_zero), decltype(grad_zero)>(args, n); });
  });
}

}  // namespace te::kernels
