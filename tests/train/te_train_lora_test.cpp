// te-train with adapters, end to end: base, resuming, and what is refused.
#include <algorithm>
#include <cmath>

#include "convert/adapter.h"
#include "convert/foreign_model.h"
#include "te_train_testing.h"
#include "testing/files.h"

namespace te::testing {
namespace {

Overrides adapter_of(const TrainFolder& folder, const std::string& base) {
  return {"adapter.type=lora", "adapter.rank=8", "checkpoint.init_from=" + folder.checkpoint(base, 6),
          "checkpoint.save_every=3"};
}

TEST(TeTrainLora, ResumesWithTheSameBits) {
  const TrainFolder folder;
  for (const Overrides& precision :
       {Overrides{}, kTinyFp8,
        kTinyFp8 + Overrides{"precision.fp8_recipe=blockwise", "training.recompute=full"}}) {
    const std::string name = std::to_string(precision.size());
    run(folder, "base" + name, precision);
    const Overrides adapter = precision + adapter_of(folder, "base" + name);
    run(folder, "whole" + name, adapter);
    run(folder, "resumed" + name,
        adapter + Overrides{"checkpoint.resume=" + folder.checkpoint("whole" + name, 3)});
    EXPECT_EQ(folder.checkpoint_bytes("resumed" + name, 6), folder.checkpoint_bytes("whole" + name, 6))
        << name;
    EXPECT_LT(std::filesystem::file_size(folder.checkpoint("whole" + name, 6) + "/model.safetensors"),
              std::filesystem::file_size(folder.checkpoint("base" + name, 6) + "/model.safetensors"));
  }
}

// Data-parallel ranks store parts of an FP8 base, or all of it.
TEST(TeTrainLora, ShardedBaseGivesTheSameBits) {
  TrainFolder folder;
  run(folder, "base", kTinyFp8);
  folder.use_ranks(2);
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise"}) {
    const auto with = [&](const char* shard) {
      return kTinyFp8 + adapter_of(folder, "base") +
             Overrides{std::string("precision.fp8_recipe=") + recipe, std::string("parallel.shard=") + shard,
                       "training.global_batch_size=8", "training.micro_batch_size=2"};
    };
    const std::string name = recipe;
    run(folder, "whole" + name, with("gradients"));
    run(folder, "sharded" + name, with("parameters"));
    run(folder, "resumed" + name,
        with("parameters") + Overrides{"checkpoint.resume=" + folder.checkpoint("sharded" + name, 3)});
    for (const char* other : {"sharded", "resumed"})
      EXPECT_EQ(folder.checkpoint_bytes(other + name, 6), folder.checkpoint_bytes("whole" + name, 6))
          << other << name;
  }
}

// The embeddings of an adapter and of its base may be padded to other numbers of rows.
TEST(TeTrainLora, EmbeddingsMayHaveAnotherPadding) {
  const TrainFolder folder;
  const auto padded = [](int to) {
    return Overrides{"model.make_vocab_size_divisible_by=" + std::to_string(to)};
  };
  run(folder, "base", padded(64));
  for (const int to : {64, 1}) {
    const std::string name = std::to_string(to);
    run(folder, "adapter" + name,
        adapter_of(folder, "base") + padded(to) + Overrides{"adapter.train_embeddings=true"});
    run(folder, "tuned" + name,
        padded(64) + Overrides{"checkpoint.init_from=" + folder.checkpoint("adapter" + name, 6)});
  }
  const std::vector<double> equal = folder.column("tuned64", "loss"), other = folder.column("tuned1", "loss");
  ASSERT_EQ(equal.size(), other.size());
  for (size_t i = 0; i < equal.size(); ++i) EXPECT_NEAR(other[i], equal[i], 1e-4) << i;
}

/// The file with the end token that the checkpoints of a run keep.
std::string end_token(const TrainFolder& folder, const std::string& run) {
  return read_file(folder.run_folder(run) + "/checkpoints/hugging_face/generation_config.json");
}

// Runs that start from an adapter run, named by its run folder, keep its tokenizer.
TEST(TeTrainLora, TheTokenizerOfAnAdapterRunIsKept) {
  const TrainFolder folder;
  write_tokenizer(folder / "tokenizer", 5);
  run(folder, "base", {"data.tokenizer=" + (folder / "tokenizer")});
  run(folder, "adapter", adapter_of(folder, "base"));
  const Overrides start = {"checkpoint.init_from=" + folder.run_folder("adapter")};
  run(folder, "full", start);
  run(folder, "second", adapter_of(folder, "base") + start);
  for (const char* name : {"full", "second"})
    EXPECT_EQ(end_token(folder, name), read_file(folder / "tokenizer/generation_config.json")) << name;
  // The checkpoint, as the run may save later ones.
  EXPECT_EQ(checkpoint::Reader(folder.checkpoint("second", 6)).manifest().base->path,
            folder.checkpoint("adapter", 6));
}

// A run that continues an adapter keeps the adapter's tokenizer rather than the base's.
TEST(TeTrainLora, TheTokenizerOfAdapterInitFromIsKept) {
  const TrainFolder folder;
  write_tokenizer(folder / "of_base", 3);
  write_tokenizer(folder / "of_adapter", 5);
  run(folder, "base", {"data.tokenizer=" + (folder / "of_base")});
  const Overrides adapter = adapter_of(folder, "base");
  run(folder, "adapter", adapter + Overrides{"data.tokenizer=" + (folder / "of_adapter")});
  run(folder, "continued", adapter + Overrides{"adapter.init_from=" + folder.run_folder("adapter")});
  EXPECT_EQ(end_token(folder, "continued"), read_file(folder / "of_adapter/generation_config.json"));
  // This PEFT folder has no tokenizer.
  std::filesystem::create_directory(folder / "peft");
  convert::write_peft(checkpoint::Reader(folder.run_folder("adapter")), folder / "peft");
  run(folder, "foreign", adapter + Overrides{"adapter.init_from=" + (folder / "peft")});
  EXPECT_EQ(end_token(folder, "foreign"), read_file(folder / "of_base/generation_config.json"));
}

TEST(TeTrainLora, OverwriteKeepsTheAdapterThatTheRunStartsWith) {
  const TrainFolder folder;
  run(folder, "base", {});
  run(folder, "a", adapter_of(folder, "base"));
  std::string command =
      "--overwrite --config " + (folder / "base.yaml") + " --set logging.directory=" + folder.run_folder("a");
  const Overrides overrides =
      adapter_of(folder, "base") +
      Overrides{"adapter.init_from=" + folder.checkpoint("a", 3), "training.train_steps=1"};
  for (const std::string& override : overrides) command += " --set " + override;
  const Result result = folder.run_raw(command);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(std::filesystem::exists(folder.checkpoint("a", 3)));
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoint("a", 6)));
}

