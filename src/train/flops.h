// FLOPs of a training step, for TFLOP/s and MFU in the logs.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace te::train {

/// Forward and backward FLOPs per token: 6 x parameters of the GEMMs (layers and output layer, without the input
/// embedding) plus causal attention, 6 x layers x seq x heads x head_dim: half of the full score and value GEMMs. With
/// a sliding window w < seq, w (2 seq - w) / seq replaces seq.
double flops_per_token(const config::ModelConfig& model);
/// Of a run: weights that are not trained have no wgrad, a third of their FLOPs; an adapter adds its own.
double flops_per_token(const config::Config& config);

}  // namespace te::train
