// te-generate without a subcommand: continues prompts and prints the text while it comes into being.
#include <omp.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "generate/command.h"
#include "generate/generator.h"
#include "generate/loaded_model.h"
#include "generate/text_stream.h"

namespace te::generate {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

std::string read_stream(std::istream& in, const std::string& name) {
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) user_error("--prompt-file {}: cannot be read", name);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string read_prompt(const std::string& file) {
  if (file == "-") return read_stream(std::cin, file);
  std::ifstream in(file, std::ios::binary);
  if (!in) user_error("--prompt-file {}: cannot be opened", file);
  return read_stream(in, file);
}

/// Prints several texts, which grow side by side, one after the other: the first unfinished one is shown as it grows.
class Printer {
 public:
  /// `echo`: what each text begins with.
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
  static void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  std::vector<std::string> held_;
  std::vector<bool> done_;
  size_t current_ = 0;
};

void check_vocabulary(const text::Tokenizer& tokenizer, const ModelSource& source) {
  // Models may have some rows more than their tokenizer has tokens, for the hardware's sake.
  const int64_t tokens = tokenizer.vocab_size(), model = source.model().vocab_size;
  if (tokens > model || tokens < model - model / 10)
    user_error(
        "tokenizer {} has {} tokens, the model of {} has {}: they do not belong together; --tokenizer must "
        "name "
        "the one the model was trained with",
        tokenizer.name(), tokens, source.title(), model);
}

// A token of a small model is so little work that threads cost more than they bring.
void choose_threads(const Context& context, const parameters::ParameterStore& parameters) {
  constexpr int64_t kSmall = 4'000'000;
  if (!context.is_cuda() && std::getenv("OMP_NUM_THREADS") == nullptr && parameters.num_parameters() < kSmall)
    omp_set_num_threads(1);
}

}  // namespace

struct GenerateCommand::Arguments {
  ModelOptions model;
  GenerateOptions options;
  CLI::Option *temperature = nullptr, *top_k = nullptr, *top_p = nullptr, *any_prompt = nullptr;
  std::vector<std::string> prompts, prompt_files;
  std::string tokenizer;
  int64_t batch = 8;
  bool echo = false, ignore_end = false, no_begin = false, quiet = false;

  std::vector<std::string> read_prompts(parallel::World& world) const;
  int64_t count_prompts() const { return static_cast<int64_t>(prompts.size() + prompt_files.size()); }
  void resolve();
};

void add_sampling_options(CLI::App& app, SamplingOptions& sampling, CLI::Option*& temperature,
                          CLI::Option*& top_k, CLI::Option*& top_p) {
  temperature =
      app.add_option("--temperature", sampling.temperature,
                     "Logits are divided by it; 0: always the most probable token (the default, but 1 with "
                     "--top-k or --top-p)")
          ->check(CLI::Range(0.0, 1000.0));
  top_k = app.add_option("--top-k", sampling.top_k, "Draw among the K most probable tokens")
              ->check(CLI::PositiveNumber)
              ->type_name("K");
  top_p = app.add_option("--top-p", sampling.top_p,
                         "Draw among the fewest most probable tokens whose probabilities reach P")
              ->check(CLI::Range(0.0, 1.0))
              ->type_name("P");
  app.add_option("--seed", sampling.seed, "Of the draws")->capture_default_str();
}

GenerateCommand::GenerateCommand(CLI::App& app) : arguments_(std::make_unique<Arguments>()) {
  Arguments& a = *arguments_;
  a.model.add_to(&app);
  const auto several = [](CLI::Option* option) {
    return option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  several(app.add_option("--prompt", a.prompts, "Text to go on from; may be repeated"))->type_name("TEXT");
  several(app.add_option(
              "--prompt-file", a.prompt_files,
              "A prompt per file, - for standard input (as without any prompt); a newline at its end is not "
              "part of it"))
      ->type_name("FILE");
  app.add_option("--tokenizer", a.tokenizer,
                 "bytes, or a tokenizer's file or folder; the one that the checkpoint names when absent")
      ->type_name("SPEC");
  app.add_option("--max-tokens", a.options.max_tokens, "Most tokens to generate for a prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  several(app.add_option("--stop", a.options.stops,
                         "Text that ends the output and is not printed; may be repeated"))
      ->type_name("TEXT");
  add_sampling_options(app, a.options.sampling, a.temperature, a.top_k, a.top_p);
  app.add_option("--batch", a.batch, "Prompts that are continued at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--echo", a.echo, "Print the prompt, too");
  app.add_flag("--ignore-end", a.ignore_end, "Go on after the end-of-document token");
  app.add_flag("--no-begin", a.no_begin, "Put no begin-of-document token in front of prompts");
  app.add_flag("--quiet", a.quiet, "No line about speed on standard error");
}

