// Configs of several files: bases, merge keys, merged --config files, and the origin of each value.
#include "config/provenance.h"

#include <sstream>

#include "config_testing.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te::config {
namespace {

class Merge : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { testing::write_file(folder_ / name, text); }
  std::string at(const std::string& name) const { return folder_ / name; }
  Config load(const std::vector<std::string>& names, const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(name.starts_with("preset:") ? name : at(name));
    return load_config(paths, overrides, &provenance_);
  }
  /// The error message of load(), without the folder's path.
  std::string complaint(const std::vector<std::string>& names,
                        const std::vector<std::string>& overrides = {}) {
    try {
      load(names, overrides);
    } catch (const UserError& error) {
      std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      const std::string folder = folder_ / "";
      for (size_t found; (found = message.find(folder)) != std::string::npos;)
        message.erase(found, folder.size());
      return message;
    }
    ADD_FAILURE() << "accepted";
    return {};
  }
  std::string origin(const std::string& key) const {
    std::string text = provenance_.origins.at(key);
    const std::string folder = folder_ / "";
    return text.starts_with(folder) ? text.substr(folder.size()) : text;
  }

  testing::TextFolder folder_;
  Provenance provenance_;
};

TEST_F(Merge, ABaseIsOverriddenKeyByKey) {
  std::filesystem::create_directories(at("shapes"));
  write("shapes/base.yaml", kSmall + "optimizer:\n  lr: 1.0e-3\n  beta1: 0.8\n");
  write("run.yaml", "extends: shapes/base.yaml\noptimizer:\n  lr: 2.0e-3\nmodel: {num_layers: 5}\n");
  const Config c = load({"run.yaml"}, {"optimizer.eps=1e-7"});
  EXPECT_EQ(c.name, "run");
  EXPECT_EQ(c.optimizer.lr, 2e-3);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.model.num_layers, 5);
  EXPECT_EQ(c.model.hidden_size, 64);
  EXPECT_EQ(origin("optimizer.lr"), "run.yaml:3");
  EXPECT_EQ(origin("optimizer.beta1"), "shapes/base.yaml:7");
  EXPECT_EQ(origin("model.num_layers"), "run.yaml:4");
  EXPECT_EQ(origin("model.vocab_size"), "shapes/base.yaml:2");
  EXPECT_EQ(origin("optimizer.eps"), "--set");
  EXPECT_EQ(origin("optimizer.beta2"), "default");
  EXPECT_EQ(origin("model.kv_channels"), "default: hidden_size / num_attention_heads");
}

TEST_F(Merge, BasesInOrderAndEachOnce) {
  write("common.yaml", kSmall + "optimizer: {lr: 1.0e-3, beta1: 0.8}\n");
  write("a.yaml", "extends: common.yaml\noptimizer: {lr: 2.0e-3, eps: 1.0e-7}\n");
  write("b.yaml", "extends: common.yaml\noptimizer: {eps: 1.0e-6}\n");
  write("run.yaml", "extends: [a.yaml, b.yaml]\n");
  const Config c = load({"run.yaml"});
  EXPECT_EQ(c.optimizer.lr, 2e-3);  // not reset by b's base
  EXPECT_EQ(c.optimizer.eps, 1e-6);
  EXPECT_EQ(origin("optimizer.lr"), "a.yaml:2");
}

TEST_F(Merge, SeveralConfigsInOrder) {
  write("base.yaml", kSmall);
  write("first.yaml", "extends: base.yaml\noptimizer: {lr: 1.0e-3, min_lr: 1.0e-5}\n");
  write("second.yaml", "extends: base.yaml\noptimizer: {lr: 2.0e-3}\n");
  const Config c = load({"first.yaml", "second.yaml"}, {"optimizer.min_lr=1.0e-6"});
  EXPECT_EQ(c.name, "first+second");
  EXPECT_EQ(c.logging.directory, "runs/first+second");
  EXPECT_EQ(c.optimizer.lr, 2e-3);
  EXPECT_EQ(c.optimizer.min_lr, 1e-6);
  EXPECT_EQ(load({"second.yaml", "first.yaml"}).optimizer.lr, 1e-3);
  EXPECT_EQ(load({"preset:gpt2", "first.yaml"}).model.hidden_size, 64);
  EXPECT_EQ(load({"first.yaml", "preset:gpt2"}, {"model.family=gpt"}).model.hidden_size, 768);
}