// Its checkpoints would replace the base, and checkpoint.keep would delete it.
TEST(TeTrainLora, RefusesToSaveWhereItsBasesAre) {
  const TrainFolder folder;
  run(folder, "base", {});
  run(folder, "first", adapter_of(folder, "base"));
  run(folder, "second", adapter_of(folder, "first"));
  const auto refused = [&](const std::string& into, const std::string& base) {
    std::string command = "--overwrite --config " + (folder / "base.yaml") +
                          " --set logging.directory=" + folder.run_folder(into);
    for (const std::string& override : adapter_of(folder, base)) command += " --set " + override;
    expect_refused(folder.run_raw(command), "contains the base of this run's adapter");
    EXPECT_TRUE(std::filesystem::exists(folder.checkpoint(into, 6))) << into;
  };
  refused("base", "base");
  refused("base", "first");
  refused("first", "second");
  // Earlier versions did not refuse it; such an adapter is its own base.
  std::filesystem::remove_all(folder.checkpoint("base", 6));
  std::filesystem::copy(folder.checkpoint("first", 6), folder.checkpoint("base", 6));
  TE_EXPECT_CONTAINS(user_error_of([&] { convert::open_weights(folder.checkpoint("base", 6)); }),
                     "is an adapter on itself");
  TE_EXPECT_CONTAINS(user_error_of([&] { convert::open_weights(folder.checkpoint("second", 6)); }),
                     "is an adapter on itself");
}

