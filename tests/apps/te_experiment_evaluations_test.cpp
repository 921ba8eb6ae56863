// Evaluations of the final checkpoints of an experiment: once after each run, and stopped and continued like runs. Ends
// of runs that te-experiment did not see.
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

class Evaluations : public TeExperiment {
 protected:
  /// tiny() with tasks whose documents fit a context of 16 bytes; `more` are further lines of `evaluate`.
  void write_experiment(const std::string& tasks, const std::string& more = "") const {
    std::string own, words;
    for (const char* letter : {"a", "b", "c", "d"}) {
      own += R"({"context": "x", "choices": ["y", ")" + std::string(letter) + R"("], "gold": 1})" + "\n";
      words += R"({"text": "one two )" + std::string(letter) + "\"}\n";
    }
    std::filesystem::create_directories(folder_ / "eval");
    write_file(folder_ / "eval/own_task.jsonl", own);
    write_file(folder_ / "eval/lambada_openai.jsonl", words);
    write_file(folder_ / "tiny.yaml", tiny("training.train_steps=5, data.tokenizer=bytes") +
                                          "retries: 1\nevaluate:\n  tasks: [" + tasks +
                                          "]\n  data: " + (folder_ / "eval") + "\n" + more);
  }
  /// A te-generate that records its calls and then runs te-generate, unless `before` exits.
  std::string counting(const std::string& before = "") const {
    return script("echo \"$3\" >> '" + (folder_ / "calls") + "'\n" + before +
                  "exec " TE_GENERATE_EXECUTABLE " \"$@\"\n");
  }
  int64_t calls() const { return lines(read_file(folder_ / "calls")); }
  json evaluation(const std::string& run) const {
    return file(run + "/state.json").value("evaluation", json());
  }
  Result run_counted(const std::string& program) const {
    return run((folder_ / "tiny.yaml") + " --te-generate " + program);
  }
};

TEST_F(Evaluations, RunOnceAfterEachRun) {
  write_experiment("lambada_openai, own_task", "  limit: 2\n");
  const std::string program = counting();
  const Result result = run_counted(program);
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  EXPECT_EQ(calls(), 4);
  for (const std::string& name : names_) {
    TE_EXPECT_CONTAINS(read_file(folder_ / "calls"), (folder_ / ("out/" + name + "/checkpoints")) + "\n");
    TE_EXPECT_CONTAINS(result.out, name + ": evaluated in 00:0");
    const json results = file(name + "/evaluate.json");
    EXPECT_EQ(results.at("n-samples").at("own_task").at("effective"), 2);
    EXPECT_TRUE(results.at("results").at("lambada_openai").at("perplexity,none").is_number());
    EXPECT_EQ(lines(read_file(folder_ / ("out/" + name + "/evaluate_items.jsonl"))), 4);
    EXPECT_EQ(evaluation(name).at("state"), "finished");
  }
  const json summary = file("summary.json");
  EXPECT_EQ(summary.at("evaluate").at("tasks"), json({"lambada_openai", "own_task"}));
  EXPECT_EQ(summary.at("variants")[1].at("runs")[0].at("evaluation"), "finished");
  if (result.out.find("no report was written") == std::string::npos) {
    TE_EXPECT_CONTAINS(read_file(folder_ / "out/report/report.md"), "lambada_openai | perplexity");
  }

  EXPECT_EQ(run_counted(program).code, 0);
  EXPECT_EQ(calls(), 4);
  // A changed limit requires a new evaluation; the runs are not repeated.
  write_experiment("lambada_openai, own_task", "  limit: 3\n");
  const Result other = run_counted(program);
  EXPECT_EQ(other.code, 0);
  EXPECT_EQ(calls(), 8);
  EXPECT_EQ(other.out.find(": started on"), std::string::npos) << other.out;
  EXPECT_EQ(file("fp8_seed2/state.json").at("attempts"), 1);
  // An evaluation that fails leaves no results of the earlier arguments.
  write_experiment("lambada_openai, own_task", "  limit: 4\n");
  EXPECT_EQ(run_counted(counting("case \"$3\" in */fp8_*) exit 2 ;; esac\n")).code, 1);
  for (const char* name : {"evaluate.json", "evaluate_items.jsonl"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / ("out/bf16_seed1/" + std::string(name))));
    EXPECT_FALSE(std::filesystem::exists(folder_ / ("out/fp8_seed1/" + std::string(name)))) << name;
  }
}

