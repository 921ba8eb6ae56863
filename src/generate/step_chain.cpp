#include "generate/step_chain.h"

#include <algorithm>

namespace te::generate {

void StepChain::plan(MemoryPlan& plan) {
  plan.add(barrier_, "step_chain.barrier", MemoryKind::scratch, DType::i32, {1});
}

// Launches in front of each attention, and behind the last; empty: not all of them are possible.
std::vector<kernels::GemmChain> StepChain::chains_of(const Context& context,
                                                     const std::deque<model::TransformerLayer>& layers,
                                                     const ChainedHead& head,
                                                     const model::LayerActivations& a) const {
  std::vector<kernels::GemmChain> chains(1);
  // What the layer below has left joins the stream.
  const auto joined = [&](kernels::ChainedGemm gemm) {
    gemm.x = a.x_mid;
    gemm.norm.delta = a.delta, gemm.norm.sum = a.x_in;
    return gemm;
  };
  for (const model::TransformerLayer& layer : layers) {
    auto all = layer.chained();
    if (!all) return {};
    // 1. The stream.
    const bool first = chains.size() == 1;
    all->qkv.x = a.x_in;
    all->qkv.out = a.attention.qkv;
    chains.back().gemms.push_back(first ? all->qkv : joined(all->qkv));
    // 2. Attention. 3. Its output does, 4. and the MLP's.
    all->proj.x = a.attention.proj_input.high_precision;
    all->proj.out = a.delta;
    all->fc1.x = a.x_in;
    all->fc1.norm.delta = a.delta;
    all->fc1.norm.sum = a.x_mid;
    all->fc1.out = all->fc2.x = a.mlp.fc2_input.high_precision;
    all->fc2.out = a.delta;
    chains.push_back({.gemms = {all->proj, all->fc1, all->fc2}, .barrier = barrier_});
  }
  chains.front().barrier = barrier_;
  kernels::ChainedGemm logits = head.output.chained_logits();
  logits.norm = head.norm.chained();
  logits.out = head.logits;
  chains.back().gemms.push_back(joined(logits));
  const bool possible = std::all_of(chains.begin(), chains.end(), [&](const kernels::GemmChain& chain) {
    return kernels::has_gemm_chain(context, chain);
  });
  return possible ? chains : std::vector<kernels::GemmChain>{};
}

}  // namespace te::generate
