#include "train/decoded_samples.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "generate/begin_token.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "generate/run_config.h"
#include "generate/text_stream.h"
#include "text/tokenizer.h"
#include "train/data_check.h"
#include "train/kept_tokenizer.h"
#include "train/run_decoder.h"

namespace te::apps {
namespace {

// Maximum number of concurrent prompts, since the KV cache grows with them.
constexpr size_t kBatch = 8;

generate::GenerateOptions options_of(const config::Config& config, const text::Tokenizer& tokenizer) {
  const config::LoggingConfig& logging = config.logging;
  generate::GenerateOptions options;
  options.sampling = {.temperature = logging.generate_temperature, .seed = config.training.seed};
  options.max_tokens = logging.generate_tokens;
  options.begin_of_document = generate::adds_begin_of_document(tokenizer);
  // As te-generate ends texts of the run's checkpoints.
  const std::filesystem::path origin = train::origin_of_token_ids(config);
  const auto ends = origin.empty() ? std::nullopt : generate::read_end_tokens(origin);
  options.ends = ends ? *ends : generate::end_tokens(tokenizer);
  return options;
}

class DecodedSamples final : public train::SampleMaker {
 public:
  DecodedSamples(const config::Config& config, const Context& context, const parallel::Groups& groups,
                 bool has_tokenizer)
      : context_(own_context(context)), texts_(config.logging.generate_prompts) {
    const int64_t length = has_tokenizer ? encode_prompts(config) : config.model.seq_length;
    decoder_ = std::make_unique<generate::Decoder>(
        run_decoder_config(config, length), groups,
        generate::DecoderSizes{.batch = static_cast<int64_t>(std::min(kBatch, texts_.size()))});
  }

  void plan(MemoryPlan& plan) override { decoder_->plan(plan, context_, false); }
  void bind(const parameters::ParameterStore& weights) override { decoder_->bind(context_, weights); }

  std::vector<train::Sample> make() override {
    std::vector<train::Sample> samples;
    for (const std::string& text : texts_) samples.push_back({.prompt = generate::valid_utf8(text)});
    generate::Generator generator(*decoder_, *tokenizer_, options_);
    // Finished prompts keep their texts if a later prompt gets logits that are NaN or infinite.
    const auto done = [&](size_t index, const generate::Completion& result) {
      samples[index].text = result.text;
      samples[index].finish_reason = generate::to_string(result.finish_reason);
      samples[index].tokens = static_cast<int64_t>(result.tokens.size());
    };
    try {
      generator.run(context_, prompts_, {}, nullptr, done);
    } catch (const UserError& error) {  // the same on all tensor-parallel ranks, which have the same logits
      for (train::Sample& sample : samples)
        if (sample.finish_reason.empty()) sample.finish_reason = error.what();
    }
    context_.synchronize();
    return samples;
  }

 private:
  /// Returns the length of the longest prompt with its completion.
  int64_t encode_prompts(const config::Config& config) {
    tokenizer_ = open_run_tokenizer(config);
    options_ = options_of(config, *tokenizer_);
    const int64_t longest = generate::longest_sequence(config.model);
    int64_t length = 0;
    for (const std::string& text : texts_) {
      try {
        prompts_.push_back(
            generate::Generator::encode(*tokenizer_, text, options_, config.model.vocab_size, longest));
      } catch (const UserError& error) {
        user_error("logging.generate_prompts: prompt {}: {}", prompts_.size() + 1, error.what());
      }
      const auto own = static_cast<int64_t>(prompts_.back().size());
      length = std::max(length, std::min(longest, own + options_.max_tokens));
    }
    return length;
  }

  Context context_;
  std::vector<std::string> texts_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  generate::GenerateOptions options_;
  std::vector<std::vector<int32_t>> prompts_;
  std::unique_ptr<generate::Decoder> decoder_;
};

}  // namespace

std::unique_ptr<train::SampleMaker> make_sample_maker(const config::Config& config, const Context& context,
                                                      const parallel::Groups& groups) {
  if (config.logging.generate_every == 0) return nullptr;
  return std::make_unique<DecodedSamples>(config, context, groups, true);
}

std::unique_ptr<train::SampleMaker> plan_sample_maker(const config::Config& config, const Context& context,
                                                      const parallel::Groups& groups) {
  if (config.logging.generate_every == 0) return nullptr;
  return std::make_unique<DecodedSamples>(config, context, groups, train::has_tokenizer(config));
}

}  // namespace te::apps
