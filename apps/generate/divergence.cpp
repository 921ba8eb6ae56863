// te-generate divergence: compares a model's logits with a reference, for example an FP8 export with its BF16 original.
#include "generate/divergence.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/file.h"
#include "generate/command.h"
#include "generate/generator.h"

namespace te::generate {
namespace {

struct DivergenceArguments {
  CLI::App* command = nullptr;
  ModelOptions model;
  TokenizerOptions tokenizer;
  std::string reference, reference_dtype = "auto", text;
  int64_t max_tokens = 4096, seq_length = 0;

  std::vector<int32_t> read_tokens(const text::Tokenizer& by, const ModelSource& source) const;
};

std::vector<int32_t> DivergenceArguments::read_tokens(const text::Tokenizer& by,
                                                      const ModelSource& source) const {
  constexpr uint64_t kMaxBytes = 1 << 30;
  const FileText file = read_file(text, kMaxBytes, FileKind::input);
  if (!file) user_error("--text {}: cannot be read: {}", text, file.error);
  const std::string& content = file.text;
  if (content.empty()) user_error("--text {}: is empty", text);
  std::vector<int32_t> tokens;
  if (tokenizer.begins(by)) tokens.push_back(*by.begin_of_document());
  by.encode(content, tokens);
  if (max_tokens > 0 && static_cast<int64_t>(tokens.size()) > max_tokens)
    tokens.resize(static_cast<size_t>(max_tokens));
  if (tokens.empty()) user_error("--text {}: has no tokens with tokenizer {}", text, by.name());
  for (const int32_t token : tokens)
    if (token >= source.model().vocab_size)
      user_error(
          "--text {}: token {} is beyond the model's vocabulary of {}; --tokenizer must name that of the "
          "model",
          text, token, source.model().vocab_size);
  return tokens;
}

int run_divergence(const DivergenceArguments& a, parallel::World& world) {
  a.model.check("te-generate divergence");
  if (a.reference.empty()) user_error("--reference PATH is required; see te-generate divergence --help");
  if (a.text.empty()) user_error("--text FILE is required; see te-generate divergence --help");
  std::unique_ptr<ModelSource> source, reference_source;
  std::vector<int32_t> tokens;
  int64_t length = 0;
  world.run_collectively([&] {
    source = open_model(a.model.checkpoint, a.model.adapters);
    reference_source = open_model(a.reference);
    if (source->model().vocab_size != reference_source->model().vocab_size)
      user_error("--reference: {} has a vocabulary of {}, {} of {}; they must be equal",
                 reference_source->title(), reference_source->model().vocab_size, source->title(),
                 source->model().vocab_size);
    tokens =
        a.read_tokens(*a.tokenizer.open(source->tokenizer().empty() ? *reference_source : *source), *source);
    const int64_t longest =
        std::min(longest_sequence(source->model()), longest_sequence(reference_source->model()));
    length = a.seq_length > 0 ? a.seq_length : std::min<int64_t>(longest, 1024);
    if (length > longest) user_error("--seq-length {}: the models' context is {}", length, longest);
  });
  RunOptions plain = a.model.run;
  plain.dtype = a.reference_dtype;
  plain.fp8 = "off";
  const ModelSource& by = *reference_source;
  LoadedModel reference(world, by, plain, length, 1), model(world, *source, a.model.run, length, 1);
  const bool shows = world.leader() && ::isatty(STDERR_FILENO) == 1;
  const Divergence result = compare(reference, model, tokens, length, [&](int64_t done) {
    if (shows) fmt::print(stderr, "\r{} of {} tokens", done, tokens.size());
  });
  if (shows) fmt::print(stderr, "\r\033[K");
  if (world.leader())
    fmt::print(
        "{}\nagainst {}\ntokens           {}\nmean KL          {:.6e}\nlargest KL       {:.6e}\n"
        "top-1 agreement  {:.4f}%\nlargest logit difference {:.6e}\n",
        source->title(), reference_source->title(), result.tokens, result.mean_kl, result.largest_kl,
        100.0 * result.top1_agreement(), result.largest_difference);
  return 0;
}

}  // namespace

apps::Command add_divergence(CLI::App& app) {
  const auto arguments = std::make_shared<DivergenceArguments>();
  DivergenceArguments& a = *arguments;
  a.command = app.add_subcommand(
      "divergence",
      "Compare a model's logits with a reference model's on a text: KL divergence, top-1 agreement");
  a.model.add_to(a.command);
  a.tokenizer.add_to(a.command);
  a.command->add_option("--reference", a.reference, "Reference model")->type_name("PATH");
  a.command
      ->add_option("--reference-dtype", a.reference_dtype,
                   "Precision of the reference, as --dtype; it never runs in FP8")
      ->check(CLI::IsMember({"auto", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  a.command->add_option("--text", a.text, "File with the text")->type_name("FILE");
  a.command->add_option("--max-tokens", a.max_tokens, "Maximum number of tokens to read; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  a.command
      ->add_option("--seq-length", a.seq_length, "Tokens per sequence; 0: the model's context, at most 1024")
      ->check(whole_number(0))
      ->capture_default_str();
  a.command->footer("  te-generate divergence --checkpoint tuned_fp8/ --reference tuned/ --text sample.txt");
  return {a.command, [arguments](parallel::World& world) { return run_divergence(*arguments, world); }};
}

}  // namespace te::generate
