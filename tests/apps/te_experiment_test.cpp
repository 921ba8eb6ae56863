// te-experiment end to end: tiny experiments on the CPU that are killed, have failing runs, or have invalid files.
#include <chrono>
#include <csignal>

#include "te_experiment_testing.h"

namespace te {
namespace {

using nlohmann::json;
using testing::eventually;
using testing::read_file;
using testing::Result;
using testing::TeExperiment;
using testing::write_file;

TEST_F(TeExperiment, RunsAllVariantsWithAllSeedsOnce) {
  const Result result = run((folder_ / "tiny.yaml"));
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const json summary = file("summary.json");
  EXPECT_EQ(summary.at("baseline"), "bf16");
  EXPECT_EQ(summary.at("tolerance"), json({{"nats", 0.01}, {"percent", 0.25}, {"given", json::array()}}));
  ASSERT_EQ(summary.at("variants").size(), 2u);
  EXPECT_EQ(summary.at("variants")[1].at("overrides"), json({"precision.fp8=hybrid"}));
  for (const json& variant : summary.at("variants")) {
    for (const json& item : variant.at("runs")) {
      EXPECT_EQ(item.at("state"), "finished");
      EXPECT_EQ(item.at("step"), 5);
      EXPECT_EQ(item.at("attempts"), 1);
      EXPECT_GT(item.at("loss").get<double>(), 1.0);
      EXPECT_GT(item.at("valid_loss").get<double>(), 1.0);
    }
  }
  for (const std::string& name : names_) {
    EXPECT_EQ(lines(log(name)), 6) << name;
    TE_EXPECT_CONTAINS(read_file(folder_ / ("out/" + name + "/console.log")), "5/5");
    const json record = file(name + "/run.json");
    EXPECT_EQ(record.at("config").at("training.seed"), name.substr(name.size() - 1));
    EXPECT_EQ(record.at("config").at("precision.fp8"), name.starts_with("fp8") ? "hybrid" : "off");
    EXPECT_GT(record.at("planned_bytes").get<int64_t>(), 0);
    ASSERT_EQ(record.at("starts").size(), 1u);
    const json& begin = record.at("starts")[0];
    EXPECT_EQ(begin.at("command")[1], "--config");
    EXPECT_EQ(begin.at("environment").at("OMP_NUM_THREADS"), "1");
    for (const char* key : {"time", "version", "commit", "host", "device", "compiler"})
      EXPECT_FALSE(begin.at(key).get<std::string>().empty()) << key;
    EXPECT_FALSE(begin.at("libraries").empty());
  }
  // Variants of a seed have the same loss in the first step up to FP8 rounding; different seeds do not.
  const auto first = [&](const std::string& name) {
    return std::stod(testing::split(testing::split(log(name), '\n').at(1), ',').at(3));
  };
  EXPECT_NEAR(first("bf16_seed1") / first("fp8_seed1"), 1.0, 2e-3);
  EXPECT_NE(first("bf16_seed1"), first("bf16_seed2"));

  const auto written = std::filesystem::last_write_time(folder_ / "out/fp8_seed2/loss.csv");
  const Result again = run((folder_ / "tiny.yaml"));
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(again.out.find("started"), std::string::npos) << again.out;
  EXPECT_EQ(std::filesystem::last_write_time(folder_ / "out/fp8_seed2/loss.csv"), written);
}

// One run with a constant learning rate and a decay that branches off equals a shorter run with that decay.
TEST_F(TeExperiment, BranchesStartFromAnotherVariantsCheckpoint) {
  std::string text = tiny(
      "training.train_steps=14, optimizer.decay_steps=14, checkpoint.save_every=4, checkpoint.keep=0, "
      "optimizer.decay=wsd, "
      "optimizer.wsd_decay_steps=4, optimizer.lr=0.01, optimizer.warmup_steps=1");
  text.insert(text.find("seeds:"),
              "  bf16_12: {branch: {of: bf16, step: 8}, overrides: [training.train_steps=12, "
              "optimizer.decay_steps=12]}\n"
              "  fp8_12: {branch: {of: fp8, step: 8}, overrides: [training.train_steps=12, "
              "optimizer.decay_steps=12], baseline: bf16_12}\n"
              "  fp8_from_1: {overrides: [precision.fp8=hybrid, training.train_steps=12, "
              "optimizer.decay_steps=12], seeds: [1]}\n");
  write_file(folder_ / "tiny.yaml", text);
  const Result result = run(folder_ / "tiny.yaml");
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  for (const char* name : {"bf16_12_seed1", "bf16_12_seed2", "fp8_12_seed1", "fp8_12_seed2"}) {
    EXPECT_EQ(lines(log(name)), 5) << name;  // a header and steps 9 to 12
    TE_EXPECT_CONTAINS(read_file(folder_ / ("out/" + std::string(name) + "/console.log")), "after step 8");
  }
  const std::vector<std::string> whole = losses(log("fp8_from_1_seed1")),
                                 branch = losses(log("fp8_12_seed1"));
  EXPECT_EQ(std::vector<std::string>(whole.begin() + 9, whole.end()),
            std::vector<std::string>(branch.begin() + 1, branch.end()));
  EXPECT_NE(losses(log("fp8_seed1")).at(12), branch.at(4)) << "without the decay";

  std::string later = text;
  later.replace(later.find("step: 8}, overrides"), 7, "step: 4");
  write_file(folder_ / "tiny.yaml", later);
  const Result moved = run(folder_ / "tiny.yaml");
  EXPECT_EQ(moved.code, 2) << moved.out;
  TE_EXPECT_CONTAINS(moved.error,
                     "bf16_12_seed1: started from step 8 of bf16_seed1, is to start from step 4");
  write_file(folder_ / "tiny.yaml", text);

  // Without the parent's checkpoint a branch that has not run fails, and says why.
  std::filesystem::remove_all(folder_ / "out/fp8_12_seed2");
  std::filesystem::remove_all(folder_ / "out/fp8_seed2/checkpoints/step_00000008");
  const Result without = run(folder_ / "tiny.yaml");
  EXPECT_EQ(without.code, 1) << without.out << without.error;
  TE_EXPECT_CONTAINS(file("fp8_12_seed2/state.json").value("reason", ""),
                     "fp8_seed2 (finished) has no checkpoint of step 8");
}

TEST_F(TeExperiment, RefusesBranchesThatCannotStart) {
  const std::string text = tiny("training.train_steps=14, checkpoint.save_every=4, checkpoint.keep=0");
  const auto refused = [&](const std::string& variants) {
    std::string changed = text;
    changed.insert(changed.find("seeds:"), variants);
    write_file(folder_ / "tiny.yaml", changed);
    const Result result = run("--dry-run " + (folder_ / "tiny.yaml"));
    EXPECT_EQ(result.code, 2) << result.out << result.error;
    return result.error;
  };
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf17, step: 8}}\n"), "the name of a variant above b");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {step: 8}}\n"), "branch: of must be another variant's name");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf16}}\n"), "step must be a whole number from 1 on");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf16, step: 6}, overrides: [training.train_steps=12]}\n"),
                     "bf16 saves no checkpoint of step 6; set checkpoint.save_every");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf16, step: 8}, overrides: [training.train_steps=8]}\n"),
                     "training.train_steps (8) must be above the step of the branch (8)");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf16, step: 8}, seeds: [3]}\n"),
                     "bf16 has no run with seed 3");
  TE_EXPECT_CONTAINS(refused("  b: [checkpoint.save_optimizer=false]\n  c: {branch: {of: b, step: 8}}\n"),
                     "b saves no Adam moments; set checkpoint.save_optimizer=true");
  TE_EXPECT_CONTAINS(refused("  b: {overrides: [checkpoint.keep=2]}\n  c: {branch: {of: b, step: 8}}\n"),
                     "set checkpoint.keep=0");
  TE_EXPECT_CONTAINS(refused("  b: {branch: {of: bf16, step: 8}}\n  c: {branch: {of: b, step: 12}}\n"),
                     "b is a branch itself; branch off bf16");
}

