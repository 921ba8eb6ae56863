// A run resumes with another parallel layout than the one that saved it, as a user does it, with mpirun. Checkpoints
// have matrices divided into rows and columns (tensor parallelism), layers divided into stages (pipeline), and moments
// sharded across data-parallel ranks.
//
// With the same layout the resumed run is bitwise equal to an uninterrupted one. With another layout it starts from
// bitwise the same state, so that only the summation order differs:
//
// FP32. layout_mpi_test.cpp derives bounds of 2e-6 for losses (the log has seven digits) and 5e-5 for FP32 master
//   weights; 3e-7 was measured here in weights and moments.
// BF16 with FP8. Two layouts differ like two samples of the rounding error (layout_mpi_test.cpp). The bounds are about
//   ten times the measured values: 3e-5 in losses, 3e-2 in weights and moments. For comparison, dropping the moments
//   changes the losses by 3e-3. The amax histories of 8 steps still have entries from before the checkpoint, which are
//   bitwise equal.
#include <cmath>

#include "checkpoint/reader.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::operator+;
using testing::Overrides;
using testing::Result;
using testing::TrainFolder;
constexpr int64_t kSavedStep = 3, kLastStep = 6;

struct Layout {
  const char* name;
  int ranks;
  Overrides overrides;
};
const Layout kOne = {"one", 1, {}};
const Layout kTensor = {"tp2", 2, {"parallel.tensor=2"}};
const Layout kContext = {"cp2", 2, {"parallel.context=2", "parallel.bucket_size=1000"}};
const Layout kPipeline = {"pp2", 2, {"parallel.pipeline=2", "parallel.schedule=zero_bubble"}};

