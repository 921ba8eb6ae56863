#include "data/instruct.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/command.h"
#include "data/loss_mask.h"
#include "data/packing.h"
#include "text/chat/chat_template.h"
#include "text/chat/conversation.h"
#include "text/chat/rendered.h"
#include "text/readers/input_files.h"
#include "text/readers/json_records.h"
#include "text/readers/text_format.h"
#include "text/tokenizer.h"

namespace te::data {
namespace {

struct InstructArguments {
  std::vector<std::string> inputs;
  OutputOptions outputs;
  std::string tokenizer, chat_template, format = "auto";
  text::ConversationFields fields;
  int64_t seq_length = 0;
  bool rendered = false, skip_bad_lines = false;
};

/// Writes tokens and their loss mask. The mask is published first, so that a token file never exists without its mask.
class MaskedWriter {
 public:
  MaskedWriter(const std::string& prefix, TokenType type, const TokenizerRecord& tokenizer)
      : prefix_(prefix), tokens_(prefix, type), mask_(loss_mask_prefix(prefix), TokenType::kU8) {
    tokens_.describe(tokenizer);
  }

  void add(const text::ChatTemplate::Encoded& conversation) {
    tokens_.add_document(conversation.tokens);
    mask_.add_document(conversation.mask);
    for (const int32_t value : conversation.mask) in_loss_ += value;
    lengths_.push_back(static_cast<int32_t>(conversation.tokens.size()));
  }
  int64_t conversations() const { return tokens_.num_documents(); }

  void complete() {
    mask_.complete();
    tokens_.complete();
  }

  void publish() {
    mask_.publish();
    tokens_.publish();
  }

  void print_summary(int64_t seq_length) const {
    fmt::print("{}: {} conversations, {} tokens as {}, {} of them ({:.1f}%) in the loss, longest {}\n",
               prefix_, conversations(), tokens_.num_tokens(), token_type_name(tokens_.token_type()),
               in_loss_, 100.0 * static_cast<double>(in_loss_) / static_cast<double>(tokens_.num_tokens()),
               *std::ranges::max_element(lengths_));
    if (seq_length > 0) print_packing(seq_length);
  }

 private:
  /// Prints how the sampler would pack the conversations in the order of the file.
  void print_packing(int64_t seq_length) const {
    std::vector<int32_t> positions;
    int64_t used = 0, truncated = 0;
    for (const int32_t length : lengths_) {
      if (length < 2) continue;  // without a target: the sampler drops it
      positions.push_back(static_cast<int32_t>(std::min<int64_t>(length - 1, seq_length)));
      used += positions.back();
      truncated += length > seq_length + 1 ? 1 : 0;
    }
    const int64_t samples = pack_best_fit(positions, seq_length).num_bins();
    const auto capacity = static_cast<double>(std::max<int64_t>(samples, 1) * seq_length);
    fmt::print("  packed into {} samples of {}: {:.1f}% filled, {} conversations longer than {}\n", samples,
               seq_length, 100.0 * static_cast<double>(used) / capacity, truncated, seq_length + 1);
  }

