// FLOPs of a model's training step: what TFLOP/s and MFU in the logs mean.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace te::train {

/// Forward and backward FLOPs of one token: 6 x parameters of the GEMMs (layers and head, the input
/// embedding not counted) plus causal attention, 6 x layers x seq x heads x head_dim (half of the full score
/// and value GEMMs; with a sliding window w < seq, w (2 seq - w) / seq in place of seq).
double flops_per_token(const config::ModelConfig& model);

/// Dense BF16 peak of an H100 or H200 SXM, FLOP/s: the denominator of MFU (NVIDIA's datasheet).
constexpr double kHopperBf16Peak = 989.4e12;

}  // namespace te::train
