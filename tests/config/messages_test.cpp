// Messages: suggestions for unknown names, and the origins of the keys that an error names.
#include "config/provenance.h"
#include "config_testing.h"

namespace te::config {
namespace {

TEST(Messages, NameTheOriginsOfTheirKeys) {
  EXPECT_EQ(
      complaint(kSmall + "optimizer: {min_lr: 1.0}\n"),
      "optimizer.min_lr (1) is above optimizer.lr (0.0003) (optimizer.min_lr: dir/bad.yaml:5, optimizer.lr: "
      "default)");
  // In the order of the message, and only the keys that it names.
  const std::string message =
      override_complaint({"training.train_steps=7", "model.num_query_groups=3", "logging.every=7"});
  EXPECT_EQ(message.rfind("model.num_attention_heads (4) is not a multiple of", 0), 0u) << message;
  EXPECT_NE(message.find("(model.num_attention_heads: dir/bad.yaml:1, model.num_query_groups: --set)"),
            std::string::npos)
      << message;
  EXPECT_EQ(message.find("training.train_steps"), std::string::npos) << message;
  // A key whose name is a part of another key's name is not listed.
  const std::string decay =
      override_complaint({"optimizer.decay=wsd", "optimizer.decay_steps=5", "optimizer.wsd_decay_steps=9"});
  EXPECT_NE(decay.find("(optimizer.wsd_decay_steps: --set, optimizer.decay_steps: --set)"), std::string::npos)
      << decay;
}

TEST(Messages, SuggestAutoOrNeverForResume) {
  for (const char* value : {"true", "Auto", "yes", "latest", "atuo"})
    EXPECT_NE(override_complaint({std::string("checkpoint.resume=") + value})
                  .find(std::string("did you mean 'auto'? (a folder of that name is ./") + value + ")"),
              std::string::npos)
        << value;
  EXPECT_NE(override_complaint({"checkpoint.resume=false"}).find("did you mean 'never'?"), std::string::npos);
  for (const char* value : {"auto", "never", "runs/true", "./true", "step_00000020", "last_run"})
    EXPECT_EQ(small({std::string("checkpoint.resume=") + value}).checkpoint.resume, value);
}

TEST(Messages, SuggestionsStayNear) {
  const auto for_override = [](const std::string& key) {
    const std::string message = override_complaint({key + "=1"});
    return message.substr(message.rfind("is unknown; ") + 12);
  };
  // The same section first.
  EXPECT_EQ(for_override("logging.dir"), "did you mean 'logging.directory'?");
  EXPECT_EQ(for_override("checkpoint.dir"), "did you mean 'checkpoint.directory'?");
  EXPECT_EQ(for_override("checkpoint.path"), "did you mean 'checkpoint.directory'?");
  EXPECT_EQ(for_override("evaluation.batch_size"), "did you mean 'evaluation.batch'?");
  EXPECT_EQ(for_override("optimizer.adam_beta_1"), "did you mean 'optimizer.beta1'?");
  EXPECT_EQ(for_override("training.learning_rate"), "did you mean 'optimizer.lr'?");
  EXPECT_EQ(for_override("Model.Num-Layers"), "did you mean 'model.num_layers'?");
  // A section of a similar name, and no mistyped names of other programs in other sections.
  EXPECT_EQ(for_override("log.dir"), "did you mean 'logging.directory'?");
  EXPECT_EQ(for_override("optim.lr"), "did you mean 'optimizer.lr'?");
  EXPECT_EQ(for_override("adapter.base"), "te-train --describe-keys lists all keys");
  EXPECT_EQ(for_override("every"), "did you mean 'logging.every', 'evaluation.every' or 'guard.every'?");
  // Names without an equivalent get a hint instead of a key with a similar spelling.
  EXPECT_NE(for_override("parallel.data").find("mpirun -n RANKS"), std::string::npos);
  EXPECT_NE(for_override("data_parallel_size").find("mpirun -n RANKS"), std::string::npos);
  EXPECT_NE(for_override("resume").find("checkpoint.resume=auto"), std::string::npos);
  EXPECT_EQ(for_override("training"), "it is a section; name a key in it, such as training.KEY=VALUE");
  EXPECT_EQ(for_override("extends"),
            "it belongs at the top level of a file; give another file with a second --config");
  EXPECT_EQ(for_override("guard.xy"), "te-train --describe-keys lists all keys");
}

TEST(Messages, OptionsThatAreKeys) {
  EXPECT_EQ(set_suggestion("--lr"), "did you mean --set optimizer.lr=VALUE?");
  EXPECT_EQ(set_suggestion("--learning-rate"), "did you mean --set optimizer.lr=VALUE?");
  EXPECT_EQ(set_suggestion("--training.train_steps"), "did you mean --set training.train_steps=VALUE?");
  EXPECT_EQ(
      set_suggestion("--every"),
      "did you mean --set logging.every=VALUE, --set evaluation.every=VALUE or --set guard.every=VALUE?");
  EXPECT_NE(set_suggestion("--resume").find("--set checkpoint.resume=auto"), std::string::npos);
  EXPECT_EQ(set_suggestion("--data"), "did you mean --set data.KEY=VALUE?");
  EXPECT_EQ(set_suggestion("--verbos"), "");
  EXPECT_EQ(set_suggestion("--"), "");
}

}  // namespace
}  // namespace te::config