GenerateCommand::~GenerateCommand() = default;

void GenerateCommand::Arguments::resolve() {
  model.check("te-generate");
  for (const std::string& stop : options.stops)
    if (stop.empty()) user_error("--stop: a stop string must not be empty");
  if (top_p->count() > 0 && options.sampling.top_p == 0.0) user_error("--top-p: must be above 0");
  const bool narrows = top_k->count() > 0 || top_p->count() > 0;
  if (temperature->count() == 0 && narrows) options.sampling.temperature = 1.0;
  if (narrows && options.sampling.temperature == 0.0)
    user_error("--temperature 0 always takes the most probable token: leave --top-k and --top-p out");
  options.stop_at_end = !ignore_end;
  options.begin_of_document = !no_begin;
}

// Standard input reaches rank 0 alone.
std::vector<std::string> GenerateCommand::Arguments::read_prompts(parallel::World& world) const {
  std::vector<std::string> files = prompt_files;
  if (prompts.empty() && files.empty()) files.push_back("-");
  std::vector<std::string> texts = prompts;
  for (const std::string& file : files) {
    std::string text;
    world.together([&] {
      if (world.leader()) text = read_prompt(file);
    });
    texts.push_back(world.broadcast_string(text));
  }
  return texts;
}

int GenerateCommand::run(parallel::World& world) {
  Arguments& a = *arguments_;
  a.resolve();
  // 1. Everything that can be wrong with the input, before the device is touched.
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<text::Tokenizer> tokenizer;
  world.together([&] {
    source = open_model(a.model.checkpoint);
    const std::string spec = a.tokenizer.empty() ? source->tokenizer() : a.tokenizer;
    if (spec.empty())
      user_error("--tokenizer: {} names no tokenizer; give the one the model was trained with",
                 source->title());
    tokenizer = text::make_tokenizer(spec);
    check_vocabulary(*tokenizer, *source);
  });
  const std::vector<std::string> texts = a.read_prompts(world);
  std::vector<std::vector<int32_t>> prompts;
  size_t longest = 0;
  const int64_t context_length = longest_sequence(source->model());
  world.together([&] {
    for (const std::string& text : texts) {
      prompts.push_back(
          Generator::encode(*tokenizer, text, a.options, source->model().vocab_size, context_length));
      longest = std::max(longest, prompts.back().size());
    }
  });
  // 2. The model, with room for these prompts alone.
  const int64_t length = std::min(context_length, static_cast<int64_t>(longest) + a.options.max_tokens);
  LoadedModel model(world, *source, a.model.run, length,
                    std::min(a.batch, static_cast<int64_t>(prompts.size())));
  choose_threads(model.context, model.decoder.parameters());
  // 3. Text.
  std::vector<std::string> echo(texts.size());
  if (a.echo) std::transform(texts.begin(), texts.end(), echo.begin(), valid_utf8);
  Generator generator(model.decoder, *tokenizer, a.options);
  Generator::OnText print;
  std::unique_ptr<Printer> printer;
  if (world.leader()) {
    printer = std::make_unique<Printer>(std::move(echo));
    print = [&](size_t index, const std::string& text, bool last) { printer->add(index, text, last); };
  }
  // Tensor ranks cannot stop at different tokens: there Ctrl-C ends the job at once.
  if (world.size() == 1) std::signal(SIGINT, request_stop);
  generator.run(model.context, prompts, print, &stop_requested);
  const Timing& timing = generator.timing();
  if (world.leader() && !a.quiet)
    fmt::print(stderr, "{} prompt tokens in {:.3f} s, {} tokens in {:.3f} s ({:.1f} tokens/s)\n",
               timing.prompt_tokens, timing.prompt_seconds, timing.tokens, timing.seconds,
               static_cast<double>(timing.tokens) / std::max(timing.seconds, 1e-9));
  return stop_requested != 0 ? 130 : 0;
}

}  // namespace te::generate
