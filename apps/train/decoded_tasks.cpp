#include "train/decoded_tasks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/strings.h"
#include "generate/begin_token.h"
#include "generate/decoder.h"
#include "generate/evaluation/evaluate_tasks.h"
#include "generate/evaluation/task_files.h"
#include "generate/run_config.h"
#include "text/tokenizer.h"
#include "train/data_check.h"
#include "train/run_decoder.h"

namespace te::apps {
namespace {

// Smaller passes than in te-generate, since training needs most of the device's memory.
constexpr int64_t kMaxRows = 2048, kScoreRows = 256;

void check_name(const generate::Task& task) {
  if (!is_plain_name(task.name))
    user_error(
        "\"{}\" becomes a column of loss.csv, so it must consist of letters, digits, _, - and .; rename {}",
        task.name, task.file);
}

/// Reads the tasks; errors name config keys instead of te-generate's options.
std::vector<generate::Task> read_tasks(const config::EvaluationConfig& evaluation) {
  try {
    std::vector<generate::Task> tasks =
        generate::read_tasks(evaluation.tasks, {.data = evaluation.data, .limit = evaluation.limit});
    std::ranges::for_each(tasks, check_name);
    return tasks;
  } catch (const UserError& error) {
    const std::string_view message = error.what();
    for (const auto& [option, key] :
         {std::pair<std::string_view, std::string_view>{"--tasks", "evaluation.tasks"},
          {"--data", "evaluation.data"}})
      if (message.starts_with(option)) user_error("{}{}", key, message.substr(option.size()));
    user_error("evaluation.tasks: {}", message);
  }
}

train::TaskResult result_of(const std::string& task, const std::vector<generate::Metric>& metrics) {
  train::TaskResult result{task, {}};
  for (const generate::Metric& metric : metrics)
    result.metrics.push_back({metric.name, metric.value, metric.stderr_of_mean});
  return result;
}

/// Results of the tasks with scores, and means of the groups whose tasks are complete.
std::vector<train::TaskResult> results_of(const std::vector<generate::EvaluatedTask>& tasks) {
  std::vector<train::TaskResult> results;
  for (const generate::EvaluatedTask& task : tasks)
    results.push_back(result_of(task.task.name, task.metrics));
  for (const generate::GroupResult& group : generate::group_results(tasks))
    results.push_back(result_of(group.name, {group.acc}));
  return results;
}

class DecodedTasks final : public train::Evaluator {
 public:
  DecodedTasks(const config::Config& config, const Context& context, parallel::World& world,
               const parallel::Groups& groups, bool has_files)
      : context_(own_context(context)), world_(world) {
    const int64_t longest = has_files ? tokenize_tasks(config) : config.model.seq_length;
    const config::Config own = run_decoder_config(config, longest);
    generate::DecoderSizes sizes =
        generate::evaluation_sizes(context.is_cuda(), own, config.evaluation.batch);
    sizes.max_rows = std::min(sizes.max_rows, kMaxRows);
    sizes.score_rows = std::min(sizes.score_rows, kScoreRows);
    options_ = {.batch = config.evaluation.batch,
                .cache_tokens = sizes.cache_tokens,
                .replica = groups.data().rank(),
                .replicas = groups.data().size()};
    decoder_ = std::make_unique<generate::Decoder>(own, groups, sizes);
  }

  void log_truncated(const config::ModelConfig& model) const {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const std::string truncated =
          generate::describe_truncated(tasks_[i].task, tokens_[i], generate::longest_sequence(model));
      if (!truncated.empty()) log_warning("evaluation.tasks: {}", truncated);
    }
  }

  void plan(MemoryPlan& plan) override { decoder_->plan(plan, context_, false); }
  void bind(const parameters::ParameterStore& weights) override { decoder_->bind(context_, weights); }

  std::vector<train::TaskResult> names() const override {
    std::vector<generate::EvaluatedTask> tasks = tasks_;
    for (generate::EvaluatedTask& task : tasks) task.metrics = metrics_without_scores(task.task);
    return results_of(tasks);
  }

  std::vector<train::TaskResult> evaluate() override {
    for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i].metrics = metrics_of(tasks_[i].task, tokens_[i]);
    context_.synchronize();
    return results_of(tasks_);
  }

 private:
  /// Reads the tasks and returns the length of the longest input.
  int64_t tokenize_tasks(const config::Config& config) {
    const std::unique_ptr<text::Tokenizer> tokenizer = open_run_tokenizer(config);
    const generate::RequestEncoder encoder(*tokenizer, generate::adds_begin_of_document(*tokenizer),
                                           config.model.vocab_size, generate::longest_sequence(config.model));
    int64_t longest = 1;
    for (generate::Task& task : read_tasks(config.evaluation)) {
      tokens_.push_back(generate::tokenize(task, encoder));
      longest = std::max(longest, generate::longest_inputs(tokens_.back().groups));
      tasks_.push_back({std::move(task), {}, {}});
    }
    return longest;
  }

  /// The metrics of a task with NaN as values.
  static std::vector<generate::Metric> metrics_without_scores(const generate::Task& task) {
    std::vector<generate::DocumentScores> none;
    for (const generate::Document& document : task.documents)
      none.emplace_back(std::max<size_t>(1, document.requests.size()));
    std::vector<generate::Metric> metrics = generate::task_metrics(task, none);
    for (generate::Metric& metric : metrics) {
      metric.value = std::numeric_limits<double>::quiet_NaN();
      metric.stderr_of_mean.reset();
    }
    return metrics;
  }

  std::vector<generate::Metric> metrics_of(const generate::Task& task,
                                           const generate::TokenizedTask& tokens) {
    std::vector<std::vector<generate::RequestScore>> scores;
    bool finite = true;
    int64_t given = 0;
    try {
      scores = generate::score_groups(*decoder_, context_, tokens.groups, options_, {}, given);
    } catch (const UserError&) {  // logits that are NaN or infinite, maybe in this replica only
      finite = false;
    }
    if (world_.max_i64(finite ? 0 : 1) != 0) return metrics_without_scores(task);
    return generate::task_metrics(
        task, generate::document_scores(world_, task, tokens, options_, std::move(scores)));
  }

  Context context_;
  parallel::World& world_;
  std::vector<generate::EvaluatedTask> tasks_;
  std::vector<generate::TokenizedTask> tokens_;  ///< per task
  generate::ScorerOptions options_;
  std::unique_ptr<generate::Decoder> decoder_;
};

}  // namespace

std::unique_ptr<train::Evaluator> make_evaluator(const config::Config& config, const Context& context,
                                                 parallel::World& world, const parallel::Groups& groups) {
  if (config.evaluation.every == 0) return nullptr;
  auto tasks = std::make_unique<DecodedTasks>(config, context, world, groups, true);
  tasks->log_truncated(config.model);
  return tasks;
}

std::unique_ptr<train::Evaluator> plan_evaluator(const config::Config& config, const Context& context,
                                                 parallel::World& world, const parallel::Groups& groups) {
  if (config.evaluation.every == 0) return nullptr;
  const bool has_files = train::has_tokenizer(config) && train::has_task_data(config);
  return std::make_unique<DecodedTasks>(config, context, world, groups, has_files);
}

}  // namespace te::apps
