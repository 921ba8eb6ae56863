// te-train inspect-fp8 on checkpoints of runs: its results, that it changes nothing, and that its advice can be pasted
// and helps.

#include <algorithm>

#include "core/json.h"
#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
Result inspect(const TrainFolder& folder, const std::string& run, const std::string& more = "") {
  return folder.run_raw("inspect-fp8 --device cpu --checkpoint " + folder.run_folder(run) +
                        "/checkpoints --data " + (folder / "valid") + " --json " + (folder / "report.json") +
                        " " + more);
}

json report(const TrainFolder& folder) {
  return parse_json(read_file(folder / "report.json"));
}

/// The lowest SQNR of the run's own quantizations in a step's record.
double lowest_sqnr(const TrainFolder& folder, const std::string& run) {
  double lowest = 1e9;
  const json record = parse_json(split(read_file(folder.run_folder(run) + "/fp8_statistics.jsonl"), '\n')[0]);
  for (const json& operand : record["operands"])
    if (!operand.value("what_if", true) && operand["sqnr_db"].is_number())
      lowest = std::min(lowest, operand["sqnr_db"].get<double>());
  return lowest;
}

/// Makes a run whose weights have just changed a lot, so that delayed scales, which come from earlier steps, are too
/// large; without requantization.
void make_stale(const TrainFolder& folder) {
  ASSERT_EQ(folder
                .run("calm", {"precision.fp8=hybrid", "precision.fp8_recast=false", "training.train_steps=3",
                              "optimizer.lr=1.0e-6", "optimizer.min_lr=0", "optimizer.decay=constant"})
                .code,
            0);
  const Result jump =
      folder.run("stale", {"precision.fp8=hybrid", "precision.fp8_recast=false", "training.train_steps=4",
                           "optimizer.lr=0.3", "optimizer.decay=constant",
                           "checkpoint.resume=" + folder.run_folder("calm") + "/checkpoints"});
  ASSERT_EQ(jump.code, 0) << jump.error;
}

TEST(InspectFp8, AdviceCanBePastedAndHelps) {
  const TrainFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_stale(folder));
  const std::string before = folder.checkpoint_bytes("stale", 4);
  const Result found = inspect(folder, "stale", "--batches 2");
  ASSERT_EQ(found.code, 0) << found.error;
  EXPECT_EQ(found.error, "");
  EXPECT_EQ(folder.checkpoint_bytes("stale", 4), before);
  TE_EXPECT_CONTAINS(found.out, "precision   FP8 hybrid, delayed");
  TE_EXPECT_CONTAINS(found.out, "2 microbatches, 64 tokens");
  // 1. The worst quantization is first in the table, and a recipe with current scaling would fix it.
  const json all = report(folder);
  EXPECT_EQ(all["step"], 4);
  ASSERT_EQ(all["operands"].size(), 24u);
  const json& worst = all["operands"][0];
  EXPECT_TRUE(worst["harmful"]);
  EXPECT_LT(worst["sqnr_db"].get<double>(), 15);
  EXPECT_GT(worst["what_if"]["tensorwise"]["sqnr_db"].get<double>(), 24);
  TE_EXPECT_CONTAINS(found.out, "\n! ");
  // 2. The YAML is appended to the run's config, and te-train accepts it.
  const std::string yaml = all["yaml"];
  TE_EXPECT_CONTAINS(found.out, yaml);
  folder.write_config("paste", yaml);
  const std::string resume = " --set checkpoint.resume=" + folder.run_folder("stale") +
                             "/checkpoints --set training.train_steps=5 --set logging.fp8_statistics_every=1 "
                             "--set precision.fp8=hybrid --set precision.fp8_recast=false "
                             "--set logging.directory=";
  const std::string base = "--config " + (folder / "base.yaml");
  const Result without = folder.run_raw(base + resume + folder.run_folder("without")),
               with = folder.run_raw(base + " --config " + (folder / "paste.yaml") + resume +
                                     folder.run_folder("with"));
  ASSERT_EQ(without.code, 0) << without.error;
  ASSERT_EQ(with.code, 0) << with.error;
  EXPECT_LT(lowest_sqnr(folder, "without"), 15);
  EXPECT_GT(lowest_sqnr(folder, "with"), lowest_sqnr(folder, "without") + 5);
  // 3. The inspection with these rules confirms it.
  std::string rules = all["overrides"];
  std::ranges::replace(rules, '\n', ';');
  ASSERT_EQ(inspect(folder, "stale", "--set 'precision.overrides=" + rules + "'").code, 0);
  EXPECT_GT(report(folder)["operands"][0]["sqnr_db"].get<double>(), 22);
  EXPECT_EQ(report(folder)["yaml"], "");
  // 4. With requantization nothing saturates.
  ASSERT_EQ(inspect(folder, "stale", "--set precision.fp8_recast=true").code, 0);
  const json requantized = report(folder);
  for (const json& operand : requantized["operands"])
    EXPECT_EQ(operand["saturated"].get<double>(), 0.0) << operand;
}

