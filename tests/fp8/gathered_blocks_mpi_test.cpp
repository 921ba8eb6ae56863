// Models of the recipe `blockwise` under sequence parallelism, whose tensor ranks exchange FP8 values with their scales:
// every loss, gradient and amax has the bits of a run that exchanges BF16 rows, and the plan takes no more memory.
#include <cmath>

#include "core/profile.h"
#include "core/random.h"
#include "fp8/recipes.h"
#include "model/model_stage.h"
#include "model/tiny_model.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using config::Family;
using config::Recompute;
using model::StageSlots;
using parallel::Groups;
using parallel::ProcessGrid;

/// The same casts, of what has travelled in BF16.
class CastsAllTokens final : public fp8::GroupRecipe {
 public:
  CastsAllTokens(const config::PrecisionConfig& precision, int layers) : GroupRecipe(precision, layers) {}
  const char* name() const override { return "blockwise"; }
  kernels::ScaleLayout scale_layout(fp8::OperandRole role) const override {
    return fp8::layout_of(config::Fp8Recipe::blockwise, role);
  }
};

struct Layout {
  std::string name;
  Family family = Family::gpt;
  Recompute recompute = Recompute::none;
  int pieces = 1;
  bool copies = false;
  bool deferred = false;  ///< weight gradients are put off
  bool bias = false;      ///< llama: of qkv
  bool both = false;      ///< the second microbatch is one of high precision
  int64_t hidden = 64, heads = 4;
  config::Fp8ScaleFormat scales = config::Fp8ScaleFormat::power_of_two;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

constexpr int64_t kSeq = 128;

/// A run of a rank's tokens is one block of 128, or with one piece two.
config::Config config_of(const Layout& layout, int ranks) {
  config::Config config = tiny_config(layout.family);
  config.model.hidden_size = layout.hidden;
  config.model.ffn_hidden_size = 2 * layout.hidden;
  config.model.num_attention_heads = config.model.num_query_groups = layout.heads;
  config.model.kv_channels = layout.hidden / layout.heads;
  config.model.seq_length = config.model.max_position_embeddings = kSeq;
  config.model.add_qkv_bias = config.model.add_qkv_bias || layout.bias;
  config.model.make_vocab_size_divisible_by = 64;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = config::Fp8Recipe::blockwise;
  config.precision.fp8_scale_format = layout.scales;
  config.parallel.tensor = ranks;
  config.parallel.sequence = true;
  config.parallel.tensor_overlap = layout.pieces;
  if (layout.copies) config.parallel.tensor_transport = config::TensorTransport::copy;
  config.training.recompute = layout.recompute;
  config.training.micro_batch_size = config.training.global_batch_size = 2 * ranks;
  config::resolve_defaults(config);
  config::validate(config);
  return config;
}

/// Bytes that the tensor ranks gather.
class Gathers final : public OpObserver {
 public:
  Gathers() { install(this); }
  ~Gathers() override { install(nullptr); }
  Gathers(const Gathers&) = delete;
  void begin(const Context& /*context*/, OpCall call) override {
    if (call.group == "tensor" && std::string_view(call.name) == "all_gather")
      bytes += static_cast<int64_t>(call.cost.bytes);
  }
  void end(const Context& /*context*/) override {}
  int64_t bytes = 0;
};

struct Trace {
  std::vector<float> loss;
  std::vector<float> gradients, amax;
  float evaluated = 0;
  int64_t training_bytes = 0, evaluation_bytes = 0;
};

class Model {
 public:
  Model(const config::Config& config, const Layout& layout, const Groups& groups,
        std::unique_ptr<fp8::Recipe> recipe)
      : config_(config),
        both_(layout.both),
        place_{.wgrad_slot = layout.deferred ? 0 : -1},
        stage_(config, groups, std::move(recipe)),
        optimizer_({.optimizer = config.optimizer, .parallel = config.parallel, .seed = 1},
                   stage_.parameters(), groups) {
    if (both_) stage_.recipe().keep_high_precision();
    stage_.plan(plan_, context_, {.wgrad = layout.deferred ? 1 : 0});
    optimizer_.plan(plan_);
    const int64_t tokens = stage_.dims().tokens;
    plan_.add(tokens_, "tokens", MemoryKind::data, DType::i32, {tokens});
    plan_.add(targets_, "targets", MemoryKind::data, DType::i32, {tokens});
    plan_.add(loss_, "loss", MemoryKind::data, DType::f32, {1});
  }
  int64_t planned() const { return plan_.total_bytes(); }

