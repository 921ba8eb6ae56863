#include "generate/persistent_decoder.h"

#include <algorithm>

namespace te::generate {

void PersistentDecoder::plan(MemoryPlan& plan) {
  plan.add(barrier_, "step_chain.barrier", MemoryKind::scratch, DType::i32, {1});
}

// Launches in front of each attention, and behind the last; empty: not all of them are possible.
std::vector<kernels::DecodeMegakernel> PersistentDecoder::megakernels_of(
    const Context& context, const std::deque<model::TransformerLayer>& layers, const MegakernelHead& head,
    const model::LayerActivations& a) const {
  std::vector<kernels::DecodeMegakernel> megakernels(1);
  // What the layer below has left joins the stream.
  const auto joined = [&](kernels::MegakernelGemm gemm) {
    gemm.x = a.x_mid;
    gemm.norm.delta = a.delta, gemm.norm.sum = a.x_in;
    return gemm;
  };
  for (const model::TransformerLayer& layer : layers) {
    auto all = layer.megakernel_gemms(a);
    if (!all) return {};
    // 1. The stream.
    const bool first = megakernels.size() == 1;
    all->qkv.x = a.x_in;
    all->qkv.out = a.attention.qkv;
    megakernels.back().gemms.push_back(first ? all->qkv : joined(all->qkv));
    // 2. Attention. 3. Its output does, 4. and the MLP's.
    all->proj.x = a.attention.proj_input.high_precision;
    all->proj.out = a.delta;
    all->fc1.x = a.x_in;
    all->fc1.norm.delta = a.delta;
    all->fc1.norm.sum = a.x_mid;
    all->fc2.out = a.delta;
    megakernels.push_back({.gemms = {all->proj, all->fc1, all->fc2}, .barrier = barrier_});
  }
  megakernels.front().barrier = barrier_;
  kernels::MegakernelGemm logits = head.output.megakernel_logits();
  logits.norm = head.norm.megakernel_norm();
  logits.out = head.logits;
  megakernels.back().gemms.push_back(joined(logits));
  const bool possible =
      std::all_of(megakernels.begin(), megakernels.end(), [&](const kernels::DecodeMegakernel& megakernel) {
        return kernels::has_decode_megakernel(context, megakernel);
      });
  return possible ? megakernels : std::vector<kernels::DecodeMegakernel>{};
}

}  // namespace te::generate