struct ReshardingCase {
  const char* name;
  Overrides overrides;
  Layout saved;
  std::vector<Layout> others;
  double loss;   ///< largest relative difference of a loss
  double state;  ///< of a parameter or moment, in the Euclidean norm
};
const ReshardingCase kFp32 = {
    "fp32",
    {"precision.dtype=fp32"},
    {"tp2_dp2", 4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.bucket_size=1000"}},
    {kOne, kPipeline, kContext},
    2e-6,
    5e-5};
/// Norm weights that tensor-parallel ranks shard are saved as one tensor.
const ReshardingCase kOlmo2 = {
    "olmo2",
    {"precision.dtype=fp32", "model.qk_norm=projection", "model.norm_placement=post"},
    {"tp2_dp2", 4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.bucket_size=1000"}},
    {kOne, kTensor, kPipeline},
    2e-6,
    5e-5};
/// Stages with another split hold other layers, in full.
const Layout kFirstHeavy = {"pp2_split", 2, {"parallel.pipeline=2", "parallel.pipeline_split=3,1"}};
const Layout kBalanced = {"pp2_balanced", 2, {"parallel.pipeline=2", "parallel.pipeline_split=balanced"}};
const ReshardingCase kSplit = {"split",
                               {"precision.dtype=fp32", "model.num_layers=4"},
                               {"pp2_last_heavy", 2, {"parallel.pipeline=2", "parallel.pipeline_split=1,3"}},
                               {kOne, kPipeline, kFirstHeavy, kBalanced},
                               2e-6,
                               5e-5};
/// Stages with several runs of layers.
const Layout kChunks = {
    "pp2_chunks", 2, {"parallel.pipeline=2", "parallel.schedule=zero_bubble", "parallel.virtual_stages=2"}};
const Layout kInterleaved = {
    "pp2_interleaved",
    2,
    {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"}};
const ReshardingCase kVirtualStages = {"virtual_stages",
                                       {"precision.dtype=fp32", "model.num_layers=4"},
                                       kChunks,
                                       {kOne, kPipeline, kInterleaved},
                                       2e-6,
                                       5e-5};
/// All-to-all of heads on two ranks, and all-gather of keys and values on four.
const ReshardingCase kContextFp32 = {"context",
                                     {"precision.dtype=fp32"},
                                     {"cp4_keys", 4, {"parallel.context=4", "parallel.bucket_size=1000"}},
                                     {kOne, kContext},
                                     2e-6,
                                     5e-5};
const ReshardingCase kContextFp8 = {
    "context_fp8",
    {"precision.fp8=hybrid", "precision.amax_history_len=8", "model.seq_length=32"},
    {"cp2_tp2_keys", 4, {"parallel.context=2", "parallel.tensor=2", "parallel.sequence=true"}},
    {kOne, kContext},
    3e-4,
    0.25};
const ReshardingCase kFp8 = {"fp8",
                             {"precision.fp8=hybrid", "precision.amax_history_len=8"},
                             {"dp2_pp2", 4, {"parallel.pipeline=2", "parallel.bucket_size=1000"}},
                             {kOne, kTensor},
                             3e-4,
                             0.25};

const ReshardingCase kMuon = {
    "muon",
    {"precision.dtype=fp32", "optimizer.name=muon"},
    {"tp2_dp2", 4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.bucket_size=1000"}},
    {kOne, kPipeline, {"dp2_parameters", 2, {"parallel.bucket_size=1000", "parallel.shard=parameters"}}},
    2e-6,
    5e-5};

/// State sharded across data-parallel ranks (parallel.shard), saved with one setting and read with the others.
const Layout kShardedOptimizer = {"dp2_optimizer", 2, {"parallel.bucket_size=1000"}};
const Layout kShardedGradients = {
    "dp2_gradients", 2, {"parallel.bucket_size=1000", "parallel.shard=gradients"}};
const Layout kShardedParameters = {
    "dp2_parameters", 2, {"parallel.bucket_size=1000", "parallel.shard=parameters"}};
const ReshardingCase kSharded = {"sharded",
                                 {"precision.dtype=fp32"},
                                 kShardedParameters,
                                 {kOne, kShardedGradients, kShardedOptimizer},
                                 2e-6,
                                 5e-5};
const ReshardingCase kShardedFp8 = {"sharded_fp8",
                                    {"precision.fp8=hybrid", "precision.amax_history_len=8"},
                                    kShardedOptimizer,
                                    {kShardedGradients, kShardedParameters},
                                    3e-4,
                                    0.25};

/// Experts divided across ranks, also by received rows in several rounds.
const Overrides kEightExperts = {"model.num_moe_experts=8", "model.moe_ffn_hidden_size=32",
                                 "model.moe_shared_expert_intermediate_size=16",
                                 "model.moe_aux_loss_coeff=0.01", "model.moe_router_enable_expert_bias=true"};
const Layout kExpertRanks = {
    "ep4", 4, {"parallel.expert=4", "parallel.moe_dispatch_factor=0.5", "parallel.bucket_size=1000"}};
const Layout kExpertAndDataRanks = {
    "ep2_dp4", 4, {"parallel.expert=2", "parallel.shard=parameters", "parallel.bucket_size=1000"}};
const Layout kExpertAndTensorRanks = {
    "ep2_tp2_dp2",
    4,
    {"parallel.expert=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.bucket_size=1000"}};
const ReshardingCase kExperts = {"experts",    kEightExperts + Overrides{"precision.dtype=fp32"},
                                 kExpertRanks, {kOne, kExpertAndDataRanks, kExpertAndTensorRanks},
                                 2e-6,         5e-5};
const ReshardingCase kTensorExperts = {"tensor_experts",
                                       kEightExperts + Overrides{"precision.dtype=fp32"},
                                       kExpertAndTensorRanks,
                                       {kOne, kExpertRanks},
                                       2e-6,
                                       5e-5};
const ReshardingCase kExpertsOfOneRank = {
    "experts_of_one", kEightExperts + Overrides{"precision.dtype=fp32"}, kOne, {kExpertRanks}, 2e-6, 5e-5};
const ReshardingCase kExpertsFp8 = {
    "experts_fp8", kEightExperts + Overrides{"precision.fp8=hybrid", "precision.amax_history_len=8"},
    kExpertRanks,  {kOne, kExpertAndDataRanks},
    3e-4,          0.25};
const ReshardingCase kTensorExpertsFp8 = {
    "tensor_experts_fp8",
    kEightExperts + Overrides{"precision.dtype=fp32", "precision.fp8=hybrid", "precision.amax_history_len=8"},
    kExpertAndTensorRanks,
    {kOne, kExpertRanks},
    3e-4,
    0.25};

/// Adapters of all linears; the base is added by the test.
const ReshardingCase kAdapters = {"adapters_of_experts",
                                  kEightExperts + Overrides{"precision.dtype=fp32", "adapter.type=lora",
                                                            "adapter.rank=8", "adapter.dropout=0.1"},
                                  kExpertRanks,
                                  {kOne, kExpertAndDataRanks, kExpertAndTensorRanks},
                                  2e-6,
                                  5e-5};

class Resharding : public ::testing::Test {
 protected:
  Resharding() {
    folder_.write_config(
        "base",
        "model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 64,\n"
        "        num_attention_heads: 4, num_query_groups: 2, vocab_size: 257, seq_length: 16}\n"
        "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 6, device: cpu}\n"
        "optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, decay_steps: 6}\n"
        "data: {train: " +
            (folder_ / "train") + "}\n");
  }
  /// Trains to the last step; the others start from the checkpoint of the run "whole".
  void run(const ReshardingCase& c, const Layout& layout, const std::string& name, const Overrides& more) {
    folder_.use_ranks(layout.ranks);
    const Result result = folder_.run(name, layout.overrides + c.overrides + more);
    ASSERT_EQ(result.code, 0) << name << ": " << result.error;
  }
  Overrides resumed(const std::string& run = "whole") const {
    return {"checkpoint.resume=" + folder_.checkpoint(run, kSavedStep)};
  }
  /// The largest relative difference between the losses of the steps after the checkpoint.
  double loss_difference(const std::string& a, const std::string& b) const {
    const std::vector<double> left = losses(a), right = losses(b);
    EXPECT_EQ(left.size(), static_cast<size_t>(kLastStep - kSavedStep)) << a;
    EXPECT_EQ(left.size(), right.size()) << b;
    double largest = 0;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i)
      largest = std::max(largest, std::abs(left[i] - right[i]) / std::abs(right[i]));
    return largest;
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(losses(a), losses(b));
    EXPECT_EQ(folder_.checkpoint_bytes(a, kLastStep), folder_.checkpoint_bytes(b, kLastStep));
  }
  void resumes_with_any_layout(const ReshardingCase& c);
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> result;
    for (const auto& row : folder_.csv(run))
      if (std::stoll(row.at("step")) > kSavedStep) result.push_back(std::stod(row.at("loss")));
    return result;
  }

  TrainFolder folder_;
};

/// The largest relative difference of a tensor, in the Euclidean norm, between two checkpoints.
double state_difference(const checkpoint::Reader& a, const checkpoint::Reader& b) {
  EXPECT_EQ(a.tensors().size(), b.tensors().size());
  double largest = 0;
  for (const checkpoint::LogicalTensor& tensor : a.tensors()) {
    std::vector<float> left(static_cast<size_t>(tensor.numel())), right(left.size());
    a.read_rows(tensor.name, 0, tensor.rows(), left.data());
    b.read_rows(tensor.name, 0, tensor.rows(), right.data());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      difference += (left[i] - right[i]) * (left[i] - right[i]);
      norm += right[i] * right[i];
    }
    if (tensor.is_moment() && tensor.name.ends_with("router.bias")) {  // it has no gradient
      EXPECT_EQ(difference, 0);
      continue;
    }
    EXPECT_GT(norm, 0) << tensor.name;
    largest = std::max(largest, std::sqrt(difference / norm));
  }
  return largest;
}

/// History entries from before the checkpoint are bitwise equal, later ones about the same size.
void expect_same_histories(const checkpoint::Fp8State& a, const checkpoint::Fp8State& b) {
  ASSERT_EQ(a.rows.size(), b.rows.size());
  ASSERT_EQ(a.history_len, 8);
  EXPECT_EQ(a.position, b.position);
  std::map<std::string, const checkpoint::Fp8State::Row*> rows;
  for (const auto& row : b.rows) rows[row.operand.name + " " + row.operand.role] = &row;
  for (const auto& row : a.rows) {
    const std::string name = row.operand.name + " " + row.operand.role;
    ASSERT_TRUE(rows.contains(name)) << name;
    int later = 0;
    for (size_t at = 0; at < 8; ++at) {
      const float left = row.history[at], right = rows[name]->history[at];
      later += left != right;
      EXPECT_NEAR(left, right, 0.5f * right) << name << " " << at;
    }
    EXPECT_LE(later, kLastStep - kSavedStep) << name;
  }
}

void Resharding::resumes_with_any_layout(const ReshardingCase& c) {
  run(c, c.saved, "whole", {"checkpoint.save_every=3"});
  run(c, c.saved, "same", resumed());
  expect_same_run("same", "whole");
  const checkpoint::Reader whole(folder_.checkpoint("whole", kLastStep));
  const bool fp8 = &c == &kFp8 || &c == &kContextFp8 || &c == &kShardedFp8 || &c == &kExpertsFp8 ||
                   &c == &kTensorExpertsFp8;
  EXPECT_EQ(whole.fp8().rows.empty(), !fp8);
  for (const Layout& layout : c.others) {
    SCOPED_TRACE(layout.name);
    run(c, layout, layout.name, resumed());
    const double loss = loss_difference(layout.name, "whole");
    EXPECT_LT(loss, c.loss);
    const checkpoint::Reader reader(folder_.checkpoint(layout.name, kLastStep));
    const double state = state_difference(reader, whole);
    EXPECT_LT(state, c.state);
    checkpoint::Progress progress = reader.progress();
    // Recorded per run folder, where this run has saved only once.
    progress.checkpoints = whole.progress().checkpoints;
    const std::vector<double> expected = whole.progress().spikes.accepted;
    ASSERT_EQ(progress.spikes.accepted.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(progress.spikes.accepted[i], expected[i], c.loss * expected[i]) << i;
    progress.spikes.accepted = expected;
    EXPECT_EQ(progress, whole.progress());
    if (fp8) expect_same_histories(reader.fp8(), whole.fp8());
    std::printf("%s %s: losses differ by %.1e, state by %.1e\n", c.name, layout.name, loss, state);
  }
}

TEST_F(Resharding, Fp8ResumesWithAnyLayout) {
  resumes_with_any_layout(kFp8);
}

// The last stage has no history, so it saves no scales, which a layout with all layers in one table does not need.
TEST_F(Resharding, StagesWithoutAHistoryResumeWithAnyLayout) {
  ReshardingCase c = kFp8;
  c.overrides.push_back("precision.overrides=layers -1: tensorwise");
  run(c, kPipeline, "whole", {"checkpoint.save_every=3"});
  for (const Layout& layout : {kOne, kTensor}) {
    SCOPED_TRACE(layout.name);
    run(c, layout, layout.name, resumed());
    EXPECT_LT(loss_difference(layout.name, "whole"), c.loss);
  }
}

// Sanitizers make these jobs ten times slower; the test above runs the same code.
#ifndef __SANITIZE_ADDRESS__
TEST_F(Resharding, Fp32ResumesWithAnyLayout) {
  resumes_with_any_layout(kFp32);
}

TEST_F(Resharding, ExpertsResumeOnAnyRanks) {
  resumes_with_any_layout(kExperts);
}

TEST_F(Resharding, AdaptersOfExpertsResumeOnAnyRanks) {
  run(kExperts, kOne, "weights", {"training.train_steps=3"});
  ReshardingCase c = kAdapters;
  c.overrides.push_back("checkpoint.init_from=" + folder_.checkpoint("weights", kSavedStep));
  resumes_with_any_layout(c);
}

TEST_F(Resharding, ExpertsOfTensorParallelRanksResumeOnAnyRanks) {
  resumes_with_any_layout(kTensorExperts);
}

TEST_F(Resharding, Fp8ExpertsOfTensorParallelRanksResumeOnAnyRanks) {
  resumes_with_any_layout(kTensorExpertsFp8);
}

TEST_F(Resharding, ExpertsOfOneRankResumeOnSeveral) {
  resumes_with_any_layout(kExpertsOfOneRank);
}

TEST_F(Resharding, ExpertsWithFp8ResumeOnAnyRanks) {
  resumes_with_any_layout(kExpertsFp8);
}

TEST_F(Resharding, StagesResumeWithAnySplit) {
  resumes_with_any_layout(kSplit);
}

TEST_F(Resharding, VirtualStagesResumeWithAnyOthers) {
  resumes_with_any_layout(kVirtualStages);
}

TEST_F(Resharding, MuonResumesWithAnyLayout) {
  resumes_with_any_layout(kMuon);
}

TEST_F(Resharding, ShardedNormsResumeWithAnyLayout) {
  resumes_with_any_layout(kOlmo2);
}

TEST_F(Resharding, ContextParallelismResumesWithAnyLayout) {
  resumes_with_any_layout(kContextFp32);
}

TEST_F(Resharding, ContextParallelismWithFp8ResumesWithAnyLayout) {
  resumes_with_any_layout(kContextFp8);
}

TEST_F(Resharding, ShardedParametersResumeWithAnySetting) {
  resumes_with_any_layout(kSharded);
}

TEST_F(Resharding, ShardedParametersWithFp8ResumeWithAnySetting) {
  resumes_with_any_layout(kShardedFp8);
}

// Not saving the moments equals not loading them, with any layout.
TEST_F(Resharding, WithoutTheOptimizer) {
  run(kFp32, kOne, "whole", {"checkpoint.save_every=3"});
  run(kFp32, kOne, "weights", {"training.train_steps=3", "checkpoint.save_optimizer=false"});
  EXPECT_FALSE(checkpoint::Reader(folder_.checkpoint("weights", kSavedStep)).has_optimizer());
  run(kFp32, kOne, "left", resumed() + Overrides{"checkpoint.load_optimizer=false"});
  run(kFp32, kOne, "out", resumed("weights"));
  expect_same_run("left", "out");
  run(kFp32, kTensor, "tp2", resumed("weights"));
  EXPECT_LT(loss_difference("tp2", "left"), kFp32.loss);
  // The bounds of the other tests would detect missing moments.
  EXPECT_GT(loss_difference("left", "whole"), 3 * kFp8.loss);
}
#endif

}  // namespace
}  // namespace te