  Trace run() {
    memory_ = plan_.allocate(context_);
    stage_.bind(context_);
    optimizer_.bind(context_);
    stage_.initialize(context_, 1);
    context_.fill_bytes(stage_.parameters().grads, 0xff);
    optimizer_.begin_step(context_);
    Trace trace;
    for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
      set_high_precision(both_ && microbatch == 1);
      const Gathers gathers;
      forward_backward(microbatch);
      trace.loss.push_back(loss_.as<float>()[0]);
      if (microbatch == 0) trace.training_bytes = gathers.bytes;
    }
    set_high_precision(false);
    stage_.recipe().update(context_, nullptr);
    const auto floats = [](const Tensor& tensor) {
      return std::vector<float>(tensor.as<float>(), tensor.as<float>() + tensor.numel());
    };
    trace.gradients = floats(stage_.parameters().grads);
    trace.amax = floats(stage_.recipe().table().last_amax);
    const Gathers gathers;
    context_.zero(loss_);
    stage_.evaluate(context_, tokens_, targets_, loss_);
    trace.evaluated = loss_.as<float>()[0];
    trace.evaluation_bytes = gathers.bytes;
    return trace;
  }

 private:
  void set_high_precision(bool on) {
    stage_.recipe().set_high_precision(on);
    stage_.quantize_weights(context_);
  }
  /// Scratch is overwritten outside its lifetime.
  void forward_backward(uint64_t microbatch) {
    const auto vocab = static_cast<uint32_t>(config_.model.vocab_size);
    for (int64_t i = 0; i < tokens_.numel(); ++i) {
      const Philox4 random = philox(microbatch, 99, static_cast<uint64_t>(i));
      tokens_.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % vocab);
      targets_.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % vocab);
    }
    model::Pass pass;
    pass.on_step = [this](const Context& context, model::Step step) {
      plan_.enter(context, static_cast<int>(step));
    };
    context_.zero(loss_);
    const float scale = 1.0f / static_cast<float>(tokens_.numel());
    stage_.forward(context_, place_, tokens_, targets_, scale, loss_, {}, pass);
    stage_.backward(context_, place_, tokens_, pass);
    if (place_.wgrad_slot >= 0) stage_.wgrad(context_, place_, pass);
  }

  config::Config config_;
  bool both_;
  Context context_ = Context::cpu();
  model::MicrobatchSlot place_;
  model::ModelStage stage_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  Tensor tokens_, targets_, loss_;
};

std::unique_ptr<fp8::Recipe> casts_all_tokens(const config::Config& config) {
  return std::make_unique<CastsAllTokens>(config.precision, static_cast<int>(config.model.num_layers));
}

class GatheredBlocks : public ::testing::TestWithParam<Layout> {};