TEST_F(TeExperiment, MakesAReport) {
  std::string three = tiny("training.train_steps=5");
  three.insert(
      three.find("seeds:"),
      "  fp8_high: {overrides: [precision.fp8=hybrid, optimizer.lr=2e-3], baseline: fp8, seeds: [1]}\n");
  write_file(folder_ / "tiny.yaml", three + "tolerance: {percent: 0.5}\n");
  ASSERT_EQ(run((folder_ / "tiny.yaml")).code, 0);
  EXPECT_EQ(file("summary.json").at("variants")[2].at("baseline"), "fp8");
  EXPECT_EQ(file("summary.json").at("tolerance").at("given"), json({"percent"}));  // shown in the report
  EXPECT_FALSE(file("summary.json").at("variants")[1].contains("baseline"));
  const std::string text = read_file(folder_ / "stdout");
  if (text.find("it needs python3") != std::string::npos)
    GTEST_SKIP() << "python3 with numpy, scipy and matplotlib is missing";
  TE_EXPECT_CONTAINS(text, "fp8: ");
  TE_EXPECT_CONTAINS(text, "fp8_high - fp8: ");
  TE_EXPECT_CONTAINS(read_file(folder_ / "out/report/report.md"), "precision.fp8` | off | hybrid");
  TE_EXPECT_CONTAINS(read_file(folder_ / "out/report/report.html"), "data:image/png;base64,");
}

