// te-generate perplexity: computes the loss of a model on a dataset of te-data.
#include "generate/perplexity.h"

#include <unistd.h>

#include <cstdio>

#include "core/error.h"
#include "core/log.h"
#include "data/dataset_check.h"
#include "data/loss_mask.h"
#include "generate/command.h"
#include "parallel/launch.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hash.h"

namespace te::generate {
namespace {

struct PerplexityArguments {
  CLI::App* command = nullptr;
  ModelOptions model;
  std::string data, document_mask = "auto";
  bool all_tokens = false, any_tokenizer = false;
  int64_t max_samples = 0, seq_length = 0, batch = 1;
};

void check_dataset(const std::string& prefix, const ModelSource& source, bool any_tokenizer) {
  data::DatasetCheck check = {.vocab_size = source.model().vocab_size,
                              .tokenizer = {},
                              .tokenizer_key = source.title(),
                              .any_tokenizer = any_tokenizer,
                              .any_tokenizer_remedy = "give --any-tokenizer"};
  if (!any_tokenizer && !source.tokenizer().empty() && data::read_dataset_record(prefix)) {
    try {
      const auto tokenizer = text::make_tokenizer(source.tokenizer());
      check.tokenizer = {.name = tokenizer->name(),
                         .hash = text::tokenizer_hash(*tokenizer),
                         .vocab_size = tokenizer->vocab_size(),
                         .end_of_document = tokenizer->end_of_document()};
    } catch (const UserError& error) {  // the tokenizer is needed for this check only
      log_warning("{}; cannot check whether {} was made with it", error.what(), prefix);
    }
  }
  data::check_datasets("--data", {prefix}, check);
}

/// Whether attention stays within documents: as in training, where conversations of an unknown run are apart.
bool masks_documents(const PerplexityArguments& a, const ModelSource& source, bool responses) {
  if (a.document_mask != "auto") return a.document_mask == "true";
  return source.data() ? source.data()->document_mask : responses;
}

int run_perplexity(const PerplexityArguments& a, parallel::World& world) {
  a.model.check("te-generate perplexity");
  if (a.data.empty()) user_error("--data PREFIX is required; see te-generate perplexity --help");
  std::unique_ptr<ModelSource> source;
  world.run_collectively([&] { source = open_model(a.model.checkpoint, a.model.adapters); });
  const Context context = parallel::open_device(world, a.model.run.device);
  config::Config config;
  std::unique_ptr<data::BatchSource> data;
  const bool responses = !a.all_tokens && data::has_loss_mask(a.data);
  world.run_collectively([&] {
    const int64_t longest = longest_sequence(source->model());
    const int64_t seq = a.seq_length > 0 ? a.seq_length : source->model().seq_length;
    if (seq > longest) user_error("--seq-length {}: the model's context is {}", seq, longest);
    config = run_config(*source, a.model.run, context, seq, a.batch, OutputLayerUse::losses);
    const auto make = responses ? data::make_instruction_source : data::make_indexed_source;
    const config::DataConfig trained = source->data().value_or(config::DataConfig{});
    data = make({{1.0, a.data}}, {.seq_length = seq,
                                  .vocab_size = config.model.vocab_size,
                                  .shuffle = false,
                                  .max_samples = a.max_samples,
                                  .eod_mask_loss = !a.all_tokens && trained.eod_mask_loss,
                                  .drop_overlong = trained.overlong == config::Overlong::drop,
                                  .key = "--data"});
    config.data.document_mask = masks_documents(a, *source, responses);
    if (config.data.document_mask) config.data.max_documents = documents_per_sample(*data, a.batch);
    if (world.leader()) check_dataset(a.data, *source, a.any_tokenizer);
  });
  const parallel::Groups groups = connect(world, context, a.model.run);
  const bool shows = world.leader() && ::isatty(STDERR_FILENO) == 1;
  const Perplexity result = evaluate(config, context, groups, world, *source, *data, [&](int64_t samples) {
    if (shows) fmt::print(stderr, "\r{} of {} samples", samples, data->num_samples());
  });
  if (shows) fmt::print(stderr, "\r\033[K");
  if (!world.leader()) return 0;
  if (const std::string note = output_layer_note(*source, config, OutputLayerUse::losses); !note.empty())
    fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}\n{}: {} samples of {} tokens{}{}\n", source->title(), a.data, result.samples,
             config.model.seq_length, responses ? ", loss of responses only (PREFIX_mask)" : "",
             config.data.document_mask ? ", attention within documents" : "");
  fmt::print("tokens      {}\nloss        {:.6f}\nperplexity  {:.4f}\ntokens/s    {:.0f}\n", result.tokens,
             result.loss, result.perplexity(), static_cast<double>(result.tokens) / result.seconds);
  return 0;
}

}  // namespace

apps::Command add_perplexity(CLI::App& app) {
  const auto arguments = std::make_shared<PerplexityArguments>();
  PerplexityArguments& a = *arguments;
  a.command = app.add_subcommand("perplexity", "Print a model's loss and perplexity on a te-data dataset");
  a.model.add_to(a.command);
  a.command->add_option("--data", a.data, "Dataset, without .bin or .idx")->type_name("PREFIX");
  a.command->add_flag("--all-tokens", a.all_tokens,
                      "Of an instruction dataset (PREFIX_mask), count all tokens, not only responses");
  a.command
      ->add_option("--document-mask", a.document_mask,
                   "Whether attention stays within documents (conversations). auto: as in training; if that "
                   "is unknown, "
                   "within conversations")
      ->check(CLI::IsMember({"auto", "true", "false"}))
      ->capture_default_str();
  a.command->add_flag("--any-tokenizer", a.any_tokenizer,
                      "Accept a dataset that was made with another tokenizer (PREFIX.meta.json)");
  a.command->add_option("--max-samples", a.max_samples, "Maximum number of samples to read; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  a.command->add_option("--seq-length", a.seq_length, "Tokens per sample; 0: as in training")
      ->check(whole_number(0))
      ->capture_default_str();
  a.command->add_option("--batch", a.batch, "Samples per pass")
      ->check(whole_number(1))
      ->capture_default_str();
  a.command
      ->add_option("--context-ranks", a.model.run.context,
                   "Context-parallel ranks (parallel.context of te-train)")
      ->check(whole_number(1))
      ->capture_default_str();
  a.command->footer(
      "Samples are consecutive parts of the dataset; each token is predicted once. data.document_mask, "
      "data.overlong "
      "and data.eod_mask_loss of the run apply, as in its validation; "
      "model.moe_expert_capacity_factor does not.\n\n"
      "  te-generate perplexity --checkpoint runs/small/checkpoints --data data/bible_valid");
  return {a.command, [arguments](parallel::World& world) { return run_perplexity(*arguments, world); }};
}

}  // namespace te::generate
