// Datasets that change during a run: checkpoints record what the run was trained on.
#include "checkpoint/manifest.h"
#include "core/json.h"
#include "data/loss_mask.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::Documents;
using testing::operator+;
using testing::expect_refused;
using testing::Overrides;
using testing::Result;
using testing::TrainFolder;
using testing::write_dataset;

class DataChange : public ::testing::Test {
 protected:
  /// Documents of the same lengths with other tokens.
  static Documents documents(int32_t token) { return Documents(30, std::vector<int32_t>(40, token)); }
  Result resume(const Overrides& overrides) const {
    return folder_.run("a", overrides + Overrides{"checkpoint.resume=auto", "training.train_steps=4"});
  }
  /// The run resumes with another dataset under `prefix` only if asked to, and with the first one without asking.
  void expect_noticed(const std::string& prefix, const std::string& key,
                      const Overrides& overrides = {}) const {
    write_dataset(prefix, documents(65));
    testing::run(folder_, "a", overrides + Overrides{"training.train_steps=2"});
    const std::string logged = testing::read_file(folder_.run_folder("a") + "/loss.csv");
    write_dataset(prefix, documents(66));
    const Result refused = resume(overrides);
    expect_refused(refused, key + ": " + prefix + " is not the data of " + folder_.checkpoint("a", 2) +
                                " (30 documents, 1200 tokens, xxh3:");
    TE_EXPECT_CONTAINS(refused.error, "or set data.check to false");
    EXPECT_EQ(testing::read_file(folder_.run_folder("a") + "/loss.csv"), logged);
    const Result wanted = resume(overrides + Overrides{"data.check=false", "training.train_steps=3"});
    EXPECT_EQ(wanted.code, 0) << wanted.error;
    TE_EXPECT_CONTAINS(wanted.out + wanted.error, key + ": " + prefix + " is not the data of ");
    // From now on the run uses the new dataset.
    EXPECT_EQ(resume(overrides).code, 0);
    std::filesystem::remove_all(folder_.run_folder("a"));
  }
  TrainFolder folder_;
};

TEST_F(DataChange, OfTrainingSetIsRefusedUnlessAllowed) {
  expect_noticed(folder_ / "train", "data.train");
}

TEST_F(DataChange, UnderAnotherSpellingIsRefused) {
  write_dataset(folder_ / "train", documents(65));
  testing::run(folder_, "a", {"training.train_steps=2"});
  const Overrides spelled = {"data.train=" + (folder_ / "./train")};
  EXPECT_EQ(resume(spelled + Overrides{"training.train_steps=3"}).code, 0);
  write_dataset(folder_ / "train", documents(66));
  expect_refused(resume(spelled), "data.train: " + (folder_ / "./train") + " is not the data of ");
}

TEST_F(DataChange, OfAnyDatasetOfABlendIsDetected) {
  expect_noticed(folder_ / "second", "data.train",
                 {"data.train=[[0.5, " + (folder_ / "train") + "], [0.5, " + (folder_ / "second") + "]]"});
}

TEST_F(DataChange, OfValidationSetIsDetected) {
  expect_noticed(folder_ / "valid", "data.valid", {"training.eval_interval=2"});
  expect_noticed(folder_ / "other", "data.valid: b",
                 {"training.eval_interval=2",
                  "data.valid={a: " + (folder_ / "valid") + ", b: " + (folder_ / "other") + "}"});
}

TEST_F(DataChange, OfLossMasksIsDetected) {
  const Overrides overrides = {"data.format=instruct"};
  const std::string mask = data::loss_mask_prefix(folder_ / "train");
  const auto write_mask = [&](int32_t first) {
    std::vector<int32_t> values(40, 1);
    values[0] = first;
    write_dataset(mask, Documents(30, values), data::TokenType::kU8);
  };
  write_dataset(folder_ / "train", documents(65));
  write_mask(1);
  testing::run(folder_, "a", overrides + Overrides{"training.train_steps=2"});
  write_mask(0);
  expect_refused(resume(overrides), "data.train: " + mask + " is not the data of ");
}