// Named validation sets have their own columns, which are empty at the end of most lines.
TEST_F(TeExperiment, SavesOnASignalAndResumesInTheNextCall) {
  const std::string sets = "\"data.valid={text: " + (folder_ / "valid") + "}\"";
  write_file(folder_ / "tiny.yaml", tiny("training.train_steps=400, " + sets, 100));
  const pid_t child = start((folder_ / "tiny.yaml"));
  wait_for_steps("bf16_seed1", 3);
  wait_for_steps("fp8_seed1", 3);
  ::kill(child, SIGINT);
  const Result result = folder_.wait(child);
  EXPECT_EQ(result.code, 130) << result.out << result.error;
  TE_EXPECT_CONTAINS(result.out, "run the same command to resume");
  EXPECT_EQ(state("bf16_seed1"), "interrupted");
  EXPECT_EQ(state("bf16_seed2"), "");
  const int64_t steps = lines(log("bf16_seed1")) - 1;
  ASSERT_LT(steps, 400);
  EXPECT_EQ(file("summary.json").at("variants")[0].at("runs")[0].at("step"), steps);
  const Result more = run((folder_ / "tiny.yaml") + " --no-report");
  ASSERT_EQ(more.code, 0) << more.out << more.error;
  TE_EXPECT_CONTAINS(more.out, "bf16_seed1: started on CPU, after step " + std::to_string(steps));
  EXPECT_EQ(file("bf16_seed1/run.json").at("starts").size(), 2u);

  // Bitwise equal to an uninterrupted run.
  const Result whole =
      folder_.run("whole", {"training.train_steps=400", "training.eval_interval=100", "training.seed=1",
                            "data.valid={text: " + (folder_ / "valid") + "}"});
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_EQ(losses(log("bf16_seed1")), losses(read_file(folder_.run_folder("whole") + "/loss.csv")));
}

