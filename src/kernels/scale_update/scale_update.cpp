// Checks, dispatch and CPU reference of the computation of scales from amax values.
#include "kernels/scale_update/scale_update.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels {

namespace cuda {
void delayed_scale_update(const Context& context, const DelayedScaleUpdate& args);
void current_scale(const Context& context, const CurrentScale& args);
void current_scales(const Context& context, const CurrentScales& args);
void record_current_scale(const Context& context, const RecordCurrentScale& args);
}  // namespace cuda

void delayed_scale_update(const Context& context, const DelayedScaleUpdate& args) {
  const char* op = "delayed_scale_update";
  check_dtype(op, "amax", args.amax, DType::f32);
  const int64_t n = args.amax.numel();
  check_dtype(op, "history", args.history, DType::f32);
  TE_CHECK(args.history.shape.rank() == 2 && args.history.dim(0) > 0 && args.history.dim(1) == n,
           "{}: history has shape {}, must be [len, {}]", op, args.history.shape.str(), n);
  check_dtype(op, "position", args.position, DType::i32);
  check_dtype(op, "scale", args.scale, DType::f32);
  check_dtype(op, "fp8_max", args.fp8_max, DType::f32);
  TE_CHECK(args.position.numel() == 1 && args.scale.numel() == n && args.fp8_max.numel() == n,
           "{}: position must have 1 element, scale and fp8_max as many as amax ({})", op, n);
  TE_DISPATCH_CUDA(context, delayed_scale_update, args);

  float* const amax = args.amax.as<float>();
  if (args.skip == nullptr || *args.skip == 0) {
    float* const history = args.history.as<float>();
    int32_t& position = *args.position.as<int32_t>();
    const int64_t len = args.history.dim(0);
    for (int64_t i = 0; i < n; ++i) {
      history[position * n + i] = std::isfinite(amax[i]) ? amax[i] : 0.0f;
      float reference = amax[i];
      if (args.compute == AmaxAlgo::max) {
        reference = 0.0f;
        for (int64_t row = 0; row < len; ++row) reference = std::max(reference, history[row * n + i]);
      }
      float& scale = args.scale.as<float>()[i];
      scale = scale_of(reference, args.fp8_max.as<float>()[i], std::ldexp(1.0f, -args.margin), scale);
    }
    position = static_cast<int32_t>((position + 1) % len);
  }
  std::fill(amax, amax + n, 0.0f);
}

void current_scale(const Context& context, const CurrentScale& args) {
  const char* op = "current_scale";
  check_dtype(op, "amax", args.amax, DType::f32);
  check_dtype(op, "scale", args.scale, DType::f32);
  TE_CHECK(args.scale.numel() == args.amax.numel(), "{}: scale has {} elements, but amax has {}", op,
           args.scale.numel(), args.amax.numel());
  TE_DISPATCH_CUDA(context, current_scale, args);
  for (int64_t i = 0; i < args.amax.numel(); ++i)
    args.scale.as<float>()[i] = group_scale(args.amax.as<float>()[i], args.fp8_max,
                                            std::ldexp(1.0f, -args.margin), args.power_of_two);
}

void current_scales(const Context& context, const CurrentScales& args) {
  const char* op = "current_scales";
  const int64_t n = args.amax.numel();
  check_dtype(op, "amax", args.amax, DType::f32);
  check_dtype(op, "fp8_max", args.fp8_max, DType::f32);
  check_dtype(op, "power_of_two", args.power_of_two, DType::u8);
  check_dtype(op, "scale", args.scale, DType::f32);
  TE_CHECK(args.fp8_max.numel() == n && args.power_of_two.numel() == n && args.scale.numel() == n,
           "{}: fp8_max, power_of_two and scale must have as many elements as amax ({})", op, n);
  TE_DISPATCH_CUDA(context, current_scales, args);
  for (int64_t i = 0; i < n; ++i)
    args.scale.as<float>()[i] =
        group_scale(args.amax.as<float>()[i], args.fp8_max.as<float>()[i], std::ldexp(1.0f, -args.margin),
                    args.power_of_two.as<uint8_t>()[i] != 0);
}

void record_current_scale(const Context& context, const RecordCurrentScale& args) {
  TE_CHECK(args.found_amax && args.found_scale, "record_current_scale: amax and scale are required");
  TE_DISPATCH_CUDA(context, record_current_scale, args);
  if (args.amax) *args.amax = amax_of(*args.amax, *args.found_amax);
  if (args.current_amax) *args.current_amax = *args.found_amax;
  if (args.scale) *args.scale = *args.found_scale;
  if (args.scale_inv) *args.scale_inv = 1.0f / *args.found_scale;
}

}  // namespace te::kernels