TEST_F(Merge, MergeKeysAndAnchors) {
  write(
      "run.yaml",
      "x-defaults:\n  slow: &slow {lr: 1.0e-4, beta1: 0.7, warmup_steps: 3}\n  more: &more {beta1: 0.6, eps: "
      "1.0e-7}\n"
      "optimizer:\n  <<: [*slow, *more]\n  lr: 2.0e-3\n"
      "data: {train: &books [[0.5, a], b], valid: *books}\n"
      "model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,\n"
      "        vocab_size: 100, seq_length: 32}\n"
      "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 100}\n");
  const Config c = load({"run.yaml"});
  EXPECT_EQ(c.optimizer.lr, 2e-3);    // given values take precedence
  EXPECT_EQ(c.optimizer.beta1, 0.7);  // then the first of several mappings
  EXPECT_EQ(c.optimizer.warmup_steps, 3);
  EXPECT_EQ(c.optimizer.eps, 1e-7);
  ASSERT_EQ(c.data.valid.size(), 1u);
  EXPECT_EQ(c.data.valid[0].sources, (std::vector<DataSource>{{0.5, "a"}, {1.0, "b"}}));
  EXPECT_EQ(origin("optimizer.warmup_steps"), "run.yaml:2");
}

TEST_F(Merge, ErrorsNameTheFileOfTheKey) {
  write("base.yaml", kSmall + "optimizer:\n  lr: fast\n");
  write("run.yaml", "\nextends: base.yaml\n");
  EXPECT_EQ(complaint({"run.yaml"}), "base.yaml:6: optimizer.lr: expected a number, got \"fast\"");
  write("base.yaml", kSmall + "optimizer:\n\n  learning_rate: 1.0\n");
  EXPECT_EQ(complaint({"run.yaml"}),
            "base.yaml:7: key 'optimizer.learning_rate' is unknown; did you mean 'optimizer.lr'?");
  // Messages about several keys name the origin of each.
  write("base.yaml", kSmall + "optimizer:\n  lr: 1.0e-3\n");
  write("run.yaml", "extends: base.yaml\noptimizer:\n  min_lr: 1.0\n");
  EXPECT_EQ(complaint({"run.yaml"}),
            "optimizer.min_lr (1) is above optimizer.lr (0.001) (optimizer.min_lr: run.yaml:3, optimizer.lr: "
            "base.yaml:6)");
  write("part.yaml", "model: {family: llama}\n");
  EXPECT_EQ(complaint({"part.yaml", "base.yaml"}, {"optimizer.min_lr=1"}),
            "optimizer.min_lr (1) is above optimizer.lr (0.001) (optimizer.min_lr: --set, optimizer.lr: "
            "base.yaml:6)");
  write("run.yaml", "extends: part.yaml\n");
  EXPECT_EQ(complaint({"run.yaml"}).rfind("run.yaml: required keys are missing: model.num_layers", 0), 0u);
}

// Nothing expands these, so that a folder of this name would appear.
TEST_F(Merge, PathsAreNotExpanded) {
  for (const char* key :
       {"logging.directory", "checkpoint.directory", "checkpoint.resume", "checkpoint.init_from",
        "data.tokenizer", "evaluation.data", "data.train", "data.valid"}) {
    write("run.yaml", kSmall);
    for (const char* path : {"~/runs", "~x", "${HOME}/runs", "$HOME/runs", "runs/${USER}"})
      EXPECT_EQ(
          complaint({"run.yaml"}, {std::string(key) + "=" + path}),
          fmt::format("--set: {}: \"{}\" is not expanded; give the path itself, or ./ before a name that "
                      "starts so",
                      key, path));
  }
  write("run.yaml", kSmall + "logging:\n  directory: ~/runs\n");
  EXPECT_EQ(complaint({"run.yaml"}).rfind("run.yaml:6: logging.directory: \"~/runs\" is not expanded", 0),
            0u);
  write("run.yaml", kSmall);
  EXPECT_EQ(complaint({"run.yaml"}, {"data.valid={a: b, c: [[1, d], ~/e]}"}).rfind("--set: data.valid: ", 0),
            0u);
  EXPECT_EQ(load({"run.yaml"}, {"logging.directory=./~"}).logging.directory, "./~");
  EXPECT_EQ(load({"run.yaml"}, {"logging.directory=a~b$c"}).logging.directory, "a~b$c");
}

TEST_F(Merge, KeysWithoutEffect) {
  write("run.yaml", kSmall + "adapter:\n  rank: 64\n");
  EXPECT_EQ(complaint({"run.yaml"}),
            "run.yaml:6: adapter.rank has no effect without adapter.type: set it, or leave adapter.rank out");
  // A run that disables a part of its base keeps the base's keys of that part.
  EXPECT_EQ(load({"run.yaml"}, {"adapter.type=none"}).adapter.rank, 64);
  write("run.yaml", kSmall);
  for (const char* key :
       {"adapter.init_from=a", "adapter.train_norms=true", "optimizer.wsd_decay_steps=3",
        "training.eval_microbatches=4", "optimizer.muon_momentum=0.9", "precision.loss_scale=1024",
        "precision.initial_loss_scale=1024", "logging.fp8_what_if=mxfp8", "guard.action=rollback",
        "guard.tolerance=0.1", "model.moe_router_bias_update_rate=0.1"})
    EXPECT_NE(complaint({"run.yaml"}, {key}).find(" has no effect without "), std::string::npos) << key;
  load({"run.yaml"}, {"optimizer.decay=cosine", "optimizer.wsd_decay_steps=3"});
  load({"run.yaml"}, {"guard.every=0", "guard.action=rollback"});
  write("saved.yaml", to_yaml(load({"run.yaml"}), provenance_));
  EXPECT_EQ(load({"saved.yaml"}).guard.every, 0);
}

