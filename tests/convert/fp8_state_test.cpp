// te-convert export --fp8: the exported folder has the quantized weights and scales of the FP8 run.
#include <algorithm>
#include <cmath>

#include "checkpoint/reader.h"
#include "convert/foreign_model.h"
#include "core/float_types.h"
#include "core/json.h"
#include "kernels/quantize/quantize_groups.h"
#include "tools_testing.h"

namespace te {
namespace {

using nlohmann::json;
using testing::operator+;
using testing::expect_convert_refused;
using testing::Result;
using testing::te_convert;
using testing::TrainFolder;

float scalar(const SafetensorsReader& file, const std::string& name) {
  const SafetensorsTensor& tensor = file.at(name);
  EXPECT_EQ(tensor.shape, std::vector<int64_t>{1}) << name;
  EXPECT_EQ(tensor.file_dtype, "F32") << name;
  float value = 0.0f;
  std::memcpy(&value, tensor.data, sizeof(value));
  return value;
}

TEST(Fp8State, ExportHasTheScalesOfTheRun) {
  const TrainFolder folder;
  const Result trained =
      folder.run("a", {"training.train_steps=3", "precision.fp8=hybrid", "precision.margin=1",
                       "precision.last_layers_bf16=1", "model.ffn_hidden_size=64"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = folder.checkpoint("a", 3), out = folder / "out";
  const Result exported = te_convert(folder, "export " + checkpoint + " --out " + out + " --fp8 tensor");
  ASSERT_EQ(exported.code, 0) << exported.error;
  const SafetensorsReader file(out + "/model.safetensors");
  const checkpoint::Reader reader(checkpoint);
  const std::string linear = "layers.0.self_attention.linear_qkv";
  // 1. The input scale comes from the FP8 state.
  float input_scale = 0.0f;
  for (const checkpoint::Fp8State::Row& row : reader.fp8().rows)
    if (row.operand.name == linear && row.operand.role == "input") input_scale = row.scale;
  ASSERT_GT(input_scale, 0.0f);
  EXPECT_NE(input_scale, 1.0f);
  // 2. q, k and v share one weight scale, and their codes are those of training.
  std::vector<float> weight(static_cast<size_t>(reader.at(linear + ".weight").numel()));
  reader.read_rows(linear + ".weight", 0, reader.at(linear + ".weight").rows(), weight.data());
  float amax = 0.0f;
  for (float& value : weight) amax = std::max(amax, std::abs(value = to_float(to_bf16(value))));
  const float weight_scale = 224.0f / amax;
  size_t at = 0;
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
    const std::string name = fmt::format("model.layers.0.self_attn.{}", part);
    EXPECT_EQ(scalar(file, name + ".input_scale"), 1.0f / input_scale);
    EXPECT_NEAR(scalar(file, name + ".weight_scale") * weight_scale, 1.0f, 1e-6f);
    const SafetensorsTensor& codes = file.at(name + ".weight");
    ASSERT_EQ(codes.file_dtype, "F8_E4M3");
    const float scale = 1.0f / scalar(file, name + ".weight_scale");
    for (size_t i = 0; i < codes.bytes; ++i, ++at) {
      const float code = to_float(float8_e4m3{static_cast<uint8_t>(codes.data[i])});
      EXPECT_LE(std::abs(code), 224.0f);
      EXPECT_NEAR(code, weight[at] * scale, std::max(std::abs(code) / 15, 0x1p-10f));
    }
  }
  EXPECT_EQ(at, weight.size());
  // 3. The last layer stays in BF16 and is in the ignore list of config.json.
  EXPECT_EQ(file.at("model.layers.1.mlp.down_proj.weight").file_dtype, "BF16");
  EXPECT_EQ(file.find("model.layers.1.mlp.down_proj.weight_scale"), nullptr);
  const json config = parse_json(testing::read_file(out + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "float-quantized");
  EXPECT_EQ(config["config_groups"]["group_0"]["input_activations"]["dynamic"], false);
  EXPECT_EQ(config["ignore"].size(), 8u);  // seven weights of the layer and the output layer
  // 4. te-generate and import read it as BF16.
  const convert::ForeignModel model = convert::open_hugging_face(out);
  EXPECT_EQ(model.dtype(model.at(linear + ".weight")), DType::bf16);
  std::vector<float> back(weight.size());
  model.read_rows(model.at(linear + ".weight"), 0, model.at(linear + ".weight").rows(), back.data());
  for (size_t i = 0; i < back.size(); ++i)
    EXPECT_NEAR(back[i], weight[i], std::abs(weight[i]) / 14 + amax * 1e-5f) << i;
}

TEST(Fp8State, ExportHasTheBlocksOfABlockwiseRun) {
  const TrainFolder folder;
  const Result trained =
      folder.run("a", {"training.train_steps=2", "precision.fp8=hybrid", "precision.fp8_recipe=blockwise",
                       "model.hidden_size=256", "model.ffn_hidden_size=128",
                       "precision.overrides=linear_fc2 fprop: bf16; linear_fc1 wgrad: bf16; layers 1: bf16"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = folder.checkpoint("a", 2), out = folder / "out";
  const Result exported = te_convert(folder, "export " + checkpoint + " --out " + out + " --fp8 block");
  ASSERT_EQ(exported.code, 0) << exported.error;
  const SafetensorsReader file(out + "/model.safetensors");
  const checkpoint::Reader reader(checkpoint);
  // 1. The codes and power-of-two scales are those of training, which quantizes the weight as one matrix.
  const std::string name = "layers.0.self_attention.linear_proj.weight";
  const int64_t rows = reader.at(name).rows(), cols = reader.at(name).cols();
  std::vector<float> weight(static_cast<size_t>(rows * cols));
  reader.read_rows(name, 0, rows, weight.data());
  for (float& value : weight) value = to_float(to_bf16(value));
  std::vector<uint8_t> codes(weight.size());
  const Shape shape = kernels::scale_shape(kernels::ScaleLayout::blocks, rows, cols);
  std::vector<float> scales(static_cast<size_t>(shape.numel()));
  kernels::quantize_groups(
      Context::cpu(), {.x = {weight.data(), DType::f32, {rows, cols}},
                       .rowwise = {Tensor{codes.data(), DType::e4m3, {rows, cols}},
                                   Tensor{scales.data(), DType::f32, shape}, kernels::ScaleLayout::blocks},
                       .columnwise = {}});
  const SafetensorsTensor& exported_codes = file.at("model.layers.0.self_attn.o_proj.weight");
  ASSERT_EQ(exported_codes.bytes, codes.size());
  EXPECT_EQ(std::memcmp(exported_codes.data, codes.data(), codes.size()), 0);
  const SafetensorsTensor& multipliers = file.at("model.layers.0.self_attn.o_proj.weight_scale_inv");
  ASSERT_EQ(multipliers.shape, (std::vector<int64_t>{rows / 128, cols / 128}));
  for (int64_t i = 0; i < rows / 128; ++i) {
    for (int64_t j = 0; j < cols / 128; ++j) {
      float multiplier = 0.0f;
      std::memcpy(&multiplier, multipliers.data + 4 * (i * cols / 128 + j), sizeof(multiplier));
      EXPECT_EQ(multiplier, scales[static_cast<size_t>(i * shape[1] + j)]);
      int exponent = 0;
      EXPECT_EQ(std::frexp(multiplier, &exponent), 0.5f) << multiplier << " is not a power of two";
    }
  }
  // 2. Only weights whose forward GEMM is FP8 are converted.
  EXPECT_EQ(file.at("model.layers.0.mlp.up_proj.weight").file_dtype, "F8_E4M3");
  EXPECT_EQ(file.at("model.layers.0.mlp.down_proj.weight").file_dtype, "BF16");
  EXPECT_EQ(file.at("model.layers.1.self_attn.o_proj.weight").file_dtype, "BF16");
  const json config = parse_json(testing::read_file(out + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["modules_to_not_convert"].size(), 9u);  // down_proj, layer 1's seven, and the output layer
}

// An override to a recipe without a history: input scales come from all microbatches of the last steps, not from the
// last pass, which may be of validation.
TEST(Fp8State, ExportHasTheScalesOfOverridesWithoutHistory) {
  const TrainFolder folder;
  const testing::Overrides options = {"training.train_steps=1",   "precision.fp8=hybrid",
                                      "model.ffn_hidden_size=64", "training.global_batch_size=8",
                                      "checkpoint.save_every=1",  "precision.amax_history_len=4"};
  const testing::Overrides override = {"precision.overrides=linear_fc1: tensorwise"};
  const auto input = [](const checkpoint::Reader& reader) {
    for (const checkpoint::Fp8State::Row& row : reader.fp8().rows)
      if (row.operand.name == "layers.0.mlp.linear_fc1" && row.operand.role == "input") return row;
    return checkpoint::Fp8State::Row{};
  };
  ASSERT_EQ(folder.run("delayed", options).code, 0);
  const Result trained = folder.run("override", options + override);
  ASSERT_EQ(trained.code, 0) << trained.error;
  ASSERT_EQ(folder.run("validated", options + override + testing::Overrides{"training.eval_interval=1"}).code,
            0);
  // The first layer of the first step has the same input in all three.
  const std::vector<float> history = input(checkpoint::Reader(folder.checkpoint("delayed", 1))).history;
  ASSERT_GT(std::ranges::max(history), 0.0f);
  for (const char* run : {"override", "validated"}) {
    EXPECT_EQ(input(checkpoint::Reader(folder.checkpoint(run, 1))).history, history) << run;
    const std::string out = folder / run + "_out";
    const Result exported =
        te_convert(folder, "export " + folder.checkpoint(run, 1) + " --out " + out + " --fp8 tensor");
    ASSERT_EQ(exported.code, 0) << exported.error;
    EXPECT_FLOAT_EQ(
        scalar(SafetensorsReader(out + "/model.safetensors"), "model.layers.0.mlp.gate_proj.input_scale"),
        std::ranges::max(history) / 448.0f);
  }
}

const std::vector<std::string> kExperts{"training.train_steps=2",        "precision.fp8=hybrid",
                                        "model.num_moe_experts=3",       "model.moe_router_topk=2",
                                        "model.moe_ffn_hidden_size=128", "model.ffn_hidden_size=128",
                                        "model.hidden_size=128"};

// Each expert has its own scales.
TEST(Fp8State, ExportHasTheScalesOfEachExpert) {
  const TrainFolder folder;
  const Result trained = folder.run("a", kExperts);
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = folder.checkpoint("a", 2), out = folder / "out";
  const Result exported = te_convert(folder, "export " + checkpoint + " --out " + out + " --fp8 tensor");
  ASSERT_EQ(exported.code, 0) << exported.error;
  const SafetensorsReader file(out + "/model.safetensors");
  const checkpoint::Reader reader(checkpoint);
  std::vector<float> weight(3 * 256 * 128);
  reader.read_rows("layers.1.mlp.experts.linear_fc1.weight", 0, 3 * 256, weight.data());
  for (int e = 0; e < 3; ++e) {
    float amax = 0.0f, input_scale = 0.0f;
    for (size_t i = 0; i < 256 * 128; ++i)
      amax = std::max(amax, std::abs(to_float(to_bf16(weight[static_cast<size_t>(e) * 256 * 128 + i]))));
    for (const checkpoint::Fp8State::Row& row : reader.fp8().rows)
      if (row.operand.name == fmt::format("layers.1.mlp.experts.{}.linear_fc1", e) &&
          row.operand.role == "input")
        input_scale = row.scale;
    for (const char* part : {"w1", "w3"}) {
      const std::string name = fmt::format("model.layers.1.block_sparse_moe.experts.{}.{}", e, part);
      EXPECT_EQ(file.at(name + ".weight").file_dtype, "F8_E4M3");
      EXPECT_EQ(scalar(file, name + ".input_scale"), 1.0f / input_scale) << name;
      EXPECT_NEAR(scalar(file, name + ".weight_scale"), amax / 448.0f, amax * 1e-6f) << name;
    }
  }
  EXPECT_EQ(file.at("model.layers.1.block_sparse_moe.gate.weight").file_dtype, "BF16");
  const json config = parse_json(testing::read_file(out + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["ignore"], json({"model.layers.0.block_sparse_moe.gate",
                                    "model.layers.1.block_sparse_moe.gate", "lm_head"}));
}

const std::vector<std::string> kMoreExpertsThanTokens =
    kExperts + testing::Overrides{"model.num_moe_experts=33", "model.num_layers=1",
                                  "training.micro_batch_size=1", "training.global_batch_size=1"};

// The 16 tokens of the last step, the only one of the amax history, select 32 experts at most.
TEST(Fp8State, ExportHasTheScalesOfExpertsThatWereIdleLately) {
  const TrainFolder folder;
  const testing::Overrides options = {"training.train_steps=60", "precision.amax_history_len=1",
                                      "optimizer.lr=0.01", "model.moe_aux_loss_coeff=1"};
  const Result trained = folder.run("a", kMoreExpertsThanTokens + options);
  ASSERT_EQ(trained.code, 0) << trained.error;
  const Result exported =
      te_convert(folder, "export " + folder.run_folder("a") + " --out " + (folder / "out") + " --fp8 tensor");
  ASSERT_EQ(exported.code, 0) << exported.error;
  const SafetensorsReader file(folder / "out/model.safetensors");
  int idle = 0;
  for (const checkpoint::Fp8State::Row& row : checkpoint::Reader(folder.run_folder("a")).fp8().rows)
    for (int e = 0; e < 33; ++e) {
      if (row.operand.name != fmt::format("layers.0.mlp.experts.{}.linear_fc1", e) ||
          row.operand.role != "input")
        continue;
      if (row.history == std::vector<float>{0.0f}) ++idle;
      EXPECT_EQ(scalar(file, fmt::format("model.layers.0.block_sparse_moe.experts.{}.w1.input_scale", e)),
                1.0f / row.scale);
    }
  EXPECT_GE(idle, 1);
}

TEST(Fp8State, RefusesExpertsThatNeverReceivedATokenAndNamesOne) {
  const TrainFolder folder;
  const Result trained =
      folder.run("a", kMoreExpertsThanTokens + testing::Overrides{"training.train_steps=1"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string command =
      "export " + folder.checkpoint("a", 1) + " --out " + (folder / "out") + " --fp8 ";
  const Result refused = te_convert(folder, command + "tensor");
  expect_convert_refused(refused, ": layers.0.mlp.experts.");
  expect_convert_refused(refused, " has received no token in training");
  EXPECT_EQ(te_convert(folder, command + "block").code, 0);
}

// Training quantizes the weights of all experts of a layer as one matrix.
TEST(Fp8State, ExportHasTheBlocksOfExperts) {
  const TrainFolder folder;
  std::vector<std::string> options = kExperts;
  options.emplace_back("precision.fp8_recipe=blockwise");
  const Result trained = folder.run("a", options);
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::string checkpoint = folder.checkpoint("a", 2), out = folder / "out";
  const Result exported = te_convert(folder, "export " + checkpoint + " --out " + out + " --fp8 block");
  ASSERT_EQ(exported.code, 0) << exported.error;
  const std::string name = "layers.0.mlp.experts.linear_fc2.weight";
  std::vector<float> weight(3 * 128 * 128), scales(3 * 4);
  checkpoint::Reader(checkpoint).read_rows(name, 0, 3 * 128, weight.data());
  for (float& value : weight) value = to_float(to_bf16(value));
  std::vector<uint8_t> codes(weight.size());
  kernels::quantize_groups(
      Context::cpu(), {.x = {weight.data(), DType::f32, {3 * 128, 128}},
                       .rowwise = {Tensor{codes.data(), DType::e4m3, {3 * 128, 128}},
                                   Tensor{scales.data(), DType::f32, {3, 4}}, kernels::ScaleLayout::blocks},
                       .columnwise = {}});
  const SafetensorsReader file(out + "/model.safetensors");
  for (size_t e = 0; e < 3; ++e) {
    const std::string theirs = fmt::format("model.layers.0.block_sparse_moe.experts.{}.w2.weight", e);
    const SafetensorsTensor& found = file.at(theirs);
    ASSERT_EQ(found.bytes, size_t{128 * 128});
    EXPECT_EQ(std::memcmp(found.data, codes.data() + e * 128 * 128, found.bytes), 0) << e;
    float multiplier = 0.0f;
    std::memcpy(&multiplier, file.at(theirs + "_scale_inv").data, sizeof(multiplier));
    EXPECT_EQ(multiplier, scales[4 * e]);
  }
  const convert::ForeignModel model = convert::open_hugging_face(out);  // as BF16
  std::vector<float> back(weight.size());
  model.read_rows(model.at(name), 0, 3 * 128, back.data());
  for (size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], weight[i], std::abs(weight[i]) / 14 + 1e-5f);
}

TEST(Fp8State, RefusesARunWithoutFp8State) {
  const TrainFolder folder;
  const Result trained = folder.run("a", {"training.train_steps=1"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  expect_convert_refused(te_convert(folder, "export " + folder.checkpoint("a", 1) + " --out " +
                                                (folder / "out") + " --fp8 tensor"),
                         "no input scale of layers.0.self_attention.linear_qkv");
  expect_convert_refused(te_convert(folder, "export x --out y --fp8 rows"), "--fp8");
}

}  // namespace
}  // namespace te
