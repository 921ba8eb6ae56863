// What the commands of te-generate share on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "generate/run_config.h"
#include "text/tokenizer.h"

namespace te::generate {

/// What an option's number must be; other text is refused in one line.
CLI::Validator whole_number(int64_t least);
CLI::Validator number_between(double least, double most);
CLI::Validator number_above(double bound, double most);

/// --checkpoint and how to run it.
struct ModelOptions {
  std::string checkpoint;
  RunOptions run;

  void add_to(CLI::App* command);
  /// UserError when --checkpoint is missing; `command` for the message.
  void check(const char* command) const;
};

/// --tokenizer and whether texts begin with a begin-of-document token.
struct TokenizerOptions {
  std::string spec;
  bool begin = false, no_begin = false;

  void add_to(CLI::App* command);
  /// The tokenizer named, or the one of the checkpoint. UserError when there is none, or it does not fit the model.
  std::unique_ptr<text::Tokenizer> open(const ModelSource& source) const;
  /// What was asked for, else what the tokenizer's files say.
  bool begins(const text::Tokenizer& tokenizer) const;
};

/// Continues prompts, the work of te-generate without a subcommand. Options go to the program itself.
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
