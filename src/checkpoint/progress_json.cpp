#include "checkpoint/progress_json.h"

#include <cmath>
#include <limits>

namespace te::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

int64_t count_of(const JsonNode& node, const char* key) {
  return node.at(key).integer(0, std::numeric_limits<int64_t>::max());
}

// JSON cannot represent a loss that is not finite; it becomes null.
Json loss_json(double loss) {
  return std::isfinite(loss) ? Json(loss) : Json(nullptr);
}

Json losses_json(const std::vector<double>& losses) {
  Json json = Json::array();
  for (const double loss : losses) json.push_back(loss_json(loss));
  return json;
}

double loss_of(const JsonNode& node) {
  return node.is_null() ? std::numeric_limits<double>::quiet_NaN() : node.number();
}

std::vector<double> losses_of(const JsonNode& node) {
  std::vector<double> losses;
  for (size_t i = 0; i < node.size(); ++i) losses.push_back(loss_of(node.at(i)));
  return losses;
}

// --- best checkpoints and early stopping -------------------------------------------------------------------

Json to_json(const Validation& validation) {
  Json json = {{"set", validation.set}, {"without_gain", validation.without_gain}};
  if (validation.lowest) json["lowest"] = *validation.lowest;
  Json& best = json["best"] = Json::array();
  for (const Validation::Best& item : validation.best)
    best.push_back({{"step", item.step}, {"loss", item.loss}, {"extra", item.extra ? 1 : 0}});
  return json;
}

void read(const JsonNode& node, Validation& validation) {
  validation.set = node.at("set").text();
  validation.without_gain = count_of(node, "without_gain");
  if (node.has("lowest")) validation.lowest = node.at("lowest").number();
  const JsonNode best = node.at("best");
  for (size_t i = 0; i < best.size(); ++i) {
    const JsonNode item = best.at(i);
    validation.best.push_back(
        {count_of(item, "step"), item.at("loss").number(), item.at("extra").integer(0, 1) == 1});
  }
}

// --- the guard ---------------------------------------------------------------------------------------------

Json to_json(const Guard& guard) {
  Json json = {
      {"gaps", losses_json(guard.gaps)}, {"bf16_until", guard.bf16_until}, {"excesses", guard.excesses}};
  if (guard.began < 0) return json;
  json["began"] = guard.began;
  json["bf16"] = losses_json(guard.bf16);
  json["fp8"] = losses_json(guard.fp8);
  return json;
}

void read(const JsonNode& node, Guard& guard) {
  guard.gaps = losses_of(node.at("gaps"));
  guard.bf16_until = count_of(node, "bf16_until");
  guard.excesses = count_of(node, "excesses");
  if (!node.has("began")) return;
  guard.began = count_of(node, "began");
  guard.bf16 = losses_of(node.at("bf16"));
  guard.fp8 = losses_of(node.at("fp8"));
  if (guard.fp8.size() > guard.bf16.size()) node.at("fp8").refuse("has more losses than bf16");
}

// --- the loss scale ----------------------------------------------------------------------------------------

Json to_json(const LossScale& state) {
  return {{"scale", state.scale}, {"good_steps", state.good_steps}};
}

void read(const JsonNode& node, LossScale& state) {
  state = {.scale = node.at("scale").number(), .good_steps = count_of(node, "good_steps")};
  if (!(state.scale > 0.0)) node.at("scale").refuse("must be above 0");
}

// --- loss spikes and counters ------------------------------------------------------------------------------

Json to_json(const SpikeHistory& history) {
  return {{"accepted", losses_json(history.accepted)},
          {"row", losses_json(history.row)},
          {"total", history.total},
          {"since", history.since}};
}

void read(const JsonNode& node, SpikeHistory& history) {
  for (auto& [key, losses] : {std::pair{"accepted", &history.accepted}, std::pair{"row", &history.row}})
    for (size_t i = 0; i < node.at(key).size(); ++i) losses->push_back(node.at(key).at(i).number());
  history.total = count_of(node, "total");
  history.since = count_of(node, "since");
}

Json to_json(const Faults& faults) {
  return {{"skipped_in_a_row", faults.consecutive_skipped},
          {"skipped_total", faults.skipped_total},
          {"rollbacks", faults.rollbacks}};
}

void read(const JsonNode& node, Faults& faults) {
  faults = {.consecutive_skipped = count_of(node, "skipped_in_a_row"),
            .skipped_total = count_of(node, "skipped_total"),
            .rollbacks = count_of(node, "rollbacks")};
}

// --- checkpoints -------------------------------------------------------------------------------------------

Json to_json(const KeptCheckpoints& kept) {
  return {{"good", kept.last_verified}, {"drop", kept.drop}};
}

void read(const JsonNode& node, KeptCheckpoints& kept) {
  kept.last_verified = node.at("good").text();
  // The name is appended to the folder's path and must not lead out of it.
  if (kept.last_verified.find('/') != std::string::npos || kept.last_verified.starts_with('.') ||
      kept.last_verified.find('\0') != std::string::npos)
    node.at("good").refuse("must be the name of a checkpoint in the same directory");
  const JsonNode drop = node.at("drop");
  for (size_t i = 0; i < drop.size(); ++i)
    kept.drop.push_back(drop.at(i).integer(0, std::numeric_limits<int64_t>::max()));
}

/// Visits the state of all policies with its keys. The structured binding makes a new member of Progress a compile
/// error until it is added here.
template <class AnyProgress, class Visit>
void each_policy(AnyProgress& progress, Visit&& visit) {
  auto& [step, consumed_samples, updates, validation, guard, loss_scale, spikes, faults, checkpoints] =
      progress;
  visit("validation", validation);
  visit("guard", guard);
  visit("loss_scale", loss_scale);
  visit("spikes", spikes);
  visit("faults", faults);
  visit("checkpoints", checkpoints);
}

}  // namespace

std::string policies_text(const Progress& progress) {
  std::string text;
  each_policy(progress, [&text]<class Policy>(const char* key, const Policy& policy) {
    if (policy == Policy{}) return;
    text += fmt::format("  \"{}\": {},\n", key,
                        to_json(policy).dump(-1, ' ', false, Json::error_handler_t::replace));
  });
  return text;
}

Progress progress_of(const JsonNode& root) {
  Progress progress = {.step = count_of(root, "step"),
                       .consumed_samples = count_of(root, "consumed_samples"),
                       .updates = count_of(root, "updates")};
  each_policy(progress, [&root](const char* key, auto& policy) {
    if (root.has(key)) read(root.at(key), policy);
  });
  return progress;
}

}  // namespace te::checkpoint
