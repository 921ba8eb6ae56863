#include "data/tokenize.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "data/command.h"
#include "text/readers/document_reader.h"
#include "text/readers/input_files.h"
#include "text/tokenizer.h"
#include "text/tokenizers/parallel_encoder.h"

namespace te::data {
namespace {

struct TokenizeArguments {
  std::vector<std::string> inputs;
  OutputOptions outputs;
  std::string tokenizer;
  text::DocumentOptions documents;
  std::string format = "auto", split_by, special = "match";  // as given
  bool append_eod = true, skip_bad_lines = false;
  int threads = 0;
};

/// Converts the command line to options of the document reader.
text::DocumentOptions document_options(const TokenizeArguments& arguments) {
  static const std::map<std::string, text::TextFormat> kFormats = {{"auto", text::TextFormat::kAuto},
                                                                   {"text", text::TextFormat::kText},
                                                                   {"jsonl", text::TextFormat::kJsonl},
                                                                   {"json", text::TextFormat::kJson}};
  static const std::map<std::string, text::DocumentBoundary> kBoundaries = {
      {"", text::DocumentBoundary::kFile},
      {"file", text::DocumentBoundary::kFile},
      {"line", text::DocumentBoundary::kLine},
      {"blank-line", text::DocumentBoundary::kBlankLine}};
  text::DocumentOptions options = arguments.documents;
  options.format = kFormats.at(arguments.format);
  options.boundary = kBoundaries.at(arguments.split_by);
  if (options.separator.empty()) return options;
  if (!arguments.split_by.empty()) user_error("--split-by and --document-separator: use one of them");
  options.boundary = text::DocumentBoundary::kSeparator;
  return options;
}

void tokenize(const TokenizeArguments& arguments) {
  arguments.outputs.check();
  const text::DocumentOptions options = document_options(arguments);
  const std::unique_ptr<text::Tokenizer> tokenizer = text::make_tokenizer(arguments.tokenizer);
  const text::InputFiles files = text::list_input_files(arguments.inputs);
  arguments.outputs.check_no_input(files.paths);
  TokenizerRecord record = record_of(*tokenizer);
  if (!arguments.append_eod) record.end_of_document.reset();
  SplitWriter outputs(arguments.outputs, token_type_for_vocab(tokenizer->vocab_size()), record);
  const int32_t end_of_document = tokenizer->end_of_document();
  const auto write = [&](std::span<const int32_t> tokens, int64_t last) {
    outputs.writer().append(tokens);
    if (last == 0) return;
    if (arguments.append_eod) outputs.writer().append({&end_of_document, 1});
    outputs.end_document();
  };
  int64_t read_bytes = 0, text_bytes = 0, boundaries = 0;
  size_t text_files = 0;
  const text::SpecialTokens special =
      arguments.special == "match" ? text::SpecialTokens::kMatch : text::SpecialTokens::kAsText;
  BadLines bad;
  std::function<void(const std::string&)> on_bad;
  if (arguments.skip_bad_lines) on_bad = [&](const std::string& message) { bad.add(message); };
  FormatGuesses guesses;
  const auto on_guess = [&](const std::string& message) { guesses.add(message); };
  Progress progress(files.bytes);
  text::ParallelEncoder encoder(*tokenizer, {.threads = arguments.threads, .special = special}, write);
  for (const std::string& path : files.paths) {
    const auto on_chunk = [&](const text::DocumentChunk& chunk) {
      encoder.add(chunk.text, chunk.last ? 1 : 0);
      text_bytes += static_cast<int64_t>(chunk.text.size());
      read_bytes += chunk.bytes;
      progress.show(read_bytes, [&] {
        return fmt::format("{} documents, {} tokens", outputs.documents(), outputs.tokens());
      });
    };
    const std::optional<int64_t> found = text::read_documents(path, options, on_chunk, on_bad, on_guess);
    boundaries += found.value_or(0);
    text_files += found ? 1 : 0;
  }
  encoder.finish();
  check_interrupted();
  if (outputs.documents() == 0) {
    user_error("--input: no document in {}{}; give a file with text", file_count(files.paths.size()),
               bad.count() > 0 ? fmt::format(" ({} bad lines)", bad.count()) : "");
  }
  if (!options.separator.empty() && text_files > 0 && boundaries == 0) {
    fmt::print(stderr,
               "te-data: warning: --document-separator: no line of {} is `{}`, so every text file is "
               "one document; correct the separator if files have several documents\n",
               file_count(text_files), options.separator);
  }
  outputs.finish();
  const double seconds = progress.seconds();
  const std::string skipped = skipped_count(files);
  fmt::print("{}{}, {:.2f} bytes of text per token, {:.1f} s, {:.1f} MB of text/s\n",
             file_count(files.paths.size()), skipped.empty() ? "" : " (" + skipped + " skipped)",
             static_cast<double>(text_bytes) / static_cast<double>(outputs.tokens()), seconds,
             static_cast<double>(text_bytes) / 1e6 / seconds);
  bad.print_count();
}

void add_text_options(CLI::App* command, TokenizeArguments& arguments) {
  command
      ->add_option("--format", arguments.format,
                   "auto: .jsonl, .jsonlines and .ndjson are JSON lines, .json is a list of JSON objects, "
                   ".txt, .text and .md are text (a further .gz, .zst or .xz is ignored); other files are "
                   "detected by content, with a warning if read as JSON")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "json"}))
      ->capture_default_str();
  command
      ->add_option("--jsonl-field,--json-field", arguments.documents.json_field,
                   "Field of a JSON object with the text; a.b is field b of the object in field a")
      ->capture_default_str();
  command->add_flag("--skip-bad-lines", arguments.skip_bad_lines,
                    "Skip and count JSON objects that are malformed or lack the field, instead of stopping");
  command
      ->add_option("--document-separator", arguments.documents.separator,
                   "Line that separates documents in a text file, for example \"<|endoftext|>\"; without it "
                   "and --split-by every file is one document")
      ->check([](const std::string& line) {
        return line.empty() ? "must not be empty; --split-by blank-line splits at blank lines" : "";
      })
      ->type_name("LINE");
  command
      ->add_option(
          "--split-by", arguments.split_by,
          "Where documents of a text file end: at the end of the file, at every line, or at blank lines")
      ->check(CLI::IsMember({"file", "line", "blank-line"}));
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Tokenize text and JSON files into PREFIX.bin and PREFIX.idx");
  command->add_option("--input", arguments->inputs, kInputHelp)->required()->type_name("PATH");
  arguments->outputs.add_to(command);
  command->add_option("--tokenizer", arguments->tokenizer, kTokenizerHelp)->required()->type_name("SPEC");
  add_text_options(command, *arguments);
  command
      ->add_option("--special-tokens", arguments->special,
                   "Special tokens that occur as text, such as <|endoftext|>: "
                   "match: encode them as the token, text: encode them as ordinary text")
      ->check(CLI::IsMember({"match", "text"}))
      ->capture_default_str();
  command
      ->add_option("--append-eod", arguments->append_eod,
                   "Append the tokenizer's end-of-document token to every document")
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "Encoding threads; 0: all processors")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer(
      "Files get their final name only when they are complete.\n\n"
      "  te-data tokenize --input books.txt.xz --document-separator '<|endoftext|>' --output data/books "
      "--tokenizer bytes\n"
      "  te-data tokenize --input dump/ --jsonl-field article.body --output data/web --tokenizer "
      "llama3/tokenizer.json\n"
      "  curl -s https://example.org/web.jsonl.gz | te-data tokenize --input - --format jsonl --output "
      "data/web --tokenizer bytes");
  command->callback([arguments] { tokenize(*arguments); });
}

}  // namespace te::data
