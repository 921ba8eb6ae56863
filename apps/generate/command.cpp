#include "generate/command.h"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>

#include "core/error.h"
#include "generate/begin_token.h"
#include "text/vocabulary_check.h"

namespace te::generate {

CLI::Validator whole_number(int64_t min) {
  return {[min](std::string& text) {
            int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool whole = end == text.data() + text.size();
            if (whole && error == std::errc::result_out_of_range && text[0] != '-')
              return fmt::format("{} must be at most {}", text, std::numeric_limits<int64_t>::max());
            const bool good = error == std::errc() && whole && value >= min;
            return good ? "" : fmt::format("{} must be a whole number of at least {}", text, min);
          },
          "N"};
}

namespace {

/// `good` must be false for NaN.
CLI::Validator number(const std::function<bool(double)>& good, const std::string& rule) {
  return {[good, rule](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            return !text.empty() && *end == '\0' && good(value) ? ""
                                                                : fmt::format("{} must be {}", text, rule);
          },
          "X"};
}

}  // namespace

CLI::Validator number_between(double least, double most) {
  return number([least, most](double value) { return value >= least && value <= most; },
                fmt::format("a number from {} to {}", least, most));
}

CLI::Validator number_above(double bound, double most) {
  return number([bound, most](double value) { return value > bound && value <= most; },
                fmt::format("a number above {}, at most {}", bound, most));
}

void ModelOptions::add_to(CLI::App* command) {
  command
      ->add_option("--checkpoint", checkpoint,
                   "te-train checkpoint (step folder, checkpoint directory or run folder with its latest "
                   "checkpoint, or "
                   "its file `best`), Hugging Face folder, or llama2.c file")
      ->type_name("PATH");
  command
      ->add_option(
          "--adapter", adapters,
          "LoRA adapter that is added to the checkpoint: an adapter checkpoint or a PEFT folder; may be "
          "repeated")
      ->type_name("PATH")
      ->allow_extra_args(false);
  command->add_option("--device", run.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--dtype", run.dtype, "bf16, fp16 or fp32; auto: bf16 on a GPU, fp32 on the CPU")
      ->check(CLI::IsMember({"auto", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_option("--fp8", run.fp8, "FP8 linear layers with the checkpoint's recipe: off, hybrid or e4m3")
      ->check(CLI::IsMember({"off", "hybrid", "e4m3"}))
      ->capture_default_str();
  command->add_option("--tensor", run.tensor, "Tensor-parallel ranks; start them with mpirun -n")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_option("--pipeline", run.pipeline, "Pipeline stages, each on its own ranks")
      ->check(whole_number(1))
      ->capture_default_str();
}

void ModelOptions::check(const char* command) const {
  if (checkpoint.empty()) user_error("--checkpoint PATH is required; see {} --help", command);
}

void TokenizerOptions::add_to(CLI::App* command) {
  command->add_option("--tokenizer", spec, "bytes, or a tokenizer file or folder (default: the checkpoint's)")
      ->type_name("SPEC");
  auto* with = command->add_flag("--begin", begin, "Put a begin-of-document token before every text");
  auto* without = command->add_flag("--no-begin", no_begin,
                                    "Put none; by default the tokenizer files decide, as in transformers");
  with->excludes(without);
}

std::unique_ptr<text::Tokenizer> TokenizerOptions::open(const ModelSource& source) const {
  const std::string chosen = spec.empty() ? source.tokenizer() : spec;
  if (chosen.empty())
    user_error(
        "--tokenizer is required: {} does not name its tokenizer; give the one that the model was trained "
        "with",
        source.title());
  auto tokenizer = text::make_tokenizer(chosen);
  const std::string warning = text::vocabulary_warning(*tokenizer, source.title(), source.model().vocab_size);
  if (!spec.empty() && !warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
  if (begin && !tokenizer->begin_of_document())
    user_error("--begin: tokenizer {} has no begin-of-document token", tokenizer->name());
  return tokenizer;
}

bool TokenizerOptions::begins(const text::Tokenizer& tokenizer) const {
  return begin || (!no_begin && adds_begin_of_document(tokenizer));
}

}  // namespace te::generate