// run.json has the content of data and initial weights, by which reports tell runs that cannot be compared.
TEST_F(DataChange, IsInTheRecordsOfTheRuns) {
  const std::string weights = folder_ / "weights";
  const auto contents = [&](const std::string& name, const Overrides& overrides) {
    testing::run(folder_, name, overrides + Overrides{"checkpoint.init_from=" + weights});
    return parse_json(testing::read_file(folder_.run_folder(name) + "/run.json"))["starts"].back()["data"];
  };
  const auto replace_weights = [&](const std::string& seed) {
    testing::run(folder_, "base" + seed, {"training.seed=" + seed, "training.train_steps=1"});
    std::filesystem::remove_all(weights);
    std::filesystem::copy(folder_.checkpoint("base" + seed, 1), weights);
  };
  for (const Overrides& overrides : {Overrides{}, Overrides{"adapter.type=lora", "adapter.rank=8"}}) {
    const std::string name = std::to_string(overrides.size());
    replace_weights("1");
    const nlohmann::json first = contents("first" + name, overrides);
    EXPECT_EQ(contents("again" + name, overrides), first);
    EXPECT_EQ(first.size(), 3u) << first;
    replace_weights("2");
    const nlohmann::json second = contents("second" + name, overrides);
    EXPECT_NE(second[weights], first[weights]);
    EXPECT_EQ(second[folder_ / "train"], first[folder_ / "train"]);
    for (const char* base : {"base1", "base2"}) std::filesystem::remove_all(folder_.run_folder(base));
  }
  const std::string adapter = folder_.checkpoint("second2", 6);
  EXPECT_TRUE(contents("third", {"adapter.type=lora", "adapter.rank=8", "adapter.init_from=" + adapter})
                  .contains(adapter));
}

TEST_F(DataChange, UnderAnotherPrefixIsAConfigChange) {
  write_dataset(folder_ / "other", documents(66));
  testing::run(folder_, "a", {"training.train_steps=2"});
  const Result result = resume({"data.train=" + (folder_ / "other")});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out + result.error, "data.train: ");
}

TEST_F(DataChange, CheckpointsWithoutFingerprintsResume) {
  testing::run(folder_, "a", {"training.train_steps=2"});
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder_.checkpoint("a", 2));
  EXPECT_EQ(manifest.datasets.size(), 2u);  // includes the validation set, although it was not evaluated
  manifest.datasets.clear();
  testing::write_file(folder_.checkpoint("a", 2) + "/manifest.json", checkpoint::to_text(manifest));
  write_dataset(folder_ / "train", documents(66));
  EXPECT_EQ(resume({}).code, 0);
}

/// What --dry-run prints about data.
class PlannedData : public ::testing::Test {
 protected:
  Result plan(const std::string& overrides) const {
    return folder_.run_raw("--dry-run --config " + (folder_ / "base.yaml") +
                           " --set training.eval_interval=2 " + overrides);
  }
  TrainFolder folder_;
};

TEST_F(PlannedData, IsOpenedAndShown) {
  const Result result = plan("");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "training data: " + (folder_ / "train") + " (1 dataset): ");
  TE_EXPECT_CONTAINS(result.out, "validation data: " + (folder_ / "valid") + " (1 dataset): ");
  EXPECT_EQ(result.out.find("not checked"), std::string::npos);
}

TEST_F(PlannedData, MayBeOnAnotherMachine) {
  const std::string none = folder_ / "none";
  Result result = plan("--set data.train=" + none + " --set data.tokenizer=" + (folder_ / "none.json"));
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "data.train: " + none + ".idx does not exist on this machine: not checked");
  TE_EXPECT_CONTAINS(result.out, "data.tokenizer: " + (folder_ / "none.json") +
                                     " does not exist on this machine: not checked");
  TE_EXPECT_CONTAINS(result.out, "validation data: ");
  EXPECT_EQ(result.out.find("synthetic"), std::string::npos);
  for (const std::string key : {"checkpoint.init_from", "checkpoint.resume"}) {
    const Result missing = plan("--set " + key + "=" + none);
    EXPECT_EQ(missing.code, 0) << missing.error;
    TE_EXPECT_CONTAINS(missing.out,
                       "warning: " + key + ": " + none + " does not exist on this machine: not checked");
  }
  result = plan("--set 'data.train=[" + (folder_ / "train") + ", " + none + "]' --set data.valid=" + none);
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "training data: ");
  TE_EXPECT_CONTAINS(result.out, "data.valid: " + none + ".idx does not exist on this machine: not checked");
}

