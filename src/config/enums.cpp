// The YAML names of the enums' values. The index of a name is its value.
#include "config/config.h"

namespace te::config {

TE_DEFINE_NAMES(Family, "gpt", "llama")
TE_DEFINE_NAMES(ComputeDType, "bf16", "fp32", "fp16")
TE_DEFINE_NAMES(GradDType, "bf16", "fp32")
TE_DEFINE_NAMES(Fp8Mode, "off", "e4m3", "hybrid")
TE_DEFINE_NAMES(Fp8Recipe, "delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4")
TE_DEFINE_NAMES(Fp8ScaleFormat, "power_of_two", "fp32")
TE_DEFINE_NAMES(Fp8KeptWeights, "auto", "none", "rowwise", "both")
TE_DEFINE_NAMES(Recompute, "none", "selective", "full")
TE_DEFINE_NAMES(LossSpikes, "off", "warn", "skip", "rollback")
TE_DEFINE_NAMES(GuardAction, "warn", "bf16", "rollback")
TE_DEFINE_NAMES(DeviceChoice, "auto", "cpu", "cuda")
TE_DEFINE_NAMES(LrDecay, "cosine", "linear", "constant", "wsd")
TE_DEFINE_NAMES(PositionEmbedding, "auto", "learned", "rope")
TE_DEFINE_NAMES(Activation, "auto", "swiglu", "gelu", "gelu_exact", "relu", "silu", "geglu", "relu2")
TE_DEFINE_NAMES(MoeScoreFunction, "softmax", "sigmoid")
TE_DEFINE_NAMES(MoeLoadBalancing, "aux_loss", "seq_aux_loss", "global_aux_loss")
TE_DEFINE_NAMES(QkNorm, "none", "head", "projection", "head_no_gain")
TE_DEFINE_NAMES(NormPlacement, "pre", "post", "both")
TE_DEFINE_NAMES(OptimizerName, "adamw", "muon")
TE_DEFINE_NAMES(MomentDType, "fp32", "bf16", "fp8")
TE_DEFINE_NAMES(Offload, "none", "moments", "state")
TE_DEFINE_NAMES(AdapterType, "none", "lora")
TE_DEFINE_NAMES(AdapterInit, "default", "gaussian")
TE_DEFINE_NAMES(DataFormat, "pretrain", "instruct")
TE_DEFINE_NAMES(Overlong, "truncate", "drop")
TE_DEFINE_NAMES(Shard, "optimizer", "gradients", "parameters")
TE_DEFINE_NAMES(Transport, "auto", "nccl", "copy")

}  // namespace te::config