  std::string prefix_;
  IndexedDatasetWriter tokens_, mask_;
  int64_t in_loss_ = 0;
  std::vector<int32_t> lengths_;
};

void check(const InstructArguments& arguments) {
  arguments.outputs.check();
  const text::ConversationFields& fields = arguments.fields;
  if (fields.prompt.empty() != fields.response.empty()) {
    user_error("--prompt-field and --response-field: give both or neither");
  }
  if (!fields.context.empty() && fields.prompt.empty()) {
    user_error("--context-field needs --prompt-field and --response-field");
  }
  if (!arguments.rendered && arguments.chat_template.empty()) {
    user_error("--template NAME|FILE is required, or --rendered for output of scripts/render_chat.py");
  }
  if (arguments.rendered &&
      !(arguments.chat_template.empty() && fields.prompt.empty() && fields.system.empty())) {
    user_error(
        "--rendered: the conversations are rendered already; remove --template, --system and the field "
        "options");
  }
}

/// Prints a warning if the template names tokens that the tokenizer does not have.
void warn_of_missing_tokens(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer) {
  std::string missing;
  for (const std::string& name : chat_template.token_names()) {
    if (!tokenizer.find_token(name)) missing += (missing.empty() ? "" : ", ") + name;
  }
  if (missing.empty()) return;
  fmt::print(stderr, "te-data: warning: the tokenizer {} has no token {}: it is encoded as text\n",
             tokenizer.name(), missing);
}

text::JsonLayout layout_of(const std::string& path, const std::string& format) {
  const text::TextFormat named = format == "json"    ? text::TextFormat::kJson
                                 : format == "jsonl" ? text::TextFormat::kJsonl
                                                     : text::format_of_name(path);
  if (named == text::TextFormat::kJson) return text::JsonLayout::kList;
  return named == text::TextFormat::kJsonl ? text::JsonLayout::kLines : text::JsonLayout::kByContent;
}

/// Encodes JSON objects as tokens, with a template or as rendered.
class Encoder {
 public:
  Encoder(const InstructArguments& arguments, const text::Tokenizer& tokenizer)
      : arguments_(arguments), tokenizer_(tokenizer) {
    if (arguments.rendered) return;
    template_ = text::ChatTemplate::load(arguments.chat_template);
    warn_of_missing_tokens(*template_, tokenizer);
  }

  text::ChatTemplate::Encoded operator()(const text::JsonRecord& record) {
    if (arguments_.rendered) return text::encode_rendered(record, tokenizer_);
    return template_->encode(text::read_conversation(record, arguments_.fields, &ignored_), tokenizer_,
                             record.place);
  }

  /// Names of unused fields, "a, b"; empty if there are none.
  std::string ignored() const { return fmt::format("{}", fmt::join(ignored_, ", ")); }

