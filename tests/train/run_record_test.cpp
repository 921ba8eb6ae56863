// run.json: its content, when a resumed run extends it, and what happens to damaged ones.
#include "train/run_record.h"
#include "core/json.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "data/data_testing.h"

namespace te {
namespace {

using nlohmann::json;

class RunRecord : public ::testing::Test {
 protected:
  RunRecord() {
    config_ = config::parse_config(
        "model: {family: llama, num_layers: 1, hidden_size: 32, ffn_hidden_size: 48, num_attention_heads: "
        "4,\n"
        "        vocab_size: 257, seq_length: 16}\n"
        "training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 6, device: cpu}\n"
        "data: {synthetic: true}\n",
        "small.yaml", {"logging.directory=" + (folder_ / "a run")});
  }
  void write(const char* resume = "never", int64_t zero_moments_after = 0) {
    config_.checkpoint.resume = resume;
    train::write_run_record(config_, context_, placement_, plan_,
                            {{{"data/a", "3 documents"}}, zero_moments_after}, {"1.2.3", "abc-dirty"});
  }
  json read() const { return parse_json(testing::read_file(folder_ / "a run/run.json")); }

  testing::TextFolder folder_;
  config::Config config_;
  Context context_ = Context::cpu();
  MemoryPlan plan_;
  parallel::Placement placement_ = {{.name = "a", .ranks = {0, 1}, .devices = "2 x GPU", .link = "NVLink"},
                                    {.name = "b", .ranks = {2}, .devices = "1 x GPU"}};
};

TEST_F(RunRecord, DescribesTheRun) {
  ::setenv("NCCL_OF_A_TEST", "on", 1);
  ::setenv("SOME_SECRET", "word", 1);
  write();
  const json record = read();
  // Key by key, as in the effective config.
  EXPECT_EQ(record.at("config").at("model.family"), "llama");
  EXPECT_EQ(record.at("config").at("training.train_steps"), "6");
  EXPECT_EQ(record.at("config").at("precision.fp8"), "off");
  EXPECT_EQ(record.at("config").at("data.synthetic"), "true");
  EXPECT_EQ(record.at("planned_bytes"), 0);
  EXPECT_FALSE(record.contains("emulated"));
  const json start = record.at("starts").at(0);
  EXPECT_EQ(start.at("version"), "1.2.3");
  EXPECT_EQ(start.at("commit"), "abc-dirty");
  EXPECT_EQ(start.at("ranks"), 3);
  EXPECT_EQ(start.at("data").at("data/a"), "3 documents");
  EXPECT_EQ(start.at("hosts"), parse_json(R"([
      {"host": "a", "ranks": "0-1", "devices": "2 x GPU", "link": "NVLink"},
      {"host": "b", "ranks": "2", "devices": "1 x GPU", "link": ""}])"));
  EXPECT_EQ(start.at("environment").at("NCCL_OF_A_TEST"), "on");
  EXPECT_FALSE(start.at("environment").contains("SOME_SECRET"));
  EXPECT_NE(start.at("command").at(0).get<std::string>().find("test_train"), std::string::npos);
  EXPECT_EQ(start.at("device"), context_.info().name);
  EXPECT_EQ(start.at("time").get<std::string>().size(), std::string("2026-01-02T03:04:05Z").size());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a run/run.json.tmp"));
}

TEST_F(RunRecord, NamesEmulatedRecipes) {
  config_.precision.fp8 = config::Fp8Mode::hybrid;
  config_.precision.overrides = "linear_fc2: mxfp8";
  write();
  EXPECT_EQ(read().at("emulated"), "mxfp8");
  config_.precision.fp8 = config::Fp8Mode::off;
  write();
  EXPECT_FALSE(read().contains("emulated"));
}

TEST_F(RunRecord, ResumedRunAddsItsStart) {
  write("auto");
  write("auto");
  EXPECT_EQ(read().at("starts").size(), 2u);
  write(folder_.path().c_str());
  EXPECT_EQ(read().at("starts").size(), 3u);
  write("never");
  EXPECT_EQ(read().at("starts").size(), 1u);
}

// The end is that of the last start; a start that is killed has none.
TEST_F(RunRecord, HasTheEndOfAStartAndItsLostMoments) {
  train::record_end(config_, "finished");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a run/run.json"));
  write();
  write("auto", 4);
  train::record_end(config_, "stopped early");
  write("auto");
  const json starts = read().at("starts");
  EXPECT_FALSE(starts.at(0).contains("end") || starts.at(0).contains("zero_moments_after"));
  EXPECT_EQ(starts.at(1).at("end"), "stopped early");
  EXPECT_EQ(starts.at(1).at("zero_moments_after"), 4);
  EXPECT_FALSE(starts.at(2).contains("end") || starts.at(2).contains("zero_moments_after"));
  EXPECT_EQ(read().at("config").at("training.train_steps"), "6");
}

TEST_F(RunRecord, DamagedFileIsReplaced) {
  write();
  testing::write_file(folder_ / "a run/run.json", "{\"starts\": 3");
  write("auto");
  EXPECT_EQ(read().at("starts").size(), 1u);
}

// A file size limit stands for a full disk.
TEST_F(RunRecord, FullDiskKeepsTheEarlierFileAndDoesNotEndTheRun) {
  write();
  const std::string before = testing::read_file(folder_ / "a run/run.json");
  const auto on_limit = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit whole = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &whole), 0);
  const struct rlimit small = {100, whole.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_NO_THROW(write("auto"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &whole), 0);
  std::signal(SIGXFSZ, on_limit);
  EXPECT_EQ(testing::read_file(folder_ / "a run/run.json"), before);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a run/run.json.tmp"));
}

TEST_F(RunRecord, FolderThatCannotBeCreatedIsReported) {
  testing::write_file(folder_ / "a file", "");
  config_.logging.directory = folder_ / "a file/run";
  try {
    write();
    FAIL() << "no error";
  } catch (const UserError& error) {
    TE_EXPECT_CONTAINS(error.what(), "logging.directory: ");
    TE_EXPECT_CONTAINS(error.what(), "a file/run");
  }
}

}  // namespace
}  // namespace te