// Of a run, but not of its checkpoints, nor of an imported model.
TEST_F(Merge, ARouterThatTheLossDoesNotTrain) {
  write("run.yaml", kSmall);
  const std::vector<std::string> one{"model.num_moe_experts=4", "model.moe_router_topk=1"};
  const auto with = [&](const char* more) { return std::vector<std::string>{one[0], one[1], more}; };
  EXPECT_EQ(
      complaint({"run.yaml"}, one).rfind("model.moe_router_topk 1 with model.moe_router_norm_topk_prob: ", 0),
      0u);
  EXPECT_NE(complaint({"run.yaml"}, with("model.moe_router_score_function=sigmoid")), "");
  load({"run.yaml"}, with("model.moe_router_norm_topk_prob=false"));
  load({"run.yaml"}, {"model.num_moe_experts=1"});
  small(one);
}

// A renamed config is found by its old name.
TEST_F(Merge, AMissingFileNamesItsNeighbors) {
  for (const char* name : {"llama3.1_8b_bf16.yaml", "llama3.1_8b_fp8.yaml", "llama3.1_70b_fp8.yaml",
                           "llama7b_fp8.yaml", "llama3_8b_fp8.txt"})
    write(name, kSmall);
  std::filesystem::create_directories(at("llama3_8b_fp8"));
  const std::string missing = ": cannot open the configuration file: No such file or directory";
  EXPECT_EQ(complaint({"llama3_8b_fp8.yaml"}),
            "llama3_8b_fp8.yaml" + missing + "; did you mean 'llama3.1_8b_fp8.yaml'?");
  EXPECT_EQ(complaint({"llama3_70b_fp8.yml"}),
            "llama3_70b_fp8.yml" + missing + "; did you mean 'llama3.1_70b_fp8.yaml'?");
  EXPECT_EQ(complaint({"llama7b_fp8"}), "llama7b_fp8" + missing + "; did you mean 'llama7b_fp8.yaml'?");
  EXPECT_EQ(complaint({"gpt2.yaml"}), "gpt2.yaml" + missing);
  EXPECT_EQ(complaint({"llama3_8b_fp8.yaml/x.yaml"}), "llama3_8b_fp8.yaml/x.yaml" + missing);
  std::filesystem::create_directories(at("sub"));
  write("sub/run.yaml", "extends: ../llama3_8b_bf16.yaml\n");
  EXPECT_EQ(complaint({"sub/run.yaml"}), "sub/run.yaml:1: extends: llama3_8b_bf16.yaml" + missing +
                                             "; did you mean 'llama3.1_8b_bf16.yaml'?");
}

TEST_F(Merge, WrongBases) {
  const auto with = [&](const std::string& value) {
    write("run.yaml", "model:\nextends: " + value + "\n");
    return complaint({"run.yaml"});
  };
  EXPECT_EQ(with("none.yaml"),
            "run.yaml:2: extends: none.yaml: cannot open the configuration file: No such file or directory");
  std::filesystem::create_directories(at("folder"));
  EXPECT_EQ(
      with("folder"),
      "run.yaml:2: extends: folder: cannot open the configuration file: is a folder, not a regular file");
  for (const char* value : {"", "{a: 1}", "[[a]]", "\"\""})
    EXPECT_EQ(with(value), "run.yaml:2: extends: expected a file, preset:NAME, or a list of these") << value;
  EXPECT_EQ(with("run.yaml"),
            "run.yaml:2: extends: run.yaml extends itself: run.yaml -> run.yaml; leave one of them out");
  EXPECT_EQ(with("preset:lama3_8b"),
            "run.yaml:2: extends: there is no preset 'lama3_8b'; did you mean 'llama3_8b'? te-train "
            "--list-presets shows all");
  EXPECT_EQ(with("preset:bert"),
            "run.yaml:2: extends: there is no preset 'bert'; te-train --list-presets shows all");
  write("a.yaml", "extends: ./b.yaml\n");
  write("b.yaml", "\nextends: [preset:gpt2, a.yaml]\n");
  EXPECT_EQ(complaint({"a.yaml"}),
            "b.yaml:2: extends: a.yaml extends itself: a.yaml -> b.yaml -> a.yaml; leave one of them out");
  for (int i = 0; i < 20; ++i)
    write("deep" + std::to_string(i) + ".yaml", "extends: deep" + std::to_string(i + 1) + ".yaml\n");
  EXPECT_EQ(complaint({"deep0.yaml"}), "deep15.yaml:1: extends: deep16.yaml: more than 16 files deep");
  write("run.yaml", "extend: a.yaml\n");
  EXPECT_EQ(complaint({"run.yaml"}), "run.yaml:1: key 'extend' is unknown; did you mean 'extends'?");
}