TEST(InspectFp8, FindsWhatTheRunFinds) {
  const TrainFolder folder;
  const Overrides overrides = {"precision.fp8=hybrid", "training.micro_batch_size=4",
                               "logging.fp8_statistics_every=1"};
  Overrides first = overrides;
  first.insert(first.end(), {"training.train_steps=2", "optimizer.decay_steps=6"});
  ASSERT_EQ(folder.run("run", first).code, 0);
  // A new run from these weights: its first step runs the same passes as the inspection.
  Overrides again = overrides;
  again.insert(again.end(), {"training.train_steps=1", "precision.fp8_recipe=tensorwise",
                             "checkpoint.init_from=" + folder.checkpoint("run", 2)});
  ASSERT_EQ(folder.run("again", again).code, 0);
  const Result tensorwise = folder.run_raw(
      "inspect-fp8 --device cpu --set precision.fp8_recipe=tensorwise --recipes blockwise --checkpoint " +
      folder.checkpoint("run", 2) + " --json " + (folder / "report.json"));
  ASSERT_EQ(tensorwise.code, 0) << tensorwise.error;
  const json record =
      parse_json(split(read_file(folder.run_folder("again") + "/fp8_statistics.jsonl"), '\n')[0]);
  int compared = 0;
  const json found = report(folder);
  for (const json& operand : found["operands"]) {
    for (const json& own : record["operands"]) {
      if (own["linear"] != operand["linear"] || own["role"] != operand["role"] || own.value("what_if", true))
        continue;
      EXPECT_EQ(own["amax"], operand["amax"]) << own;
      EXPECT_EQ(own["sqnr_db"], operand["sqnr_db"]) << own;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 24);
}

TEST(InspectFp8, AcceptsBf16AndAnyLayout) {
  TrainFolder folder;
  ASSERT_EQ(folder.run("bf16", {"training.train_steps=1"}).code, 0);
  Result found = inspect(folder, "bf16");
  ASSERT_EQ(found.code, 0) << found.error;
  TE_EXPECT_CONTAINS(found.out, "BF16: the table shows the quantizations of an FP8 run (hybrid, tensorwise)");
  EXPECT_EQ(report(folder)["operands"].size(), 24u);
  EXPECT_TRUE(report(folder)["operands"][0]["what_if"].contains("blockwise"));
  ASSERT_EQ(inspect(folder, "bf16", "--recipes tensorwise,mxfp8,nvfp4").code, 0);
  const json operands = report(folder)["operands"];  // the worst first
  json what_if;
  for (const json& operand : operands)
    if (what_if.is_null() && operand.at("role") == "input") what_if = operand.at("what_if");
  EXPECT_GT(what_if["mxfp8"]["sqnr_db"].get<double>(), 28);
  EXPECT_NEAR(what_if["nvfp4"]["sqnr_db"].get<double>(), 20.5, 3);
  // With FP8 and delayed scales, which this checkpoint does not have.
  ASSERT_EQ(inspect(folder, "bf16", "--set precision.fp8=hybrid").code, 0);
  EXPECT_EQ(report(folder)["calibrated"], true);
  // Advice for an FP16 run can be pasted into its config.
  ASSERT_EQ(folder.run("fp16", {"training.train_steps=1", "precision.dtype=fp16"}).code, 0);
  found = inspect(folder, "fp16", "--tolerance 0");
  ASSERT_EQ(found.code, 0) << found.error;
  TE_EXPECT_CONTAINS(found.out, "precision:\n  dtype: bf16\n  fp8: hybrid\n");
  folder.use_ranks(2);
  ASSERT_EQ(folder
                .run("tp", {"training.train_steps=1", "precision.fp8=hybrid", "parallel.tensor=2",
                            "model.ffn_hidden_size=64"})
                .code,
            0);
  const Result job = inspect(folder, "tp");
  EXPECT_EQ(job.code, 2);
  TE_EXPECT_CONTAINS(job.error, "te-train inspect-fp8 runs on one rank, but this job has 2");
  folder.use_ranks(1);
  found = inspect(folder, "tp");
  ASSERT_EQ(found.code, 0) << found.error;
  EXPECT_EQ(report(folder)["calibrated"], false);
}

TEST(InspectFp8, InvalidArgumentsAreRefused) {
  const TrainFolder folder;
  ASSERT_EQ(folder.run("run", {"training.train_steps=1"}).code, 0);
  const std::string good =
      "inspect-fp8 --device cpu --checkpoint " + folder.run_folder("run") + "/checkpoints ";
  expect_refused(folder.run_raw("inspect-fp8"), "--checkpoint PATH is required");
  expect_refused(folder.run_raw("inspect-fp8 --checkpoint " + (folder / "nothing")), "nothing");
  expect_refused(folder.run_raw(good + "--data " + (folder / "nothing")), "--data: " + (folder / "nothing"));
  expect_refused(folder.run_raw(good + "--recipes delayed"), "delayed");
  expect_refused(folder.run_raw(good + "--batches 0"), "--batches");
  expect_refused(folder.run_raw(good + "--tolerance -1"), "--tolerance");
  expect_refused(folder.run_raw(good + "--set precision.fp8=maybe"), "precision.fp8");
  expect_refused(folder.run_raw(good + "--json " + (folder / "no/such/folder.json")), "cannot be written");
  expect_refused(folder.run_raw("--config " + (folder / "base.yaml") + " " + good), "--config");
  expect_refused(folder.run_raw(good + "--set model.hidden_size=64"), "hidden_size");
  // A model whose GEMMs cannot be FP8.
  ASSERT_EQ(folder.run("odd", {"training.train_steps=1", "model.ffn_hidden_size=44"}).code, 0);
  expect_refused(inspect(folder, "odd"), "model.ffn_hidden_size = 44");
  std::filesystem::rename(folder / "train.bin", folder / "moved.bin");
  expect_refused(folder.run_raw(good), "use --data PREFIX to select another dataset");
}

}  // namespace
}  // namespace te::testing
