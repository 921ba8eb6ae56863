// optimizer.offload on a GPU, where copies overlap with passes and updates: a chunk that is used before it has arrived,
// or whose slot is refilled before it is written back, would change losses and the state.
#include <gtest/gtest.h>

#include <vector>

#include "layout_cases.h"
#include "testing/gpu_supports.h"
#include "testing/testing.h"
#include "train/execution.h"
#include "train/state_copy.h"
#include "train/step_runner.h"

namespace te::testing {
namespace {

using config::MomentDType;
using config::Offload;

/// 18 million parameters in chunks of a megabyte each, so that copies take some time.
config::Config offloading_config(Offload offload, MomentDType moments, bool remainders, Precision precision) {
  config::Config config = make_config({.family = Family::llama, .precision = precision, .layers = 2});
  config::ModelConfig& m = config.model;
  m.hidden_size = 1024, m.ffn_hidden_size = 2048, m.num_attention_heads = 8, m.num_query_groups = 8;
  m.kv_channels = 128;
  m.seq_length = m.max_position_embeddings = 256;
  m.init_method_std = 0.02;
  config.optimizer.lr = 2e-4, config.optimizer.min_lr = 0;
  config.optimizer.offload = offload;
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = moments;
  config.optimizer.store_param_remainders = remainders;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
  config.training.global_batch_size = 2 * config.training.micro_batch_size;
  return config;
}

/// Results of a run: losses and norms, then the bytes of BF16 weights, FP32 master weights and Adam moments.
struct Left {
  std::vector<float> trace;
  std::vector<std::vector<uint8_t>> state;
};

/// Runs consecutive steps; in the middle the state is copied, two steps are taken, and it is restored, as by the guard.
Left run(const config::Config& config) {
  const Context context = Context::cuda(0, train::execution_options(config));
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  // As a checkpoint load does.
  context.fill_bytes(runner.optimizer().exp_avg.values, 0x3c);
  runner.optimizer().exp_avg.zero(context);
  train::HostBatch batch = runner.make_host_batch();
  const int64_t seq = config.model.seq_length, global = config.training.global_batch_size;
  batch.counted = global * seq;
  for (int64_t i = 0; i < global * seq; ++i) {
    const Philox4 random = philox(3, 1, static_cast<uint64_t>(i));
    batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % config.model.vocab_size);
    batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % config.model.vocab_size);
  }
  Left left;
  const auto take = [&](int64_t step) {
    runner.launch(batch, step, (step - 1) * global, false);
    context.synchronize();
    const optim::StepStatus status = runner.optimizer().status();
    left.trace.insert(left.trace.end(), {status.loss_sum, status.grad_norm});
    runner.optimizer().finish_step(status.skipped != 0);
  };
  train::StateCopy copy(context, runner);
  for (int64_t step = 1; step <= 4; ++step) take(step);
  copy.save({});
  take(5), take(6);
  copy.restore();
  for (int64_t step = 5; step <= 8; ++step) take(step);
  EXPECT_EQ(std::vector(left.trace.begin() + 8, left.trace.begin() + 12),
            std::vector(left.trace.begin() + 12, left.trace.begin() + 16));
  runner.optimizer().wait_offload();
  const optim::Optimizer& optimizer = runner.optimizer();
  for (const Tensor& tensor : std::initializer_list<Tensor>{
           runner.model().parameters().values, runner.model().parameters().mains, optimizer.exp_avg.values,
           optimizer.exp_avg.exponents, optimizer.exp_avg_sq.values, optimizer.exp_avg_sq.exponents}) {
    std::vector<uint8_t>& bytes = left.state.emplace_back(tensor.bytes());
    context.copy_to_host(bytes.data(), tensor);
    context.synchronize();
  }
  return left;
}

class OffloadGpu : public ::testing::TestWithParam<Precision> {};

TEST_P(OffloadGpu, ChangesNoBit) {
  TE_REQUIRE_GPU();
  if (!gpu_supports(offloading_config(Offload::none, MomentDType::fp32, false, GetParam())))
    GTEST_SKIP() << "this GPU has no FP8";
  for (const MomentDType moments : {MomentDType::fp32, MomentDType::bf16, MomentDType::fp8}) {
    for (const bool remainders : {false, true}) {
      SCOPED_TRACE(fmt::format("moments {}, remainders {}", config::to_string(moments), remainders));
      // Without offload, values that no pass reads are not kept, so only `remainders` compares those.
      const Left expected = run(offloading_config(Offload::none, moments, remainders, GetParam()));
      for (const Offload offload : {Offload::moments, Offload::state}) {
        const Left actual = run(offloading_config(offload, moments, remainders, GetParam()));
        EXPECT_EQ(actual.trace, expected.trace) << config::to_string(offload);
        for (size_t i = 0; i < expected.state.size(); ++i) {
          const bool dropped = i == 0 && expected.state[0].size() != actual.state[0].size();
          EXPECT_TRUE(dropped || actual.state[i] == expected.state[i])
              << config::to_string(offload) << " " << i;
          EXPECT_TRUE(!dropped || (offload == Offload::state && !remainders));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, OffloadGpu, ::testing::Values(Precision::bf16_wide, Precision::delayed));

}  // namespace
}  // namespace te::testing
