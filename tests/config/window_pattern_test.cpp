// Parsing and writing of window patterns.
#include "config/window_pattern.h"

#include "config_testing.h"

namespace te::config {
namespace {

std::string letters(const std::vector<bool>& layers) {
  std::string text;
  for (const bool window : layers) text += window ? 'w' : 'f';
  return text;
}

std::vector<bool> layers(const std::string& letters) {
  std::vector<bool> result;
  for (const char c : letters) result.push_back(c == 'w');
  return result;
}

TEST(WindowPattern, IsRunsOfLayers) {
  EXPECT_EQ(letters(parse_window_pattern("")), "w");
  EXPECT_EQ(letters(parse_window_pattern("5w f")), "wwwwwf");
  EXPECT_EQ(letters(parse_window_pattern(" 2f3wf ")), "ffwwwf");
  EXPECT_EQ(letters(parse_window_pattern("12w")), std::string(12, 'w'));
  for (const char* wrong : {"5", "w 3", "3 w", "0w", "x", "w,f", "99999w"}) {
    try {
      parse_window_pattern(wrong);
      ADD_FAILURE() << wrong;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(wrong), std::string::npos) << error.what();
    }
  }
}

TEST(WindowPattern, ShortestPatternOfTheLayers) {
  EXPECT_EQ(window_pattern_of(layers("")), "");
  EXPECT_EQ(window_pattern_of(layers("wwww")), "");
  EXPECT_EQ(window_pattern_of(layers("ffff")), "f");
  EXPECT_EQ(window_pattern_of(layers("wfwfw")), "w f");
  EXPECT_EQ(window_pattern_of(layers("wwwwwfwwwwwfww")), "5w f");
  EXPECT_EQ(window_pattern_of(layers("ffwwww")), "2f 4w");
  for (const char* pattern : {"wwfwwfw", "fwwwww", "wff", "fw"}) {
    const std::vector<bool> period = parse_window_pattern(window_pattern_of(layers(pattern)));
    for (size_t i = 0; pattern[i] != '\0'; ++i)
      EXPECT_EQ(period[i % period.size()], pattern[i] == 'w') << pattern;
  }
}

TEST(WindowPattern, OfAModel) {
  ModelConfig model =
      small({"model.num_layers=7", "model.sliding_window=8", "model.window_pattern=2w f",
             "model.rope_scaling={rope_type: linear, factor: 8}", "model.rope_local_theta=500"})
          .model;
  std::string with, rotated;
  for (int64_t layer = 0; layer < 7; ++layer) {
    with += model.of_layer(layer).windowed() ? 'w' : 'f';
    rotated += model.of_layer(layer).local_rope() ? 'w' : 'f';
    EXPECT_EQ(model.window_in(layer), with.back() == 'w');
  }
  EXPECT_EQ(with, "wwfwwfw");
  EXPECT_EQ(rotated, with);
  EXPECT_EQ(model.with_local_rope().rope_theta, 500);
  EXPECT_EQ(model.with_local_rope().rope_scaling.kind, RopeScalingKind::none);
  EXPECT_EQ(model.softmax_scale(), 0.25);  // attention heads of width 16
  model.query_pre_attn_scalar = 4;
  EXPECT_EQ(model.softmax_scale(), 0.5);
}

}  // namespace
}  // namespace te::config
