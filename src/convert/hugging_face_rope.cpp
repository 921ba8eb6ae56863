#include "convert/hugging_face_rope.h"

#include <cmath>

namespace te::convert {
namespace {

using config::ModelConfig;
using nlohmann::json;

constexpr const char* kOriginal = "compare with the model's original";
constexpr const char* kUnknownRemedy =
    "te-train supports no other RoPE parameters; remove the key if transformers does not need it";

/// The number, which must be above 0: te-train's config has 0 for a value that is not given.
double positive(const JsonKeys& keys, const char* key, double value) {
  if (!(value > 0.0)) keys.refuse(key, fmt::format("is {}, must be above 0", json(value).dump()), kOriginal);
  return value;
}

/// `attention_factor`, or the value that transformers computes if it is not given.
double yarn_attention_factor(const JsonKeys& rope, double factor) {
  const auto scale_of = [&](double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  const double mscale = rope.number_or("mscale", 0.0), all = rope.number_or("mscale_all_dim", 0.0);
  if (rope.has("attention_factor"))
    return positive(rope, "attention_factor", rope.number("attention_factor"));
  if (mscale == 0.0 || all == 0.0) return 0.0;  // te-train computes its default, which is the same
  const double ratio = scale_of(mscale) / scale_of(all);
  if (!(ratio > 0.0 && std::isfinite(ratio)))
    rope.refuse("mscale", "and mscale_all_dim give an attention factor that is not above 0", kOriginal);
  return ratio;
}

// If the key is both inside and outside the section, versions of transformers differ in which one has priority.
int64_t read_original_positions(const JsonKeys& keys, const JsonKeys& rope, const ModelConfig& model) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const int64_t outside = keys.integer_or(kKey, model.max_position_embeddings);
  const int64_t original = rope.integer(kKey, outside);
  if (keys.has(kKey))
    keys.must_be(kKey, outside, original, "the RoPE section has that value; make them equal");
  return original;
}

void read_rope_scaling(const JsonKeys& keys, const JsonKeys& rope, const std::string& type,
                       ModelConfig& model) {
  // Each scaling type reads some of these keys and ignores the others.
  rope.without_effect({"attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor",
                       "long_factor", "low_freq_factor", "mscale", "mscale_all_dim",
                       "original_max_position_embeddings", "short_factor", "truncate", "type"});
  if (type == "default") return;
  if (!config::from_string(type, model.rope_scaling.kind))
    internal_error("an unknown rope_type", std::source_location::current());
  if (type == "linear") {
    model.rope_scaling.factor = rope.number("factor");
    return;
  }
  const int64_t original = read_original_positions(keys, rope, model);
  model.rope_scaling.original_max_position_embeddings = original;
  if (type == "llama3") {
    model.rope_scaling.factor = rope.number("factor");
    model.rope_scaling.low_freq_factor = rope.number("low_freq_factor");
    model.rope_scaling.high_freq_factor = rope.number("high_freq_factor");
    return;
  }
  const double longer = static_cast<double>(model.max_position_embeddings) / static_cast<double>(original);
  model.rope_scaling.factor = rope.given("factor") ? rope.number_or("factor", longer) : rope.number("factor");
  model.rope_scaling.beta_fast = rope.number_or("beta_fast", 32.0);
  model.rope_scaling.beta_slow = rope.number_or("beta_slow", 1.0);
  model.rope_scaling.attention_factor = yarn_attention_factor(rope, model.rope_scaling.factor);
  model.rope_scaling.truncate = rope.boolean("truncate", true);
}

std::string rope_type(const JsonKeys& rope, const std::vector<std::string>& types) {
  const char* key = rope.given("rope_type") || !rope.given("type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  rope.must_be_one_of(key, type, types, "te-train supports no other RoPE scaling here");
  return type;
}

JsonKeys section(const JsonKeys& from, const char* name) {
  return from.has(name) ? from.within(name) : JsonKeys(from.where(), json::object());
}

}  // namespace

// transformers 5 writes rope_parameters; earlier versions write rope_theta and rope_scaling. rope_scaling has priority
// over rope_parameters.
void read_rope(const JsonKeys& keys, const RopeKeys& names, ModelConfig& model) {
  const auto is_empty = [&](const char* name) {
    return !keys.has(name) || (keys.object().at(name).is_object() && keys.object().at(name).empty());
  };
  const bool old = !is_empty("rope_scaling");
  if (old) keys.without_effect({"rope_parameters"});
  const JsonKeys rope = section(keys, old ? "rope_scaling" : "rope_parameters");
  for (const auto& [name, value] : rope.object().items())
    if (value.is_object())
      rope.refuse(name.c_str(), "is an object",
                  "te-train has the same RoPE in all layers of this architecture");
  const double theta = keys.number(names.theta, names.theta_default);
  model.rope_theta = rope.number("rope_theta", theta);
  const double outside = names.partial_may_be_null ? keys.number_or(names.partial, names.partial_default)
                                                   : keys.number(names.partial, names.partial_default);
  const double fraction = rope.number("partial_rotary_factor", outside);
  const bool inside = rope.given("partial_rotary_factor");
  const JsonKeys& where = inside ? rope : keys;
  const char* partial = inside ? "partial_rotary_factor" : names.partial;
  if (!names.may_be_partial)
    where.must_be(partial, fraction, 1.0, "te-train rotates all channels of a head in this architecture");
  if (fraction != 1.0 && static_cast<int64_t>(static_cast<double>(model.kv_channels) * fraction) % 2 != 0)
    where.refuse(partial, "gives an odd number of rotated channels", "te-train rotates pairs of channels");
  model.rotary_percent = fraction;
  read_rope_scaling(keys, rope, rope_type(rope, names.types), model);
  rope.refuse_unread({}, kUnknownRemedy);
}

void read_gemma_rope(const JsonKeys& keys, ModelConfig& model) {
  const JsonKeys both = section(keys, "rope_parameters");
  for (const auto& [name, value] : both.object().items())
    if (name != "full_attention" && name != "sliding_attention")
      both.refuse(name.c_str(), "is not a layer type", "Gemma 3 has full_attention and sliding_attention");
  json parameters = section(both, "full_attention").object();
  parameters.update(section(keys, "rope_scaling").object());
  const JsonKeys full(both.where() + ": full_attention", parameters),
      local = section(both, "sliding_attention");
  const double theta = keys.number("rope_theta", 1e6), local_theta = keys.number("rope_local_base_freq", 1e4);
  model.rope_theta = full.number("rope_theta", theta);
  read_rope_scaling(keys, full, rope_type(full, {"default", "linear", "llama3", "yarn"}), model);
  local.must_be("rope_type", local.text("rope_type", local.text("type", "default")), std::string("default"),
                "te-train does not support RoPE scaling in layers with a window");
  read_rope_scaling(keys, local, "default", model);
  const double used = local.number("rope_theta", local_theta);
  const bool outside = !local.given("rope_theta");
  if (model.sliding_window != 0)
    model.rope_local_theta =
        positive(outside ? keys : local, outside ? "rope_local_base_freq" : "rope_theta", used);
  full.refuse_unread({}, kUnknownRemedy);
  local.refuse_unread({}, kUnknownRemedy);
}

}  // namespace te::convert
