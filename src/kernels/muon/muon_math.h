// Arithmetic of muon.h, shared by the CPU reference and the CUDA kernels. Every multiply-add is written as fmaf, so the
// compiler has nothing to contract.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "kernels/muon/muon.h"
#include "kernels/param_split/param_split.h"

namespace te::kernels {

/// Added to a matrix norm before dividing by it, as published.
constexpr float kMuonEpsilon = 1e-7f;

TE_HOST_DEVICE float muon_momentum_element(float decay, bool nesterov, float gradient, float& momentum) {
  momentum = fmaf(decay, momentum, gradient);
  return nesterov ? fmaf(decay, momentum, gradient) : momentum;
}

TE_HOST_DEVICE float muon_update_element(float decay, float step_size, float orthogonal, float param) {
  return param - fmaf(decay, param, step_size * orthogonal);
}

struct MuonConstants {
  float decay;      ///< lr * weight_decay
  float step_size;  ///< lr * scale
};
inline MuonConstants muon_constants(const MuonUpdate& args) {
  const double lr = args.lr;
  return {static_cast<float>(lr * static_cast<double>(args.weight_decay)),
          static_cast<float>(lr * args.scale)};
}

/// muon_update_element() for an FP32 master weight that is stored as a BF16 weight and a 16-bit remainder.
TE_HOST_DEVICE SplitFloat muon_update_split(float decay, float step_size, float orthogonal,
                                            SplitFloat split) {
  const float param = std::bit_cast<float>(join_float(split));
  return split_float(std::bit_cast<uint32_t>(muon_update_element(decay, step_size, orthogonal, param)));
}

#ifdef TE_WITH_CUDA
namespace cuda {
void muon_momentum(const Context& context, const MuonMomentum& args);
void muon_place(const Context& context, const MuonPlace& args);
void muon_normalize(const Context& context, const MuonNormalize& args);
void muon_combine(const Context& context, const MuonCombine& args);
void muon_update(const Context& context, const MuonUpdate& args);
}  // namespace cuda
#endif

}  // namespace te::kernels
