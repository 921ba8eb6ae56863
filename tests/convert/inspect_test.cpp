// te-convert inspect: its output for checkpoints, files and folders, and its errors.
#include <sys/stat.h>

#include "tools_testing.h"

namespace te {
namespace {

using testing::expect_convert_refused;
using testing::Result;
using testing::TrainFolder;

class Inspect : public ::testing::Test {
 protected:
  Result inspect(const std::string& arguments) { return te_convert(folder_, "inspect " + arguments); }
  TrainFolder folder_;
};

TEST_F(Inspect, SummarizesACheckpoint) {
  ASSERT_EQ(folder_
                .run("a", {"training.train_steps=2", "precision.fp8=hybrid", "precision.amax_history_len=4",
                           "model.ffn_hidden_size=64"})
                .code,
            0);
  const Result result = inspect((folder_.run_folder("a") + "/checkpoints") + " --verify --tensors");
  EXPECT_EQ(result.code, 0) << result.error;
  for (const std::string part :
       {"step         2, 2 updates, 8 samples\n",
        "llama, 2 layers, hidden 32, ffn 64, 4 heads, 2 query groups",
        "1 rank with model files, tensor 1 x pipeline 1\n", "optimizer    ",
        "hybrid, delayed: 24 operands, amax histories of 4 steps", "checksums    all 3 files match",
        "\nlayers.1.mlp.linear_fc2.weight ", "  [32, 64]  ", "exp_avg_sq/output_layer.weight"})
    TE_EXPECT_CONTAINS(result.out, part);

  EXPECT_EQ(inspect(folder_.run_folder("a") + " --verify --tensors").out, result.out);  // a run folder
  EXPECT_EQ(te_convert(folder_, "diff " + folder_.run_folder("a") + " " + folder_.checkpoint("a", 2)).code,
            0);

  const std::string step = folder_.checkpoint("a", 2);
  testing::flip_byte(step + "/model.safetensors", 50);
  EXPECT_EQ(inspect(step).code, 0);  // does not read weights
  expect_convert_refused(inspect(step + " --verify"), "model.safetensors: tensor ");
  std::filesystem::resize_file(step + "/model.safetensors", 1000);
  expect_convert_refused(inspect(step + " --verify"), "model.safetensors: ");
  std::filesystem::remove(step + "/model.safetensors");
  expect_convert_refused(inspect(step), "model.safetensors: shard is missing");
}

TEST_F(Inspect, SummarizesFilesAndFolders) {
  testing::write_tensors(folder_ / "one.safetensors", {{"a", {1, 2, 3}}, {"b", {4}}});
  const Result file = inspect((folder_ / "one.safetensors") + " --tensors");
  EXPECT_EQ(file.code, 0) << file.error;
  TE_EXPECT_CONTAINS(file.out, "2 tensors, 4 elements: F32 0.000 MB");
  TE_EXPECT_CONTAINS(file.out, "\na     F32      [3]                12\n");
  // A folder whose index names two of its three files.
  std::filesystem::create_directory(folder_ / "model");
  for (const char* name : {"x", "y", "z"})
    testing::write_tensors((folder_ / "model/") + name + ".safetensors", {{name, {1}}});
  const std::string index = folder_ / "model/model.safetensors.index.json";
  testing::write_file(index, R"({"weight_map": {"x": "x.safetensors", "y": "y.safetensors"}})");
  TE_EXPECT_CONTAINS(inspect(folder_ / "model").out, "2 tensors, 2 elements");
  testing::write_file(index, R"({"weight_map": {"x": "../x.safetensors"}})");
  expect_convert_refused(inspect(folder_ / "model"), "must name a file of the folder");
  testing::write_file(index, R"({"weight_map": 3})");
  expect_convert_refused(inspect(folder_ / "model"), "has no weight_map");
  std::filesystem::remove(index);
  TE_EXPECT_CONTAINS(inspect(folder_ / "model").out, "3 tensors, 3 elements");
  testing::write_tensors(folder_ / "model/w.safetensors", {{"x", {1}}});
  expect_convert_refused(inspect(folder_ / "model"), "is in another file of the folder, too");
}

TEST_F(Inspect, PipesAndFullOutputDevice) {
  ASSERT_EQ(folder_.run("a", {"training.train_steps=1"}).code, 0);
  const std::string checkpoints = folder_.run_folder("a") + "/checkpoints";
  testing::write_file(folder_ / "convert_out", "");
  expect_convert_refused(inspect(checkpoints + " >/dev/full 2>" + (folder_ / "convert_error") + " #"),
                         "standard output could not be written");
  std::filesystem::remove(checkpoints + "/latest");
  ASSERT_EQ(::mkfifo((checkpoints + "/latest").c_str(), 0600), 0);
  const Result result = inspect(checkpoints);
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "latest: cannot be read: is a pipe, not a regular file");
  std::filesystem::remove_all(checkpoints + "/step_00000001");
  expect_convert_refused(inspect(checkpoints), "latest: cannot be read: is a pipe, not a regular file");
}

TEST_F(Inspect, RefusesInOneLine) {
  testing::write_tensors(folder_ / "one.safetensors", {{"a", {1}}});
  expect_convert_refused(inspect((folder_ / "one.safetensors") + " --verify"), "have no checksums");
  expect_convert_refused(inspect(folder_ / "nothing"), "nothing: not found");
  std::filesystem::create_directory(folder_ / "empty");
  expect_convert_refused(inspect(folder_ / "empty"), "contains neither a checkpoint");
  expect_convert_refused(inspect(folder_ / "base.yaml"), "base.yaml: ");
  expect_convert_refused(inspect(""), "path is required");
}

}  // namespace
}  // namespace te
