// CUDA launchers of the mixture-of-experts ops.
#pragma once

#include "kernels/moe/capacity.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/moe/router.h"
#include "kernels/moe/router_gemm.h"
#include "kernels/moe/send_fp8.h"

namespace te::kernels::cuda {

void router_gemm(const Context& context, const RouterGemm& args);
void router_gemm_backward(const Context& context, const RouterGemmBackward& args);
void router_forward(const Context& context, const RouterForward& args);
void router_statistics(const Context& context, const RouterStatistics& args);
void router_balance(const Context& context, const RouterBalance& args);
void router_backward(const Context& context, const RouterBackward& args);
void router_bias_update(const Context& context, const RouterBiasUpdate& args);
void expert_rows(const Context& context, const ExpertRows& args);
void limit_experts(const Context& context, const LimitExperts& args);
void token_ranks(const Context& context, const TokenRanks& args);
void token_slots(const Context& context, const TokenSlots& args);
void dispatch_rows(const Context& context, const DispatchRows& args);
void gather_values(const Context& context, const GatherValues& args);
void permute(const Context& context, const Permute& args);
void unpermute(const Context& context, const Unpermute& args);
void expert_gate_backward(const Context& context, const ExpertGateBackward& args);
void expert_activation(const Context& context, const ExpertActivation& args);
void expert_activation_backward(const Context& context, const ExpertActivationBackward& args);
/// With quantization in the same pass. False, and nothing done, if dtypes, shapes, activation or scaling do not suit.
bool expert_activation_fp8(const Context& context, const ExpertActivation& args);
bool expert_activation_backward_fp8(const Context& context, const ExpertActivationBackward& args);
bool expert_activation_groups(const Context& context, const ExpertActivation& args);
bool expert_activation_backward_groups(const Context& context, const ExpertActivationBackward& args);
void quantize_experts(const Context& context, const QuantizeExperts& args);
void count_quantized_experts(const Context& context, const CountQuantizedExperts& args);
void sent_ranges(const Context& context, const SentRanges& args);
void sent_amax(const Context& context, const SentAmax& args);
void finalize_expert_scales(const Context& context, const FinalizeExpertScales& args);
void quantize_sent(const Context& context, const QuantizeSent& args);
void order_received(const Context& context, const OrderReceived& args);
void count_sent(const Context& context, const CountSent& args);
void grouped_gemm(const Context& context, const GroupedGemm& args);
void grouped_wgrad(const Context& context, const GroupedWgrad& args);
/// With tensor cores; only for DeviceCaps::hopper_kernels. False, and nothing done, if the operands are not BF16 or
/// FP8, or their shapes do not suit.
bool grouped_gemm_hopper(const Context& context, const GroupedGemm& args);
bool grouped_wgrad_hopper(const Context& context, const GroupedWgrad& args);
bool grouped_gemm_fp8_hopper(const Context& context, const GroupedGemm& args);
/// GEMMs in BF16 on tensor cores, as above, of one expert with all rows: out (+)= a * b^T, or a * b without trans_b, a
/// [rows, k], out [rows, n]; and sums over parts of `part` rows: out [parts * m, n] fp32 (+)= a^T * b, a [rows, m], b
/// [rows, n].
bool dense_gemm_hopper(const Context& context, const Tensor& a, const Tensor& b, bool trans_b,
                       const Tensor& out, bool accumulate);
bool dense_wgrad_hopper(const Context& context, const Tensor& a, const Tensor& b, int64_t part,
                        const Tensor& out, bool accumulate);
bool grouped_wgrad_fp8_hopper(const Context& context, const GroupedWgrad& args);

}  // namespace te::kernels::cuda
