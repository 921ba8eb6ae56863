// Command-line options that the commands of te-generate share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "generate/run_config.h"
#include "text/tokenizer.h"

namespace te::generate {

/// Validators for numbers, with a one-line message for other text.
CLI::Validator whole_number(int64_t least);
CLI::Validator number_between(double least, double most);
CLI::Validator number_above(double bound, double most);

/// --checkpoint, and options of how the model runs.
struct ModelOptions {
  std::string checkpoint;
  std::vector<std::string> adapters;
  RunOptions run;

  void add_to(CLI::App* command);
  /// UserError if --checkpoint is missing; `command` is its name in the message.
  void check(const char* command) const;
};

/// --tokenizer, and whether texts start with a begin-of-document token.
struct TokenizerOptions {
  std::string spec;
  bool begin = false, no_begin = false;

  void add_to(CLI::App* command);
  /// Opens the tokenizer of --tokenizer or of the checkpoint. UserError if there is none, or it does not match the
  /// model.
  std::unique_ptr<text::Tokenizer> open(const ModelSource& source) const;
  /// --begin or --no-begin if given, else as the tokenizer files say.
  bool begins(const text::Tokenizer& tokenizer) const;
};

/// te-generate without a subcommand: continues prompts. Its options belong to the program itself.
class GenerateCommand {
 public:
  explicit GenerateCommand(CLI::App& app);
  ~GenerateCommand();
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

/// The subcommand chat.
class ChatCommand {
 public:
  explicit ChatCommand(CLI::App& app);
  ~ChatCommand();
  bool chosen() const;
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

/// The subcommand perplexity.
class PerplexityCommand {
 public:
  explicit PerplexityCommand(CLI::App& app);
  ~PerplexityCommand();
  bool chosen() const;
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

/// The subcommand evaluate.
class EvaluateCommand {
 public:
  explicit EvaluateCommand(CLI::App& app);
  ~EvaluateCommand();
  bool chosen() const;
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

/// The subcommand divergence.
class DivergenceCommand {
 public:
  explicit DivergenceCommand(CLI::App& app);
  ~DivergenceCommand();
  bool chosen() const;
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

/// The subcommand logits.
class LogitsCommand {
 public:
  explicit LogitsCommand(CLI::App& app);
  ~LogitsCommand();
  bool chosen() const;
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

}  // namespace te::generate
