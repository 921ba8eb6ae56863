// Compares one training step with Hugging Face transformers: GPT-2, Llama, Qwen2 (Llama with tied output layer and
// biases), Gemma 3, nanochat and Qwen2-MoE, with the weights, tokens and results in tests/fixtures, which
// scripts/make_hf_fixtures.py writes.
//
// Bound: the fixtures are float64 results rounded once, so the differences come from te-train's FP32, whose unit
// roundoff is 6e-8. About twenty consecutive sums of up to 200 terms, through two layers and back, give a relative
// error of about 1e-6 per tensor. 1e-5 allows a different summation order and is far below the effect of any wrong
// formula.
#include <fnmatch.h>
#include <algorithm>

#include "checkpoint/safetensors.h"
#include "core/json.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using testing::relative_error;
using testing::TinyModel;

constexpr double kBound = 1e-5;

template <class T>
std::vector<T> values_of(const SafetensorsTensor& tensor) {
  std::vector<T> values(tensor.bytes / sizeof(T));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

nlohmann::json metadata_of(const SafetensorsReader& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? nlohmann::json::object() : parse_json(found->second);
}

config::Config config_of(const SafetensorsReader& file) {
  nlohmann::json model = metadata_of(file, "model"), optimizer = metadata_of(file, "optimizer");
  if (model.at("family") == "gpt") model.erase("add_qkv_bias");  // gpt always has one
  EXPECT_EQ(optimizer.at("weight_decay_of"), "tensors of rank >= 2");
  optimizer.erase("weight_decay_of");
  const size_t batch = file.at("tokens").shape.at(0);
  const nlohmann::json config = {
      {"model", model},
      {"optimizer", optimizer},
      {"precision", {{"dtype", "fp32"}}},
      {"training",
       {{"micro_batch_size", batch}, {"global_batch_size", batch}, {"train_steps", 1}, {"device", "cpu"}}},
      {"data", {{"synthetic", true}}}};
  return config::parse_config(config.dump(), "fixture.yaml");  // JSON is YAML
}

class HuggingFace : public ::testing::TestWithParam<const char*> {
 protected:
  HuggingFace()
      : file_(std::string(TE_SOURCE_DIR "/tests/fixtures/") + GetParam() + ".safetensors"),
        config_(config_of(file_)),
        tiny_(config_) {
    int64_t stored = 0;
    for (const SafetensorsTensor& tensor : file_.tensors()) stored += tensor.name.starts_with("param/");
    const auto& parameters = tiny_.model().parameters().parameters();
    EXPECT_EQ(stored, static_cast<int64_t>(parameters.size()));
    for (const parameters::Parameter& parameter : parameters) {
      const SafetensorsTensor& tensor = file_.at("param/" + parameter.name);
      EXPECT_EQ(Shape(parameter.shape).numel() * 4, static_cast<int64_t>(tensor.bytes)) << parameter.name;
      EXPECT_EQ(tensor.shape.at(0), parameter.shape[0]) << parameter.name;
      tiny_.write(parameter.main, values_of<float>(tensor));
    }
    tiny_.set_batch(values_of<int32_t>(file_.at("tokens")), values_of<int32_t>(file_.at("targets")));
  }

  std::vector<float> expected(const std::string& name) { return values_of<float>(file_.at(name)); }

  // Rows whose update is only rounding noise: see make_hf_fixtures.py.
  std::pair<size_t, size_t> noise_rows(const std::string& name) {
    const nlohmann::json patterns = metadata_of(file_, "zero_gradient_rows");
    for (const auto& [pattern, rows] : patterns.items()) {
      if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return {rows.at(0), rows.at(1)};
    }
    return {0, 0};
  }

  SafetensorsReader file_;
  config::Config config_;
  TinyModel tiny_;
};

TEST_P(HuggingFace, LogitsAndLossOfTheForwardPass) {
  const int64_t tokens = tiny_.tokens().numel();
  testing::TestTensor logits(tiny_.context(), DType::f32, {tokens, config_.model.vocab_size});
  tiny_.model().forward_logits(tiny_.context(), tiny_.tokens(), logits);
  EXPECT_LT(relative_error(logits.floats(), expected("logits")), kBound);
  const double loss = expected("loss")[0];
  EXPECT_NEAR(tiny_.evaluate(), loss, kBound * loss);
}

TEST_P(HuggingFace, GradientsAndTheirNorm) {
  const double loss = expected("loss")[0];
  EXPECT_NEAR(tiny_.forward_backward(), loss, kBound * loss);
  for (const parameters::Parameter& parameter : tiny_.model().parameters().parameters()) {
    EXPECT_LT(relative_error(tiny_.read(parameter.grad), expected("grad/" + parameter.name)), kBound)
        << parameter.name;
  }
  tiny_.optimizer().step(tiny_.context(), 0.0f);
  tiny_.optimizer().fetch_status(tiny_.context());
  tiny_.context().synchronize();
  const double norm = expected("grad_norm")[0];
  ASSERT_GT(norm, config_.optimizer.clip_grad) << "the fixture does not clip";
  EXPECT_NEAR(tiny_.optimizer().status().grad_norm, norm, kBound * norm);
}

TEST_P(HuggingFace, ParametersAfterOneStep) {
  tiny_.train_step(static_cast<float>(config_.optimizer.lr));
  for (const parameters::Parameter& parameter : tiny_.model().parameters().parameters()) {
    const std::vector<float> before = expected("param/" + parameter.name);
    std::vector<float> actual = tiny_.read(parameter.main), wanted = expected("updated/" + parameter.name);
    const auto [begin, end] = noise_rows(parameter.name);
    for (size_t i = begin; i < end; ++i) actual[i] = wanted[i] = before[i];
    EXPECT_LT(relative_error(actual, wanted), kBound) << parameter.name;
    // Compare the update alone, too: it is a thousandth of the parameter, so the bound above could hide a wrong update.
    // Its error is the roundoff of the FP32 parameters: 6e-8 for values near 1, compared with an update of 1e-3.
    for (size_t i = 0; i < before.size(); ++i) actual[i] -= before[i], wanted[i] -= before[i];
    EXPECT_LT(relative_error(actual, wanted), 1e-3) << parameter.name << ": the step";
  }
}

// Step n trains on the text rotated by n tokens. A token whose experts are nearly tied may select others after rounding
// in FP32, but its probabilities change little; AdamW's first steps amplify rounding.
TEST(MixtureOfExperts, FiftyStepsEqualThoseOfTorch) {
  const SafetensorsReader file(TE_SOURCE_DIR "/tests/fixtures/qwen2_moe_tiny.safetensors");
  const config::Config config = config_of(file);
  TinyModel tiny(config);
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters())
    tiny.write(parameter.main, values_of<float>(file.at("param/" + parameter.name)));
  const std::vector<int32_t> tokens = values_of<int32_t>(file.at("tokens")),
                             targets = values_of<int32_t>(file.at("targets"));
  const auto seq = static_cast<size_t>(config.model.seq_length), batch = tokens.size() / seq;
  const std::vector<float> expected = values_of<float>(file.at("losses"));
  ASSERT_EQ(expected.size(), 50u);
  for (size_t step = 0; step < expected.size(); ++step) {
    std::vector<int32_t> x, y;
    for (size_t b = 0; b < batch; ++b) {
      std::vector<int32_t> text(tokens.begin() + static_cast<std::ptrdiff_t>(b * seq),
                                tokens.begin() + static_cast<std::ptrdiff_t>((b + 1) * seq));
      text.push_back(targets[(b + 1) * seq - 1]);
      std::rotate(text.begin(), text.end() - static_cast<std::ptrdiff_t>(step % text.size()), text.end());
      x.insert(x.end(), text.begin(), text.end() - 1);
      y.insert(y.end(), text.begin() + 1, text.end());
    }
    tiny.set_batch(x, y);
    const double loss = tiny.train_step(static_cast<float>(config.optimizer.lr));
    EXPECT_NEAR(loss, expected[step], 1e-3 * expected[step]) << step;
  }
  EXPECT_LT(expected.back(), expected.front() - 1.0f);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFace,
                         ::testing::Values("gpt2_tiny", "llama_tiny", "qwen2_tiny", "gemma3_tiny",
                                           "nanochat_tiny", "qwen2_moe_tiny"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace te