TEST_F(TeExperiment, ResumesAfterItOrARunIsKilled) {
  write_file(folder_ / "tiny.yaml", tiny("training.train_steps=300, checkpoint.save_every=5", 100));
  const pid_t child = start((folder_ / "tiny.yaml") + " --no-report");
  wait_for_steps("bf16_seed1", 8);
  const auto process = file("bf16_seed1/state.json").at("process").get<pid_t>();
  ASSERT_GT(process, 0);
  ::kill(process, SIGKILL);  // the run: it is started again
  EXPECT_TRUE(eventually([&] { return file("bf16_seed1/state.json").value("attempts", 0) >= 2; }));
  ::kill(child, SIGKILL);  // te-experiment: its runs receive SIGTERM, save and stop
  EXPECT_EQ(folder_.wait(child).code, -1);
  EXPECT_EQ(state("bf16_seed1"), "running");

  const Result result = run((folder_ / "tiny.yaml") + " --no-report");
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  for (const std::string& name : names_) {
    EXPECT_EQ(lines(log(name)), 301) << name;
    EXPECT_EQ(state(name), "finished");
  }
  EXPECT_GE(file("bf16_seed1/state.json").at("attempts"), 3);
  const Result whole =
      folder_.run("whole", {"training.train_steps=300", "training.eval_interval=100", "training.seed=1"});
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_EQ(losses(log("bf16_seed1")), losses(read_file(folder_.run_folder("whole") + "/loss.csv")));
}

TEST_F(TeExperiment, OneFailedRunDoesNotStopTheOthers) {
  // The runs of one variant crash at once, those of another are refused, those of a third diverge.
  const std::string fake = script(
      "case \"$2\" in\n"
      "  */crash_*) kill -9 $$ ;;\n"
      "  */refused_*) echo 'te-train: error: no such thing' >&2; exit 2 ;;\n"
      "  */diverged_*) exit 3 ;;\n"
      "esac\nexec " TE_TRAIN_EXECUTABLE " \"$@\"\n");
  write_file(
      folder_ / "tiny.yaml",
      "base: " + (folder_ / "base.yaml") + "\ndirectory: " + (folder_ / "out") +
          "\nvariants: {good: [], crash: [], refused: {seeds: [1]}, diverged: {seeds: [1]}}\nseeds: [1, 2]\n"
          "run_on: {cpu: 1}\nretries: 1\n");
  const Result result = run((folder_ / "tiny.yaml") + " --te-train " + fake);
  EXPECT_EQ(result.code, 1) << result.out << result.error;
  EXPECT_EQ(state("good_seed1"), "finished");
  EXPECT_EQ(state("good_seed2"), "finished");
  EXPECT_EQ(state("diverged_seed1"), "diverged");
  EXPECT_EQ(file("crash_seed1/state.json").at("state"), "failed");
  EXPECT_EQ(file("crash_seed1/state.json").at("attempts"), 2);
  EXPECT_EQ(file("crash_seed1/state.json").at("reason"), "signal 9 (Killed)");
  EXPECT_EQ(file("refused_seed1/state.json").at("attempts"), 1);
  EXPECT_EQ(file("refused_seed1/state.json").at("reason"), "te-train: error: no such thing");
  TE_EXPECT_CONTAINS(result.out, "refused_seed1: failed: te-train: error: no such thing");
  TE_EXPECT_CONTAINS(result.out,
                     "no report: it needs a finished run of the baseline good and one of another");
  // Failed runs are retried, diverged runs are not.
  const Result again = run((folder_ / "tiny.yaml") + " --te-train " TE_TRAIN_EXECUTABLE);
  EXPECT_EQ(again.code, 1) << again.out;
  for (const char* name : {"crash_seed1", "crash_seed2", "refused_seed1"})
    EXPECT_EQ(state(name), "finished") << name;
  EXPECT_EQ(state("diverged_seed1"), "diverged");
}

