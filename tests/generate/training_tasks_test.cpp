// The evaluation tasks that te-train runs during training: every log has the results of te-generate evaluate, and
// training computes the same bits with and without them.
#include <cmath>

#include "core/json.h"
#include "te_generate_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
class TrainingTasks : public GenerateFolder {
 protected:
  TrainingTasks() {
    write_file(folder_ / "small.jsonl",
               R"({"context": "the", "choices": ["small", "line", "zzz"], "gold": 0})"
               "\n"
               R"({"context": "a", "choices": ["line", "qq xx"], "gold": 0})"
               "\n"
               R"({"context": "reads", "choices": ["xyz", "a"], "gold": 1})"
               "\n"
               R"({"context": "of", "choices": ["text", "ttt"], "gold": 1})"
               "\n");
    write_file(folder_ / "lambada_openai.jsonl", R"({"text": "the small model"})"
                                                 "\n"
                                                 R"({"text": "a line text"})"
                                                 "\n");
  }
  Result train(const std::string& name, const Overrides& overrides) {
    return folder_.run(name, Overrides{"data.tokenizer=bytes", "training.train_steps=6", "optimizer.lr=0.02",
                                       "checkpoint.save_every=3", "checkpoint.keep=0"} +
                                 overrides);
  }
  Overrides tasks() const {
    return {"evaluation.every=2", "evaluation.tasks=[small, lambada_openai]",
            "evaluation.data=" + (folder_ / "")};
  }
  /// Steps and their results.
  std::vector<std::pair<int, json>> results(const std::string& run) const {
    std::vector<std::pair<int, json>> found;
    for (const json& record : folder_.records(run)) {
      if (record.contains("tasks")) found.emplace_back(record["step"].get<int>(), record["tasks"]);
    }
    return found;
  }
  /// Results of te-generate evaluate for a checkpoint.
  json evaluated(const std::string& run_name, int64_t step, const std::string& more) {
    const Result result = run("evaluate --checkpoint " + folder_.checkpoint(run_name, step) +
                              " --tasks small,lambada_openai --data " + (folder_ / "") + " --output " +
                              file("results.json") + " " + more);
    EXPECT_EQ(result.code, 0) << result.error;
    return parse_json(read_file(file("results.json")))["results"];
  }
  static void expect_equal(const json& mine, const json& theirs, double bound) {
    for (const auto& [task, metrics] : mine.items()) {
      for (const auto& [name, value] : metrics.items()) {
        const double wanted = theirs[task][name + ",none"].get<double>();
        EXPECT_NEAR(value.get<double>(), wanted, bound * std::abs(wanted)) << task << " " << name;
      }
    }
  }
  TrainFolder folder_;
};

TEST_F(TrainingTasks, EqualThoseOfTeGenerate) {
  const Result result = train(
      "a", tasks() + Overrides{"training.train_steps=5", "checkpoint.save_every=2", "logging.every=100"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const auto all = results("a");
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < all.size(); ++i) {
    const int step = std::vector<int>{2, 4, 5}[i];
    EXPECT_EQ(all[i].first, step);
    ASSERT_TRUE(all[i].second["small"].contains("acc_norm_stderr"));
    ASSERT_TRUE(all[i].second["lambada_openai"].contains("perplexity"));
    expect_equal(all[i].second, evaluated("a", step, "--dtype bf16"), 0.02);
  }
  // The other logs have the same results.
  const json& last = all.back().second;
  TE_EXPECT_CONTAINS(result.out,
                     fmt::format("step 5: small: acc {:.4f} ± ", last["small"]["acc"].get<double>()));
  const CsvRows rows = folder_.csv("a");
  ASSERT_EQ(rows.size(), 4u);  // the first step and the evaluated steps
  EXPECT_EQ(rows.front().at("task.small.acc"), "");
  EXPECT_NEAR(std::stod(rows.back().at("task.small.acc")), last["small"]["acc"].get<double>(), 1e-6);
  EXPECT_NEAR(std::stod(rows.back().at("task.lambada_openai.perplexity")),
              last["lambada_openai"]["perplexity"].get<double>(),
              1e-5 * last["lambada_openai"]["perplexity"].get<double>());
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.run_folder("a")))
    if (entry.path().filename().string().find("tfevents") != std::string::npos)
      events += read_file(entry.path());
  TE_EXPECT_CONTAINS(events, "tasks/small/acc");
}

TEST_F(TrainingTasks, TrainingComputesTheSameBits) {
  for (const Overrides& precision :
       {Overrides{"precision.fp8=hybrid"}, Overrides{"precision.dtype=fp32"},
        Overrides{"precision.fp8=hybrid", "logging.generate_every=2", "logging.generate_prompts=a"}}) {
    SCOPED_TRACE(precision[0]);
    const std::string name = std::to_string(precision.size()) + precision[0].substr(10, 3);
    ASSERT_EQ(train(name + "without", precision).code, 0);
    ASSERT_EQ(train(name + "with", precision + tasks() + Overrides{"evaluation.every=1"}).code, 0);
    EXPECT_EQ(folder_.column(name + "with", "loss"), folder_.column(name + "without", "loss"));
    EXPECT_EQ(folder_.checkpoint_bytes(name + "with", 6), folder_.checkpoint_bytes(name + "without", 6));
    EXPECT_EQ(results(name + "with").size(), 6u);
  }
}

