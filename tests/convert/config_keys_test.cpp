// Every key of config.json, deleted, set to null and changed, over all families (scripts/make_hf_keys_fixtures.py):
// te-train computes the logits that transformers computes, or refuses the file. Keys of the model's own class are
// refused only where they change something in transformers, or where kRefusedThough says why.
#include <cmath>
#include <map>
#include <set>

#include "convert/hugging_face_config.h"
#include "convert/logits_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

constexpr const char* kFixtures = TE_SOURCE_DIR "/tests/fixtures/hugging_face_keys";

// FP32 sums in another order move logits, which are up to 10, by up to 1.2e-5. The smallest change of a key that shows
// in transformers moves them by 6e-4.
constexpr double kBound = 5e-5;

// Refused, though transformers computes the same with some other value.
const std::map<std::string, const char*> kRefusedThough = {
    {"architectures", "transformers' Auto classes do not look at it; te-train demands what model_type says"},
    {"attn_logit_softcapping", "applied by transformers' eager attention alone"},
    {"embd_pdrop", "dropout, which is for training"},
    {"resid_pdrop", "dropout, which is for training"},
    {"is_encoder_decoder", "te-train has no encoder"},
    {"model_type", "another model that computes the same; te-train demands what architectures says"},
    {"tie_word_embeddings",
     "the files hold two matrices, which transformers keeps apart whatever the key says"},
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
        config_(json::parse(read_bytes(source_ / "config.json"))),
        cases_(json::parse(read_bytes(source_ / "cases.json"))),
        expected_(source_ / "logits.safetensors") {
    fs::copy_file(source_ / "model.safetensors", folder_ / "model.safetensors");
    before_ = yaml(config_);
  }

  std::string yaml(const json& config) {
    write_bytes(folder_ / "config.json", config.dump());
    return config::to_yaml(convert::whole_config(convert::read_hugging_face_config(folder_ / "config.json")));
  }

  /// The largest difference to logits number `which`.
  double difference(size_t which) {
    const auto tokens = cases_.at("tokens").get<std::vector<int32_t>>();
    const std::vector<float> logits = te_logits(folder_.path(), "fp32", tokens, 1);
    const std::vector<float> all = floats_of(expected_.at("logits"));
    double largest = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      largest = std::max(largest, std::abs(double{logits[i]} - double{all.at(which * logits.size() + i)}));
    return largest;
  }

  /// Why te-train refuses the config or the weights with it; empty if it takes them. `after` becomes its model.
  std::string refusal_of(const json& config, std::string& after) {
    try {
      after = yaml(config);
      if (after != before_) convert::open_hugging_face(folder_.path());
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  }

  /// The class has the key, or it is among those of the file.
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

TEST_P(ConfigKeys, LogitsAreThoseOfTransformersOrTheFileIsRefused) {
  EXPECT_LT(difference(0), kBound);
  for (const json& item : cases_.at("cases")) {
    const json &path = item[0], &effect = item[2];
    for (const json& value : item[1]) {
      const std::string what = path.dump() + " " + value.dump();
      std::string after;
      const std::string refusal = refusal_of(changed(config_, path, value), after);
      if (!refusal.empty()) {
        EXPECT_EQ(std::count(refusal.begin(), refusal.end(), '\n'), 0) << refusal;
        const auto key = path.back().get<std::string>();
        EXPECT_TRUE(effect != 0 || !is_own(path) || kRefusedThough.contains(key)) << what << ": " << refusal;
      } else if (after == before_) {  // taken as if nothing were changed
        EXPECT_TRUE(effect == 0 || effect == "error") << what << " is ignored";
      } else {
        ASSERT_TRUE(effect.is_number()) << what << ": " << effect << " in transformers";
        EXPECT_LT(difference(effect.get<size_t>()), kBound) << what;
      }
    }
  }
}

// A Mistral whose layers differ is a Ministral to transformers.
TEST(ConfigKeysExport, WindowsInSomeLayersAreMinistral) {
  const TemporaryFolder folder;
  const fs::path source = fs::path(kFixtures) / "mistral_types";
  import_to(source, folder / "te");
  export_to(folder / "te", folder / "hf");
  const json written = json::parse(read_bytes(folder / "hf/config.json"));
  EXPECT_EQ(written.at("architectures"), json({"MinistralForCausalLM"}));
  EXPECT_EQ(written.at("model_type"), "ministral");
  EXPECT_EQ(written.at("layer_types"), json({"full_attention", "sliding_attention", "full_attention"}));
  const auto yaml = [](const fs::path& path) {
    return config::to_yaml(convert::whole_config(convert::read_hugging_face_config(path / "config.json")));
  };
  EXPECT_EQ(yaml(folder / "hf"), yaml(source));
}

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ConfigKeys, ::testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace te::testing