TEST_P(GatheredBlocks, HaveTheBitsOfBf16Rows) {
  const Layout& layout = GetParam();
  const int ranks = world().size();
  const config::Config config = config_of(layout, ranks);
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(ranks, ranks, 1, 1),
                                        {.tensor_copies = layout.copies});
  Model in_fp8(config, layout, groups, nullptr), in_bf16(config, layout, groups, casts_all_tokens(config));
  EXPECT_LE(in_fp8.planned(), in_bf16.planned());
  const Trace with = in_fp8.run(), without = in_bf16.run();
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.evaluated, without.evaluated);
  EXPECT_EQ(with.amax, without.amax);
  EXPECT_TRUE(with.gradients == without.gradients);
  for (const float gradient : with.gradients) ASSERT_TRUE(std::isfinite(gradient));
  // A layer gathers the inputs of qkv and fc1, and the gradients of the outputs of proj and fc2. In BF16 two bytes a
  // value, each time that a pass makes it; in FP8 a byte and the scales, for each form that is read.
  const int64_t tokens = config.training.micro_batch_size * kSeq, values = tokens * layout.hidden;
  const int64_t rowwise = values + (layout.hidden + 127) / 128 * tokens * 4,
                columnwise = values + values / 32;
  const bool remade = layout.recompute != Recompute::none, whole = layout.recompute == Recompute::full;
  const int64_t fp8 = 4 * (rowwise + columnwise) + (whole ? 2 * rowwise : 0),
                bf16 = 2 * values * (remade ? 6 : 4);
  EXPECT_EQ(with.training_bytes - without.training_bytes, config.model.num_layers * (fp8 - bf16));
  EXPECT_EQ(with.evaluation_bytes - without.evaluation_bytes,
            config.model.num_layers * (2 * rowwise - 4 * values));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GatheredBlocks,
    ::testing::Values(Layout{.name = "gpt"}, Layout{.name = "llama", .family = Family::llama, .pieces = 2},
                      Layout{.name = "gpt_selective", .recompute = Recompute::selective, .pieces = 2},
                      Layout{.name = "llama_selective_bias",
                             .family = Family::llama,
                             .recompute = Recompute::selective,
                             .bias = true,
                             .scales = config::Fp8ScaleFormat::fp32},
                      Layout{.name = "gpt_full", .recompute = Recompute::full, .pieces = 2},
                      Layout{.name = "llama_wide", .family = Family::llama, .hidden = 192},
                      Layout{.name = "gpt_deferred", .pieces = 2, .deferred = true},
                      Layout{.name = "llama_deferred", .family = Family::llama, .deferred = true},
                      Layout{.name = "gpt_both", .pieces = 2, .both = true},
                      Layout{.name = "llama_both_selective_copies",
                             .family = Family::llama,
                             .recompute = Recompute::selective,
                             .copies = true,
                             .both = true},
                      Layout{.name = "gpt_copies", .pieces = 2, .copies = true},
                      Layout{.name = "llama_copies_selective",
                             .family = Family::llama,
                             .recompute = Recompute::selective,
                             .copies = true},
                      Layout{.name = "llama_copies_deferred",
                             .family = Family::llama,
                             .pieces = 4,
                             .copies = true,
                             .deferred = true}),
    [](const auto& info) { return info.param.name; });

// Layers as large as real ones, of any number of ranks: planned by one.
TEST(GatheredBlocksOf, ManyRanksTakeNoMoreMemory) {
  if (world().size() != 2) GTEST_SKIP() << "the plan does not depend on the job";
  for (const int ranks : {2, 4, 8})
    for (const Family family : {Family::gpt, Family::llama})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        for (const bool deferred : {false, true})
          for (const bool both : {false, true}) {
            if (deferred && recompute != Recompute::none) continue;
            const Layout layout{.family = family,
                                .recompute = recompute,
                                .deferred = deferred,
                                .both = both,
                                .hidden = 4096,
                                .heads = 32};
            config::Config config = config_of(layout, ranks);
            config.model.seq_length = config.model.max_position_embeddings = 4096;
            const Groups groups = Groups::planned(ProcessGrid::of(ranks, ranks, 1, 1), 0);
            SCOPED_TRACE(fmt::format("{} ranks, recompute {}, deferred {}, both precisions {}", ranks,
                                     static_cast<int>(recompute), deferred, both));
            const int64_t in_fp8 = Model(config, layout, groups, nullptr).planned(),
                          in_bf16 = Model(config, layout, groups, casts_all_tokens(config)).planned();
            EXPECT_LE(in_fp8, in_bf16 - (both ? 0 : 1));
          }
}

}  // namespace
}  // namespace te::testing