// Each mistake is one line with the key.
TEST(TeTrainLora, RefusesWhatDoesNotBelongTogether) {
  const TrainFolder folder;
  run(folder, "base", {});
  run(folder, "other", {"training.seed=2"});
  const Overrides adapter = adapter_of(folder, "base");
  run(folder, "adapter", adapter);
  const Overrides resume = {"checkpoint.resume=" + folder.checkpoint("adapter", 3)};
  int number = 0;
  const auto refuses = [&](const Overrides& overrides, const std::string& part) {
    expect_refused(folder.run("refused" + std::to_string(number++), overrides), part);
  };
  refuses(adapter + resume + Overrides{"checkpoint.init_from=" + folder.checkpoint("other", 6)},
          "which is not checkpoint.init_from");
  refuses(adapter + resume + Overrides{"adapter.rank=16"},
          "was saved with adapter.rank 8, but this config has 16");
  refuses(adapter + resume + Overrides{"adapter.type=none"},
          "was saved with adapter.type lora, but this config has none");
  refuses(adapter + Overrides{"adapter.target=[q, w]"}, "\"w\" is not a matrix of this model's layers");
  refuses(adapter + Overrides{"adapter.rank=12"}, "adapter.rank (12) is not a multiple of 8");
  refuses(adapter + Overrides{"checkpoint.init_from="}, "adapter.type lora needs checkpoint.init_from");
  refuses(adapter + Overrides{"adapter.train_norms=true", "model.norm_gain=false"},
          "adapter.train_norms: the norms of this model have no gains");
  refuses(adapter + Overrides{"optimizer.name=muon"}, "optimizer.name muon");
  refuses(adapter + Overrides{"parallel.pipeline=2", "parallel.schedule=zero_bubble"}, "zero_bubble");
  refuses(adapter + Overrides{"adapter.dropout=0.1", "parallel.tensor=2", "model.ffn_hidden_size=56"},
          "adapter.dropout (0.1) needs model.ffn_hidden_size (56)");
  refuses(adapter + Overrides{"adapter.type=dora"}, "expected one of none, lora, got \"dora\"");
  refuses(adapter + Overrides{"adapter.init=pissa"}, "expected one of default, gaussian, got \"pissa\"");
  refuses(adapter + Overrides{"evaluation.every=2", "evaluation.tasks=[hellaswag]", "evaluation.data=x",
                              "data.tokenizer=bytes"},
          "evaluation.every (2) is not supported with adapter.type lora");
  refuses(adapter + Overrides{"adapter.init_from=" + folder.checkpoint("base", 6)}, "is not an adapter");
  refuses(adapter + Overrides{"adapter.init_from=" + folder.checkpoint("adapter", 3), "adapter.alpha=4.0"},
          "has rank 8, alpha 32 and use_rslora false, but adapter.rank is 8, adapter.alpha 4 and");
  refuses(adapter + Overrides{"adapter.init_from=" + folder.checkpoint("adapter", 3), "adapter.rank=16",
                              "adapter.alpha=64.0"},
          "has rank 8, alpha 32 and use_rslora false, but adapter.rank is 16, adapter.alpha 64 and");
  refuses(adapter + Overrides{"adapter.init_from=" + folder.checkpoint("adapter", 3),
                              "checkpoint.init_from=" + folder.checkpoint("other", 6)},
          "was trained on other files than checkpoint.init_from (" + folder.checkpoint("other", 6) +
              "), or they have changed");
  // Checkpoints of this run would lack the norms.
  run(folder, "norms", adapter + Overrides{"adapter.train_norms=true"});
  refuses(adapter + Overrides{"adapter.init_from=" + folder.checkpoint("norms", 6)},
          "was trained with adapter.train_norms; set it to true, or merge");
  // A and B of k and v have equal shapes.
  run(folder, "values", adapter + Overrides{"adapter.target=[q, v]"});
  const Overrides values = adapter + Overrides{"adapter.init_from=" + folder.checkpoint("values", 6)};
  for (const char* targets : {"q, k", "q", "q, v, down"})
    refuses(values + Overrides{fmt::format("adapter.target=[{}]", targets)},
            "has adapters of q_proj, v_proj, but adapter.target selects q_proj");
  EXPECT_EQ(folder.run("more", values + Overrides{"adapter.target=[\"[qv]_proj\"]"}).code, 0);
  // An adapter stands for its base with it, so it can be the base of another.
  run(folder, "second", adapter + Overrides{"checkpoint.init_from=" + folder.checkpoint("adapter", 6)});
  EXPECT_LT(folder.column("second", "loss").front(), folder.column("adapter", "loss").front());
}

