#include "experiment/plan.h"

#include <fmt/ranges.h>

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "core/suggest.h"

namespace te::experiment {
namespace {

constexpr const char* kSeedRule = "whole numbers from 0 on, each once";

/// Reads keys of a map. Every message starts with the file and the key.
class Reader {
 public:
  Reader(std::string where, const YAML::Node& node) : where_(std::move(where)), node_(node) {}

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return node_.IsMap() && node_[key].IsDefined() && !node_[key].IsNull(); }
  YAML::Node node(const char* key) const { return node_[key]; }

  template <class T>
  T value(const char* key, T otherwise, const char* rule) const {
    if (!has(key)) return otherwise;
    try {
      return node_[key].as<T>();
    } catch (const YAML::Exception&) {
      fail(key, rule);
    }
  }
  template <class T>
  std::vector<T> list(const char* key, const char* rule) const {
    std::vector<T> values;
    if (!has(key)) return values;
    try {
      if (!node_[key].IsSequence()) fail(key, rule);
      for (const YAML::Node& item : node_[key]) values.push_back(item.as<T>());
    } catch (const YAML::Exception&) {
      fail(key, rule);
    }
    return values;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& rule) const {
    user_error("{}: {} must be {}", where_, key, rule);
  }
  void only(const std::vector<std::string>& known) const {
    if (!node_.IsMap()) user_error("{} must be a map with the keys {}", where_, fmt::join(known, ", "));
    std::set<std::string> seen;
    for (const auto& entry : node_) {
      const auto key = entry.first.as<std::string>();
      if (std::ranges::find(known, key) == known.end()) {
        NearestNames nearest;
        for (const std::string& name : known) nearest.add_if_near(key, name);
        user_error("{}: unknown key {}; {}known keys: {}", where_, key,
                   nearest.empty() ? "" : nearest.question() + " ", fmt::join(known, ", "));
      }
      if (!seen.insert(key).second) user_error("{}: {} is given twice; give it once", where_, key);
    }
  }