TEST_F(Evaluations, ContinueAfterAStopAndFailSeparately) {
  write_experiment("own_task");
  // The evaluations of the second seed wait to be interrupted; those of the first are done.
  const std::string slow = counting("case \"$3\" in\n  */bf16_seed2/*) : > '" + (folder_ / "slow") +
                                    "'; exec sleep 60 ;;\n  */fp8_seed2/*) exec sleep 60 ;;\nesac\n");
  const pid_t child = start((folder_ / "tiny.yaml") + " --te-generate " + slow);
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "slow"); }));
  ::kill(child, SIGINT);
  EXPECT_EQ(folder_.wait(child).code, 130);
  EXPECT_EQ(state("bf16_seed2"), "finished");
  EXPECT_EQ(evaluation("bf16_seed2").at("state"), "waiting");
  EXPECT_EQ(evaluation("bf16_seed1").at("state"), "finished");

  // A killed evaluation is retried. A refused one is not, and the others continue.
  const std::string bad = counting("case \"$3\" in\n  */bf16_seed2/*) [ -e '" + (folder_ / "once") +
                                   "' ] || { : > '" + (folder_ / "once") +
                                   "'; kill -9 $$; } ;;\n  */fp8_seed2/*) echo 'te-generate: error: no such "
                                   "thing' >&2; exit 2 ;;\nesac\n");
  const Result result = run_counted(bad);
  EXPECT_EQ(result.code, 1) << result.out;
  TE_EXPECT_CONTAINS(result.out, "bf16_seed2: evaluation: signal 9 (Killed); retry 1 of 1");
  TE_EXPECT_CONTAINS(result.out, "fp8_seed2: evaluation failed: te-generate: error: no such thing");
  TE_EXPECT_CONTAINS(result.out, "1 evaluation failed");
  EXPECT_EQ(evaluation("bf16_seed2").at("state"), "finished");
  EXPECT_EQ(evaluation("fp8_seed2").at("reason"), "te-generate: error: no such thing");
  EXPECT_EQ(state("fp8_seed2"), "finished");
  // The next call retries it.
  EXPECT_EQ(run_counted(counting()).code, 0);
  EXPECT_EQ(evaluation("fp8_seed2").at("state"), "finished");
}

TEST_F(Evaluations, AreRefusedBeforeTheFirstRun) {
  write_experiment("own_task", "  limit: 2\n");
  TE_EXPECT_CONTAINS(run("--dry-run " + (folder_ / "tiny.yaml")).out,
                     "te-generate evaluate --checkpoint " + (folder_ / "out/bf16_seed1/checkpoints"));
  write_file(folder_ / "tiny.yaml",
             tiny("training.train_steps=5") + "evaluate: {tasks: [own_task], data: /nowhere}\n");
  const Result result = run((folder_ / "tiny.yaml"));
  EXPECT_EQ(result.code, 2);
  TE_EXPECT_CONTAINS(result.error, "evaluate: data: /nowhere is not a folder");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/bf16_seed1"));
}

// te-experiment was killed before its runs ended, and they saved no checkpoint.
TEST_F(TeExperiment, TrustsOnlyARecordedEnd) {
  write_file(folder_ / "tiny.yaml", tiny("training.train_steps=5, checkpoint.save_last=false"));
  ASSERT_EQ(run((folder_ / "tiny.yaml") + " --no-report").code, 0);
  const std::vector<std::string> ends = {"finished", "diverged", "interrupted", "stopped early"};
  for (size_t i = 0; i < names_.size(); ++i) {
    json now = file(names_[i] + "/state.json"), record = file(names_[i] + "/run.json");
    EXPECT_EQ(std::exchange(record["starts"][0]["end"], ends[i]), "finished");
    now["state"] = "running";
    write_file(folder_ / ("out/" + names_[i] + "/state.json"), now.dump());
    write_file(folder_ / ("out/" + names_[i] + "/run.json"), record.dump());
  }
  EXPECT_EQ(run((folder_ / "tiny.yaml") + " --no-report").code, 1);
  EXPECT_EQ(state("fp8_seed1"), "diverged");
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(state(names_[i]), "finished");
  for (size_t i = 0; i < names_.size(); ++i)
    EXPECT_EQ(file(names_[i] + "/state.json").at("attempts"), i == 2 ? 2 : 1) << names_[i];
}

}  // namespace
}  // namespace te
