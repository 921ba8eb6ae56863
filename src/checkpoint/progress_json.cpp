#include "checkpoint/progress_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/json.h"

namespace te::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

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

// --- best checkpoints and early stopping -------------------------------------------------------------------

Json to_json(const Validation& validation) {
  Json json = {{"set", validation.set}, {"without_gain", validation.without_gain}};
  if (!validation.samples.empty()) json["samples"] = validation.samples;
  if (validation.lowest) json["lowest"] = *validation.lowest;
  Json& best = json["best"] = Json::array();
  for (const Validation::Best& item : validation.best)
    best.push_back({{"step", item.step}, {"loss", item.loss}, {"extra", item.extra ? 1 : 0}});
  return json;
}

void read(const JsonNode& node, Validation& validation) {
  validation.set = node.at("set").text();
  if (node.has("samples")) validation.samples = node.at("samples").text();
  validation.without_gain = node.at("without_gain").count();
  if (node.has("lowest")) validation.lowest = node.at("lowest").number();
  validation.best = node.at("best").list([](const JsonNode& item) -> Validation::Best {
    return {item.at("step").count(), item.at("loss").number(), item.at("extra").integer(0, 1) == 1};
  });
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
  guard.gaps = node.at("gaps").list(loss_of);
  guard.bf16_until = node.at("bf16_until").count();
  guard.excesses = node.at("excesses").count();
  if (!node.has("began")) return;
  guard.began = node.at("began").count();
  guard.bf16 = node.at("bf16").list(loss_of);
  guard.fp8 = node.at("fp8").list(loss_of);
  if (guard.fp8.size() > guard.bf16.size()) node.at("fp8").refuse("has more losses than bf16");
}

// --- the loss scale ----------------------------------------------------------------------------------------

Json to_json(const LossScale& state) {
  return {{"scale", state.scale}, {"good_steps", state.good_steps}};
}

void read(const JsonNode& node, LossScale& state) {
  state = {.scale = node.at("scale").number(), .good_steps = node.at("good_steps").count()};
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
  const auto number = [](const JsonNode& item) { return item.number(); };
  history.accepted = node.at("accepted").list(number);
  history.row = node.at("row").list(number);
  history.total = node.at("total").count();
  history.since = node.at("since").count();
}

Json to_json(const Faults& faults) {
  return {{"skipped_in_a_row", faults.consecutive_skipped},
          {"skipped_total", faults.skipped_total},
          {"rollbacks", faults.rollbacks}};
}

void read(const JsonNode& node, Faults& faults) {
  faults = {.consecutive_skipped = node.at("skipped_in_a_row").count(),
            .skipped_total = node.at("skipped_total").count(),
            .rollbacks = node.at("rollbacks").count()};
}

// --- checkpoints -------------------------------------------------------------------------------------------

Json to_json(const KeptCheckpoints& kept) {
  return {{"good", kept.last_verified}, {"drop", kept.drop}};
}

void read(const JsonNode& node, KeptCheckpoints& kept) {
  kept.last_verified = node.at("good").file_name("must be the name of a checkpoint in the same directory");
  kept.drop = node.at("drop").list([](const JsonNode& step) { return step.count(); });
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
    text += fmt::format("  \"{}\": {},\n", key, dump_json(to_json(policy)));
  });
  return text;
}

Progress progress_of(const JsonNode& root) {
  Progress progress = {.step = root.at("step").count(),
                       .consumed_samples = root.at("consumed_samples").count(),
                       .updates = root.at("updates").count()};
  each_policy(progress, [&root](const char* key, auto& policy) {
    if (root.has(key)) read(root.at(key), policy);
  });
  return progress;
}

}  // namespace te::checkpoint