TEST_F(TeExperiment, RunsOfSeveralRanksUseALauncher) {
  const std::string fake = script("printf '%s\\n' \"$*\" >> '" + (folder_ / "calls") +
                                  "'\nprintf '%s\\n' \"$CUDA_VISIBLE_DEVICES\" \"$TE_GEMM_CACHE\" >> '" +
                                  (folder_ / "calls") + "'\n");
  write_file(folder_ / "tiny.yaml", "base: " + (folder_ / "base.yaml") + "\ndirectory: " + (folder_ / "out") +
                                        "\nvariants: {a: []}\nseeds: [7]\n"
                                        "run_on: {gpus: [2, 3], ranks: 2, launcher: [" +
                                        fake + ", --some, option]}\n");
  const Result result = run((folder_ / "tiny.yaml") + " --te-train /x/te-train");
  EXPECT_EQ(result.code, 0) << result.out << result.error;
  EXPECT_EQ(read_file(folder_ / "calls"), "--some option -n 2 /x/te-train --config " +
                                              (folder_ / "out/a_seed7/config.yaml") + "\n2,3\n" +
                                              (folder_ / "out/gemm_algorithms") + "\n");
}

// The first runs are distributed over the GPUs; a cache of GEMM algorithms that the user names is kept.
TEST_F(TeExperiment, RunsSeveralRunsPerGpu) {
  write_file(folder_ / "tiny.yaml", "base: " + (folder_ / "base.yaml") + "\ndirectory: " + (folder_ / "out") +
                                        "\nvariants: {a: []}\nseeds: [1, 2, 3, 4, 5]\n"
                                        "run_on: {gpus: [2, 5], runs_per_gpu: 2}\n");
  ::setenv("TE_GEMM_CACHE", "/users/own", 1);
  const Result result = run("--dry-run " + (folder_ / "tiny.yaml"));
  ::unsetenv("TE_GEMM_CACHE");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "5 runs, 4 at a time");
  EXPECT_EQ(result.out.find("TE_GEMM_CACHE"), std::string::npos) << result.out;
  const std::vector<std::string> gpus = {"2", "5", "2", "5", "2"};
  for (size_t i = 0; i < gpus.size(); ++i)
    TE_EXPECT_CONTAINS(result.out,
                       "a_seed" + std::to_string(i + 1) + " (waiting): CUDA_VISIBLE_DEVICES=" + gpus[i]);
}

// They would otherwise train on the CPU, and be compared with runs on GPUs. A device that a config names is kept.
TEST_F(TeExperiment, RunsWithoutTheirGpuFail) {
  const auto write = [&](const std::string& more) {
    write_file(folder_ / "tiny.yaml", "base: " + (folder_ / "base.yaml") +
                                          "\ndirectory: " + (folder_ / "out") +
                                          "\noverrides: [training.device=auto]\nvariants: {a: [], b: [" +
                                          more + "]}\nseeds: [1]\nrun_on: {gpus: [999]}\n" +
                                          "evaluate: {tasks: [piqa], data: " + (folder_ / "") + "}\n");
  };
  write("training.device=cpu");
  const std::string plan = run("--dry-run " + (folder_ / "tiny.yaml")).out;
  TE_EXPECT_CONTAINS(plan, "a_seed1/config.yaml --set training.device=cuda\n");
  TE_EXPECT_CONTAINS(plan, "b_seed1/config.yaml\n");
  TE_EXPECT_CONTAINS(plan, " --device cuda --tasks piqa");
  write("");
  EXPECT_EQ(run((folder_ / "tiny.yaml")).code, 1);
  for (const char* name : {"a_seed1/state.json", "b_seed1/state.json"}) {
    EXPECT_EQ(file(name).at("attempts"), 1);
    TE_EXPECT_CONTAINS(file(name).value("reason", ""), "error: device cuda");
  }
}

