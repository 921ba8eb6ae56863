// FP32 main parameters in two halves: the BF16 value that the model reads, and the 16 bits that it lacks. A model that
// holds BF16 values anyway then needs 2 bytes per parameter for its main parameters instead of 4. (The idea is that of
// `store_param_remainders` in NVIDIA's Apex and Transformer Engine.)
//
//   value      main parameter rounded to nearest, ties to even, as everywhere
//   remainder  the lower 16 bits of the main parameter; from 0x8000 on the value was rounded away from zero, so the
//              main parameter's upper half is value - 1
// One case does not fit: exactly half way and rounded towards zero. It is stored as the next number towards zero (lower
// half 0x7fff): one unit in the last place of FP32, in one of 131,072 roundings. All else is exact, so that a
// checkpoint of joined parameters comes back bit for bit.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/random.h"
#include "core/tensor.h"

namespace te::kernels {

/// Bits of a BF16 value and of its remainder.
struct SplitFloat {
  uint16_t value;
  uint16_t remainder;
};

/// bits: of a finite FP32 number.
TE_HOST_DEVICE SplitFloat split_float(uint32_t bits) {
  const uint32_t upper = bits >> 16, lower = bits & 0xffffu;
  if (lower == 0x8000u && (upper & 1u) == 0) return {static_cast<uint16_t>(upper), 0x7fff};
  return {static_cast<uint16_t>(upper + (lower >> 15)), static_cast<uint16_t>(lower)};
}
TE_HOST_DEVICE uint32_t join_float(SplitFloat split) {
  return (uint32_t{split.value} - (split.remainder >> 15)) << 16 | split.remainder;
}

struct ParamSplit {
  Tensor main_param;  ///< fp32 [n]
  Tensor value;       ///< bf16 [n]
  Tensor remainder;   ///< u16 [n]
};
/// value and remainder from main_param.
void split_params(const Context& context, const ParamSplit& args);

/// The same on host memory, and its inverse; `value` holds bits of BF16.
void split_params_on_host(const float* main_param, int64_t count, uint16_t* value, uint16_t* remainder);
void join_params_on_host(const uint16_t* value, const uint16_t* remainder, int64_t count, float* main_param);

#ifdef TE_WITH_CUDA
namespace cuda {
void split_params(const Context& context, const ParamSplit& args);
}
#endif

}  // namespace te::kernels
