// te-convert diff: equal, different and not comparable; exit codes 0, 1 and 2.
#include <cmath>

#include "tools_testing.h"

namespace te {
namespace {

using testing::expect_convert_refused;
using testing::Result;
using testing::TrainFolder;
using testing::write_tensors;

class Diff : public ::testing::Test {
 protected:
  Diff() : a_(folder_ / "a.safetensors"), b_(folder_ / "b.safetensors") {}
  Result diff(const std::string& more = "") { return te_convert(folder_, "diff " + a_ + " " + b_ + more); }
  TrainFolder folder_;
  std::string a_, b_;
};

TEST_F(Diff, EqualFiles) {
  const std::map<std::string, std::vector<float>> tensors = {
      {"x", {1, std::nanf("")}}, {"y", {-0.0f}}, {"z", {}}};
  write_tensors(a_, tensors);
  write_tensors(b_, tensors);
  const Result result = diff();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.out, "3 tensors are equal, 0 differ\n");
}

TEST_F(Diff, SortsByDifference) {
  write_tensors(
      a_, {{"left", {1}}, {"same", {5}}, {"shape", {1, 2}}, {"x", {1, 2, -4}}, {"y", {100}}, {"z", {0, 1}}});
  write_tensors(b_, {{"right", {1}},
                     {"same", {5}},
                     {"shape", {1, 2, 3}},
                     {"x", {1, 2.5f, -4.25f}},
                     {"y", {101}},
                     {"z", {-0.0f, 1}}});
  const Result result = diff();
  EXPECT_EQ(result.code, 1) << result.error;
  EXPECT_EQ(result.error, "");
  const std::string expected[] = {"only in " + a_,
                                  "only in " + b_,
                                  "shapes [2] and [3]",
                                  "x        5.000e-01   1.250e-01  2 of 3 values differ\n",
                                  "y        1.000e+00   1.000e-02  1 of 1 values differ\n",
                                  "z        0.000e+00   0.000e+00  same values\n",
                                  "1 tensors are equal, 6 differ\n"};
  size_t last = 0;
  for (const std::string& part : expected) {
    TE_EXPECT_CONTAINS(result.out, part);
    EXPECT_GE(result.out.find(part), last) << part;
    last = result.out.find(part);
  }
  const Result top = diff(" --top 1");
  EXPECT_EQ(top.code, 1);
  TE_EXPECT_CONTAINS(top.out, "... and 5 more (--top)\n1 tensors are equal, 6 differ\n");
}

TEST_F(Diff, ANaNDiffersFromEveryNumber) {
  write_tensors(a_, {{"x", {1, 2}}});
  write_tensors(b_, {{"x", {1, std::nanf("")}}});
  const Result result = diff();
  EXPECT_EQ(result.code, 1);
  TE_EXPECT_CONTAINS(result.out, "1 of 2 values differ");
}

TEST_F(Diff, DifferentTypesAreComparedAsNumbers) {
  const uint16_t bf16[] = {0x3f80, 0x4040}, f16_bits[] = {0x3c00, 0x4200};
  const float f32[] = {1, 3};
  SafetensorsWriter a(a_, {{"x", DType::bf16, {2}}}), b(b_, {{"x", DType::f32, {2}}});
  a.write("x", bf16, sizeof(bf16));
  a.finish();
  b.write("x", f32, sizeof(f32));
  b.finish();
  Result result = diff();
  EXPECT_EQ(result.code, 1);
  TE_EXPECT_CONTAINS(result.out, "BF16 and F32, same values");
  // te-train does not write F16, so the test writes the header itself.
  const std::string header = R"({"x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}   )";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes += header + std::string(reinterpret_cast<const char*>(f16_bits), sizeof(f16_bits));
  testing::write_file(a_, bytes);
  result = diff();
  EXPECT_EQ(result.code, 1) << result.error;
  TE_EXPECT_CONTAINS(result.out, "F16 and F32, same values");
}

TEST_F(Diff, ComparesCheckpointsOfAnyLayout) {
  const std::vector<std::string> two_steps = {"training.train_steps=2", "checkpoint.save_every=1",
                                              "precision.fp8=hybrid", "model.ffn_hidden_size=64",
                                              "precision.amax_history_len=4"};
  ASSERT_EQ(folder_.run("a", two_steps).code, 0);
  a_ = folder_.checkpoint("a", 2);
  b_ = folder_ / "b";
  ASSERT_EQ(te_convert(folder_, "reshard " + a_ + " --out " + b_ + " --tensor 2 --data 2").code, 0);
  const Result same = diff();
  EXPECT_EQ(same.code, 0) << same.out << same.error;
  b_ = folder_.checkpoint("a", 1);
  const Result other = diff(" --top 1000");
  EXPECT_EQ(other.code, 1) << other.error;
  TE_EXPECT_CONTAINS(other.out, "exp_avg/output_layer.weight");
  TE_EXPECT_CONTAINS(other.out, "fp8/layers.0.self_attention.linear_qkv/input");
  testing::flip_byte(a_ + "/model.safetensors", 50);
  expect_convert_refused(diff(), "checksum");
}

TEST_F(Diff, RefusesInOneLine) {
  write_tensors(a_, {{"x", {1}}});
  expect_convert_refused(diff(), "b.safetensors: not found");
  expect_convert_refused(te_convert(folder_, "diff " + a_), "b is required");
  testing::write_file(b_, "short");
  expect_convert_refused(diff(), "b.safetensors: ");
}

}  // namespace
}  // namespace te