TEST_F(Merge, WrongMergeKeys) {
  const auto of = [&](const std::string& text) {
    write("run.yaml", text);
    return complaint({"run.yaml"});
  };
  EXPECT_EQ(of("model:\n  <<: 5\n"),
            "run.yaml:2: <<: expected a mapping, such as the alias *NAME, or a list of them");
  EXPECT_EQ(of("x-a: &a {bad: 1}\nmodel:\n  <<: *a\n").rfind("run.yaml:1: key 'model.bad' is unknown; ", 0),
            0u);
  EXPECT_NE(of("model: &a\n  <<: *a\n").find("mappings deep"), std::string::npos);
  // Each level contains ten of the previous one.
  std::string bomb = "x-0: &a0 {family: gpt}\n";
  for (int i = 1; i < 12; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    bomb += "x-" + std::to_string(i) + ": &a" + std::to_string(i) + " {<<: [" + alias;
    for (int k = 0; k < 9; ++k) bomb += ", " + alias;
    bomb += "]}\n";
  }
  EXPECT_NE(of(bomb + "model: {<<: *a11}\n").find("expand to more than 10000 keys"), std::string::npos);
}

TEST_F(Merge, TheCommentedOutputIsTheSameConfig) {
  write("base.yaml", kSmall + "logging: {directory: \"a # b\"}\n");
  write("run.yaml",
        "extends: base.yaml\nmodel: {make_vocab_size_divisible_by: 10, num_attention_heads: 6, kv_channels: "
        "16}\n");
  const Config c = load({"run.yaml"}, {"parallel.tensor=3", "training.seed=7"});
  const std::string text = to_yaml(c, provenance_);
  EXPECT_EQ(to_yaml(parse_config(text, "run.yaml")), to_yaml(c)) << text;
  EXPECT_EQ(origin("model.make_vocab_size_divisible_by"),
            "run.yaml:2; 30 in this run: adjusted to other keys");
  EXPECT_NE(text.find("  seed: 7 "), std::string::npos);
  EXPECT_NE(text.find("  make_vocab_size_divisible_by: 10 "), std::string::npos) << text;
  // Every value has its origin.
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(line[0] == ' ', line.find("  # ") != std::string::npos) << line;
}

// If keys of a printed or saved config are changed, values that depend on them are derived again.
TEST_F(Merge, DerivedValuesFollowChangedKeys) {
  write("run.yaml", kSmall);
  write("saved.yaml", to_yaml(load({"run.yaml"}, {}), provenance_));
  EXPECT_NE(to_yaml(load({"saved.yaml"}, {}), provenance_).find("  # min_lr: 3.0e-05 "), std::string::npos);
  EXPECT_EQ(load({"saved.yaml"}, {}).logging.directory, "runs/run");  // the name of a file is not a key
  const std::vector<std::string> changes = {"logging.directory=runs/other",
                                            "training.train_steps=1000",
                                            "optimizer.lr=1e-3",
                                            "model.num_attention_heads=8",
                                            "model.seq_length=64",
                                            "parallel.tensor=4",
                                            "data.synthetic=false",
                                            "data.train=a",
                                            "data.valid={x: b}"};
  const Config changed = load({"saved.yaml"}, changes);
  EXPECT_EQ(to_yaml(changed), to_yaml(load({"run.yaml"}, changes)));
  EXPECT_EQ(changed.checkpoint.directory, "runs/other/checkpoints");
  EXPECT_EQ(changed.optimizer.decay_steps, 1000);
  EXPECT_EQ(changed.optimizer.min_lr, 1e-4);
  // Given values are kept.
  write("given.yaml",
        kSmall + "optimizer: {decay_steps: 100, min_lr: 3.0e-5}\ncheckpoint: {directory: kept}\n");
  write("saved.yaml", to_yaml(load({"given.yaml"}, {}), provenance_));
  const Config kept = load({"saved.yaml"}, changes);
  EXPECT_EQ(kept.checkpoint.directory, "kept");
  EXPECT_EQ(kept.optimizer.decay_steps, 100);
  EXPECT_EQ(kept.optimizer.min_lr, 3e-5);
}

}  // namespace
}  // namespace te::config
