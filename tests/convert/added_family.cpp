// Import and export with the family of docs/how-to/add-a-layer.md, which has one key that Llama lacks.
#include <gtest/gtest.h>

#include "convert/architecture.h"
#include "convert/hugging_face_config.h"
#include "convert/layout.h"
#include "core/error.h"
#include "core/json.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te::convert {
namespace {

using nlohmann::json;

const json kLlama = {{"num_hidden_layers", 2},   {"hidden_size", 32},    {"intermediate_size", 48},
                     {"num_attention_heads", 4}, {"vocab_size", 64},     {"max_position_embeddings", 16},
                     {"model_type", "llama"},    {"rope_theta", 10000.0}};

class AddedFamily : public ::testing::Test {
 protected:
  config::ModelConfig read(const json& keys) {
    testing::write_file(folder_ / "config.json", keys.dump());
    return read_hugging_face_config(folder_ / "config.json");
  }
  testing::TemporaryFolder folder_;
};

TEST_F(AddedFamily, IsImportedAndExported) {
  json keys = kLlama;
  keys["model_type"] = "clamped_llama";
  EXPECT_EQ(read(keys).swiglu_clamp, 7.0);
  keys["swiglu_limit"] = 5.0;
  const config::ModelConfig model = read(keys);
  EXPECT_EQ(model.swiglu_clamp, 5.0);
  ASSERT_EQ(architecture_for(model, "checkpoint"), Architecture::clamped_llama);
  const json written = parse_json(hugging_face_config(model, DType::bf16, {}, "checkpoint"));
  EXPECT_EQ(written["architectures"][0], "ClampedLlamaForCausalLM");
  EXPECT_EQ(written["swiglu_limit"], 5.0);
  EXPECT_EQ(read(written).swiglu_clamp, 5.0);
  EXPECT_EQ(hugging_face_layout(model, Architecture::clamped_llama).size(),
            hugging_face_layout(model, Architecture::llama).size());
}

TEST_F(AddedFamily, DoesNotChangeOthers) {
  const config::ModelConfig llama = read(kLlama);
  EXPECT_EQ(llama.swiglu_clamp, 0.0);
  EXPECT_EQ(architecture_for(llama, "checkpoint"), Architecture::llama);
  json keys = kLlama;
  keys["swiglu_limit"] = 5.0;  // Llama's class does not read the key
  EXPECT_THROW(read(keys), UserError);
  config::ModelConfig both = llama;
  both.swiglu_clamp = 5.0;
  both.add_mlp_bias = true;
  EXPECT_THROW(architecture_for(both, "checkpoint"), UserError);
}

}  // namespace
}  // namespace te::convert
