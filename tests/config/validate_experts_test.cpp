// Invalid keys of mixtures of experts, and features that do not support them.
#include "config_testing.h"

namespace te::config {
namespace {

TEST(Validate, Experts) {
  const std::vector<std::string> experts = {"model.num_moe_experts=8", "model.ffn_hidden_size=32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), experts.begin(), experts.end());
    return more;
  };
  EXPECT_EQ(small(experts).model.moe_ffn_hidden_size, 32);
  EXPECT_EQ(small(with({"model.moe_ffn_hidden_size=16"})).model.moe_ffn_hidden_size, 16);
  expect_rejected(with({"model.moe_router_topk=9"}),
                  {"model.moe_router_topk (9) is above model.num_moe_experts (8)"});
  expect_rejected(with({"model.first_k_dense=100"}),
                  {"model.first_k_dense (100) must be below model.num_layers"});
  small(with({"model.moe_layer_freq=100"}));
  expect_rejected(with({"model.moe_layer_freq=2", "model.first_k_dense=1"}),
                  {"model.moe_layer_freq (2) and model.first_k_dense (1) give none of the 2 layers experts"});
  expect_rejected(with({"model.moe_router_num_groups=3"}),
                  {"not a multiple of model.moe_router_num_groups (3)"});
  expect_rejected(with({"model.moe_router_num_groups=4", "model.moe_router_group_topk=5"}),
                  {"model.moe_router_group_topk (5) must be at most moe_router_num_groups (4)"});
  expect_rejected(with({"model.moe_shared_expert_gate=true"}), {"needs a shared expert"});
  expect_rejected(with({"model.add_mlp_bias=true"}), {"cannot be combined with model.num_moe_experts"});
  for (const char* given :
       {"moe_router_topk=1", "moe_ffn_hidden_size=16", "moe_shared_expert_intermediate_size=16",
        "moe_shared_expert_gate=true", "moe_layer_freq=2", "first_k_dense=1",
        "moe_router_score_function=sigmoid", "moe_router_norm_topk_prob=false",
        "moe_router_topk_scaling_factor=2", "moe_router_num_groups=2", "moe_router_group_topk=2",
        "moe_router_load_balancing_type=seq_aux_loss", "moe_router_force_load_balancing=true",
        "moe_aux_loss_coeff=0.1", "moe_z_loss_coeff=0.1", "moe_router_enable_expert_bias=true",
        "moe_router_bias_update_rate=0.1"})
    expect_rejected({std::string("model.") + given}, {"set model.num_moe_experts"});
  const std::string bias = "model.moe_router_enable_expert_bias=true";
  small(with({bias, "optimizer.offload=moments"}));
  expect_rejected(with({bias, "optimizer.offload=state"}),
                  {"cannot be combined with optimizer.offload state"});
  expect_rejected(with({bias, "optimizer.store_param_remainders=true"}),
                  {"cannot be combined with optimizer.store_param_remainders"});
  small(with({"precision.fp8=hybrid"}));
  expect_rejected(with({"precision.fp8=hybrid", "model.moe_ffn_hidden_size=24"}),
                  {"model.moe_ffn_hidden_size = 24 (1 * 16 + 8); the nearest are 16 and 32"});
  expect_rejected(with({"precision.fp8=hybrid", "precision.fp8_recipe=rowwise"}),
                  {"rowwise cannot be combined with model.num_moe_experts (layer 0, linear_fc1)"});
  small(with({"precision.fp8=hybrid", "precision.fp8_recipe=rowwise",
              "precision.overrides=linear_fc1, linear_fc2: bf16"}));
  expect_rejected(
      with({"precision.fp8=hybrid", "precision.fp8_recipe=blockwise"}),
      {"linear_fc1 of an expert has 64 (2 x model.moe_ffn_hidden_size): change it to a multiple of 64"});
  expect_rejected(with({"parallel.tensor=2"}),
                  {"parallel.tensor (2) without sequence parallelism", "set parallel.sequence to true"});
  const std::vector<std::string> tensor{"parallel.tensor=2", "parallel.sequence=true",
                                        "training.micro_batch_size=2",
                                        "model.moe_router_load_balancing_type=seq_aux_loss"};
  expect_rejected(with(tensor), {"seq_aux_loss with parallel.tensor (2)", "micro_batch_size (2) to 1"});
  small(with({"parallel.pipeline=2", "parallel.schedule=zero_bubble"}));
  expect_rejected(
      with({"parallel.pipeline=2", "parallel.schedule=zero_bubble", "parallel.shard=gradients"}),
      {"zero_bubble and parallel.shard gradients cannot be combined", "parallel.shard to optimizer"});
  const Config four = small(with({"parallel.expert=4", "parallel.pipeline=2"}));
  EXPECT_EQ(four.parallel.model_ranks(), 8);
  EXPECT_EQ(four.parallel.intended_ranks(), 8);
  expect_rejected({"parallel.expert=2"}, {"parallel.expert (2) is for mixtures of experts"});
  expect_rejected(with({"parallel.expert=3"}),
                  {"model.num_moe_experts (8) is not a multiple of parallel.expert (3)"});
  expect_rejected(with({"parallel.moe_dispatch_factor=3"}),
                  {"parallel.moe_dispatch_factor (3) is for parallel.expert above 1"});
  expect_rejected(with({"parallel.expert=2", "logging.generate_every=5"}),
                  {"logging.generate_every (5) needs all experts on a rank, but parallel.expert is 2"});
  expect_rejected(with({"parallel.expert=2", "evaluation.every=5"}),
                  {"evaluation.every (5) needs all experts on a rank"});
}

}  // namespace
}  // namespace te::config
