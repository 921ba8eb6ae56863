// Invalid combinations of keys, each with the keys and the arithmetic in its message.
#include "config_testing.h"

namespace te::config {
namespace {

TEST(Validate, AcceptsTheSmallConfigOnEveryDevice) {
  small();
  small({"training.device=cuda"});
  small({"precision.fp8=hybrid"});
  small({"precision.fp8=e4m3", "precision.dtype=fp32", "training.device=cpu"});
}

TEST(Validate, IntendedRanks) {
  EXPECT_EQ(small().parallel.intended_ranks(), 1);
  EXPECT_EQ(small({"parallel.tensor=2"}).parallel.intended_ranks(), 2);
  EXPECT_EQ(small({"parallel.ranks=4"}).parallel.intended_ranks(), 4);
  EXPECT_EQ(small({"parallel.ranks=3", "parallel.tensor=2"}).parallel.intended_ranks(),
            4);  // whole model replicas
  EXPECT_EQ(small({"parallel.ranks=1", "parallel.tensor=4"}).parallel.intended_ranks(), 4);
}

// A single given key is never refused because of the default of another one.
TEST(Defaults, FollowASingleGivenKey) {
  EXPECT_EQ(small().optimizer.min_lr, 3e-5);
  EXPECT_EQ(small({"optimizer.lr=2e-5"}).optimizer.min_lr, 2e-6);
  EXPECT_EQ(small({"optimizer.lr=6e-4"}).optimizer.min_lr, 6e-5);
  EXPECT_EQ(small({"optimizer.lr=6e-4", "optimizer.min_lr=0"}).optimizer.min_lr, 0.0);

  const std::string fp8 = "precision.fp8=hybrid";
  EXPECT_EQ(small({fp8, "guard.every=100"}).guard.compare_steps, 4);
  EXPECT_EQ(small({fp8, "guard.every=3"}).guard.compare_steps, 2);
  expect_rejected({fp8, "guard.every=3", "guard.compare_steps=3"}, {"guard.compare_steps (3) must be below"});
  expect_rejected({fp8, "guard.every=1"}, {"guard.every (1) leaves no step", "2 or more"});

  EXPECT_EQ(small({"model.num_moe_experts=8"}).model.moe_router_topk, 2);
  EXPECT_EQ(small({"model.num_moe_experts=1"}).model.moe_router_topk, 1);
  expect_rejected({"model.num_moe_experts=1", "model.moe_router_topk=2"},
                  {"model.moe_router_topk (2) is above"});

  const std::string stages = "parallel.pipeline=2", layers = "model.num_layers=4";
  EXPECT_EQ(small({stages, layers}).parallel.schedule, PipelineSchedule::one_f_one_b);
  EXPECT_EQ(small({stages, layers, "parallel.virtual_stages=2"}).parallel.schedule,
            PipelineSchedule::interleaved);
  EXPECT_EQ(small({stages, layers, "parallel.schedule=interleaved"}).parallel.virtual_stages, 2);
  EXPECT_EQ(small({stages, layers, "parallel.schedule=zero_bubble"}).parallel.virtual_stages, 1);
}

TEST(Validate, Heads) {
  expect_rejected(
      {"model.num_query_groups=3"},
      {"model.num_attention_heads (4) is not a multiple of model.num_query_groups (3): 1 remain"});
  expect_rejected(
      {"model.num_attention_heads=5"},
      {"model.hidden_size (64) is not a multiple of model.num_attention_heads (5): 4 remain", "kv_channels"});
  EXPECT_EQ(small({"model.num_attention_heads=5", "model.kv_channels=16"}).model.attention_width(), 80);
  expect_rejected({"model.kv_channels=15"}, {"model.kv_channels (15) must be even", "RoPE"});
}

TEST(Validate, Family) {
  const auto gpt = [](std::string extra) {
    return std::vector<std::string>{"model.family=gpt", std::move(extra)};
  };
  EXPECT_EQ(small(gpt("model.kv_channels=15")).model.kv_channels,
            15);  // no RoPE, and the CPU has no restriction
  EXPECT_EQ(small(gpt("model.attention_dropout=0.5")).model.attention_dropout, 0.5);
  expect_rejected(gpt("model.add_qkv_bias=true"), {"model.add_qkv_bias", "gpt has a bias in every linear"});
  expect_rejected(gpt("model.rope_theta=5e5"), {"model.rope_theta", "it is learned"});
  expect_rejected(gpt("model.rope_scaling={rope_type: linear, factor: 2}"),
                  {"model.rope_scaling is for model.position_embedding rope"});
  expect_rejected(gpt("model.add_mlp_bias=true"), {"model.add_mlp_bias", "gpt has a bias in every linear"});
  expect_rejected(gpt("model.qk_norm=head"), {"model.qk_norm is a key of model.family llama"});
  expect_rejected(gpt("model.norm_placement=post"), {"model.norm_placement is a key of model.family llama"});
  expect_rejected(gpt("model.swiglu_clamp=7"), {"model.swiglu_clamp (7) is for model.activation swiglu"});
  expect_rejected(gpt("model.activation=swiglu"), {"model.activation swiglu is not for model.family gpt"});
  expect_rejected({"model.activation=relu"}, {"model.activation relu is not for model.family llama"});
  expect_rejected({"model.activation=geglu", "model.swiglu_clamp=7"},
                  {"model.swiglu_clamp (7) is for model.activation swiglu, but it is geglu"});
  expect_rejected(gpt("model.activation=geglu"), {"model.activation geglu is not for model.family gpt"});
  EXPECT_EQ(small({"model.activation=relu2"}).model.fc1_width(), small().model.ffn_hidden_size);
  EXPECT_EQ(small(gpt("model.activation=relu2")).model.activation, ActivationKind::relu2);
  expect_rejected({"model.activation=relu2", "model.num_moe_experts=4"},
                  {"model.activation relu2 cannot be combined with model.num_moe_experts"});
  expect_rejected(gpt("model.norm_gain=false"), {"model.norm_gain is a key of model.family llama"});
  expect_rejected(gpt("model.embedding_norm=true"), {"model.embedding_norm is a key of model.family llama"});
  expect_rejected({"model.norm_gain=false", "model.layernorm_zero_centered_gamma=true"},
                  {"model.layernorm_zero_centered_gamma needs gains"});
  expect_rejected({"model.zero_init=[linear_qkv]"},
                  {"model.zero_init: \"linear_qkv\" is not linear_proj, linear_fc2 or output_layer"});
  expect_rejected(gpt("model.zero_init=[output_layer]"),
                  {"model.zero_init: output_layer shares the embedding's weights"});
  expect_rejected(gpt("model.norm_placement=both"), {"model.norm_placement is a key of model.family llama"});
  expect_rejected(gpt("model.scale_embedding=true"),
                  {"model.scale_embedding is a key of model.family llama"});
  expect_rejected(gpt("model.layernorm_zero_centered_gamma=true"),
                  {"model.layernorm_zero_centered_gamma is a key of model.family llama"});
  expect_rejected({"model.position_embedding=learned"}, {"llama uses rope"});
  expect_rejected(gpt("model.embedding_init_method_std=1"),
                  {"model.embedding_init_method_std (1) needs an untied embedding"});
  expect_rejected({"model.parallel_residual=true"}, {"model.parallel_residual is a key of model.family gpt"});
  expect_rejected({"model.rotary_percent=0.01"}, {"model.rotary_percent (0.01) leaves no pair"});
  expect_rejected({"model.hidden_dropout=0.1"}, {"model.hidden_dropout (0.1) must be 0"});
  EXPECT_EQ(small({"model.attention_dropout=0.1"}).model.attention_dropout, 0.1);
  expect_rejected(gpt("model.max_position_embeddings=31"),
                  {"model.max_position_embeddings (31) is below model.seq_length (32): the last 1"});
  EXPECT_NE(complaint("model: {family: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 4,\n"
                      "        vocab_size: 100, seq_length: 32}\n"
                      "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 100}\n")
                .find("the required key model.ffn_hidden_size is missing"),
            std::string::npos);
}

TEST(Validate, FamilyDefaults) {
  const Config gpt = small({"model.family=gpt", "model.hidden_dropout=0.2"}), llama = small();
  EXPECT_EQ(gpt.model.position_embedding, PositionEmbedding::learned);
  EXPECT_EQ(gpt.model.activation, ActivationKind::gelu);
  EXPECT_EQ(llama.model.position_embedding, PositionEmbedding::rope);
  EXPECT_EQ(llama.model.activation, ActivationKind::swiglu);
  const Config neox = small({"model.family=gpt", "model.position_embedding=rope", "model.rotary_percent=0.25",
                             "model.activation=relu"});
  EXPECT_EQ(neox.model.rotary_pairs(), 2);  // attention heads of width 16
  EXPECT_EQ(neox.model.activation, ActivationKind::relu);
}

// A window that is not shorter than the sequences has no effect.
TEST(Validate, SlidingWindow) {
  EXPECT_FALSE(small({"model.sliding_window=32"}).model.windowed());
  expect_rejected({"model.window_pattern=w f"},
                  {"model.window_pattern (\"w f\") needs model.sliding_window"});
  expect_rejected({"model.sliding_window=8", "model.window_pattern=7f w"},
                  {"model.window_pattern (\"7f w\") gives none of the 2 layers model.sliding_window (8)"});
  expect_rejected({"model.sliding_window=8", "model.window_pattern=w 2g"}, {"model.window_pattern \"w 2g\""});
  expect_rejected({"model.rope_local_theta=100"},
                  {"model.rope_local_theta (100) is for layers with a window"});
  expect_rejected({"model.family=gpt", "model.sliding_window=8", "model.rope_local_theta=100"},
                  {"model.rope_local_theta is for model.position_embedding rope"});
  EXPECT_EQ(small({"model.sliding_window=31"}).model.attention_span(), 31);
  small({"model.sliding_window=32", "model.attention_dropout=0.1", "training.device=cuda"});
  for (const char* device : {"training.device=cpu", "training.device=cuda"})
    small({"model.sliding_window=31", "model.attention_dropout=0.1", device});
}

TEST(Validate, Shard) {
  EXPECT_EQ(small().parallel.shard, Shard::optimizer);
  const Config sharded = small({"parallel.shard=parameters", "precision.fp8=hybrid"});
  EXPECT_EQ(fp8_kept_weights(sharded), Fp8KeptWeights::none);
  EXPECT_EQ(fp8_kept_weights(small({"parallel.shard=gradients", "precision.fp8=hybrid"})),
            Fp8KeptWeights::rowwise);
  small({"parallel.shard=parameters", "precision.fp8_keep_weights=both"});  // there are no FP8 weights
  expect_rejected({"parallel.shard=parameters", "precision.fp8=hybrid", "precision.fp8_keep_weights=rowwise"},
                  {"precision.fp8_keep_weights rowwise keeps", "leave fp8_keep_weights out",
                   "parallel.shard to gradients"});
  expect_rejected({"parallel.shard=parameters", "logging.generate_every=10", "data.tokenizer=t",
                   "logging.generate_prompts=[a]"},
                  {"logging.generate_every (10)", "set generate_every to 0", "parallel.shard to gradients"});
  expect_rejected({"parallel.shard=parameters", "evaluation.every=10", "evaluation.tasks=[piqa]",
                   "evaluation.data=d", "data.tokenizer=t"},
                  {"evaluation.every (10)", "set evaluation.every to 0", "parallel.shard to gradients"});
}

TEST(Validate, Batches) {
  expect_rejected(
      {"training.global_batch_size=9"},
      {"training.global_batch_size (9) is not a multiple of training.micro_batch_size (2): 1 remain"});
  expect_rejected({"training.micro_batch_size=4", "training.global_batch_size=2"},
                  {"(2) is not a multiple", "(4)"});
  expect_rejected(
      {"training.micro_batch_size=1000000", "training.global_batch_size=1000000", "model.seq_length=10000"},
      {"1000000 * 10000 = 10000000000 tokens", "below 2^31"});
  expect_rejected(
      {"training.global_batch_size=1000000", "model.seq_length=1000000", "training.train_steps=1000000000"},
      {"training.train_steps = 1000000 * 1000000 * 1000000000", "below 2^63"});
}

TEST(Validate, Fp8Dimensions) {
  const auto fp8 = [](std::vector<std::string> more) {
    more.push_back("precision.fp8=hybrid");
    return more;
  };
  expect_rejected(fp8({"model.ffn_hidden_size=100"}),
                  {"precision.fp8 hybrid needs", "multiples of 16",
                   "model.ffn_hidden_size = 100 (6 * 16 + 4)", "the nearest are 96 and 112"});
  expect_rejected(fp8({"model.ffn_hidden_size=112", "precision.overrides=linear_fc2: mxfp8"}),
                  {"recipe mxfp8 needs", "multiples of 32", "model.ffn_hidden_size = 112 (3 * 32 + 16)",
                   "the nearest are 96 and 128"});
  expect_rejected(fp8({"precision.nvfp4_parts=[blocks, rht]"}),
                  {"precision.nvfp4_parts", "rht", "is not blocks, hadamard or stochastic"});
  // With SwiGLU, linear_fc1 has valid 2 * 24 = 48 rows, but the 24 columns of linear_fc2 are not valid.
  expect_rejected(fp8({"model.ffn_hidden_size=24"}), {"model.ffn_hidden_size = 24"});
  expect_rejected(fp8({"model.hidden_size=72", "model.kv_channels=16"}), {"model.hidden_size = 72"});
  expect_rejected(fp8({"model.hidden_size=8", "model.kv_channels=16"}), {"the nearest is 16"});
  expect_rejected(fp8({"model.kv_channels=2"}),
                  {"model.num_attention_heads * model.kv_channels = 4 * 2 = 8 "});
  expect_rejected(fp8({"model.num_query_groups=1", "model.kv_channels=20"}),
                  {"width of linear_qkv", "(4 + 2 * 1) * 20 = 120 (7 * 16 + 8)"});
  expect_rejected(fp8({"model.seq_length=36"}),
                  {"training.micro_batch_size * model.seq_length = 2 * 36 = 72"});
  // Without FP8 all of these are valid.
  small({"model.ffn_hidden_size=100", "model.seq_length=36", "model.num_query_groups=1",
         "model.kv_channels=20"});
}

TEST(Validate, Fp8Options) {
  expect_rejected(
      {"precision.first_layers_bf16=1", "precision.last_layers_bf16=2"},
      {"precision.first_layers_bf16 (1) + precision.last_layers_bf16 (2) = 3", "model.num_layers (2)"});
  small({"precision.first_layers_bf16=1", "precision.last_layers_bf16=1", "precision.fp8=hybrid"});
  expect_rejected({"precision.fp8_calibrate=true", "precision.fp8=e4m3"},
                  {"precision.fp8_calibrate", "fp8 is e4m3"});
  EXPECT_TRUE(small({"precision.fp8_calibrate=true"}).precision.fp8_calibrate);
  expect_rejected({"precision.fp8_from_step=8", "precision.fp8_until_step=7"},
                  {"precision.fp8_until_step (7) is below precision.fp8_from_step (8)"});
  expect_rejected({"precision.fp8=hybrid", "precision.fp8_output_layer=true", "model.vocab_size=1000",
                   "model.make_vocab_size_divisible_by=8"},
                  {"model.vocab_size, padded, = 1000 ", "multiples of 16"});
}

TEST(Validate, StepsInFp8) {
  const auto both = [](const std::vector<std::string>& keys) { return mixes_precisions(small(keys)); };
  EXPECT_FALSE(both({"precision.fp8=hybrid", "precision.fp8_from_step=1"}));
  EXPECT_TRUE(both({"precision.fp8=hybrid", "precision.fp8_from_step=2"}));
  EXPECT_TRUE(both({"precision.fp8=hybrid", "precision.fp8_until_step=2"}));
  EXPECT_TRUE(both({"precision.fp8=hybrid", "guard.every=5"}));
  EXPECT_FALSE(both({"precision.fp8_from_step=2"}));  // without precision.fp8 the key has no effect
  const PrecisionConfig window = small({"precision.fp8_from_step=3", "precision.fp8_until_step=4"}).precision;
  EXPECT_FALSE(window.fp8_in_step(2));
  EXPECT_TRUE(window.fp8_in_step(3));
  EXPECT_TRUE(window.fp8_in_step(4));
  EXPECT_FALSE(window.fp8_in_step(5));
  EXPECT_TRUE(small({}).precision.fp8_in_step(1));
}

TEST(Validate, Device) {
  expect_rejected({"model.kv_channels=264", "training.device=cuda"},
                  {"model.kv_channels (264)", "at most 256 on a GPU"});
  expect_rejected({"model.kv_channels=12", "training.device=cuda"},
                  {"model.kv_channels (12)", "multiple of 8"});
  expect_rejected({"model.seq_length=5000000", "training.device=cuda"},
                  {"model.seq_length (5000000) must be at most 4194240 on a GPU"});
  expect_rejected({"precision.dtype=fp32", "optimizer.main_grad_dtype=bf16", "training.device=cuda"},
                  {"optimizer.main_grad_dtype bf16", "on a GPU", "set it to fp32"});
  small({"precision.dtype=fp32", "optimizer.main_grad_dtype=bf16", "training.device=cpu"});
  const Config open = small({"model.kv_channels=264"});
  validate_for_device(open, false);
  EXPECT_THROW(validate_for_device(open, true), UserError);
  validate_for_device(small({"model.kv_channels=256"}), true);
  validate_for_device(small({"precision.dtype=fp32", "precision.tf32=true"}), true);
  validate_for_device(small({"model.seq_length=1"}), true);
}

TEST(Validate, Schedule) {
  expect_rejected({"optimizer.lr=1e-5", "optimizer.min_lr=3e-5"},
                  {"optimizer.min_lr (3e-05) is above optimizer.lr (1e-05)"});
  expect_rejected({"optimizer.decay_steps=50", "optimizer.warmup_steps=50"},
                  {"optimizer.warmup_steps (50)", "optimizer.decay_steps (50)"});
  small({"optimizer.decay_steps=50", "optimizer.warmup_steps=50", "optimizer.decay=constant"});
  small({"training.train_steps=10", "optimizer.warmup_steps=50"});  // a shortened run can end during warmup
  expect_rejected({"optimizer.decay=wsd", "optimizer.wsd_decay_steps=101"},
                  {"optimizer.wsd_decay_steps (101) is above optimizer.decay_steps (100)"});
}

TEST(Validate, Fp16) {
  const Config c = small({"precision.dtype=fp16", "optimizer.name=muon", "parallel.shard=parameters"});
  EXPECT_EQ(c.precision.dtype, ComputeDType::fp16);
  EXPECT_EQ(c.precision.loss_scale, 0.0);
  EXPECT_EQ(c.precision.initial_loss_scale, 65536.0);
  validate_for_device(c, true);
  expect_rejected(
      {"precision.dtype=fp16", "precision.fp8=hybrid"},
      {"precision.fp8 cannot be combined with precision.dtype fp16", "set precision.dtype to bf16"});
  expect_rejected({"precision.dtype=fp16", "precision.fp8_calibrate=true"},
                  {"precision.fp8_calibrate cannot be combined with", "leave fp8_calibrate out"});
  expect_rejected({"precision.dtype=fp16", "logging.fp8_statistics_every=5"},
                  {"logging.fp8_statistics_every (5)", "set it to 0"});
  expect_rejected({"precision.dtype=fp16", "optimizer.main_grad_dtype=bf16"},
                  {"optimizer.main_grad_dtype bf16 cannot be combined with", "set it to fp32"});
  expect_rejected({"precision.dtype=fp16", "optimizer.store_param_remainders=true"},
                  {"optimizer.store_param_remainders", "set it to false"});
  for (const char* wrong : {"precision.loss_scale=-1", "precision.initial_loss_scale=0.5"})
    EXPECT_NE(override_complaint({wrong}).find("is out of range"), std::string::npos) << wrong;
}

TEST(Validate, Muon) {
  const Config c = small({"optimizer.name=muon", "parallel.shard=parameters", "precision.fp8=hybrid",
                          "optimizer.store_param_remainders=true", "optimizer.main_grad_dtype=bf16"});
  EXPECT_EQ(c.optimizer.name, OptimizerName::muon);
  EXPECT_EQ(c.optimizer.muon_momentum, 0.95);
  for (const char* moment : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
    expect_rejected({"optimizer.name=muon", fmt::format("optimizer.{}=bf16", moment)},
                    {fmt::format("optimizer.{} is for optimizer.name adamw", moment), "leave it out"});
  }
  for (const char* wrong : {"optimizer.muon_momentum=1", "training.z_loss_coefficient=-1e-4"})
    EXPECT_NE(override_complaint({wrong}).find("is out of range"), std::string::npos) << wrong;
}

TEST(Validate, Evaluation) {
  const std::string base =
      "model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,\n"
      "        vocab_size: 300, seq_length: 32}\n"
      "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 100, eval_interval: 5}\n"
      "data: {train: t, valid: {books: b, code: [[2, c], d]}}\n";
  const Config config = parse_config(base, "small.yaml", {"checkpoint.keep_best=2"});
  EXPECT_EQ(config.data.deciding_set(), "books");
  EXPECT_EQ(config.data.valid,
            (std::vector<ValidationSet>{{"books", {{1.0, "b"}}}, {"code", {{2.0, "c"}, {1.0, "d"}}}}));
  EXPECT_EQ(parse_config(to_yaml(config), "small.yaml").data.valid, config.data.valid);
  const auto rejects = [&](const std::vector<std::string>& overrides, const std::string& part) {
    EXPECT_NE(complaint(base, overrides).find(part), std::string::npos) << complaint(base, overrides);
  };
  rejects({"training.eval_interval=0", "checkpoint.keep_best=2"},
          "checkpoint.keep_best (2) needs a validation loss");
  rejects({"training.eval_interval=0", "training.early_stopping_patience=2"},
          "training.early_stopping_patience (2) needs a validation loss");
  rejects({"data.valid={a}"},
          "data.valid={a}: expected [[weight, prefix], ...], a list of prefixes, or one prefix, got");
  rejects({"data.valid={\"a,b\": x}"}, "expected the name of a validation set (letters, digits, _, - and .)");
  rejects({"data.valid={a: x, a: y}"}, "the validation set a is given twice");
  rejects({"data.valid={a: []}"}, "the validation set a names no dataset");
  rejects({"data.valid={a: {b: c}}"}, "expected [[weight, prefix], ...]");
}

TEST(Validate, Samples) {
  const std::vector<std::string> good = {"logging.generate_every=5", "logging.generate_prompts=[a, b]",
                                         "data.tokenizer=bytes", "model.vocab_size=257"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = good;
    all.push_back(more);
    return all;
  };
  EXPECT_EQ(small(good).logging.generate_prompts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(small(with("logging.generate_prompts=one")).logging.generate_prompts,
            std::vector<std::string>{"one"});
  expect_rejected(with("logging.generate_prompts=[]"),
                  {"logging.generate_every (5) needs logging.generate_prompts"});
  EXPECT_NE(override_complaint(with("logging.generate_prompts={a: b}"))
                .find("expected a list of texts, or one text, got a mapping"),
            std::string::npos);
  expect_rejected(with("data.tokenizer="), {"logging.generate_every (5) needs data.tokenizer"});
  const auto interleaved = [&] {
    std::vector<std::string> all = with("parallel.pipeline=2");
    for (const char* more :
         {"parallel.virtual_stages=2", "parallel.schedule=interleaved", "model.num_layers=4"})
      all.emplace_back(more);
    return all;
  };
  EXPECT_EQ(small(with("parallel.pipeline=2")).logging.generate_every, 5);
  expect_rejected(interleaved(), {"logging.generate_every (5)", "parallel.virtual_stages is 2"});
}

TEST(Validate, Data) {
  expect_rejected({"data.synthetic=false"}, {"data.train is missing"});
  expect_rejected({"data.train=a"}, {"data.synthetic and data.train are both given"});
  expect_rejected({"data.valid=a"}, {"data.synthetic and data.valid are both given"});
  expect_rejected({"data.synthetic=false", "data.train=a", "training.eval_interval=5"},
                  {"training.eval_interval (5) needs data.valid"});
  expect_rejected({"training.eval_interval=5"},
                  {"training.eval_interval (5) needs data.valid, which data.synthetic excludes"});
  EXPECT_EQ(small({"data.tokenizer=gpt2/tokenizer.json"}).data.tokenizer, "gpt2/tokenizer.json");
  // Whether all tokens are in the model's vocabulary is checked when they are read.
  EXPECT_EQ(small({"data.tokenizer=bytes", "model.vocab_size=100"}).data.tokenizer, "bytes");
  for (const char* key : {"data.format=instruct", "data.document_mask=true", "data.eod_mask_loss=true"}) {
    expect_rejected({key}, {"data.synthetic has no documents", "leave out"});
  }
  const auto real = [](std::vector<std::string> more) {
    more.insert(more.end(), {"data.synthetic=false", "data.train=a"});
    return more;
  };
  expect_rejected(real({"data.format=instruct", "data.eod_mask_loss=true"}), {"data.eod_mask_loss is for"});
  expect_rejected(real({"data.overlong=drop"}), {"data.overlong is for data.format instruct"});
  EXPECT_EQ(small(real({"data.format=instruct", "data.overlong=drop"})).data.overlong, Overlong::drop);
  EXPECT_TRUE(small(real({"data.document_mask=true", "data.eod_mask_loss=true"})).data.document_mask);
}

TEST(Validate, Output) {
  expect_rejected({"checkpoint.resume="}, {"checkpoint.resume is empty"});
}

// Splitting GEMMs pays only with copy engines. A group that they cannot reach uses NCCL, so both must support the
// layout.
TEST(Validate, AutomaticTransportUsesCopyEnginesWhereGemmsAreSplit) {
  const auto copies = [](std::vector<std::string> overrides) {
    return small(overrides).parallel.tensor_copies();
  };
  const std::string tensor = "parallel.tensor=2", sequence = "parallel.sequence=true",
                    split = "parallel.tensor_overlap=2";
  EXPECT_TRUE(copies({tensor, sequence, split}));
  EXPECT_TRUE(copies({tensor, sequence, "parallel.tensor_overlap=4"}));
  EXPECT_FALSE(copies({tensor, sequence}));
  EXPECT_FALSE(copies({tensor, split}));
  EXPECT_FALSE(copies({split}));
  EXPECT_FALSE(copies({tensor, sequence, split, "parallel.transport=nccl"}));
  ParallelConfig odd = small({tensor, sequence}).parallel;
  odd.tensor_overlap = 3;
  EXPECT_FALSE(odd.tensor_copies());
  // 8 chunks of 8 tokens, although copy engines would need only 4 of 16.
  EXPECT_NE(override_complaint({tensor, sequence, "parallel.tensor_overlap=4", "precision.fp8=hybrid"})
                .find("in 8 chunks"),
            std::string::npos);
}

TEST(Validate, ParallelLayouts) {
  const auto refused = [](const std::vector<std::string>& overrides, const std::string& words) {
    const std::string message = override_complaint(overrides);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  EXPECT_EQ(
      small({"parallel.tensor=2", "parallel.sequence=true", "parallel.tensor_overlap=2"}).parallel.tensor, 2);
  refused({"parallel.tensor=3"}, "model.num_attention_heads (4) is not a multiple of parallel.tensor (3)");
  refused({"model.num_query_groups=2", "parallel.tensor=4"},
          "model.num_query_groups (2) is not a multiple of parallel.tensor (4): a key/value head can be "
          "neither split nor replicated; valid values for this model: 1, 2");
  refused({"parallel.tensor=2", "parallel.sequence=true", "parallel.tensor_overlap=5"}, "2 * 32 = 64 tokens");
  const std::vector<std::string> copy = {"parallel.tensor=2", "parallel.transport=copy"};
  const auto copies = [&](std::vector<std::string> more) {
    more.insert(more.end(), copy.begin(), copy.end());
    return more;
  };
  EXPECT_FALSE(small(copies({})).parallel.tensor_copies());  // without sequence parallelism
  refused(copies({"parallel.sequence=true", "parallel.tensor_overlap=3"}),
          "parallel.tensor_overlap (3) must divide parallel.tensor (2) or be a multiple of it");
  EXPECT_TRUE(
      small(copies({"parallel.sequence=true", "parallel.tensor_overlap=4"})).parallel.tensor_copies());
  refused({"parallel.transport=mpi"}, "parallel.transport");
  EXPECT_EQ(small({"parallel.pipeline=2", "parallel.pipeline_split=1,1"}).parallel.pipeline_split, "1,1");
  refused({"parallel.pipeline_split=even,"}, "is neither even nor balanced nor a list");
  for (const char* split : {"1,", ",1", "1,,1", "1,0", "1,-1", "1,x", "1.5", "", "2 1"})
    refused({"parallel.pipeline=2", std::string("parallel.pipeline_split=") + split},
            "is neither even nor balanced nor a list of layers such as 9,8,8,7");
  refused({"parallel.pipeline=2", "parallel.pipeline_split=1,1,1"},
          "has 3 numbers, but parallel.pipeline * parallel.virtual_stages = 2 * 1 = 2 chunks");
  refused({"parallel.pipeline=2", "parallel.pipeline_split=1,2"},
          "has 3 layers in total, but model.num_layers is 2");
  refused({"parallel.pipeline=4"},
          "model.num_layers (2) is below parallel.pipeline * parallel.virtual_stages");
  for (const char* recompute : {"selective", "full"}) {
    const std::string recompute_key = std::string("training.recompute=") + recompute;
    refused(
        {"parallel.pipeline=2", "parallel.schedule=zero_bubble", recompute_key},
        "parallel.schedule zero_bubble needs training.recompute none, but it is " + std::string(recompute));
    refused({"parallel.schedule=zero_bubble", recompute_key},
            "zero_bubble needs");  // wgrad is deferred with one stage, too
    small({"parallel.pipeline=2", "parallel.schedule=1f1b", recompute_key});
  }
  small({"parallel.pipeline=2", "parallel.schedule=zero_bubble"});
  refused({"parallel.pipeline=2", "parallel.schedule=zero_bubble", "parallel.virtual_stages=2"},
          "model.num_layers (2) is below parallel.pipeline * parallel.virtual_stages = 2 * 2 = 4");
  refused({"parallel.tensor=2", "model.ffn_hidden_size=80", "precision.fp8=hybrid"},
          "model.ffn_hidden_size / parallel.tensor 2 = 40");
  EXPECT_EQ(small({"parallel.context=4"}).parallel.context, 4);
  refused({"parallel.context=3"},
          "model.seq_length (32) is not a multiple of 2 * parallel.context = 6: each context-parallel rank "
          "has one chunk of the first half and one of the second half of every sequence; the nearest is 30");
  refused({"parallel.context=8", "precision.fp8=hybrid"}, "in 8 chunks");
  refused({"cp=2"}, "parallel.context");
  for (const char* key : {"data.document_mask=true", "model.attention_dropout=0.1"})
    for (const char* device : {"training.device=cpu", "training.device=cuda"})
      for (const char* groups : {"model.num_query_groups=1", "model.num_query_groups=2"})
        small({"data.synthetic=false", "data.train=a", "parallel.context=2", key, device, groups});
  // The vocabulary is padded until all tensor-parallel ranks have the same number of rows.
  EXPECT_EQ(small({"model.num_attention_heads=6", "model.kv_channels=16", "parallel.tensor=3"})
                .model.padded_vocab_size(),
            384);
}

/// Configs that are created in code are checked by the same rules, including ranges.
TEST(Validate, ConfigsCreatedInCode) {
  const auto message = [](const Config& config) -> std::string {
    try {
      validate(config);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  Config config = small();
  EXPECT_EQ(message(config), "");
  config.model.num_layers = 0;
  EXPECT_EQ(message(config), "model.num_layers: 0 is out of range; it must be 1 to 10000");
  config = small();
  config.optimizer.lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(config).rfind("optimizer.lr: nan", 0), 0u) << message(config);
  config = small();
  config.model.ffn_hidden_size = 0;
  EXPECT_EQ(message(config), "model.ffn_hidden_size is required with model.family llama");
  config = small();
  config.data = {.train = {{-1.0, "a"}}};
  EXPECT_EQ(message(config), "data.train: the weight -1 of \"a\" must be above 0");
  EXPECT_NE(message(Config{}), "");
}

}  // namespace
}  // namespace te::config
