// What generation and perplexity share on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "generate/run_config.h"

namespace te::generate {

/// --checkpoint and how to run it.
struct ModelOptions {
  std::string checkpoint;
  RunOptions run;

  void add_to(CLI::App* command);
  /// UserError when --checkpoint is missing; `command` for the message.
  void check(const char* command) const;
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