 private:
  std::string where_;
  YAML::Node node_;
};

// UserError for settings that te-experiment makes itself.
void check_overrides(const std::string& where, const std::vector<std::string>& overrides) {
  for (const std::string& item : overrides) {
    const std::string key = item.substr(0, item.find('='));
    if (key.size() == item.size()) user_error("{}: override '{}' must be KEY=VALUE", where, item);
    for (const char* own :
         {"logging.directory", "checkpoint.directory", "checkpoint.resume", "training.seed"})
      if (key == own)
        user_error("{}: {} is set by te-experiment for each run; use the keys `directory` and `seeds`", where,
                   key);
  }
}

void check_seeds(const std::string& where, const std::vector<int64_t>& seeds) {
  const std::set<int64_t> distinct(seeds.begin(), seeds.end());
  if (seeds.empty() || distinct.size() < seeds.size() || *distinct.begin() < 0)
    user_error("{}: seeds must be {}; at least one", where, kSeedRule);
}

bool is_name(const std::string& text) {
  return is_plain_name(text) && text.front() != '.';
}

std::optional<Branch> read_branch(const Reader& variant) {
  if (!variant.has("branch")) return std::nullopt;
  const Reader reader(variant.where() + ".branch", variant.node("branch"));
  reader.only({"of", "step"});
  Branch branch{reader.value<std::string>("of", "", "another variant's name"),
                reader.value<int64_t>("step", 0, "a whole number from 1 on")};
  if (branch.variant.empty()) reader.fail("of", "another variant's name");
  if (branch.step < 1) reader.fail("step", "a whole number from 1 on: the step of that variant's checkpoint");
  return branch;
}

Variant read_variant(const std::string& where, const std::string& name, const YAML::Node& node,
                     const std::vector<int64_t>& seeds) {
  Variant variant{name, {}, seeds};
  const std::string place = where + ": variants." + name;
  if (!is_name(name))
    user_error("{}: the name of a variant must consist of letters, digits, '-', '_' and '.'", place);
  YAML::Node content(YAML::NodeType::Map);  // assigning to a copy of `node` would change `node`
  if (node.IsSequence())
    content["overrides"] = node;
  else
    content.reset(node);
  if (!node.IsNull()) {
    const Reader reader(place, content);
    reader.only({"overrides", "seeds", "baseline", "branch"});
    variant.overrides = reader.list<std::string>("overrides", "a list of KEY=VALUE");
    if (reader.has("seeds")) variant.seeds = reader.list<int64_t>("seeds", kSeedRule);
    variant.baseline = reader.value<std::string>("baseline", "", "another variant's name");
    variant.branch = read_branch(reader);
  }
  check_overrides(place, variant.overrides);
  check_seeds(place, variant.seeds);
  return variant;
}

RunOn read_run_on(const Reader& root) {
  RunOn on;
  on.launcher = {"mpirun", "--bind-to", "none"};
  if (!root.has("run_on")) return on;
  const Reader reader(root.where() + ": run_on", root.node("run_on"));
  reader.only({"gpus", "runs_per_gpu", "cpu", "ranks", "launcher"});
  on.gpus = reader.list<int>("gpus", "a list of GPU numbers");
  on.runs_per_gpu = reader.value<int64_t>("runs_per_gpu", 1, "a whole number from 1 to 64");
  on.cpu = reader.value<int64_t>("cpu", 0, "a whole number from 1 to 1024");
  on.ranks = reader.value<int64_t>("ranks", 1, "a whole number from 1 to 4096");
  if (reader.has("launcher"))
    on.launcher = reader.list<std::string>("launcher", "a program and its options, as a list");
  if (on.launcher.empty()) reader.fail("launcher", "a program and its options, as a list");
  if (reader.has("cpu") && (on.cpu < 1 || on.cpu > 1024)) reader.fail("cpu", "a whole number from 1 to 1024");
  if (on.ranks < 1 || on.ranks > 4096) reader.fail("ranks", "a whole number from 1 to 4096");
  if (on.cpu > 0 && !on.gpus.empty())
    user_error("{}: gpus and cpu exclude each other; use one of them", reader.where());
  if (on.runs_per_gpu < 1 || on.runs_per_gpu > 64) reader.fail("runs_per_gpu", "a whole number from 1 to 64");
  if (on.runs_per_gpu > 1 && on.gpus.empty())
    user_error("{}: runs_per_gpu needs gpus, for example gpus: [0]", reader.where());
  std::set<int> distinct(on.gpus.begin(), on.gpus.end());
  if (distinct.size() < on.gpus.size() || (!on.gpus.empty() && *distinct.begin() < 0))
    reader.fail("gpus", "a list of GPU numbers from 0 on, each once");
  return on;
}

Tolerance read_tolerance(const Reader& root) {
  Tolerance tolerance;
  if (!root.has("tolerance")) return tolerance;
  const Reader reader(root.where() + ": tolerance", root.node("tolerance"));
  reader.only({"nats", "percent"});
  for (const char* limit : {"nats", "percent"})
    if (reader.has(limit)) tolerance.given.emplace_back(limit);
  for (const auto& [limit, value] : {std::pair("nats", &tolerance.nats), {"percent", &tolerance.percent}}) {
    constexpr const char* kRule = "a finite number above 0";
    *value = reader.value(limit, *value, kRule);
    if (!(*value > 0) || !std::isfinite(*value)) reader.fail(limit, kRule);
  }
  return tolerance;
}

// UserError for settings that te-experiment makes itself.
void check_evaluation_options(const Reader& reader, const std::vector<std::string>& options) {
  for (const std::string& option : options)
    for (const char* own :
         {"--checkpoint", "--tasks", "--data", "--limit", "--output", "--items", "--compare", "--device"})
      if (option.substr(0, option.find('=')) == own)
        user_error("{}: options: {} is set by te-experiment; use the keys tasks, data and limit",
                   reader.where(), own);
}

std::optional<Evaluation> read_evaluation(const Reader& root) {
  if (!root.has("evaluate")) return std::nullopt;
  const Reader reader(root.where() + ": evaluate", root.node("evaluate"));
  reader.only({"tasks", "data", "limit", "options"});
  constexpr const char* kTasksRule = "a list of tasks, as in [hellaswag, lambada_openai]";
  Evaluation evaluation;
  evaluation.tasks = reader.list<std::string>("tasks", kTasksRule);
  if (evaluation.tasks.empty()) reader.fail("tasks", kTasksRule);
  evaluation.data = reader.value<std::string>("data", "", "the path of a folder");
  if (evaluation.data.empty()) reader.fail("data", "the path of the folder with the tasks' data");
  evaluation.limit = reader.value<int64_t>("limit", 0, "a whole number from 1 on");
  if (reader.has("limit") && evaluation.limit < 1) reader.fail("limit", "a whole number from 1 on");
  evaluation.options =
      reader.list<std::string>("options", "a list of options of te-generate evaluate, as in [--fp8, hybrid]");
  check_evaluation_options(reader, evaluation.options);
  return evaluation;
}

const Variant* find_variant(const Experiment& experiment, const std::string& name) {
  const auto found = std::ranges::find(experiment.variants, name, &Variant::name);
  return found == experiment.variants.end() ? nullptr : &*found;
}

// The variants of branches have to precede them, have their seeds, and start at step 1 themselves.
void check_branches(const std::string& where, const Experiment& experiment) {
  for (const Variant& variant : experiment.variants) {
    if (!variant.branch) continue;
    const std::string key = where + ": variants." + variant.name + ".branch";
    const Variant* parent = find_variant(experiment, variant.branch->variant);
    if (parent == nullptr || parent >= &variant)
      user_error("{}: of must be the name of a variant above {}", key, variant.name);
    if (parent->branch)
      user_error("{}: {} is a branch itself; branch off {}", key, parent->name, parent->branch->variant);
    for (const int64_t seed : variant.seeds)
      if (std::ranges::find(parent->seeds, seed) == parent->seeds.end())
        user_error("{}: {} has no run with seed {}; set seeds", key, parent->name, seed);
  }
}

void read_variants(const Reader& root, Experiment& experiment) {
  const std::vector<int64_t> seeds = root.list<int64_t>("seeds", kSeedRule);
  if (!root.has("variants") || !root.node("variants").IsMap() || root.node("variants").size() == 0)
    root.fail("variants", "a map from names to lists of overrides, as in `fp8: [precision.fp8=hybrid]`");
  std::set<std::string> names;
  for (const auto& entry : root.node("variants")) {
    const auto name = entry.first.as<std::string>();
    if (!names.insert(name).second)
      user_error("{}: variants.{} is given twice; give it once", root.where(), name);
    experiment.variants.push_back(read_variant(root.where(), name, entry.second, seeds));
  }
  experiment.baseline =
      root.value<std::string>("baseline", experiment.variants.front().name, "a variant's name");
  if (!names.contains(experiment.baseline)) root.fail("baseline", "one of the variants");
  for (const Variant& variant : experiment.variants) {
    const std::string& own = variant.baseline;
    if (own.empty()) continue;
    const std::string key = "variants." + variant.name + ".baseline";
    if (variant.name == experiment.baseline)
      user_error("{}: {}: {} is the baseline of the experiment and cannot have another baseline",
                 root.where(), key, variant.name);
    if (own == variant.name || !names.contains(own)) root.fail(key, "the name of another variant");
  }
  check_branches(root.where(), experiment);
}

// Where a branch starts. UserError if its parent does not save that checkpoint or might delete it.
void set_start(const std::string& key, const Branch& branch, const Run& parent, Run& run) {
  const config::CheckpointConfig& saves = parent.config.checkpoint;
  const int64_t last = parent.config.training.train_steps;
  const bool saved = (saves.save_every > 0 && branch.step % saves.save_every == 0 && branch.step < last) ||
                     (branch.step == last && saves.save_last);
  if (!saved)
    user_error("{}: {} saves no checkpoint of step {}; set checkpoint.save_every to a divisor of it", key,
               branch.variant, branch.step);
  if (saves.keep != 0)
    user_error("{}: {} keeps {} checkpoints and may delete that of step {}; set checkpoint.keep=0", key,
               branch.variant, saves.keep, branch.step);
  if (!saves.save_optimizer && run.config.checkpoint.load_optimizer)
    user_error(
        "{}: {} saves no Adam moments; set checkpoint.save_optimizer=true in it, or "
        "checkpoint.load_optimizer=false in the branch to start from weights",
        key, branch.variant);
  if (run.config.training.train_steps <= branch.step)
    user_error("{}: training.train_steps ({}) must be above the step of the branch ({})", key,
               run.config.training.train_steps, branch.step);
  run.parent = parent.name;
  run.parent_step = branch.step;
  run.start = std::filesystem::path(saves.directory) / fmt::format("step_{:08}", branch.step);
}

std::vector<std::pair<std::string, std::string>> shared_algorithms(const std::filesystem::path& directory) {
  const char* own = std::getenv("TE_GEMM_CACHE");
  if (own != nullptr && *own != '\0') return {};  // as in GemmCache::default_folder()
  return {{"TE_GEMM_CACHE", std::filesystem::absolute(directory / "gemm_algorithms").string()}};
}

YAML::Node parse(const std::filesystem::path& file) {
  constexpr uint64_t kMaxBytes = 8 << 20;
  const FileText read = read_file(file, kMaxBytes, FileKind::input);
  if (!read)
    user_error("{}: cannot be read: {}; give an experiment file such as those in configs/experiments/",
               file.string(), read.error);
  try {
    return YAML::Load(read.text);
  } catch (const YAML::Exception& error) {
    user_error("{}: line {}: {}", file.string(), error.mark.line + 1, error.msg);
  }
}

}  // namespace

