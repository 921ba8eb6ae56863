// Deletes, nulls and changes every key of config.json, over all families (scripts/make_hf_keys_fixtures.py): te-train
// either computes the logits of transformers or refuses the file. Keys of the model's class are refused only if they
// change something in transformers, or for a reason in kRefusedThough.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "convert/hugging_face_config.h"
#include "convert/logits_testing.h"
#include "core/json.h"

namespace te::testing {
namespace {

using nlohmann::json;

constexpr const char* kFixtures = TE_SOURCE_DIR "/tests/fixtures/hugging_face_keys";

// FP32 sums in a different order change logits, which are up to 10, by up to 1.2e-5. The smallest effect of a key in
// transformers is 6e-4.
constexpr double kBound = 5e-5;

// Keys that are refused although transformers computes the same with some other value.
const std::map<std::string, const char*> kRefusedThough = {
    {"architectures",
     "transformers' Auto classes do not read it; te-train requires that it matches model_type"},
    {"attn_logit_softcapping", "only transformers' eager attention applies it"},
    {"embd_pdrop", "dropout affects training only"},
    {"resid_pdrop", "dropout affects training only"},
    {"is_encoder_decoder", "te-train has no encoder"},
    {"model_type", "another model that computes the same; te-train requires that it matches architectures"},
    {"tie_word_embeddings",
     "transformers does not tie two matrices of the files, whatever the value of the key"},
};

json changed(json config, const json& path, const json& value) {
  json* place = &config;
  for (size_t i = 0; i + 1 < path.size(); ++i) place = &(*place)[path[i].get<std::string>()];
  const auto last = path.back().get<std::string>();
  if (value == "(deleted)")
    place->erase(last);
  else
    (*place)[last] = value;
  return config;
}

class ConfigKeys : public ::testing::TestWithParam<std::string> {
 protected:
  ConfigKeys()
      : source_(fs::path(kFixtures) / GetParam()),
        config_(parse_json(read_bytes(source_ / "config.json"))),
        cases_(parse_json(read_bytes(source_ / "cases.json"))),
        expected_(source_ / "logits.safetensors") {
    fs::copy_file(source_ / "model.safetensors", folder_ / "model.safetensors");
    before_ = yaml(config_);
  }

  std::string yaml(const json& config) {
    write_bytes(folder_ / "config.json", config.dump());
    return config::to_yaml(
        convert::complete_config(convert::read_hugging_face_config(folder_ / "config.json")));
  }

  /// The largest difference to the expected logits with index `which`.
  double difference(size_t which) {
    const auto tokens = cases_.at("tokens").get<std::vector<int32_t>>();
    const std::vector<float> logits = te_logits(folder_.path(), "fp32", tokens, 1);
    const std::vector<float> all = floats_of(expected_.at("logits"));
    double largest = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      largest = std::max(largest, std::abs(double{logits[i]} - double{all.at(which * logits.size() + i)}));
    return largest;
  }

  /// The error of te-train for the config or its weights; empty if it accepts them. Sets `after` to the model.
  std::string refusal_of(const json& config, std::string& after) {
    try {
      after = yaml(config);
      if (after != before_) convert::open_hugging_face(folder_.path());
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  }

  /// True if the original config.json contains the key.
  bool is_own(const json& path) const {
    const json* place = &config_;
    for (const json& key : path) {
      if (!place->contains(key.get<std::string>())) return false;
      place = &place->at(key.get<std::string>());
    }
    return true;
  }

  TemporaryFolder folder_;
  fs::path source_;
  json config_, cases_;
  SafetensorsReader expected_;
  std::string before_;
};

TEST_P(ConfigKeys, LogitsEqualThoseOfTransformersOrTheFileIsRefused) {
  EXPECT_LT(difference(0), kBound);
  for (const json& item : cases_.at("cases")) {
    const json &path = item[0], &effect = item[2];
    for (const json& value : item[1]) {
      const std::string what = path.dump() + " " + value.dump();
      std::string after;
      const std::string refusal = refusal_of(changed(config_, path, value), after);
      if (!refusal.empty()) {
        EXPECT_EQ(std::ranges::count(refusal, '\n'), 0) << refusal;
        const auto key = path.back().get<std::string>();
        EXPECT_TRUE(effect != 0 || !is_own(path) || kRefusedThough.contains(key)) << what << ": " << refusal;
      } else if (after == before_) {  // accepted without effect
        EXPECT_TRUE(effect == 0 || effect == "error") << what << " is ignored";
      } else {
        ASSERT_TRUE(effect.is_number()) << what << ": " << effect << " in transformers";
        EXPECT_LT(difference(effect.get<size_t>()), kBound) << what;
      }
    }
  }
}

// A Mistral with windows in some layers only is a Ministral in transformers.
TEST(ConfigKeysExport, WindowsInSomeLayersAreMinistral) {
  const TemporaryFolder folder;
  const fs::path source = fs::path(kFixtures) / "mistral_types";
  import_to(source, folder / "te");
  export_to(folder / "te", folder / "hf");
  const json written = parse_json(read_bytes(folder / "hf/config.json"));
  EXPECT_EQ(written.at("architectures"), json({"MinistralForCausalLM"}));
  EXPECT_EQ(written.at("model_type"), "ministral");
  EXPECT_EQ(written.at("layer_types"), json({"full_attention", "sliding_attention", "full_attention"}));
  const auto yaml = [](const fs::path& path) {
    return config::to_yaml(convert::complete_config(convert::read_hugging_face_config(path / "config.json")));
  };
  EXPECT_EQ(yaml(folder / "hf"), yaml(source));
}

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ConfigKeys, ::testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace te::testing
