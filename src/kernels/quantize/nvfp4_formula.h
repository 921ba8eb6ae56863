// Values and scales of NVFP4, shared by both backends (quantize_nvfp4.h). No sum of a product, so bitwise equal.
#pragma once

#include "core/random.h"
#include "kernels/quantize/small_float.h"

namespace te::kernels {

/// The largest value: 6 (E2M1) times the largest scale of a group, 448 (E4M3).
constexpr float kNvfp4Max = 6.0f * 448.0f;

/// The scales of a tensor, from its amax.
struct Nvfp4Tensor {
  float decode;      ///< reciprocal of the tensor's encoding scale, in the formula of a group's
  float multiplier;  ///< from a group's amax to its scale
};
TE_HOST_DEVICE Nvfp4Tensor nvfp4_tensor(float amax, int margin) {
  const float quotient = kNvfp4Max / (margin == 0 ? amax : ldexpf(amax, margin));  // infinite for 0
  const float encode = quotient > FLT_MAX ? FLT_MAX : quotient == 0.0f ? 1.0f : quotient;
  return {1.0f / encode, encode * (1.0f / 6.0f)};
}

/// The factor of a tensor's values in a GEMM.
TE_HOST_DEVICE float nvfp4_factor(float amax, int margin) {
  return (margin == 0 ? amax : ldexpf(amax, margin)) / kNvfp4Max;
}

/// a * b, rounded before it enters a sum.
TE_HOST_DEVICE float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// The scale of a group (an E4M3 number) and the factor with which its values are encoded.
struct Nvfp4Group {
  float scale, encode;
};
TE_HOST_DEVICE Nvfp4Group nvfp4_group(uint32_t amax_bits, const Nvfp4Tensor& tensor) {
  const float scale =
      round_to_format(std::bit_cast<float>(amax_bits) * tensor.multiplier, small_float(DType::e4m3));
  const float encode = 1.0f / (scale * tensor.decode);
  return {scale, encode < FLT_MAX ? encode : FLT_MAX};
}

struct Nvfp4Value {
  float code;      ///< E2M1 number; of NaN 0
  float value;     ///< E2M1 number times the scale of the group
  bool saturated;  ///< from 7 on. The group's scale is rounded, so its amax is up to 6.4, which rounds to 6
  bool flushed;
};
/// With `word`, random bits, the value is rounded up or down with probabilities that preserve its mean.
TE_HOST_DEVICE Nvfp4Value nvfp4_value(float x, const Nvfp4Group& group, const uint32_t* word) {
  if (x != x) return {0.0f, std::bit_cast<float>(0x7fffffffu), false, false};
  const SmallFloat format = small_float(DType::e2m1);
  const float scaled = x * group.encode, magnitude = fabsf(scaled);
  float q = round_to_format(scaled, format);
  if (word != nullptr && magnitude < format.largest) {
    const float step = step_at(magnitude, format), steps = magnitude / step, low = floorf(steps);
    const float random = static_cast<float>(*word >> 8) * (1.0f / 16777216.0f);
    q = copysignf((steps - low > random ? low + 1.0f : low) * step, x);
  }
  return {q, q * group.scale, fabsf(x) <= FLT_MAX && magnitude > 7.0f, x != 0.0f && q == 0.0f};
}

/// The code of an E2M1 number: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 with its sign.
TE_HOST_DEVICE uint32_t e2m1_code(float number) {
  const float m = fabsf(number), code = m < 2.0f ? 2.0f * m : m < 4.0f ? m + 2.0f : 0.5f * m + 4.0f;
  return static_cast<uint32_t>(code) | (std::bit_cast<uint32_t>(number) >> 28 & 8u);
}
TE_HOST_DEVICE float e2m1_value(uint32_t code) {
  const auto c = static_cast<float>(code & 7u);
  const float magnitude = c < 4.0f ? 0.5f * c : c < 6.0f ? c - 2.0f : 2.0f * c - 8.0f;
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// Random bits of the value at an index of a layout.
TE_HOST_DEVICE uint32_t nvfp4_random(uint64_t seed, uint64_t stream, bool columnwise, uint64_t index) {
  const Philox4 random = philox(seed, stream + (columnwise ? 1 : 0), index / 4);
  const uint32_t low = (index & 1) != 0 ? random.word[1] : random.word[0];
  const uint32_t high = (index & 1) != 0 ? random.word[3] : random.word[2];
  return (index & 2) != 0 ? high : low;
}

/// Signs of the random Hadamard transform, bit i for value i of a group: Transformer Engine's.
constexpr uint32_t kNvfp4Signs = 0xd7e8u;  // 1 is minus
TE_HOST_DEVICE float nvfp4_sign(int i) {
  return (kNvfp4Signs >> i & 1u) != 0 ? -1.0f : 1.0f;
}

}  // namespace te::kernels