// Without the tokenizer or the task data, the decoders are planned for sequences of the context length.
TEST_F(PlannedData, OfSamplesAndTasksMayBeOnAnotherMachine) {
  const std::string none = folder_ / "none", here = folder_ / "";
  const std::string
      tasks = " --set evaluation.every=2 --set evaluation.tasks=[hellaswag] --set evaluation.data=",
      samples = " --set logging.generate_every=2 --set logging.generate_prompts=[a]",
      tokenizer = " --set data.tokenizer=",
      synthetic =
          " --set training.eval_interval=0 --set data.synthetic=true --set data.train=[] --set data.valid=[]";
  const auto line = [&](const std::string& key) {
    return "warning: " + key + ": " + none + " does not exist on this machine: not checked";
  };
  const auto total = [](const std::string& out) {
    const size_t begin = std::min(out.find("  total "), out.size());
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  const std::string without = total(plan("").out);
  for (const auto& [overrides, keys] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {tasks + none + tokenizer + "bytes", {"evaluation.data"}},
           {tasks + none + tokenizer + none, {"data.tokenizer", "evaluation.data"}},
           {tasks + here + tokenizer + none, {"data.tokenizer"}},
           {samples + tokenizer + none, {"data.tokenizer"}},
           {samples + tokenizer + none + synthetic, {"data.tokenizer"}}}) {
    SCOPED_TRACE(overrides);
    const Result result = plan(overrides);
    ASSERT_EQ(result.code, 0) << result.error;
    for (const std::string key : {"data.tokenizer", "evaluation.data"}) {
      const bool expected = std::ranges::find(keys, key) != keys.end();
      EXPECT_EQ(result.out.find(line(key)) != std::string::npos, expected) << result.out;
    }
    EXPECT_NE(total(result.out), without);
    const Result layouts =
        folder_.run_raw("--plan 1 --gpu h100 --config " + (folder_ / "base.yaml") + overrides);
    EXPECT_EQ(layouts.code, 0) << layouts.error;
    for (const std::string& key : keys) TE_EXPECT_CONTAINS(layouts.out, line(key));
  }
  // As in a run, a folder without the data of a task is refused.
  expect_refused(plan(tasks + here + tokenizer + "bytes"), "has no data of hellaswag");
}

TEST_F(PlannedData, UnusableIsRefusedAsInARun) {
  write_dataset(folder_ / "large", Documents(3, std::vector<int32_t>(90, 300)));
  expect_refused(plan("--set data.train=" + (folder_ / "large")),
                 "data.train: " + (folder_ / "large") + ".bin: token 0");
  expect_refused(plan("--set data.valid=" + (folder_ / "large")),
                 "data.valid: " + (folder_ / "large") + ".bin: token 0");
  write_dataset(folder_ / "short", {{1, 2, 3}});
  expect_refused(plan("--set data.train=" + (folder_ / "short")), "has 3 tokens, but a sample needs");
  write_dataset(folder_ / "half", {{1, 2, 3}});
  std::filesystem::remove(folder_ / "half.bin");
  expect_refused(plan("--set data.train=" + (folder_ / "half")), "half.bin: cannot be opened");
  testing::write_file(folder_ / "text.json", "{");
  expect_refused(plan("--set data.tokenizer=" + (folder_ / "text.json")), "text.json");
  std::filesystem::resize_file(folder_ / "train.idx", 100);
  expect_refused(plan(""), "data.train: " + (folder_ / "train") + ".idx: ");
}

}  // namespace
}  // namespace te