// The ranks receive the signal, not mpirun, and save together.
TEST_F(TeExperiment, InterruptsAndResumesRanksUnderMpirun) {
  std::string launcher;  // without its last word, the flag for the number of ranks
  std::vector<std::string> words = testing::split(TE_MPIRUN, ' ');
  words.pop_back();
  for (const std::string& word : words)
    if (!word.empty()) launcher += "'" + word + "', ";
  write_file(folder_ / "tiny.yaml",
             "base: " + (folder_ / "base.yaml") + "\ndirectory: " + (folder_ / "out") +
                 "\noverrides: [training.train_steps=200]\nvariants: {a: []}\nseeds: [1]\n"
                 "run_on: {cpu: 1, ranks: 2, launcher: [" +
                 launcher + "]}\n");
  const pid_t child = start((folder_ / "tiny.yaml"));
  wait_for_steps("a_seed1", 3);
  ::kill(child, SIGINT);
  const auto signalled = std::chrono::steady_clock::now();
  EXPECT_EQ(folder_.wait(child).code, 130);
  EXPECT_LT(std::chrono::steady_clock::now() - signalled, std::chrono::seconds(60));
  EXPECT_EQ(state("a_seed1"), "interrupted");
  const int64_t steps = lines(log("a_seed1")) - 1;
  ASSERT_LT(steps, 200);
  const Result more = run((folder_ / "tiny.yaml"));
  ASSERT_EQ(more.code, 0) << more.out << more.error;
  TE_EXPECT_CONTAINS(more.out, "after step " + std::to_string(steps));
  EXPECT_EQ(lines(log("a_seed1")), 201);
  EXPECT_EQ(file("a_seed1/run.json").at("starts")[1].at("ranks"), 2);
}

TEST_F(TeExperiment, RefusesADirectoryInUse) {
  const std::string fake = script("exec sleep 30\n");
  const pid_t child = start((folder_ / "tiny.yaml") + " --te-train " + fake);
  EXPECT_TRUE(eventually([&] { return state("bf16_seed1") == "running"; }));
  const int code = std::system(
      (TE_EXPERIMENT_EXECUTABLE " " + (folder_ / "tiny.yaml") + " >/dev/null 2>" + (folder_ / "second"))
          .c_str());
  EXPECT_EQ(WEXITSTATUS(code), 2);
  TE_EXPECT_CONTAINS(read_file(folder_ / "second"), "another te-experiment is running");
  ::kill(child, SIGTERM);
  EXPECT_EQ(folder_.wait(child).code, 130);
}

TEST_F(TeExperiment, DryRunPrintsTheRuns) {
  const Result result = run("--dry-run " + (folder_ / "tiny.yaml"));
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "tiny: 4 runs, 2 at a time");
  TE_EXPECT_CONTAINS(result.out, "variant fp8: precision.fp8=hybrid");
  for (const std::string& name : names_)
    TE_EXPECT_CONTAINS(result.out, "te-train --config " + (folder_ / ("out/" + name + "/config.yaml")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

// Runs get the effective config, so that a base that changes later does not change them.
TEST_F(TeExperiment, LostOutputFails) {
  for (const char* name : {"stdout", "stderr"}) write_file(folder_ / name, "");
  const Result result =
      run("--dry-run " + (folder_ / "tiny.yaml") + " >/dev/full 2>" + (folder_ / "lost") + " #");
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(read_file(folder_ / "lost"),
                     "te-experiment: error: standard output could not be written");
}

TEST_F(TeExperiment, ContinuesWithoutAReaderOfItsOutput) {
  for (const char* name : {"stdout", "stderr"}) write_file(folder_ / name, "");
  run((folder_ / "tiny.yaml") + " --no-report 2>" + (folder_ / "errors") + " | true #");
  for (const std::string& name : names_) EXPECT_EQ(state(name), "finished") << name;
  TE_EXPECT_CONTAINS(read_file(folder_ / "errors"), "te-experiment: warning: standard output is incomplete");
}

TEST_F(TeExperiment, BaseMayExtendOtherConfigs) {
  write_file(folder_ / "over.yaml", "extends: base.yaml\noptimizer: {beta1: 0.7}\n");
  std::string text = tiny("training.train_steps=5");
  const std::string base = folder_ / "base.yaml";
  text.replace(text.find(base), base.size(), folder_ / "over.yaml");
  write_file(folder_ / "tiny.yaml", text);
  run((folder_ / "tiny.yaml") + " --no-report --te-train " + script("exit 2\n"));
  const std::string effective = read_file(folder_ / "out/bf16_seed1/config.yaml");
  TE_EXPECT_CONTAINS(effective, "  beta1: 0.7\n");
  TE_EXPECT_CONTAINS(effective, "  hidden_size: 32\n");
  EXPECT_EQ(effective.find("extends"), std::string::npos);
  write_file(base, folder_.base_config() + "checkpoint: {save_evry: 1}\n");
  const Result wrong = run((folder_ / "tiny.yaml") + " --dry-run");
  EXPECT_EQ(wrong.code, 2);
  TE_EXPECT_CONTAINS(wrong.error, base + ":7: key 'checkpoint.save_evry' is unknown");
}

// A dry run does not need their data.
TEST_F(TeExperiment, ShippedExperimentsAreValid) {
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TE_SOURCE_DIR "/configs/experiments")) {
    const std::string command = "cd " TE_SOURCE_DIR " && " TE_EXPERIMENT_EXECUTABLE " --dry-run " +
                                entry.path().string() + " >" + (folder_ / "stdout") + " 2>" +
                                (folder_ / "stderr");
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder_ / "stderr");
    const std::string name = entry.path().stem().string();
    TE_EXPECT_CONTAINS(read_file(folder_ / "stdout"), "in runs/experiments/" + name + ";");
    ++files;
  }
  EXPECT_GE(files, 5);
}