 private:
  const InstructArguments& arguments_;
  const text::Tokenizer& tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::set<std::string> ignored_;
};

void instruct(const InstructArguments& arguments) {
  check(arguments);
  const std::unique_ptr<text::Tokenizer> tokenizer = text::make_tokenizer(arguments.tokenizer);
  Encoder encode(arguments, *tokenizer);
  const text::InputFiles files = text::list_input_files(arguments.inputs);
  arguments.outputs.check_no_input(files.paths);
  const TokenType type = token_type_for_vocab(tokenizer->vocab_size());
  const TokenizerRecord tokenizer_record = record_of(*tokenizer);
  MaskedWriter train(arguments.outputs.output, type, tokenizer_record);
  std::optional<MaskedWriter> valid;
  if (arguments.outputs.has_valid()) valid.emplace(arguments.outputs.valid_output, type, tokenizer_record);
  arguments.outputs.check_free();

  int64_t conversations = 0, without_response = 0, cut = 0, bytes = 0;
  BadLines bad;
  std::function<void(const std::string&)> on_bad;
  if (arguments.skip_bad_lines) on_bad = [&](const std::string& message) { bad.add(message); };
  Progress progress(files.bytes);
  for (const std::string& path : files.paths) {
    const auto on_record = [&](const text::JsonRecord& record) {
      bytes += record.bytes;
      progress.show(bytes, [&] { return fmt::format("{} conversations", conversations); });
      const text::ChatTemplate::Encoded encoded = encode(record);
      if (encoded.tokens.empty()) {
        ++without_response;
        return;
      }
      MaskedWriter& writer = arguments.outputs.is_valid_document(conversations) ? *valid : train;
      text::bypass_on_bad([&] { writer.add(encoded); });
      ++conversations;
      cut += encoded.cut ? 1 : 0;
    };
    text::read_json_records(path, layout_of(path, arguments.format), on_record, on_bad);
  }
  if (conversations == 0) {
    user_error("--input: no conversation with a response in {} ({} without{}); give other data",
               file_count(files.paths.size()), without_response,
               bad.count() > 0 ? fmt::format(", {} bad lines", bad.count()) : "");
  }
  arguments.outputs.check_counts(train.conversations(), valid ? valid->conversations() : 0, "conversations");
  if (valid) valid->complete();
  train.complete();
  if (valid) valid->publish();
  train.publish();
  if (valid) valid->print_summary(arguments.seq_length);
  train.print_summary(arguments.seq_length);
  if (const std::string skipped = skipped_count(files); !skipped.empty()) fmt::print("{} skipped\n", skipped);
  if (without_response > 0) fmt::print("{} objects without a response skipped\n", without_response);
  if (cut > 0) fmt::print("{} conversations cut at an empty response\n", cut);
  bad.print_count();
  if (const std::string names = encode.ignored(); !names.empty()) fmt::print("fields not used: {}\n", names);
}

void add_field_options(CLI::App* command, text::ConversationFields& fields) {
  command
      ->add_option("--messages-field", fields.messages,
                   "Field with the list of messages, each with role and content (or from and value)")
      ->capture_default_str();
  command->add_option("--prompt-field", fields.prompt, "Field with the prompt, instead of messages")
      ->type_name("FIELD");
  command->add_option("--response-field", fields.response, "Field with the response to the prompt")
      ->type_name("FIELD");
  command->add_option("--context-field", fields.context, "Field with context for the prompt; may be empty")
      ->type_name("FIELD");
  command->add_option("--system", fields.system, "System message for conversations without one")
      ->type_name("TEXT");
}

}  // namespace

void add_instruct_command(CLI::App& app) {
  auto arguments = std::make_shared<InstructArguments>();
  CLI::App* command = app.add_subcommand(
      "instruct", "Make a dataset for instruction tuning from conversations: tokens and a loss mask");
  command->add_option("--input", arguments->inputs, kInputHelp)->required()->type_name("PATH");
  arguments->outputs.masked = true;
  arguments->outputs.add_to(command);
  command->add_option("--tokenizer", arguments->tokenizer, kTokenizerHelp)->required()->type_name("SPEC");
  command
      ->add_option(
          "--template", arguments->chat_template,
          "Chat template: chatml, llama2, llama3, alpaca, plain, or a file (docs/how-to/chat-templates.md)")
      ->type_name("NAME|FILE");
  command->add_flag(
      "--rendered", arguments->rendered,
      "The input is output of scripts/render_chat.py, which applies a model's own (Jinja) chat template");
  command->add_flag("--skip-bad-lines", arguments->skip_bad_lines,
                    "Skip and count objects that are malformed or not a conversation, instead of stopping");
  add_field_options(command, arguments->fields);
  command
      ->add_option("--format", arguments->format,
                   "jsonl: one object per line; json: a list of objects; auto: by extension (.jsonl, "
                   ".jsonlines, .ndjson, "
                   ".json), else by content")
      ->check(CLI::IsMember({"auto", "jsonl", "json"}))
      ->capture_default_str();
  command
      ->add_option("--seq-length", arguments->seq_length,
                   "Also show how the conversations pack into samples of this length")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->footer(
      "Writes PREFIX.bin and PREFIX.idx, one document per conversation, and PREFIX_mask.bin and\n"
      "PREFIX_mask.idx with 1 for each token of a response and for the token that ends it. te-train packs "
      "the\n"
      "conversations with data.format: instruct.\n\n"
      "  te-data instruct --input chats.jsonl --template chatml --tokenizer qwen/tokenizer.json --output "
      "data/chats\n"
      "  te-data instruct --input dolly.json --prompt-field instruction --context-field input "
      "--response-field "
      "output \\\n    --template alpaca --tokenizer gpt2/tokenizer.json --output data/dolly --seq-length "
      "1024\n"
      "  scripts/render_chat.py --tokenizer Qwen3-8B chats.jsonl | te-data instruct --rendered --input - "
      "--tokenizer Qwen3-8B \\\n    --output data/chats");
  command->callback([arguments] { instruct(*arguments); });
}

}  // namespace te::data
