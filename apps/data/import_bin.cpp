#include "data/import_bin.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "data/command.h"
#include "data/indexed_dataset.h"
#include "data/token_shard.h"
#include "text/tokenizer.h"

namespace te::data {
namespace {

struct ImportArguments {
  std::vector<std::string> inputs;
  OutputOptions outputs;
  std::string tokenizer, eod_position = "last";
  int64_t eod = -1, vocab_size = 0;  // -1, 0: not given
};

/// Properties of the tokens, from the arguments.
struct Vocabulary {
  int64_t size = 0;  // tokens must be below it
  int32_t eod = 0;
  TokenType type = TokenType::kU16;
  std::optional<TokenizerRecord> tokenizer;
};

/// Splits tokens into documents at the end-of-document token and writes these. Documents that have no other token are
/// skipped: llm.c writes the token before each document, so the first shard starts with it.
class Splitter {
 public:
  Splitter(const OutputOptions& outputs, const Vocabulary& vocabulary, bool eod_first)
      : writer_(outputs, vocabulary.type, vocabulary.tokenizer),
        eod_(vocabulary.eod),
        eod_first_(eod_first) {}

  void add(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      const auto found = static_cast<size_t>(std::ranges::find(tokens, eod_) - tokens.begin());
      append(tokens.first(found));
      if (found == tokens.size()) return;
      separate();
      tokens = tokens.subspan(found + 1);
    }
  }

  int64_t documents() const { return writer_.documents(); }
  int64_t separators() const { return separators_; }

  void finish() {
    end_document();
    writer_.finish();
  }

 private:
  void append(std::span<const int32_t> tokens) {
    if (tokens.empty()) return;
    if (!in_document_ && eod_first_ && separators_ > 0) writer_.writer().append({&eod_, 1});
    in_document_ = true;
    writer_.writer().append(tokens);
  }

  void separate() {
    ++separators_;
    if (in_document_ && !eod_first_) writer_.writer().append({&eod_, 1});
    end_document();
  }

  void end_document() {
    if (!in_document_) return;
    writer_.end_document();
    in_document_ = false;
  }

  SplitWriter writer_;
  const int32_t eod_;
  const bool eod_first_;
  bool in_document_ = false;
  int64_t separators_ = 0;
};

/// Opens and checks all shards, before anything is written.
std::vector<std::unique_ptr<TokenShard>> open_all(const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<TokenShard>> shards;
  for (const std::string& path : paths) {
    shards.push_back(std::make_unique<TokenShard>(path));
    if (shards.back()->token_bytes() == shards.front()->token_bytes()) continue;
    user_error("--input: tokens have {1} bytes in {0}, but {3} in {2}; give shards of one tokenizer", path,
               shards.back()->token_bytes(), paths.front(), shards.front()->token_bytes());
  }
  return shards;
}

Vocabulary vocabulary_of(const ImportArguments& arguments, int64_t token_bytes) {
  Vocabulary vocabulary;
  int64_t eod = arguments.eod;
  if (!arguments.tokenizer.empty()) {
    const std::unique_ptr<text::Tokenizer> tokenizer = text::make_tokenizer(arguments.tokenizer);
    vocabulary.tokenizer = record_of(*tokenizer);
    vocabulary.size = tokenizer->vocab_size();
    if (eod < 0) eod = tokenizer->end_of_document();
  } else {
    vocabulary.size = arguments.vocab_size;
  }
  if (eod < 0)
    user_error(
        "--eod: give the id of the token between documents (GPT-2: 50256; Llama 3 in llm.c: 128000), or give "
        "--tokenizer");
  if (vocabulary.size > 0) {
    vocabulary.type = token_type_for_vocab(vocabulary.size);
  } else {
    vocabulary.type = token_bytes == 2 ? TokenType::kU16 : TokenType::kI32;
    vocabulary.size = token_bytes == 2 ? int64_t{1} << 16 : int64_t{1} << 31;
  }
  if (eod >= vocabulary.size)
    user_error("--eod: {} is not in a vocabulary of {} tokens; give a smaller id", eod, vocabulary.size);
  vocabulary.eod = static_cast<int32_t>(eod);
  if (vocabulary.tokenizer) vocabulary.tokenizer->end_of_document = eod;
  return vocabulary;
}

void import_bin(const ImportArguments& arguments) {
  arguments.outputs.check();
  arguments.outputs.check_no_input(arguments.inputs);
  const std::vector<std::unique_ptr<TokenShard>> shards = open_all(arguments.inputs);
  const int64_t token_bytes = shards.front()->token_bytes();
  const Vocabulary vocabulary = vocabulary_of(arguments, token_bytes);
  int64_t total = 0, done = 0;
  for (const auto& shard : shards) total += shard->num_tokens() * token_bytes;
  Splitter splitter(arguments.outputs, vocabulary, arguments.eod_position == "first");
  Progress progress(total);
  for (const auto& shard : shards) {
    shard->read(vocabulary.size, [&](std::span<const int32_t> tokens) {
      splitter.add(tokens);
      done += static_cast<int64_t>(tokens.size()) * token_bytes;
      progress.show(done, [&] { return fmt::format("{} documents", splitter.documents()); });
    });
  }
  if (total == 0) user_error("--input: no tokens in {}; give shards with tokens", file_count(shards.size()));
  if (splitter.separators() == 0)
    fmt::print(stderr,
               "te-data: warning: --eod: no token of {} is {}, so all tokens form one document; give the id "
               "of the token between documents\n",
               file_count(shards.size()), vocabulary.eod);
  splitter.finish();
}

}  // namespace

void add_import_bin_command(CLI::App& app) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = app.add_subcommand(
      "import-bin", "Convert token shards (.bin) of llm.c and modded-nanogpt to a dataset");
  command
      ->add_option("--input", arguments->inputs,
                   "Shards, in order; a document may continue in the next shard. May be repeated")
      ->required()
      ->type_name("FILE");
  arguments->outputs.add_to(command);
  auto* vocab_size =
      command
          ->add_option("--vocab-size", arguments->vocab_size, "Vocabulary size; all tokens must be smaller")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command
      ->add_option(
          "--tokenizer", arguments->tokenizer,
          "Tokenizer of the tokens: its vocabulary size is the limit of tokens, its end-of-document token "
          "the default of --eod, and the dataset records it")
      ->type_name("SPEC")
      ->excludes(vocab_size);
  command
      ->add_option("--eod", arguments->eod,
                   "Id of the token between documents (default: that of the tokenizer)")
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 31) - 1))
      ->type_name("ID");
  command
      ->add_option("--eod-position", arguments->eod_position,
                   "Whether documents get that token as their last or first token")
      ->check(CLI::IsMember({"last", "first"}))
      ->capture_default_str();
  command->footer(
      "Reads magic 20240520, version 1 (uint16 tokens), and magic 20240801, version 7 (uint32 tokens). Files "
      "get\ntheir final names only when complete.\n\n"
      "  te-data import-bin --input fineweb10B/fineweb_train_*.bin --tokenizer gpt2/tokenizer.json --output "
      "data/fineweb\n"
      "  te-data import-bin --input llama3/fineweb_train_*.bin --vocab-size 128256 --eod 128000 "
      "--eod-position first "
      "\\\n    --output data/fineweb_llama3");
  command->callback([arguments] { import_bin(*arguments); });
}

}  // namespace te::data
