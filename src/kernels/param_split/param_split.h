// FP32 master weights split into the BF16 weight that the model reads and a 16-bit remainder. If the model has BF16
// weights anyway, master weights then need 2 instead of 4 bytes per parameter. (Like `store_param_remainders` in
// NVIDIA's Apex and Transformer Engine.)
//
//   value      master weight rounded to nearest even
//   remainder  lower 16 bits of the master weight; if it is 0x8000 or more, the value was rounded away from zero, so
//   the
//              upper half of the master weight is value - 1
// One case is not representable: a master weight exactly half way that is rounded towards zero. It is stored as the
// next number towards zero (lower half 0x7fff), an error of one unit in the last place of FP32 in one of 131,072
// roundings. All other numbers are exact, so a checkpoint of joined parameters restores them bit for bit.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/random.h"
#include "core/tensor.h"

namespace te::kernels {

/// Bits of a BF16 weight and of its remainder.
struct SplitFloat {
  uint16_t value;
  uint16_t remainder;
};

/// bits: bits of a finite FP32 number.
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
/// Computes value and remainder from main_param.
void split_params(const Context& context, const ParamSplit& args);

/// The same in host memory, and its inverse; `value` holds BF16 bits.
void split_params_on_host(const float* main_param, int64_t count, uint16_t* value, uint16_t* remainder);
void join_params_on_host(const uint16_t* value, const uint16_t* remainder, int64_t count, float* main_param);

#ifdef TE_WITH_CUDA
namespace cuda {
void split_params(const Context& context, const ParamSplit& args);
}
#endif

}  // namespace te::kernels
