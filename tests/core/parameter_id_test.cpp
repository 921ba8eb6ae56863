// The table of roles and names. The names are those of checkpoints: a change makes existing checkpoints unreadable.
#include "core/parameter_id.h"

#include <gtest/gtest.h>

#include <set>

namespace te {
namespace {

TEST(ParameterId, NamesAreThoseOfCheckpoints) {
  EXPECT_EQ((ParameterId{ParameterRole::word_embeddings}.name()), "embedding.word_embeddings.weight");
  EXPECT_EQ((ParameterId{ParameterRole::position_embeddings}.name()), "embedding.position_embeddings.weight");
  EXPECT_EQ((ParameterId{ParameterRole::input_norm, 3}.name()), "layers.3.input_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::linear_qkv, 0, ParameterPart::bias}.name()),
            "layers.0.self_attention.linear_qkv.bias");
  EXPECT_EQ((ParameterId{ParameterRole::q_norm, 1}.name()), "layers.1.self_attention.q_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::k_norm, 1}.name()), "layers.1.self_attention.k_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::linear_proj, 12}.name()),
            "layers.12.self_attention.linear_proj.weight");
  EXPECT_EQ((ParameterId{ParameterRole::post_attention_norm, 2}.name()),
            "layers.2.post_attention_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::pre_mlp_norm, 2}.name()), "layers.2.pre_mlp_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::linear_fc1, 2}.name()), "layers.2.mlp.linear_fc1.weight");
  EXPECT_EQ((ParameterId{ParameterRole::linear_fc2, 2}.name()), "layers.2.mlp.linear_fc2.weight");
  EXPECT_EQ((ParameterId{ParameterRole::post_mlp_norm, 2}.name()), "layers.2.post_mlp_layernorm.weight");
  EXPECT_EQ((ParameterId{ParameterRole::final_norm, kNoLayer, ParameterPart::bias}.name()),
            "final_layernorm.bias");
  EXPECT_EQ((ParameterId{ParameterRole::output_layer}.name()), "output_layer.weight");
}

TEST(ParameterId, RolesHaveDifferentNames) {
  std::set<std::string> names;
  const int roles = static_cast<int>(ParameterRole::other) + 1;
  for (int role = 0; role < roles; ++role) names.insert(module_name(static_cast<ParameterRole>(role)));
  EXPECT_EQ(names.size(), static_cast<size_t>(roles));
}

TEST(LinearId, IsFoundByItsName) {
  for (const LinearKind kind : kLinearKinds) {
    EXPECT_EQ(linear_kind_of(to_string(kind)), kind);
    EXPECT_EQ(linear_kind_of(role_of(kind)), kind);
  }
  for (const char* name : {"", "linear", "linear_fc3", "input_layernorm", "mlp.linear_fc1"})
    EXPECT_FALSE(linear_kind_of(name)) << name;
  EXPECT_FALSE(linear_kind_of(ParameterRole::pre_mlp_norm));
}

// The layer of the output layer is the number of layers, for logs; its parameter is in no layer.
TEST(LinearId, TheOutputLayerIsInNoLayer) {
  const LinearId output{4, LinearKind::output_layer}, fc2{3, LinearKind::fc2};
  EXPECT_EQ(output.name(), "output_layer");
  EXPECT_EQ(output.parameter(ParameterPart::weight), ParameterId{ParameterRole::output_layer});
  EXPECT_EQ(fc2.parameter(ParameterPart::bias).name(), fc2.name() + ".bias");
  EXPECT_LT(fc2, output);
}

}  // namespace
}  // namespace te