TEST_F(TeExperiment, RefusesAFolderWithOtherSettings) {
  ASSERT_EQ(run((folder_ / "tiny.yaml") + " --no-report").code, 0);
  write_file(folder_ / "tiny.yaml", tiny("training.train_steps=6"));
  const Result result = run((folder_ / "tiny.yaml"));
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "was started with other settings (training.train_steps was 5, is 6)");
}

// Earlier versions wrote keys that were removed, and lack keys that were added.
TEST_F(TeExperiment, ContinuesFoldersOfEarlierVersions) {
  const std::string file = folder_ / "tiny.yaml", path = folder_ / "out/bf16_seed1/config.yaml";
  ASSERT_EQ(run(file + " --no-report").code, 0);
  const std::string written = read_file(path);
  const auto with = [&](const std::string& line, const std::string& before) {
    std::string text = written;
    text.insert(text.find(before), line);
    return text;
  };
  const std::string key = "  bucket_size: ", added = "  timeout_seconds: ";
  ASSERT_NE(written.find(key), written.npos);
  std::string earlier = with("  overlap_grad_reduce: true\n", key);
  const size_t begin = earlier.find(added);
  ASSERT_NE(begin, earlier.npos);
  earlier.erase(begin, earlier.find('\n', begin) + 1 - begin);
  write_file(path, earlier);
  const Result equal = run(file + " --no-report");
  EXPECT_EQ(equal.code, 0) << equal.error;
  EXPECT_EQ(read_file(path), written);
  // A removed key with a value that this version does not compute.
  const std::string dropped = "  embedding_dropout: 0.5\n";
  write_file(path, with(dropped, "  hidden_dropout: "));
  const Result other = run(file + " --no-report");
  EXPECT_EQ(other.code, 2);
  TE_EXPECT_CONTAINS(other.error, "model.embedding_dropout: 0.5, which was removed");
  TE_EXPECT_CONTAINS(other.error, "or set another directory");
  // A changed setting next to a removed key.
  write_file(path, earlier);
  write_file(file, tiny("training.train_steps=6"));
  TE_EXPECT_CONTAINS(run(file).error, "was started with other settings (training.train_steps was 5, is 6)");
}