// Norms and embeddings that were trained in full replace those of the base.
TEST(TeTrainLora, WholeParametersOfTwoAdaptersAreRefused) {
  const TrainFolder folder;
  run(folder, "base", {});
  const Overrides norms = adapter_of(folder, "base") + Overrides{"adapter.train_norms=true"};
  run(folder, "first", norms);
  run(folder, "second", norms + Overrides{"training.seed=2"});
  run(folder, "third", norms + Overrides{"checkpoint.init_from=" + folder.checkpoint("first", 6)});
  run(folder, "plain", adapter_of(folder, "base"));
  const auto open = [&](const std::vector<std::string>& adapters) {
    std::vector<std::string> paths;
    for (const std::string& name : adapters) paths.push_back(folder.checkpoint(name, 6));
    auto base = convert::open_weights(folder.checkpoint("base", 6));
    const config::ModelConfig model = config::parse_config(base->config(), "base.yaml").model;
    return convert::with_adapters(std::move(base), model, paths);
  };
  for (const std::vector<std::string>& adapters :
       {std::vector<std::string>{"first", "third"}, {"first", "plain"}, {"first", "third", "plain"}})
    EXPECT_NE(open(adapters), nullptr);
  const std::string message = "both have a ";
  TE_EXPECT_CONTAINS(user_error_of([&] { open({"first", "second"}); }), message);
  TE_EXPECT_CONTAINS(user_error_of([&] { open({"second", "first"}); }), message);
  TE_EXPECT_CONTAINS(user_error_of([&] { open({"first", "plain", "second"}); }), message);
  TE_EXPECT_CONTAINS(user_error_of([&] { open({"first", "third", "second"}); }), message);
}

// Adapters of one base add up. One that was trained on the base with another adapter needs that before it.
TEST(TeTrainLora, SeveralAdaptersOnOneBase) {
  const TrainFolder folder;
  run(folder, "base", {});
  const Overrides adapter = adapter_of(folder, "base") + Overrides{"optimizer.lr=0.02"};
  run(folder, "first", adapter);
  run(folder, "second", adapter + Overrides{"training.seed=2", "adapter.target=[q, down]"});
  run(folder, "third", adapter + Overrides{"checkpoint.init_from=" + folder.checkpoint("first", 6)});
  const std::string first = folder.checkpoint("first", 6), second = folder.checkpoint("second", 6),
                    third = folder.checkpoint("third", 6);
  const config::ModelConfig model =
      config::parse_config(convert::open_weights(first)->config(), "base.yaml").model;
  const auto weights = [&](const std::vector<std::string>& adapters, const std::string& name) {
    const auto source =
        convert::with_adapters(convert::open_weights(folder.checkpoint("base", 6)), model, adapters);
    const checkpoint::TensorInfo info = *source->info(name);
    std::vector<float> values(static_cast<size_t>(info.rows() * info.cols()));
    source->read(name, checkpoint::Block::rows(0, info.rows(), info.cols()), values.data());
    return values;
  };
  for (const LinearKind kind : {LinearKind::qkv, LinearKind::fc2}) {
    const std::string name = LinearId{0, kind}.parameter(ParameterPart::weight).name();
    const std::vector<float> base = weights({}, name), one = weights({first}, name),
                             two = weights({second}, name), both = weights({first, second}, name);
    float most = 0;
    for (size_t i = 0; i < base.size(); ++i) {
      EXPECT_NEAR(both[i], one[i] + two[i] - base[i], 1e-6) << name << " " << i;
      most = std::max(most, std::min(std::abs(one[i] - base[i]), std::abs(two[i] - base[i])));
    }
    EXPECT_GT(most, 1e-5) << name;
    EXPECT_NE(weights({first, third}, name), one);
  }
  TE_EXPECT_CONTAINS(user_error_of([&] {
                       weights({second, third}, "layers.0.mlp.linear_fc2.weight");
                     }),
                     "was trained on other files than " + folder.checkpoint("base", 6) + " with adapter " +
                         second + ", or they have changed; give the base that its manifest names");
}

}  // namespace
}  // namespace te::testing
