// Parsing of parallel.pipeline_split, and the output layer's time in layers, compared with values computed by hand.
#include "config/pipeline_split.h"

#include "config_testing.h"

namespace te::config {
namespace {

TEST(PipelineSplit, NumbersOfAList) {
  EXPECT_EQ(numbers_of_split("even"), std::vector<int>{});
  EXPECT_EQ(numbers_of_split("balanced"), std::vector<int>{});
  EXPECT_EQ(numbers_of_split("9,8,8,7"), (std::vector<int>{9, 8, 8, 7}));
  EXPECT_EQ(numbers_of_split(" 10 , 2"), (std::vector<int>{10, 2}));
}

// A list without blanks needs no quotes in YAML, and is written in a form that reads back.
TEST(PipelineSplit, ReadsBack) {
  const Config config = small({"parallel.pipeline=2", "parallel.pipeline_split=1,1"});
  EXPECT_EQ(parse_config(to_yaml(config), "dir/small.yaml").parallel.pipeline_split, "1,1");
}

// hidden 64, ffn 96, 4 attention heads of 16, vocabulary 128, sequence 32: a layer's matrices are
// 64 x (192 + 64 + 192 + 96), and half of the scores take 2 x 32 x 64 FLOPs per token, counted twice.
TEST(PipelineSplit, OutputLayerTimeInLayers) {
  const double layer = 2.0 * 64 * (192 + 64 + 192 + 96), attention = 4.0 * 32 * 64, head = 2.0 * 64 * 128;
  EXPECT_DOUBLE_EQ(output_layer_in_layers(small()), head / (1.08 * (layer + attention)));
  const double fp8_layer = 1.08 * (0.53 * layer + attention);
  EXPECT_DOUBLE_EQ(output_layer_in_layers(small({"precision.fp8=hybrid"})), head / fp8_layer);
  EXPECT_DOUBLE_EQ(output_layer_in_layers(small({"precision.fp8=hybrid", "precision.fp8_output_layer=true"})),
                   0.53 * head / fp8_layer);
  // With a window of 8, a token attends to 8 keys, except the first tokens: 8 x (64 - 8) / 32 per two tokens on
  // average.
  EXPECT_DOUBLE_EQ(output_layer_in_layers(small({"model.sliding_window=8"})),
                   head / (1.08 * (layer + 4.0 * 14 * 64)));
}

}  // namespace
}  // namespace te::config
