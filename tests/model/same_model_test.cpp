// A checkpoint of another model is refused: every key of the config that adds, removes or reshapes a parameter has to
// be compared, as parameters that a model lacks would be left out of it.
#include <yaml-cpp/yaml.h>

#include <map>
#include <optional>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/loader.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using testing::TinyModel;

/// A source without tensors.
class ConfigSource final : public checkpoint::WeightSource {
 public:
  explicit ConfigSource(std::string yaml) : yaml_(std::move(yaml)) {}
  std::string title() const override { return "stored"; }
  std::string config() const override { return yaml_; }
  std::vector<std::string> names() const override { return {}; }
  uint64_t hash() const override { return 0; }
  std::optional<checkpoint::TensorInfo> info(std::string_view) const override { return std::nullopt; }
  void read(std::string_view, const checkpoint::Block&, float*) const override {}

 private:
  std::string yaml_;
};

std::map<std::string, std::string> shapes_of(const Config& config) {
  TinyModel tiny(config);
  std::map<std::string, std::string> shapes;
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters())
    shapes[parameter.name] = parameter.shape.str();
  return shapes;
}

/// Values of keys that have more than two.
constexpr const char* kChoices[] = {
    "qk_norm=head",
    "qk_norm=projection",
    "qk_norm=head_no_gain",
    "norm_placement=post",
    "norm_placement=both",
    "moe_shared_expert_intermediate_size=16",
    "first_k_dense=0",
    "moe_layer_freq=2",
    "moe_router_score_function=sigmoid",
    "position_embedding=rope",
    "num_moe_experts=4",
    "num_query_groups=1",
};

void check_changes(const Config& config) {
  const std::string yaml = config::to_yaml(config);
  const auto shapes = shapes_of(config);
  std::vector<std::string> changes(std::begin(kChoices), std::end(kChoices));
  for (const auto& item : YAML::Load(yaml)["model"]) {
    const std::string value = item.second.IsScalar() ? item.second.Scalar() : "";
    if (value == "true" || value == "false")
      changes.push_back(item.first.Scalar() + "=" + (value == "true" ? "false" : "true"));
  }
  int count = 0;
  for (const std::string& change : changes) {
    std::optional<Config> other;
    try {
      other = config::parse_config(yaml, "stored", {"model." + change});
    } catch (const UserError&) {
      continue;  // not possible with this model
    }
    if (shapes_of(*other) == shapes) continue;
    SCOPED_TRACE(change);
    const std::string refused = "different model: model." + change.substr(0, change.find('=')) + " is";
    TE_EXPECT_REFUSED(refused, checkpoint::check_same_model(ConfigSource(yaml), *other));
    TE_EXPECT_REFUSED(refused, checkpoint::check_same_model(ConfigSource(config::to_yaml(*other)), config));
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST(SameModel, KeysThatChangeParametersAreCompared) {
  check_changes(testing::tiny_config(config::Family::gpt));
  Config llama = testing::tiny_config(config::Family::llama);
  check_changes(llama);
  testing::set_experts(llama.model);
  check_changes(llama);
  llama.model.moe_router_enable_expert_bias = true;
  check_changes(llama);
}

}  // namespace
}  // namespace te
