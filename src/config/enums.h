// Names of the enums' values, for code that handles all enums in the same way. Private to this folder.
#pragma once

#include <span>

#include "config/config.h"

namespace te::config {

/// Names in the order of the values.
std::span<const std::string_view> names_of(Family);
std::span<const std::string_view> names_of(ComputeDType);
std::span<const std::string_view> names_of(GradDType);
std::span<const std::string_view> names_of(Fp8Mode);
std::span<const std::string_view> names_of(Fp8Recipe);
std::span<const std::string_view> names_of(Fp8ScaleFormat);
std::span<const std::string_view> names_of(Fp8KeptWeights);
std::span<const std::string_view> names_of(AmaxAlgo);
std::span<const std::string_view> names_of(Recompute);
std::span<const std::string_view> names_of(GemmAutotune);
std::span<const std::string_view> names_of(LossSpikes);
std::span<const std::string_view> names_of(GuardAction);
std::span<const std::string_view> names_of(DeviceChoice);
std::span<const std::string_view> names_of(LrDecay);
std::span<const std::string_view> names_of(RopeScaling);
std::span<const std::string_view> names_of(PositionEmbedding);
std::span<const std::string_view> names_of(Activation);
std::span<const std::string_view> names_of(QkNorm);
std::span<const std::string_view> names_of(NormPlacement);
std::span<const std::string_view> names_of(OptimizerName);
std::span<const std::string_view> names_of(MomentDType);
std::span<const std::string_view> names_of(Offload);
std::span<const std::string_view> names_of(DataFormat);
std::span<const std::string_view> names_of(Overlong);
std::span<const std::string_view> names_of(Shard);
std::span<const std::string_view> names_of(Transport);
std::span<const std::string_view> names_of(PipelineSchedule);

}  // namespace te::config
