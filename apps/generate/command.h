// Command-line options that the commands of te-generate share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "common/command.h"
#include "generate/run_config.h"
#include "text/tokenizer.h"

namespace te::generate {

/// Validators for numbers, with a one-line message for other text.
CLI::Validator whole_number(int64_t min);
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
apps::Command add_generate(CLI::App& app);

apps::Command add_chat(CLI::App& app);
apps::Command add_perplexity(CLI::App& app);
apps::Command add_evaluate(CLI::App& app);
apps::Command add_divergence(CLI::App& app);
apps::Command add_logits(CLI::App& app);

}  // namespace te::generate
