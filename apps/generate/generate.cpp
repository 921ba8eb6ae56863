// te-generate without a subcommand: continues prompts and prints the text while it is generated.
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/output_file.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory_bandwidth.h"
#include "generate/command.h"
#include "generate/generator.h"
#include "generate/loaded_model.h"
#include "generate/sampling_options.h"
#include "generate/stop.h"
#include "generate/text_output.h"
#include "generate/text_stream.h"
#include "text/readers/json_records.h"

namespace te::generate {
namespace {

using nlohmann::json;

std::string read_prompt(const std::string& file) {
  File in = file == "-" ? File::standard_input() : File(file, O_RDONLY, FileKind::input);
  std::string text;
  if (!in.is_open() || !in.read_all(text, kMaxTextFileBytes))
    user_error("--prompt-file {}: cannot be read: {}", file, in.error());
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

/// Prints texts that are generated concurrently in order: the first unfinished text is printed as it grows, later ones
/// are held back.
class Printer {
 public:
  /// `echo`: the beginning of each text, for example its prompt.
  explicit Printer(std::vector<std::string> echo) : held_(std::move(echo)), done_(held_.size(), false) {
    begin();
  }

  void add(size_t index, const std::string& text, bool last) {
    held_[index] += text;
    done_[index] = last;
    while (current_ < held_.size()) {
      write(held_[current_]);
      held_[current_].clear();
      if (!done_[current_]) break;
      write("\n");
      ++current_;
      begin();
    }
    std::fflush(stdout);
  }

 private:
  void begin() const {
    if (held_.size() > 1 && current_ < held_.size())
      fmt::print("{}==> prompt {} <==\n", current_ > 0 ? "\n" : "", current_ + 1);
  }
  void write(const std::string& text) const { output_.write(text); }

  TextOutput output_;
  std::vector<std::string> held_;
  std::vector<bool> done_;
  size_t current_ = 0;
};

/// Writes results as lines of JSON in order: the object of the prompt with the text, the reason for its end, and
/// counts of tokens.
class ResultFile {
 public:
  ResultFile(const std::string& path, const std::vector<json>& requests)
      : requests_(requests),
        lines_(requests.size()),
        out_("--output", path, apps::OutputFile::Appears::at_once) {}
  /// Writes the results after an unfinished prompt: the run failed.
  ~ResultFile() {
    try {
      for (; next_ < lines_.size(); ++next_) out_.write(lines_[next_]);
    } catch (const UserError&) {  // the run reports why it ended
    }
  }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;
  void add(size_t index, const Completion& result) {
    json record = requests_[index];
    record["text"] = result.text;
    record["ending"] = to_string(result.finish_reason);
    record["prompt_tokens"] = result.prompt.size();
    record["tokens"] = result.tokens;
    lines_[index] = dump_json(record) + "\n";
    for (; next_ < lines_.size() && !lines_[next_].empty(); ++next_) {
      out_.write(lines_[next_]);
      lines_[next_].clear();
    }
  }

 private:
  const std::vector<json>& requests_;
  std::vector<std::string> lines_;
  apps::OutputFile out_;
  size_t next_ = 0;
};

std::string binary(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// For small models the work per token is too little for several threads to pay off.
void choose_threads(const Context& context, const parameters::ParameterStore& parameters) {
  constexpr int64_t kSmall = 4'000'000;
  if (!context.is_cuda() && std::getenv("OMP_NUM_THREADS") == nullptr && parameters.num_parameters() < kSmall)
    omp_set_num_threads(1);
}

/// The fraction of the memory bandwidth that decoding passes reach, as text. Empty for a mixture of experts, of which
/// each pass reads the experts that its tokens select.
std::string reading_speed(const LoadedModel& model, const Timing& timing) {
  const auto bandwidth = static_cast<double>(memory_bandwidth(model.context));
  if (bandwidth <= 0 || timing.passes == 0 || model.config.model.num_moe_experts > 0) return "";
  const auto bytes = static_cast<double>(model.decoder.weight_bytes(1));
  return fmt::format("; {:.2f} GB of weights read in {:.3f} ms per pass, {:.1f}% of the memory bandwidth",
                     bytes * 1e-9, timing.seconds / static_cast<double>(timing.passes) * 1e3,
                     100 * bytes * static_cast<double>(timing.passes) / timing.seconds / bandwidth);
}

struct GenerateArguments {
  ModelOptions model;
  GenerateOptions options;
  SamplingArguments sampling;
  std::vector<std::string> prompts, prompt_files;
  std::string prompt_lines, output;
  TokenizerOptions tokenizer;
  int64_t batch = 8;
  bool echo = false, ignore_end = false, quiet = false;

  std::vector<json> read_prompts(parallel::World& world) const;
  void resolve();
};

void GenerateArguments::resolve() {
  model.check("te-generate");
  for (const std::string& stop : options.stops)
    if (stop.empty()) user_error("--stop: a stop string must not be empty");
  sampling.resolve();
  options.sampling = sampling.options;
}

// Returns objects with a field `prompt`. Only rank 0 reads files and standard input.
std::vector<json> GenerateArguments::read_prompts(parallel::World& world) const {
  json all = json::array();
  world.run_collectively([&] {
    if (!world.leader()) return;
    for (const std::string& text : prompts) all.push_back({{"prompt", text}});
    std::vector<std::string> files = prompt_files;
    if (prompts.empty() && files.empty() && prompt_lines.empty()) files.push_back("-");
    for (const std::string& file : files) all.push_back({{"prompt", read_prompt(file)}});
    if (prompt_lines.empty()) return;
    text::read_json_records(prompt_lines, text::JsonLayout::kLines, [&](const text::JsonRecord& record) {
      const auto prompt = record.object.find("prompt");
      if (prompt == record.object.end() || !prompt->is_string())
        user_error("{}: has no field `prompt` with text", record.place);
      all.push_back(record.object);
    });
    if (all.empty()) user_error("--prompts {}: has no prompt", prompt_lines);
  });
  // Prompts may contain any bytes, which JSON text cannot represent.
  const std::string packed = world.leader() ? binary(json::to_cbor(all)) : std::string();
  return json::from_cbor(world.broadcast_string(packed)).get<std::vector<json>>();
}

int run_generate(GenerateArguments& a, parallel::World& world) {
  a.resolve();
  // 1. All checks of the input, before the device is opened.
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<text::Tokenizer> tokenizer;
  world.run_collectively([&] {
    source = open_model(a.model.checkpoint, a.model.adapters);
    tokenizer = a.tokenizer.open(*source);
    a.options.begin_of_document = a.tokenizer.begins(*tokenizer);
    if (!a.ignore_end) a.options.ends = end_tokens(*source, *tokenizer);
    if (world.leader()) a.sampling.warn_of_unused(*source);
  });
  const std::vector<json> requests = a.read_prompts(world);
  std::vector<std::string> texts;
  for (const json& request : requests) texts.push_back(request["prompt"].get<std::string>());
  std::vector<std::vector<int32_t>> prompts;
  std::unique_ptr<ResultFile> results;
  size_t longest = 0;
  const int64_t context_length = longest_sequence(source->model());
  world.run_collectively([&] {
    for (size_t i = 0; i < texts.size(); ++i) {
      try {
        prompts.push_back(
            Generator::encode(*tokenizer, texts[i], a.options, source->model().vocab_size, context_length));
      } catch (const UserError& error) {
        if (texts.size() == 1) throw;
        user_error("prompt {}: {}", i + 1, error.what());
      }
      longest = std::max(longest, prompts.back().size());
    }
    if (world.leader() && !a.output.empty()) results = std::make_unique<ResultFile>(a.output, requests);
  });
  // 2. The model, with memory for these prompts only.
  const auto prompt_length = static_cast<int64_t>(longest);
  const int64_t length = prompt_length + std::min(context_length - prompt_length, a.options.max_tokens);
  LoadedModel model(world, *source, a.model.run, length,
                    std::min(a.batch, static_cast<int64_t>(prompts.size())));
  choose_threads(model.context, model.decoder.parameters());
  // 3. Text.
  std::vector<std::string> echo(texts.size());
  if (a.echo) std::transform(texts.begin(), texts.end(), echo.begin(), valid_utf8);
  Generator::OnText print;
  std::unique_ptr<Printer> printer;
  Generator::OnDone done;
  if (results) {
    done = [&](size_t index, const Completion& result) { results->add(index, result); };
  } else if (world.leader()) {
    printer = std::make_unique<Printer>(std::move(echo));
    print = [&](size_t index, const std::string& text, bool last) { printer->add(index, text, last); };
  }
  // Tensor-parallel ranks cannot stop at different tokens, so with several ranks Ctrl-C ends the job at once.
  if (world.size() == 1) stop_on_interrupt();
  Generator generator(model.decoder, *tokenizer, a.options);
  generator.run(model.context, prompts, print, &stop_requested, done);
  const Timing& timing = generator.timing();
  if (world.leader() && !a.quiet)
    fmt::print(stderr, "{} prompt tokens in {:.3f} s, {} tokens in {:.3f} s ({:.1f} tokens/s){}\n",
               timing.prompt_tokens, timing.prompt_seconds, timing.tokens, timing.seconds,
               static_cast<double>(timing.tokens) / std::max(timing.seconds, 1e-9),
               reading_speed(model, timing));
  return stop_requested != 0 ? 130 : 0;
}

}  // namespace

apps::Command add_generate(CLI::App& app) {
  const auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& a = *arguments;
  a.model.add_to(&app);
  // Without extra arguments, or CLI11 would read a text in brackets, such as "[INST] Hi, you [/INST]", as a list.
  const auto several = [](CLI::Option* option) {
    return option->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  several(app.add_option("--prompt", a.prompts, "Text to continue; may be repeated"))->type_name("TEXT");
  several(app.add_option(
              "--prompt-file", a.prompt_files,
              "File with one prompt, - for standard input (the default without prompts); a final newline is "
              "removed; may be repeated"))
      ->type_name("FILE");
  app.add_option("--prompts", a.prompt_lines,
                 "File with one JSON object per line, each with a field `prompt`")
      ->type_name("FILE");
  app.add_option("--output", a.output,
                 "Write results to this file instead, one JSON object per line in the order of the prompts")
      ->type_name("FILE");
  a.tokenizer.add_to(&app);
  app.add_option("--max-tokens", a.options.max_tokens, "Maximum number of tokens to generate per prompt")
      ->check(whole_number(1))
      ->capture_default_str();
  several(
      app.add_option("--stop", a.options.stops, "Stop at this text, which is not printed; may be repeated"))
      ->type_name("TEXT");
  a.sampling.add_to(&app);
  app.add_option("--batch", a.batch, "Number of prompts that are continued concurrently")
      ->check(whole_number(1))
      ->capture_default_str();
  app.add_option(
         "--megakernel", a.model.run.megakernel,
         "On a GPU, with up to 8 concurrent prompts: one kernel launch for all linear layers between two "
         "attention calls; auto: if that is faster")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_flag("--echo", a.echo, "Also print the prompt");
  app.add_flag("--ignore-end", a.ignore_end, "Continue after end-of-text tokens");
  app.add_flag("--quiet", a.quiet, "Do not print the speed on standard error");
  return {&app, [arguments](parallel::World& world) { return run_generate(*arguments, world); }};
}

}  // namespace te::generate
