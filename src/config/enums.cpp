// The YAML names of the enums' values. The index of a name is its value.
#include "config/enums.h"

#include <algorithm>
#include <array>

namespace te::config {

namespace {

template <class Enum>
bool find_name(std::string_view text, Enum& value) {
  const auto names = names_of(Enum{});
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return false;
  value = static_cast<Enum>(found - names.begin());
  return true;
}

}  // namespace

#define TE_CONFIG_ENUM(Enum, ...)                                                 \
  std::span<const std::string_view> names_of(Enum) {                              \
    static constexpr auto names = std::to_array<std::string_view>({__VA_ARGS__}); \
    return names;                                                                 \
  }                                                                               \
  std::string_view to_string(Enum value) {                                        \
    return names_of(value)[static_cast<size_t>(value)];                           \
  }                                                                               \
  bool from_string(std::string_view text, Enum& value) {                          \
    return find_name(text, value);                                                \
  }

TE_CONFIG_ENUM(Family, "gpt", "llama")
TE_CONFIG_ENUM(ComputeDType, "bf16", "fp32", "fp16")
TE_CONFIG_ENUM(GradDType, "bf16", "fp32")
TE_CONFIG_ENUM(Fp8Mode, "off", "e4m3", "hybrid")
TE_CONFIG_ENUM(Fp8Recipe, "delayed", "tensorwise", "rowwise", "blockwise")
TE_CONFIG_ENUM(Fp8ScaleFormat, "power_of_two", "fp32")
TE_CONFIG_ENUM(Fp8KeptWeights, "auto", "none", "rowwise", "both")
TE_CONFIG_ENUM(AmaxAlgo, "max", "most_recent")
TE_CONFIG_ENUM(Recompute, "none", "selective", "full")
TE_CONFIG_ENUM(GemmAutotune, "off", "cached", "on", "full")
TE_CONFIG_ENUM(LossSpikes, "off", "warn", "skip", "rollback")
TE_CONFIG_ENUM(GuardAction, "warn", "bf16", "rollback")
TE_CONFIG_ENUM(DeviceChoice, "auto", "cpu", "cuda")
TE_CONFIG_ENUM(LrDecay, "cosine", "linear", "constant", "wsd")
TE_CONFIG_ENUM(RopeScaling, "none", "linear", "llama3", "yarn")
TE_CONFIG_ENUM(PositionEmbedding, "auto", "learned", "rope")
TE_CONFIG_ENUM(Activation, "auto", "swiglu", "gelu", "gelu_exact", "relu", "silu", "geglu")
TE_CONFIG_ENUM(QkNorm, "none", "head", "projection")
TE_CONFIG_ENUM(NormPlacement, "pre", "post", "both")
TE_CONFIG_ENUM(OptimizerName, "adamw", "muon")
TE_CONFIG_ENUM(MomentDType, "fp32", "bf16", "fp8")
TE_CONFIG_ENUM(Offload, "none", "moments", "state")
TE_CONFIG_ENUM(DataFormat, "pretrain", "instruct")
TE_CONFIG_ENUM(Overlong, "truncate", "drop")
TE_CONFIG_ENUM(Shard, "optimizer", "gradients", "parameters")
TE_CONFIG_ENUM(Transport, "nccl", "copy")
TE_CONFIG_ENUM(PipelineSchedule, "gpipe", "1f1b", "interleaved", "zero_bubble")

#undef TE_CONFIG_ENUM

}  // namespace te::config
