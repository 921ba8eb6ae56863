// te-generate evaluate: evaluates a model on tasks of lm-evaluation-harness, or computes the paired difference of two
// results.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/output_file.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/json.h"
#include "generate/command.h"
#include "generate/evaluation/compare.h"
#include "generate/evaluation/evaluate_tasks.h"
#include "generate/evaluation/task_files.h"
#include "generate/loaded_model.h"

namespace te::generate {
namespace {

using nlohmann::ordered_json;

void write_record(apps::OutputFile& file, const ordered_json& record, int indent = -1) {
  file.write(dump_json(record, indent) + "\n");
}

/// Progress of the evaluation: on a terminal a line that is rewritten twice a second, else a new line every ten
/// seconds, which te-experiment parses (apps/experiment/evaluation.cpp).
class Line {
 public:
  explicit Line(bool leader)
      : leader_(leader), terminal_(::isatty(STDERR_FILENO) == 1), last_(terminal_ ? 0.0 : now_seconds()) {}
  ~Line() {
    if (leader_ && drawn_) fmt::print(stderr, "\r\033[K");
  }
  void show(const std::string& task, int64_t done, int64_t all) {
    if (!leader_ || now_seconds() - last_ < (terminal_ ? 0.5 : 10.0)) return;
    last_ = now_seconds();
    drawn_ = terminal_;
    fmt::print(stderr, "{}{}: {} of {}{}", terminal_ ? "\r\033[K" : "", task, done, all,
               terminal_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  bool leader_, terminal_, drawn_ = false;
  double last_;
};

std::string percent(const Metric& metric) {
  const std::string error = metric.stderr_of_mean ? fmt::format(" ± {:.4f}", *metric.stderr_of_mean) : "";
  return fmt::format("{:<16} {:.4f}{}", metric.name, metric.value, error);
}

void print_results(const std::vector<EvaluatedTask>& tasks) {
  for (const EvaluatedTask& task : tasks)
    for (const Metric& metric : task.metrics)
      fmt::print("{:<24} {:>6} documents  {}\n", task.task.name, task.task.documents.size(), percent(metric));
  for (const GroupResult& group : group_results(tasks))
    fmt::print("{:<24} {:>6} documents  {}\n", group.name, group.documents, percent(group.acc));
}

int compare_files(const std::vector<std::string>& files, const std::string& output) {
  const std::vector<PairedDifference> differences = compare_items(files[0], files[1]);
  ordered_json records = ordered_json::array();
  fmt::print("A {}\nB {}\n", files[0], files[1]);
  for (const PairedDifference& d : differences) {
    fmt::print("{} {}: A {:.4f}, B {:.4f}, B - A {:+.4f}, ", d.task, d.metric, d.a, d.b, d.difference);
    if (d.documents > 1)
      fmt::print("95% interval [{:+.4f}, {:+.4f}] ({} documents)", d.low, d.high, d.documents);
    else
      fmt::print("no interval (1 document)");
    if (d.binary)
      fmt::print("; only B right {}, only A right {}, McNemar's exact p {:.4g}", d.only_b, d.only_a,
                 d.p_value);
    fmt::print("\n");
    ordered_json record = {{"task", d.task},
                           {"metric", d.metric},
                           {"documents", d.documents},
                           {"a", d.a},
                           {"b", d.b},
                           {"difference", d.difference},
                           {"stderr", d.stderr_of_difference},
                           {"interval95", {d.low, d.high}}};
    if (d.binary)
      record.update(ordered_json{{"only_a", d.only_a}, {"only_b", d.only_b}, {"mcnemar_p", d.p_value}});
    records.push_back(std::move(record));
  }
  if (!output.empty()) {
    apps::OutputFile file("--output", output);
    write_record(file, {{"a", files[0]}, {"b", files[1]}, {"differences", records}}, 2);
    file.finish();
  }
  return 0;
}

struct EvaluateArguments {
  CLI::App* command = nullptr;
  ModelOptions model;
  TokenizerOptions tokenizer;
  TaskOptions options;
  CLI::Option *batch_option = nullptr, *fewshot = nullptr;
  std::vector<std::string> tasks, compare;
  std::string output, items;
  int64_t batch = 1024, max_length = 0;
  bool inputs = false;

  void check() const;
  ordered_json config_json(const ModelSource& source, const config::Config& config, int64_t length,
                           const text::Tokenizer& text) const;
  void write_items(const std::vector<EvaluatedTask>& results, const RequestEncoder& encoder,
                   apps::OutputFile& file) const;
};

void EvaluateArguments::check() const {
  model.check("te-generate evaluate");
  if (tasks.empty()) user_error("--tasks TASK,... is required; see te-generate evaluate --help");
  if (inputs && items.empty()) user_error("--items-inputs: needs --items FILE");
  const bool mmlu = std::ranges::any_of(tasks, [](const std::string& t) { return t.starts_with("mmlu"); });
  if (fewshot->count() > 0 && !mmlu) user_error("--num-fewshot needs mmlu; other tasks have no examples");
}

ordered_json EvaluateArguments::config_json(const ModelSource& source, const config::Config& config,
                                            int64_t length, const text::Tokenizer& text) const {
  return {{"model", "te-train"},
          {"checkpoint", source.title()},
          {"tokenizer", text.name()},
          {"begin_of_document", tokenizer.begins(text)},
          {"max_length", length},
          {"dtype", config::to_string(config.precision.dtype)},
          {"fp8", model.run.fp8},
          {"limit", options.limit > 0 ? ordered_json(options.limit) : ordered_json(nullptr)}};
}

void EvaluateArguments::write_items(const std::vector<EvaluatedTask>& results, const RequestEncoder& encoder,
                                    apps::OutputFile& file) const {
  for (const EvaluatedTask& result : results) {
    for (size_t i = 0; i < result.scores.size(); ++i) {
      const Document& document = result.task.documents[i];
      ordered_json record = item_record(result.task, document, result.scores[i]);
      if (inputs) {
        for (const Request& request : document.requests)
          record["arguments"].push_back({request.context, request.continuation});
        for (const auto& request : encoder.encode(result.task, {&document, 1})) {
          ordered_json parts = ordered_json::array();
          for (const TokenRequest& part : request)
            parts.push_back({{"tokens", part.tokens}, {"scored", part.scored}});
          record["token_requests"].push_back(std::move(parts));
        }
      }
      write_record(file, record);
    }
  }
  file.finish();
}

int run_evaluate(EvaluateArguments& a, parallel::World& world) {
  if (!a.compare.empty()) return world.leader() ? compare_files(a.compare, a.output) : 0;
  a.check();
  // 1. Data and tokens.
  const double start = now_seconds();
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<RequestEncoder> encoder;
  std::vector<EvaluatedTask> tasks;
  std::vector<TokenizedTask> tokens;
  std::unique_ptr<apps::OutputFile> results_file, items_file;
  int64_t longest = 1, max_length = 0;
  world.run_collectively([&] {
    source = open_model(a.model.checkpoint, a.model.adapters);
    const int64_t context = longest_sequence(source->model());
    if (a.max_length > context)
      user_error("--max-length {}: the model's context is {}", a.max_length, context);
    max_length = a.max_length > 0 ? a.max_length : context;
    tokenizer = a.tokenizer.open(*source);
    encoder = std::make_unique<RequestEncoder>(*tokenizer, a.tokenizer.begins(*tokenizer),
                                               source->model().vocab_size, max_length);
    for (Task& task : read_tasks(a.tasks, a.options)) {
      tokens.push_back(tokenize(task, *encoder));
      longest = std::max(longest, longest_inputs(tokens.back().groups));
      tasks.push_back({std::move(task), {}, {}});
    }
    if (!world.leader()) return;
    if (!a.output.empty()) results_file = std::make_unique<apps::OutputFile>("--output", a.output);
    if (!a.items.empty()) items_file = std::make_unique<apps::OutputFile>("--items", a.items);
  });
  // 2. The model, one copy for --tensor times --pipeline ranks.
  const int64_t ranks_of_model = a.model.run.ranks_of_model();
  a.model.run.replicas = std::max<int64_t>(1, world.size() / ranks_of_model);
  DecoderSizes sizes;
  LoadedModel model(world, *source, a.model.run, longest, [&](bool cuda, const config::Config& config) {
    return sizes = evaluation_sizes(cuda, config, a.batch);
  });
  const ScorerOptions scorer{.batch = a.batch,
                             .cache_tokens = sizes.cache_tokens,
                             .replica = model.groups.at()[parallel::Axis::data],
                             .replicas = a.model.run.replicas};
  // 3. Scores.
  const double loaded = now_seconds();
  int64_t given = 0, requests = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    EvaluatedTask& task = tasks[i];
    Line line(world.leader());
    task.scores = score_task(
        model.decoder, model.context, world, task.task, tokens[i], scorer,
        [&](int64_t done) { line.show(task.task.name, done, static_cast<int64_t>(tokens[i].groups.size())); },
        given);
    task.metrics = task_metrics(task.task, task.scores);
    for (const RequestGroup& group : tokens[i].groups) requests += static_cast<int64_t>(group.size());
    const std::string truncated = describe_truncated(task.task, tokens[i], max_length);
    if (!truncated.empty() && world.leader()) fmt::print(stderr, "{}\n", truncated);
  }
  const double scored = now_seconds();
  given = world.sum_i64(given) / ranks_of_model;
  // 4. Results.
  if (!world.leader()) return 0;
  print_results(tasks);
  fmt::print(
      stderr,
      "{} requests, {} tokens in {:.2f} s ({:.0f} tokens/s), after {:.2f} s for loading data and model\n",
      requests, given, scored - loaded, static_cast<double>(given) / (scored - loaded), loaded - start);
  if (results_file) {
    ordered_json results = results_json(tasks, a.config_json(*source, model.config, max_length, *tokenizer));
    results["total_evaluation_time_seconds"] = scored - start;
    write_record(*results_file, results, 2);
    results_file->finish();
  }
  if (items_file) a.write_items(tasks, *encoder, *items_file);
  return 0;
}

}  // namespace

apps::Command add_evaluate(CLI::App& app) {
  const auto arguments = std::make_shared<EvaluateArguments>();
  EvaluateArguments& a = *arguments;
  a.command = app.add_subcommand("evaluate",
                                 "Evaluate a model on lm-evaluation-harness tasks, or compare two results");
  a.model.add_to(a.command);
  a.tokenizer.add_to(a.command);
  a.command
      ->add_option(
          "--tasks", a.tasks,
          "hellaswag, lambada_openai, arc_easy, arc_challenge, piqa, openbookqa, sciq, boolq, winogrande, "
          "mmlu (also mmlu_stem, ..., mmlu_SUBJECT), wikitext, or your own: NAME.jsonl of {context, choices, "
          "gold}")
      ->delimiter(',')
      ->type_name("TASK,...");
  a.command->add_option("--data", a.options.data, "Folder with the tasks' data (docs/how-to/evaluate.md)")
      ->type_name("DIR");
  a.command->add_option("--output", a.output, "Write results as JSON with the names of lm-evaluation-harness")
      ->type_name("FILE");
  a.command->add_option("--items", a.items, "Write the result of every document as one line of JSON")
      ->type_name("FILE");
  a.command->add_flag("--items-inputs", a.inputs,
                      "With --items: also write texts and tokens of the requests");
  a.command->add_option("--limit", a.options.limit, "Use the first N documents of each task; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  a.fewshot =
      a.command
          ->add_option("--num-fewshot", a.options.num_fewshot, "Solved examples before each mmlu question")
          ->check(whole_number(0))
          ->capture_default_str();
  a.command->add_option("--batch", a.batch, "Maximum number of documents per batch")
      ->check(whole_number(1))
      ->capture_default_str();
  a.command
      ->add_option("--max-length", a.max_length,
                   "Maximum number of tokens of a request; 0: the model's context")
      ->check(whole_number(0))
      ->capture_default_str();
  a.command->add_option("--compare", a.compare, "Compare two files of --items: B minus A")
      ->expected(2)
      ->type_name("A B");
  a.command->footer(
      "With N * --tensor * --pipeline ranks, the documents are divided among N copies of the model.\n\n"
      "  te-generate evaluate --checkpoint gpt2/ --tasks hellaswag,lambada_openai --data eval/ --output "
      "gpt2.json \\\n"
      "      --items gpt2.jsonl\n"
      "  te-generate evaluate --compare bf16.jsonl fp8.jsonl");
  return {a.command, [arguments](parallel::World& world) { return run_evaluate(*arguments, world); }};
}

}  // namespace te::generate
