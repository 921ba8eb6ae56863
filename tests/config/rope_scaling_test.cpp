// model.rope_scaling: mappings as in Hugging Face's config.json.
#include "config_testing.h"

namespace te::config {
namespace {

RopeScaling scaling(const std::string& yaml) {
  return small({"model.rope_scaling=" + yaml}).model.rope_scaling;
}

TEST(RopeScaling, ReadsWhatConfigJsonHas) {
  EXPECT_EQ(small().model.rope_scaling.kind, RopeScalingKind::none);
  for (const char* none : {"none", "null", "", "{rope_type: default}"})
    EXPECT_EQ(scaling(none).kind, RopeScalingKind::none) << none;
  // JSON, as Llama 3.2's config.json has it.
  const RopeScaling llama3 = scaling(
      "{\"factor\": 32.0, \"high_freq_factor\": 4.5, \"low_freq_factor\": 1.5, "
      "\"original_max_position_embeddings\": 4096, \"rope_type\": \"llama3\"}");
  EXPECT_EQ(llama3.kind, RopeScalingKind::llama3);
  EXPECT_EQ(llama3.factor, 32.0);
  EXPECT_EQ(llama3.high_freq_factor, 4.5);
  EXPECT_EQ(llama3.low_freq_factor, 1.5);
  EXPECT_EQ(llama3.original_max_position_embeddings, 4096);
  const RopeScaling linear = scaling("{type: linear, factor: 2}");
  EXPECT_EQ(linear.kind, RopeScalingKind::linear);
  EXPECT_EQ(linear.factor, 2.0);
  const RopeScaling yarn = scaling(
      "{rope_type: yarn, factor: 4, beta_fast: 16, beta_slow: 2, attention_factor: 1.5, truncate: false}");
  EXPECT_EQ(yarn.beta_fast, 16.0);
  EXPECT_EQ(yarn.beta_slow, 2.0);
  EXPECT_EQ(yarn.attention_factor, 1.5);
  EXPECT_FALSE(yarn.truncate);
  EXPECT_EQ(yarn.original_max_position_embeddings, 8192);
}

TEST(RopeScaling, RoundTrips) {
  for (const char* yaml :
       {"none", "{rope_type: linear, factor: 2.0}",
        "{rope_type: llama3, factor: 8.0, original_max_position_embeddings: 4096, "
        "low_freq_factor: 1.0, high_freq_factor: 4.0}",
        "{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 8192, beta_fast: "
        "32.0, beta_slow: 1.0, attention_factor: 0.0, truncate: true}"}) {
    const std::string text = to_yaml(small({std::string("model.rope_scaling=") + yaml}));
    EXPECT_NE(text.find(std::string("  rope_scaling: ") + yaml + "\n"), std::string::npos) << text;
    EXPECT_EQ(to_yaml(parse_config(text, "dir/small.yaml")), text);
  }
}

TEST(RopeScaling, RefusesMistakesInOneLine) {
  const auto refused = [](const std::string& yaml, const std::string& part) {
    const std::string message = override_complaint({"model.rope_scaling=" + yaml});
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused("llama3", "expected none, or a mapping such as {rope_type: llama3, factor: 8.0}, got");
  refused("{factor: 8}", "expected rope_type linear, llama3 or yarn");
  refused("{rope_type: longrope, factor: 8}", "expected rope_type linear, llama3 or yarn, got \"longrope\"");
  refused("{rope_type: none}", "expected rope_type linear, llama3 or yarn");
  refused("{rope_type: llama3}", "rope_type llama3 needs factor");
  refused("{rope_type: linear, factor: 2, beta_fast: 3}",
          "'beta_fast' is not a parameter of rope_type linear, which has factor");
  refused("{rope_type: linear, factor: 2, factor: 3}", "factor is given twice");
  refused("{rope_type: linear, factor: 0.5}", "factor: 0.5 is out of range; it must be 1 or more");
  refused("{rope_type: linear, factor: two}", "factor: expected a number, got \"two\"");
  refused("{rope_type: yarn, factor: 2, beta_slow: 32}", "beta_slow (32) must be below beta_fast (32)");
  refused("{rope_type: llama3, factor: 2, low_freq_factor: 4}",
          "low_freq_factor (4) must be below high_freq_factor (4)");
  EXPECT_EQ(complaint("model:\n  rope_scaling:\n    rope_type: llama3\n    factor: 0\n"),
            "dir/bad.yaml:4: model.rope_scaling: factor: 0.0 is out of range; it must be 1 or more");
  // Created in code.
  Config config = small({"model.rope_scaling={rope_type: linear, factor: 2}"});
  config.model.rope_scaling.factor = 0;
  EXPECT_THROW(validate(config), UserError);
}

}  // namespace
}  // namespace te::config