TEST_F(TeExperiment, MistakesAreOneLine) {
  const std::string base = "base: " + (folder_ / "base.yaml") + "\n",
                    rest = "variants: {a: []}\nseeds: [1]\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"base: [", "line "},
      {rest, "base must be the path of a config"},
      {base + "seeds: [1]\n", "variants must be a map"},
      {base + "variants: {a: []}\n", "variants.a: seeds must be"},
      {base + rest + "seed: 3\n", "unknown key seed; did you mean 'seeds'? known keys: base,"},
      {base + rest + "baseline: b\n", "baseline must be one of the variants"},
      {base + "variants: {a: [], b: {baseline: c}}\nseeds: [1]\n",
       "variants.b.baseline must be the name of another variant"},
      {base + "variants: {a: [], b: {baseline: b}}\nseeds: [1]\n",
       "variants.b.baseline must be the name of another variant"},
      {base + "variants: {a: {baseline: b}, b: []}\nseeds: [1]\n",
       "variants.a.baseline: a is the baseline of the experiment"},
      {base + "variants: {a/b: []}\nseeds: [1]\n", "name of a variant"},
      {base + "variants: {a: [precision.fp8]}\nseeds: [1]\n", "'precision.fp8' must be KEY=VALUE"},
      {base + "variants: {a: [training.seed=3]}\nseeds: [1]\n",
       "training.seed is set by te-experiment for each run"},
      {base + "variants: {a: [precision.fp9=off]}\nseeds: [1]\n", "variants.a: "},
      {base + "variants: {a: []}\nseeds: [1, 1]\n", "each once"},
      {base + rest + "run_on: {gpus: [0, 1, 2], ranks: 2}\n",
       "3 gpus cannot be divided among runs of 2 ranks"},
      {base + rest + "run_on: {gpus: [0], cpu: 1}\n", "exclude each other"},
      {base + rest + "run_on: {gpus: [0], runs_per_gpu: 0}\n", "runs_per_gpu must be a whole number from 1"},
      {base + rest + "run_on: {runs_per_gpu: 2}\n", "runs_per_gpu needs gpus"},
      {base + rest + "retries: many\n", "retries must be a whole number"},
      {base + rest + "tolerance: {nats: 0}\n", "nats must be a finite number above 0"},
      {base + rest + "tolerance: {nats: .inf}\n", "nats must be a finite number above 0"},
      {base + rest + "tolerance: {percent: .inf}\n", "percent must be a finite number above 0"},
      {base + rest + "bar: {nats: 0.01}\n", "the key bar is called tolerance; rename it"},
      {base + rest + "evaluate: {data: eval}\n", "evaluate: tasks must be a list of tasks"},
      {base + rest + "evaluate: {tasks: [piqa]}\n", "evaluate: data must be the path of the folder"},
      {base + rest + "evaluate: {tasks: [piqa], data: eval, limit: 0}\n",
       "limit must be a whole number from 1"},
      {base + rest + "evaluate: {tasks: [piqa], data: eval, task: x}\n", "unknown key task"},
      {base + rest + "evaluate: {tasks: [piqa], data: eval, options: [--limit=3]}\n", "--limit is set by"},
      {base + rest + "overrides: [checkpoint.save_last=false]\nevaluate: {tasks: [piqa], data: eval}\n",
       "needs the last step's checkpoint"},
  };
  for (const auto& [text, expected] : cases) {
    write_file(folder_ / "bad.yaml", text);
    const Result result = run("--dry-run " + (folder_ / "bad.yaml"));
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_EQ(lines(result.error), 1) << result.error;
    TE_EXPECT_CONTAINS(result.error, "te-experiment: error: ");
    TE_EXPECT_CONTAINS(result.error, expected);
  }
  TE_EXPECT_CONTAINS(run((folder_ / "none.yaml")).error, "cannot be read");
  TE_EXPECT_CONTAINS(run("").error, "FILE is required");
  const Result directory = run(folder_ / "");
  EXPECT_EQ(directory.code, 2);
  TE_EXPECT_CONTAINS(directory.error, "is a folder, not a regular file; give an experiment file");
}

}  // namespace
}  // namespace te