TEST_F(TrainingTasks, WithEveryParallelLayout) {
  const Overrides fp32 = tasks() + Overrides{"precision.dtype=fp32", "evaluation.every=3"};
  ASSERT_EQ(train("one", fp32).code, 0);
  const auto one = results("one");
  ASSERT_EQ(one.size(), 2u);
  const std::vector<std::pair<int, Overrides>> layouts = {
      {2, {"evaluation.batch=1"}},  // two replicas, which divide the documents
      {2, {"parallel.context=2"}},
      {4, {"parallel.tensor=2", "parallel.sequence=true", "evaluation.batch=2"}},
      {4, {"parallel.tensor=2", "parallel.pipeline=2"}}};
  for (const auto& [ranks, layout] : layouts) {
    SCOPED_TRACE(layout.back() + std::to_string(ranks));
    folder_.use_ranks(ranks);
    const Result result =
        train("many", fp32 + layout + Overrides{"checkpoint.save_last=false", "checkpoint.save_every=0"});
    ASSERT_EQ(result.code, 0) << result.out << result.error;
    const auto many = results("many");
    ASSERT_EQ(many.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(many[i].first, one[i].first);
      for (const auto& [task, metrics] : one[i].second.items())
        for (const auto& [name, value] : metrics.items())
          EXPECT_NEAR(many[i].second[task][name].get<double>(), value.get<double>(),
                      1e-3 * std::abs(value.get<double>()))
              << task << " " << name;
    }
    std::filesystem::remove_all(folder_.run_folder("many"));
  }
}

TEST_F(TrainingTasks, AreInTheMemoryPlan) {
  const auto planned = [&](const Overrides& overrides) {
    std::string arguments =
        "--dry-run --verbose --config " + (folder_ / "base.yaml") + " --set data.tokenizer=bytes";
    for (const std::string& item : overrides) arguments += " --set '" + item + "'";
    const Result result = folder_.run_raw(arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    const std::string total = result.out.substr(result.out.find("  total "));
    return total.substr(0, total.find('\n'));
  };
  const std::string without = planned({}), some = planned(tasks() + Overrides{"evaluation.batch=1"}),
                    more = planned(tasks() + Overrides{"evaluation.batch=1000"});
  EXPECT_NE(without, some);
  EXPECT_NE(some, more) << some;
}

TEST_F(TrainingTasks, ADivergedModelHasNoResults) {
  folder_.use_ranks(2);  // two replicas, both with NaN weights
  const Result result =
      train("a", tasks() + Overrides{"optimizer.lr=1e38", "optimizer.clip_grad=0", "checkpoint.save_every=0",
                                     "checkpoint.save_last=false", "training.max_nonfinite_steps=100"});
  ASSERT_EQ(result.code, 3) << result.out << result.error;
  ASSERT_EQ(results("a").size(), 3u);
  for (const auto& [step, found] : results("a")) EXPECT_TRUE(found["small"]["acc"].is_null()) << step;
  EXPECT_EQ(folder_.csv("a").back().at("task.small.acc"), "");
}

TEST_F(TrainingTasks, ReportTruncatedRequestsOnce) {
  write_file(folder_ / "long.jsonl", R"({"context": ")" + std::string(300, 'a') +
                                         R"(", "choices": ["line", "qq"], "gold": 0})"
                                         "\n");
  folder_.use_ranks(2);
  const Result result =
      train("a", tasks() + Overrides{"evaluation.tasks=[small, long]", "checkpoint.save_every=0"});
  ASSERT_EQ(result.code, 0) << result.out << result.error;
  const std::string all = result.out + result.error;
  TE_EXPECT_CONTAINS(all, "warning: evaluation.tasks: long: 2 requests are longer than the context of ");
  EXPECT_EQ(all.find("were truncated"), all.rfind("were truncated")) << all;
}

TEST_F(TrainingTasks, RefusesInvalidSettings) {
  const auto refused = [&](const Overrides& overrides, const std::string& part) {
    testing::expect_refused(train("x", overrides), part);
  };
  refused({"evaluation.every=2"}, "evaluation.every (2) needs evaluation.tasks");
  refused({"evaluation.every=2", "evaluation.tasks=small"}, "evaluation.every (2) needs evaluation.data");
  refused(tasks() + Overrides{"data.tokenizer="}, "evaluation.every (2) needs data.tokenizer");
  refused(tasks() + Overrides{"evaluation.tasks=piqa"},
          "evaluation.data " + (folder_ / "") + ": has no data of piqa");
  refused(tasks() + Overrides{"evaluation.tasks=nonsense"}, "evaluation.tasks nonsense: is neither a task");
  refused(tasks() + Overrides{"evaluation.tasks=[small, small]"}, "evaluation.tasks: small is named twice");
  write_file(folder_ / "my,own.jsonl", R"({"context": "a", "choices": ["b", "c"], "gold": 0})");
  refused(tasks() + Overrides{R"(evaluation.tasks=["my,own"])"},
          "evaluation.tasks: \"my,own\" becomes a column of loss.csv, so it must consist of letters, digits");
  refused(tasks() + Overrides{"parallel.virtual_stages=2", "parallel.pipeline=2", "model.num_layers=4",
                              "parallel.schedule=interleaved"},
          "parallel.virtual_stages is 2");
}

}  // namespace
}  // namespace te::testing