Experiment load_experiment(const std::filesystem::path& file) {
  const Reader root(file.string(), parse(file));
  if (root.has("bar")) user_error("{}: the key bar is called tolerance; rename it", file.string());
  root.only({"base", "directory", "overrides", "variants", "baseline", "seeds", "run_on", "retries",
             "tolerance", "evaluate"});
  Experiment experiment;
  experiment.file = file;
  experiment.name = file.stem().string();
  experiment.base = root.value<std::string>("base", "", "the path of a config");
  if (experiment.base.empty())
    root.fail("base", "the path of a config, such as configs/quickstart_bf16.yaml");
  experiment.directory =
      root.value<std::string>("directory", "runs/experiments/" + experiment.name, "the path of a folder");
  experiment.overrides = root.list<std::string>("overrides", "a list of KEY=VALUE");
  check_overrides(root.where(), experiment.overrides);
  experiment.retries = root.value<int64_t>("retries", experiment.retries, "a whole number from 0 to 1000");
  if (experiment.retries < 0 || experiment.retries > 1000)
    root.fail("retries", "a whole number from 0 to 1000");
  experiment.run_on = read_run_on(root);
  experiment.tolerance = read_tolerance(root);
  experiment.evaluation = read_evaluation(root);
  read_variants(root, experiment);
  return experiment;
}

