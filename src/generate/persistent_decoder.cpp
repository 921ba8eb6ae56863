#include "generate/persistent_decoder.h"

#include <algorithm>

namespace te::generate {

void PersistentDecoder::plan(MemoryPlan& plan) {
  plan.add(barrier_, "decode_megakernel.barrier", MemoryKind::scratch, DType::i32, {1});
}

// The megakernels before each attention and after the last one; empty if one of them is not supported.
std::vector<kernels::DecodeMegakernel> PersistentDecoder::megakernels_of(
    const Context& context, const std::deque<model::TransformerLayer>& layers,
    const MegakernelOutputLayer& output_layer, const std::deque<model::LayerActivations>& activations) const {
  std::vector<kernels::DecodeMegakernel> megakernels(1);
  const model::LayerActivations& a = activations.front();
  // Adds the output of the previous layer to the residual stream.
  const auto with_residual = [&](kernels::MegakernelGemm gemm) {
    gemm.x = a.x_mid;
    gemm.norm.delta = a.delta, gemm.norm.sum = a.x_in;
    return gemm;
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    auto all = layers[i].megakernel_gemms(activations[i]);
    if (!all) return {};
    // 1. Norm of the residual stream and linear_qkv.
    all->qkv.x = a.x_in;
    all->qkv.out = a.attention.qkv;
    megakernels.back().gemms.push_back(i == 0 ? all->qkv : with_residual(all->qkv));
    // 2. Attention (not in a megakernel). 3. linear_proj. 4. MLP, whose norm adds the output of linear_proj.
    all->proj.x = a.attention.proj_input.high_precision;
    all->proj.out = a.delta;
    all->fc1.x = a.x_in;
    all->fc1.norm.delta = a.delta;
    all->fc1.norm.sum = a.x_mid;
    all->fc2.out = a.delta;
    megakernels.push_back({.gemms = {all->proj, all->fc1, all->fc2}, .barrier = barrier_});
  }
  megakernels.front().barrier = barrier_;
  kernels::MegakernelGemm logits = output_layer.output.megakernel_logits();
  logits.norm = output_layer.norm.megakernel_norm();
  logits.out = output_layer.logits;
  megakernels.back().gemms.push_back(with_residual(logits));
  const bool possible = std::ranges::all_of(megakernels, [&](const kernels::DecodeMegakernel& megakernel) {
    return kernels::has_decode_megakernel(context, megakernel);
  });
  return possible ? megakernels : std::vector<kernels::DecodeMegakernel>{};
}

bool PersistentDecoder::forward(const Context& context, const std::deque<model::TransformerLayer>& layers,
                                const MegakernelOutputLayer& output_layer,
                                std::deque<model::LayerActivations>& activations,
                                const model::Pass& pass) const {
  const std::vector<kernels::DecodeMegakernel> megakernels =
      megakernels_of(context, layers, output_layer, activations);
  if (megakernels.empty()) return false;
  for (size_t i = 0; i < layers.size(); ++i) {
    kernels::decode_megakernel(context, megakernels[i]);
    layers[i].attend(context, activations[i], pass);
  }
  kernels::decode_megakernel(context, megakernels.back());
  ++passes_;
  return true;
}

}  // namespace te::generate
