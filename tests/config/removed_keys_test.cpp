// Keys of earlier versions: refused in one line, and upgraded in configs that checkpoints store.
#include "config/removed_keys.h"

#include <algorithm>
#include <string>

#include "config/key_table.h"
#include "config_testing.h"

namespace te::config {
namespace {

TEST(RemovedKeys, EachIsRefusedInOneLineThatSaysWhatReplacesIt) {
  for (const RemovedKey& removed : removed_keys()) {
    const std::string path(removed.path), section = path.substr(0, path.find('.')),
                                          name = path.substr(path.find('.') + 1);
    SCOPED_TRACE(path);
    EXPECT_EQ(find_key(path), nullptr);
    EXPECT_TRUE(std::ranges::any_of(sections(), [&](const Section& known) { return known.name == section; }));
    const std::string reason = "key '" + path + "' was removed: " + std::string(removed.instead);
    EXPECT_EQ(override_complaint({path + "=1"}), "--set " + path + "=1: " + reason);
    EXPECT_EQ(complaint(section + ": {" + name + ": 1}\n"), "dir/bad.yaml:1: " + reason);
    EXPECT_EQ(reason.find('\n'), std::string::npos);
    EXPECT_GE(removed.instead.size(), 20u);
    EXPECT_TRUE(removed.only_if.empty() ||
                (!removed.kept.empty() && find_key(removed.only_if.substr(0, removed.only_if.find('=')))))
        << removed.only_if;
    // A replacement that is a key exists, with this name.
    for (size_t dot = removed.instead.find('.'); dot != std::string_view::npos;
         dot = removed.instead.find('.', dot + 1)) {
      const size_t begin = removed.instead.find_last_of(" ,(", dot) + 1,
                   end = removed.instead.find_first_of(" ,;:)=", dot);
      const std::string_view word = removed.instead.substr(begin, end - begin);
      const bool is_path = std::ranges::any_of(
          sections(), [&](const Section& known) { return word.starts_with(std::string(known.name) + "."); });
      EXPECT_TRUE(!is_path || find_key(word)) << word;
    }
  }
}

/// What to_yaml of an earlier version wrote: with `lines` ("  key: value") in a section.
std::string stored_with(const std::string& section, const std::string& lines,
                        const std::vector<std::string>& overrides = {}) {
  std::string text = to_yaml(small(overrides));
  return text.insert(text.find(section + ":\n") + section.size() + 2, lines);
}

std::string not_resumable(const std::string& stored) {
  try {
    check_resumable(stored);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RemovedKeys, OfStoredConfigsAreDropped) {
  const std::string now = to_yaml(small());
  EXPECT_EQ(upgrade_stored(now), now);
  for (const RemovedKey& removed : removed_keys()) {
    const std::string path(removed.path), section = path.substr(0, path.find('.')),
                                          name = path.substr(path.find('.') + 1);
    SCOPED_TRACE(path);
    const std::string stored = stored_with(section, "  " + name + ": 1\n");
    EXPECT_EQ(upgrade_stored(stored), now);
    EXPECT_TRUE(changed_keys(stored, small()).empty());
  }
}

/// Muon's keys with their defaults.
const std::string kStoredOptimizer = "  muon_nesterov: true\n  muon_ns_steps: 5\n  muon_scale: 0.2\n";

TEST(RemovedKeys, AStoredRunIsContinuedIfItDidWhatThisVersionDoes) {
  const std::string muon = "optimizer.name=muon", fp16 = "precision.dtype=fp16", gpt = "model.family=gpt";
  const auto resumes = [](const std::string& section, const std::string& lines,
                          const std::vector<std::string>& overrides) {
    return not_resumable(stored_with(section, lines, overrides)).empty();
  };
  EXPECT_TRUE(resumes("optimizer", kStoredOptimizer, {muon}));
  EXPECT_TRUE(resumes("optimizer", "  muon_ns_steps: 6\n", {}));  // AdamW
  EXPECT_FALSE(resumes("optimizer", "  muon_ns_steps: 6\n", {muon}));
  EXPECT_FALSE(resumes("optimizer", "  muon_nesterov: false\n", {muon}));
  EXPECT_TRUE(resumes("precision", "  hysteresis: 1\n  min_loss_scale: 1.0\n", {fp16}));
  EXPECT_FALSE(resumes("precision", "  hysteresis: 2\n", {fp16}));
  EXPECT_TRUE(resumes("precision", "  hysteresis: 2\n", {}));
  EXPECT_TRUE(resumes("model", "  embedding_dropout: 0.1\n", {gpt, "model.hidden_dropout=0.1"}));
  EXPECT_FALSE(resumes("model", "  embedding_dropout: 0.0\n", {gpt, "model.hidden_dropout=0.1"}));
  EXPECT_TRUE(resumes("logging", "  csv: \"other.csv\"\n", {}));
  EXPECT_EQ(
      not_resumable(stored_with("optimizer", "  muon_ns_steps: 6\n", {muon})),
      "the checkpoint's run had optimizer.muon_ns_steps: 6, which was removed: Muon runs 5 Newton-Schulz "
      "iterations; leave it out; start a new run with checkpoint.init_from, or resume with the version "
      "that wrote the checkpoint");
}

TEST(RemovedKeys, RopeScalingOfAStoredRunBecomesAMapping) {
  const std::string parameters =
      "  rope_scaling_factor: 32.0\n  rope_scaling_low_freq_factor: 1.5\n"
      "  rope_scaling_high_freq_factor: 4.0\n  rope_scaling_original_max_position_embeddings: 4096\n"
      "  rope_scaling_beta_fast: 16.0\n  rope_scaling_beta_slow: 1.0\n"
      "  rope_scaling_attention_factor: 0.0\n  rope_scaling_truncate: false\n";
  const auto upgraded = [&](const std::string& kind) {
    std::string stored = stored_with("model", parameters);
    const std::string none = "rope_scaling: none";
    stored.replace(stored.find(none), none.size(), "rope_scaling: " + kind);
    return to_yaml(parse_config(upgrade_stored(stored), "dir/small.yaml"));
  };
  const auto now = [](const std::string& mapping) {
    return to_yaml(small({"model.rope_scaling=" + mapping}));
  };
  EXPECT_EQ(upgraded("none"), to_yaml(small()));
  EXPECT_EQ(upgraded("linear"), now("{rope_type: linear, factor: 32}"));
  EXPECT_EQ(upgraded("llama3"),
            now("{rope_type: llama3, factor: 32, low_freq_factor: 1.5, high_freq_factor: 4, "
                "original_max_position_embeddings: 4096}"));
  EXPECT_EQ(upgraded("yarn"), now("{rope_type: yarn, factor: 32, original_max_position_embeddings: 4096, "
                                  "beta_fast: 16, beta_slow: 1, truncate: false}"));
}

TEST(RemovedKeys, ScaleFormatOfAStoredRunIsThatOfItsRecipe) {
  const auto upgraded = [](const std::string& recipe, const std::string& rules = "") {
    const std::string stored = stored_with(
        "precision", "  fp8_tensorwise_scale_format: fp32\n",
        {"precision.fp8=hybrid", "precision.fp8_recipe=" + recipe, "precision.overrides=" + rules});
    if (!not_resumable(stored).empty()) return std::string("refused");
    return std::string(
        to_string(parse_config(upgrade_stored(stored), "dir/small.yaml").precision.fp8_scale_format));
  };
  EXPECT_EQ(upgraded("tensorwise"), "fp32");
  EXPECT_EQ(upgraded("blockwise"), "power_of_two");
  EXPECT_EQ(upgraded("tensorwise", "linear_fc2: rowwise"), "refused");
  EXPECT_EQ(upgraded("blockwise", "linear_fc2: tensorwise"), "refused");
}

}  // namespace
}  // namespace te::config