std::vector<Run> plan_runs(const Experiment& experiment) {
  std::vector<int64_t> seeds;  // in the order of their first appearance
  for (const Variant& variant : experiment.variants)
    for (const int64_t seed : variant.seeds)
      if (std::ranges::find(seeds, seed) == seeds.end()) seeds.push_back(seed);
  std::vector<Run> runs;
  for (const int64_t seed : seeds) {
    for (const Variant& variant : experiment.variants) {
      if (std::ranges::find(variant.seeds, seed) == variant.seeds.end()) continue;
      Run run;
      run.name = fmt::format("{}_seed{}", variant.name, seed);
      run.variant = variant.name;
      run.seed = seed;
      run.folder = experiment.directory / run.name;
      std::vector<std::string> overrides = experiment.overrides;
      if (variant.branch) {
        const std::vector<std::string>& inherited =
            find_variant(experiment, variant.branch->variant)->overrides;
        overrides.insert(overrides.end(), inherited.begin(), inherited.end());
      }
      overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
      if (experiment.run_on.cpu > 0) overrides.emplace_back("training.device=cpu");
      overrides.push_back(fmt::format("training.seed={}", seed));
      overrides.push_back("logging.directory=" + run.folder.string());
      overrides.push_back("checkpoint.directory=" + (run.folder / "checkpoints").string());
      overrides.emplace_back("checkpoint.resume=auto");
      try {
        run.config = config::load_config(experiment.base, overrides);
      } catch (const UserError& error) {
        user_error("{}: variants.{}: {}", experiment.file.string(), variant.name, error.what());
      }
      if (variant.branch) {
        const std::string parent = fmt::format("{}_seed{}", variant.branch->variant, seed);
        set_start(fmt::format("{}: variants.{}.branch", experiment.file.string(), variant.name),
                  *variant.branch, *std::ranges::find(runs, parent, &Run::name), run);
      }
      if (experiment.evaluation && !run.config.checkpoint.save_last)
        user_error(
            "{}: variants.{}: evaluate needs the last step's checkpoint; set checkpoint.save_last=true",
            experiment.file.string(), variant.name);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::vector<Slot> make_slots(const Experiment& experiment, int hardware_threads) {
  const RunOn& on = experiment.run_on;
  const auto several = static_cast<size_t>(on.ranks);
  std::vector<std::string> launcher;
  if (on.ranks > 1) {
    launcher = on.launcher;
    launcher.insert(launcher.end(), {"-n", std::to_string(on.ranks)});
  }
  std::vector<Slot> slots;
  if (on.cpu > 0) {
    const int64_t threads = std::max<int64_t>(1, hardware_threads / (on.cpu * on.ranks));
    for (int64_t i = 0; i < on.cpu; ++i) {
      slots.push_back({"CPU", {}, launcher, false});
      if (std::getenv("OMP_NUM_THREADS") == nullptr)
        slots.back().environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    }
    return slots;
  }
  const std::vector<std::pair<std::string, std::string>> shared = shared_algorithms(experiment.directory);
  if (on.gpus.empty())
    return {{on.ranks > 1 ? fmt::format("{} ranks", on.ranks) : "this machine", shared, launcher, false}};
  if (on.gpus.size() % several != 0)
    user_error("run_on: {} gpus cannot be divided among runs of {} ranks; set a multiple", on.gpus.size(),
               several);
  for (int64_t n = 0; n < on.runs_per_gpu; ++n)
    for (size_t first = 0; first < on.gpus.size(); first += several) {
      const std::vector<int> ids(on.gpus.begin() + static_cast<std::ptrdiff_t>(first),
                                 on.gpus.begin() + static_cast<std::ptrdiff_t>(first + several));
      const std::string list = fmt::format("{}", fmt::join(ids, ","));
      slots.push_back({(several > 1 ? "GPUs " : "GPU ") + list, shared, launcher, true});
      slots.back().environment.emplace_back("CUDA_VISIBLE_DEVICES", list);
    }
  return slots;
}

}  // namespace te::experiment
