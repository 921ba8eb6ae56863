#include "generate/sampling_options.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/printable.h"
#include "generate/command.h"

namespace te::generate {

void SamplingArguments::add_to(CLI::App* command) {
  temperature_ =
      command
          ->add_option("--temperature", options.temperature,
                       "Divide logits by it; 0: always take the most probable token (default: 0, or 1 "
                       "with --top-k, --top-p or --min-p)")
          ->check(number_between(0.0, 1000.0));
  top_k_ = command->add_option("--top-k", options.top_k, "Sample from the K most probable tokens")
               ->check(whole_number(1))
               ->type_name("K");
  top_p_ = command
               ->add_option("--top-p", options.top_p,
                            "Sample from the smallest set of most probable tokens with total probability P")
               ->check(number_above(0.0, 1.0))
               ->type_name("P");
  min_p_ = command
               ->add_option("--min-p", options.min_p,
                            "Sample from tokens at least P times as probable as the most probable one")
               ->check(number_between(0.0, 1.0))
               ->type_name("P");
  repetition_penalty_ =
      command
          ->add_option("--repetition-penalty", options.repetition_penalty,
                       "Divide (if negative, multiply) logits of tokens that already occurred by it; 1: off")
          ->check(number_between(0.001, 1000.0))  // logits divided by it must stay finite
          ->capture_default_str();
  command->add_option("--seed", options.seed, "Seed for sampling")
      ->check(whole_number(0))
      ->capture_default_str();
}

void SamplingArguments::resolve() {
  const bool narrows = top_k_->count() > 0 || top_p_->count() > 0 || min_p_->count() > 0;
  if (temperature_->count() == 0 && narrows) options.temperature = 1.0;
  if (narrows && options.temperature == 0.0)
    user_error("--temperature 0 always takes the most probable token: remove --top-k, --top-p and --min-p");
}

void SamplingArguments::warn_of_unused(const ModelSource& source) const {
  std::vector<std::string> keys = source.unused_generation_keys();
  if (repetition_penalty_->count() > 0) std::erase(keys, "repetition_penalty");
  if (keys.empty()) return;
  fmt::print(stderr,
             "warning: {}: te-generate does not use {} of generation_config.json or config.json, with which "
             "transformers chooses other tokens\n",
             printable(source.title()), fmt::join(keys, ", "));
}

}  // namespace te::generate
