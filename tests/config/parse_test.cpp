// Parsing: values and defaults of a valid file, and the exact message of one line for each kind of invalid file.
#include <fstream>

#include "config_testing.h"

namespace te::config {
namespace {

TEST(Parse, ReadsEveryTypeAndFillsDefaults) {
  const Config c = parse_config(
      "model:\n"
      "  family: gpt\n"
      "  num_layers: 3\n"
      "  hidden_size: 48\n"
      "  num_attention_heads: 3\n"
      "  vocab_size: 1000\n"
      "  seq_length: 64\n"
      "  hidden_dropout: 0.1\n"
      "precision: {fp8: hybrid, amax_compute_algo: most_recent}\n"
      "training: {micro_batch_size: 4, global_batch_size: 12, train_steps: 250, seed: 18446744073709551615}\n"
      "optimizer: {lr: 1e-3, decay: wsd, clip_grad: 2}\n"
      "data: {train: [[0.25, a/b], c], valid: d}\n"
      "checkpoint: {resume: auto, save_last: false}\n"
      "logging:\n",
      "some/where/my_run.yaml");
  EXPECT_EQ(c.name, "my_run");
  EXPECT_EQ(c.model.family, Family::gpt);
  EXPECT_EQ(c.model.num_layers, 3);
  EXPECT_EQ(c.model.ffn_hidden_size, 192);
  EXPECT_EQ(c.model.num_query_groups, 3);
  EXPECT_EQ(c.model.kv_channels, 16);
  EXPECT_EQ(c.model.max_position_embeddings, 64);
  EXPECT_EQ(c.model.padded_vocab_size(), 1024);
  EXPECT_TRUE(c.model.tie_word_embeddings);
  EXPECT_EQ(c.model.hidden_dropout, 0.1);
  EXPECT_EQ(c.model.norm_epsilon, 1e-5);
  EXPECT_EQ(c.precision.fp8, Fp8Mode::hybrid);
  EXPECT_EQ(c.precision.amax_compute_algo, AmaxAlgo::most_recent);
  EXPECT_EQ(c.precision.amax_history_len, 1024);
  EXPECT_EQ(c.training.seed, 18446744073709551615ull);
  EXPECT_EQ(c.training.device, DeviceChoice::automatic);
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_EQ(c.optimizer.decay, LrDecay::wsd);
  EXPECT_EQ(c.optimizer.decay_steps, 250);
  EXPECT_EQ(c.optimizer.wsd_decay_steps, 25);
  EXPECT_EQ(c.optimizer.clip_grad, 2.0);
  EXPECT_EQ(c.data.train, (std::vector<DataSource>{{0.25, "a/b"}, {1.0, "c"}}));
  EXPECT_EQ(c.data.valid, (std::vector<ValidationSet>{{"valid", {{1.0, "d"}}}}));
  EXPECT_EQ(c.checkpoint.resume, "auto");
  EXPECT_FALSE(c.checkpoint.save_last);
  EXPECT_EQ(c.logging.directory, "runs/my_run");
  EXPECT_EQ(c.checkpoint.directory, "runs/my_run/checkpoints");
}

TEST(Parse, DefaultsThatDependOnOtherKeys) {
  EXPECT_FALSE(small().model.tie_word_embeddings);
  EXPECT_TRUE(small({"model.tie_word_embeddings=true"}).model.tie_word_embeddings);
  EXPECT_EQ(small().model.padded_vocab_size(), 128);
  EXPECT_EQ(small({"model.vocab_size=128"}).model.padded_vocab_size(), 128);
  EXPECT_EQ(small({"model.vocab_size=129"}).model.padded_vocab_size(), 256);
  EXPECT_EQ(small({"model.num_query_groups=2"}).model.qkv_width(), (4 + 2 * 2) * 16);
  EXPECT_EQ(small({"model.kv_channels=24"}).model.attention_width(), 96);
  EXPECT_EQ(small().model.fc1_width(), 192);
  EXPECT_EQ(small({"training.train_steps=7"}).optimizer.wsd_decay_steps, 1);
  EXPECT_EQ(small({"optimizer.decay_steps=80"}).optimizer.wsd_decay_steps, 8);
  EXPECT_EQ(small({"logging.directory=out"}).checkpoint.directory, "out/checkpoints");
}

TEST(Parse, UnknownKeysAreReportedWithTheNearestKey) {
  EXPECT_EQ(complaint("model:\n  family: gpt\n  num_layer: 4\n"),
            "dir/bad.yaml:3: key 'model.num_layer' is unknown; did you mean 'model.num_layers'?");
  EXPECT_EQ(complaint("modle: {}\n"), "dir/bad.yaml:1: key 'modle' is unknown; did you mean 'model'?");
  EXPECT_EQ(complaint("model: {lr: 1}\n"),
            "dir/bad.yaml:1: key 'model.lr' is unknown; did you mean 'optimizer.lr'?");
  EXPECT_EQ(complaint("\nseed: 1\n"), "dir/bad.yaml:2: key 'seed' is unknown; did you mean 'training.seed'?");
  EXPECT_EQ(complaint("precision: {pf8: off}\n"),
            "dir/bad.yaml:1: key 'precision.pf8' is unknown; did you mean 'precision.fp8'?");
  const auto for_override = [](const std::string& key) {
    const std::string message = override_complaint({key + "=1"});
    return message.substr(message.rfind("; ") + 2);
  };
  EXPECT_EQ(for_override("model.n_head"), "did you mean 'model.num_attention_heads'?");
  EXPECT_EQ(for_override("model.nlayers"), "did you mean 'model.num_layers'?");
  EXPECT_EQ(for_override("model.hidden"), "did you mean 'model.hidden_size'?");
  EXPECT_EQ(for_override("training.batch_size"), "did you mean 'training.micro_batch_size'?");
  EXPECT_EQ(for_override("optimizer.beat1"), "did you mean 'optimizer.beta1'?");
  // Names of other programs.
  EXPECT_EQ(for_override("optimizer.learning_rate"), "did you mean 'optimizer.lr'?");
  EXPECT_EQ(for_override("checkpoint.save_interval"), "did you mean 'checkpoint.save_every'?");
  EXPECT_EQ(for_override("n_layer"), "did you mean 'model.num_layers'?");
  EXPECT_EQ(for_override("training.max_steps"), "did you mean 'training.train_steps'?");
  EXPECT_EQ(for_override("zq.xjw"), "te-train --describe-keys lists all keys");
  EXPECT_NE(complaint("model: {zzzzzzzzzzzzzzzz: 1}\n").find("te-train --describe-keys lists all keys"),
            std::string::npos);
  EXPECT_NE(complaint("\"a\\nb\": 1\n").find("'a\\x0ab'"), std::string::npos);
}

TEST(Parse, ValuesOfWrongTypes) {
  const auto in_model = [](const std::string& value) {
    return complaint("model:\n  num_layers: " + value + "\n");
  };
  EXPECT_EQ(in_model("twelve"), "dir/bad.yaml:2: model.num_layers: expected an integer, got \"twelve\"");
  EXPECT_EQ(in_model("\"12\""),
            "dir/bad.yaml:2: model.num_layers: expected an integer, got the string \"12\"");
  EXPECT_EQ(in_model(""), "dir/bad.yaml:2: model.num_layers: expected an integer, got nothing");
  EXPECT_EQ(in_model("[1]"), "dir/bad.yaml:2: model.num_layers: expected an integer, got a list");
  EXPECT_EQ(in_model("{a: 1}"), "dir/bad.yaml:2: model.num_layers: expected an integer, got a mapping");
  for (const char* text :
       {"1.5", "1e3", "0x10", "1_000", "true", "99999999999999999999", "1 2", "+", "+-1"}) {
    EXPECT_EQ(in_model(text),
              std::string("dir/bad.yaml:2: model.num_layers: expected an integer, got \"") + text + "\"");
  }
  EXPECT_EQ(complaint("training: {seed: -1}\n"),
            "dir/bad.yaml:1: training.seed: expected an integer from 0 to 2^64 - 1, got \"-1\"");
  for (const char* text : {"fast", ".inf", "inf", "nan", ".nan", "1e999", "0x1p3", "1,5"}) {
    EXPECT_NE(complaint(std::string("optimizer:\n  lr: ") + text + "\n")
                  .find("optimizer.lr: expected a number, got"),
              std::string::npos);
  }
  for (const char* text : {"yes", "on", "True", "1", "\"true\"", ""}) {
    EXPECT_NE(complaint(std::string("logging:\n  tensorboard: ") + text + "\n")
                  .find("logging.tensorboard: expected true or false"),
              std::string::npos);
  }
  EXPECT_EQ(complaint("precision:\n\n  fp8: true\n"),
            "dir/bad.yaml:3: precision.fp8: expected one of off, e4m3, hybrid, got \"true\"");
  EXPECT_EQ(complaint("optimizer: {name: sgd}\n"),
            "dir/bad.yaml:1: optimizer.name: expected one of adamw, muon, got \"sgd\"");
  EXPECT_EQ(complaint("logging: {directory: [a]}\n"),
            "dir/bad.yaml:1: logging.directory: expected a string, got a list");
}

TEST(Parse, Datasets) {
  const auto in_data = [](const std::string& value) { return complaint("data:\n  train: " + value + "\n"); };
  EXPECT_NE(in_data("[0.5, a]").find("is a pair of brackets missing?"), std::string::npos);
  EXPECT_NE(in_data("[[a, 0.5]]").find("expected a number as the weight of a dataset, got \"a\""),
            std::string::npos);
  EXPECT_NE(in_data("[[0.5]]").find("expected a path prefix or [weight, prefix], got a list"),
            std::string::npos);
  EXPECT_NE(in_data("[[0, a]]").find("the weight 0.0 of a dataset must be above 0"), std::string::npos);
  EXPECT_NE(in_data("[[1.0, \"\"]]").find("expected the path prefix of a dataset"), std::string::npos);
  EXPECT_EQ(in_data("\n    - good\n    - [1.0, x/y.bin]"),
            "dir/bad.yaml:4: data.train: \"x/y.bin\" names a file; give the prefix \"x/y\"");
  EXPECT_NE(in_data("{a: 1}").find("got a mapping"), std::string::npos);
  const std::vector<std::string> real = {"data.synthetic=false"};
  EXPECT_EQ(small({real[0], "data.train=[[2, a], [0.5, b]]"}).data.train,
            (std::vector<DataSource>{{2.0, "a"}, {0.5, "b"}}));
  EXPECT_EQ(small({real[0], "data.train=a"}).data.train, (std::vector<DataSource>{{1.0, "a"}}));
}

TEST(Parse, Ranges) {
  EXPECT_EQ(complaint("model:\n  seq_length: 0\n"),
            "dir/bad.yaml:2: model.seq_length: 0 is out of range; it must be 1 to 10000000");
  EXPECT_EQ(complaint("model: {hidden_dropout: 1.0}\n"),
            "dir/bad.yaml:1: model.hidden_dropout: 1.0 is out of range; it must be 0 or more, below 1");
  EXPECT_EQ(complaint("optimizer: {lr: 0}\n"),
            "dir/bad.yaml:1: optimizer.lr: 0.0 is out of range; it must be above 0");
  EXPECT_EQ(override_complaint({"optimizer.beta1=-0.1"}),
            "--set optimizer.beta1=-0.1: -0.1 is out of range; it must be 0 or more, below 1");
}

// Numbers are used as float32: 1e-46 is 0 there, 1e39 infinite, and 0.99999999 is 1.
TEST(Parse, NumbersFitIntoFloat32) {
  EXPECT_EQ(override_complaint({"optimizer.eps=1e-46"}),
            "--set optimizer.eps=1e-46: 1.0e-46 is too close to 0 for float32; it must be at least 1.2e-38");
  EXPECT_EQ(
      complaint("optimizer: {clip_grad: 1e-46}\n"),
      "dir/bad.yaml:1: optimizer.clip_grad: 1.0e-46 is too close to 0 for float32; it must be 0 or at least "
      "1.2e-38");
  EXPECT_EQ(override_complaint({"optimizer.lr=1e39"}),
            "--set optimizer.lr=1e39: 1.0e+39 is too large for float32; it must be at most 3.4e38");
  EXPECT_EQ(
      override_complaint({"optimizer.beta1=0.99999999"}),
      "--set optimizer.beta1=0.99999999: 0.99999999 is 1.0 in float32; it must be 0 or more, below 1 in "
      "float32, too");
  for (const char* wrong :
       {"optimizer.beta2=0.99999999", "optimizer.muon_momentum=0.99999999", "model.hidden_dropout=0.99999999",
        "model.attention_dropout=0.99999999", "adapter.dropout=0.99999999", "model.swiglu_clamp=1e-46",
        "model.final_logit_softcapping=1e-40", "model.query_pre_attn_scalar=1e-90",
        "training.z_loss_coefficient=1e39", "model.rope_scaling={rope_type: linear, factor: 1e39}"})
    EXPECT_NE(override_complaint({wrong}).find("float32"), std::string::npos) << wrong;
  EXPECT_EQ(small({"optimizer.eps=1e-30"}).optimizer.eps, 1e-30);
  EXPECT_EQ(small({"optimizer.beta1=0.9999999"}).optimizer.beta1, 0.9999999);
  EXPECT_EQ(small({"optimizer.clip_grad=0"}).optimizer.clip_grad, 0.0);
  EXPECT_EQ(small({"guard.tolerance=1e-30"}).guard.tolerance, 1e-30);
}

TEST(Parse, DuplicatesAndStructure) {
  EXPECT_EQ(complaint("model:\n  num_layers: 1\n  hidden_size: 2\n  num_layers: 1\n"),
            "dir/bad.yaml:4: model.num_layers is given twice; first in line 2");
  EXPECT_EQ(complaint("data: {}\nlogging: {}\ndata: {}\n"),
            "dir/bad.yaml:3: data is given twice; first in line 1");
  EXPECT_EQ(complaint("model: 5\n"), "dir/bad.yaml:1: model: expected a section with keys of its own");
  EXPECT_EQ(complaint("optimizer.lr: 3\n"),
            "dir/bad.yaml:1: key 'optimizer.lr' must be in its section; write optimizer: {lr: ...}");
  EXPECT_EQ(complaint("- 1\n"), "dir/bad.yaml:1: expected sections (model, training, ...) with their keys");
  EXPECT_EQ(complaint("[a]: 1\n"), "dir/bad.yaml:1: expected the name of a key");
  EXPECT_NE(complaint(kSmall + "---\nmodel: {}\n").find("dir/bad.yaml:5: a second YAML document begins here"),
            std::string::npos);
  EXPECT_EQ(complaint(""),
            "dir/bad.yaml: required keys are missing: model.family, model.num_layers, model.hidden_size, "
            "model.num_attention_heads, model.vocab_size, model.seq_length, training.micro_batch_size, "
            "training.global_batch_size, training.train_steps");
}

TEST(Parse, BrokenYamlNamesTheLine) {
  EXPECT_EQ(complaint("model:\n  family: gpt\n  num_layers: [1\n").rfind("dir/bad.yaml:4: broken YAML: ", 0),
            0u);
  EXPECT_EQ(complaint("model: {\n").rfind("dir/bad.yaml:2: broken YAML: ", 0), 0u);
  EXPECT_EQ(complaint("a: \"x\n").rfind("dir/bad.yaml:", 0), 0u);
  EXPECT_EQ(complaint("\tmodel: 1\n").rfind("dir/bad.yaml:1: ", 0), 0u);
}

TEST(Parse, Overrides) {
  EXPECT_EQ(small({"model.num_layers=5"}).model.num_layers, 5);
  EXPECT_EQ(small({"model.num_layers=5", "model.num_layers=6"}).model.num_layers, 6);
  EXPECT_EQ(small({"data.tokenizer="}).data.tokenizer, "");
  EXPECT_EQ(small({"logging.directory=a = b: [c] #d"}).logging.directory, "a = b: [c] #d");
  EXPECT_EQ(small({"precision.fp8=off"}).precision.fp8, Fp8Mode::off);
  EXPECT_EQ(override_complaint({"model.num_layer=4"}),
            "--set model.num_layer=4: key 'model.num_layer' is unknown; did you mean 'model.num_layers'?");
  EXPECT_EQ(override_complaint({"model.num_layers=twelve"}),
            "--set model.num_layers=twelve: expected an integer, got \"twelve\"");
  EXPECT_EQ(override_complaint({"model.num_layers="}),
            "--set model.num_layers=: expected an integer, got nothing");
  EXPECT_EQ(override_complaint({"model.num_layers"}),
            "--set model.num_layers: expected KEY=VALUE, such as --set model.num_layers=4");
  EXPECT_EQ(override_complaint({"data.train=[a"}).rfind("--set data.train=[a: broken YAML: ", 0), 0u);
  EXPECT_EQ(override_complaint({"training.train_steps=10\n---\n20"}),
            "--set training.train_steps=10\\x0a---\\x0a20: expected one value, got a second YAML document");
  EXPECT_EQ(override_complaint({"modle.num_layers=4"}),
            "--set modle.num_layers=4: key 'modle.num_layers' is unknown; did you mean 'model.num_layers'?");
  // An override can set a key that the file lacks.
  EXPECT_EQ(complaint("model: {family: llama}\n", {"model.num_layers=1"}).find("model.num_layers"),
            std::string::npos);
}

TEST(Parse, MissingAndUnreadableFiles) {
  const auto message = [](const std::string& path) -> std::string {
    try {
      load_config(path);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("no/such.yaml"),
            "no/such.yaml: cannot open the configuration file: No such file or directory");
  EXPECT_EQ(message("/"), "/: cannot open the configuration file: is a folder, not a regular file");
}

TEST(Parse, WindowsLineBreaksAndByteOrderMark) {
  std::string text = "\xef\xbb\xbf";
  for (const char c : kSmall) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(to_yaml(parse_config(text, "dir/small.yaml")), to_yaml(small()));
}

/// A damaged file gives a Config or a UserError of one line, never another exception or a crash.
TEST(Parse, DamagedFilesNeverCrash) {
  const std::string good = to_yaml(small());
  uint64_t state = 88172645463325252ull;
  const auto next = [&](size_t limit) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<size_t>(state % limit);
  };
  const std::string bytes =
      "{}[]:,-#&*!|>'\"%@`?~<\n\t \\x0\xff\x01"
      "a9";
  int rejected = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (size_t edits = 1 + next(4); edits > 0; --edits) {
      const size_t at = next(text.size());
      if (next(3) == 0) {
        text.erase(at, 1 + next(20));
      } else {
        text[at] = bytes[next(bytes.size())];
      }
    }
    try {
      validate(parse_config(text, "damaged.yaml"));
    } catch (const UserError& error) {
      ++rejected;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(rejected, 1000);
}

}  // namespace
}  // namespace te::config
