// te-data: makes Megatron .bin/.idx datasets out of text, and shows what is in them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/document_reader.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace {

using te::user_error;

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string output, tokenizer, valid_output, format = "auto";
  te::DocumentOptions documents;
  double valid_fraction = 0.0;
};

struct InspectArguments {
  std::string prefix, tokenizer;
  int64_t samples = 0;
  bool scan = false;
};

/// One line on stderr, rewritten twice a second on a terminal, a new one every ten seconds elsewhere.
class Progress {
 public:
  void show(int64_t documents, int64_t tokens, int64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - last_).count() < (terminal_ ? 0.5 : 10.0)) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double megabytes = static_cast<double>(bytes) / 1e6;
    fmt::print(stderr, "{}{} documents, {} tokens, {:.1f} MB read, {:.1f} MB/s{}", terminal_ ? "\r" : "",
               documents, tokens, megabytes, megabytes / seconds, terminal_ ? "  " : "\n");
    shown_ = true;
  }
  ~Progress() {
    if (terminal_ && shown_) fmt::print(stderr, "\n");
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
};

void print_written(const te::IndexedDatasetWriter& writer, const std::string& prefix, te::TokenType type) {
  fmt::print("{}: {} documents, {} tokens, {} bytes as {}\n", prefix, writer.num_documents(),
             writer.num_tokens(), writer.num_tokens() * te::token_size(type), te::token_type_name(type));
}

/// Every 1/fraction-th document: evenly spread, and the same whatever else changes.
bool is_valid_document(int64_t index, double fraction) {
  const auto until = [&](int64_t count) { return std::floor(static_cast<double>(count) * fraction + 0.5); };
  return until(index + 1) > until(index);
}

void check_tokenize_arguments(const TokenizeArguments& arguments) {
  const bool split = arguments.valid_fraction != 0.0;
  if (split && !(arguments.valid_fraction > 0.0 && arguments.valid_fraction < 1.0)) {
    user_error("--valid-fraction: {} must be above 0 and below 1", arguments.valid_fraction);
  }
  if (split == arguments.valid_output.empty()) {
    user_error("--valid-fraction and --valid-output: give both or neither");
  }
  if (arguments.valid_output == arguments.output) {
    user_error("--valid-output: is the same as --output; give the validation set its own prefix");
  }
}

int tokenize(const TokenizeArguments& arguments) {
  check_tokenize_arguments(arguments);
  const std::unique_ptr<te::Tokenizer> tokenizer = te::make_tokenizer(arguments.tokenizer);
  std::vector<std::string> files;
  int64_t skipped = 0;
  for (const std::string& input : arguments.inputs) {
    for (std::string& file : te::list_input_files(input, &skipped)) files.push_back(std::move(file));
  }
  const te::TokenType type = te::token_type_for_vocab(tokenizer->vocab_size());
  te::IndexedDatasetWriter train(arguments.output, type);
  std::optional<te::IndexedDatasetWriter> valid;
  if (!arguments.valid_output.empty()) valid.emplace(arguments.valid_output, type);

  std::vector<int32_t> tokens;
  int64_t documents = 0, total_tokens = 0, bytes = 0, text_bytes = 0;
  Progress progress;
  for (const std::string& file : files) {
    te::read_documents(file, arguments.documents, [&](std::string_view text, int64_t read_bytes) {
      tokens.clear();
      tokenizer->encode(text, tokens);
      tokens.push_back(tokenizer->end_of_document());
      const bool to_valid = valid && is_valid_document(documents, arguments.valid_fraction);
      (to_valid ? *valid : train).add_document(tokens);
      ++documents;
      total_tokens += static_cast<int64_t>(tokens.size());
      text_bytes += static_cast<int64_t>(text.size());
      bytes += read_bytes;
      progress.show(documents, total_tokens, bytes);
    });
  }
  if (documents == 0) user_error("--input: {} files hold no document; give a file with text", files.size());
  if (valid && (valid->num_documents() == 0 || train.num_documents() == 0)) {
    user_error(
        "--valid-fraction: {} of {} documents leaves the {} set empty; split the text into more documents "
        "with --document-separator, or change the fraction",
        arguments.valid_fraction, documents, valid->num_documents() == 0 ? "validation" : "training");
  }
  if (valid) valid->finish();
  train.finish();
  print_written(train, arguments.output, type);
  if (valid) print_written(*valid, arguments.valid_output, type);
  fmt::print("{} files{}, {:.2f} bytes of text per token, {:.1f} s\n", files.size(),
             skipped > 0 ? fmt::format(" ({} binary files skipped)", skipped) : "",
             static_cast<double>(text_bytes) / static_cast<double>(total_tokens), progress.seconds());
  return 0;
}

/// Documents by length, in powers of two: one row per power between the shortest and the longest.
void print_histogram(const std::vector<int64_t>& sorted_lengths) {
  std::vector<int64_t> counts(65, 0);
  for (int64_t length : sorted_lengths) ++counts[std::bit_width(static_cast<uint64_t>(length))];
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  const int first = std::bit_width(static_cast<uint64_t>(sorted_lengths.front()));
  const int last = std::bit_width(static_cast<uint64_t>(sorted_lengths.back()));
  for (int power = first; power <= last; ++power) {
    const int64_t low = power == 0 ? 0 : int64_t{1} << (power - 1);
    const auto bar = static_cast<size_t>((counts[power] * 40 + most - 1) / most);
    const std::string row = fmt::format("  >= {:>12} {:>12}  {}", low, counts[power], std::string(bar, '#'));
    fmt::print("{}\n", row.substr(0, row.find_last_not_of(' ') + 1));
  }
}

std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  return line;
}

/// Beginnings of `count` documents, evenly spread: as text with a tokenizer, else as token ids.
void print_samples(const te::IndexedDataset& dataset, const te::Tokenizer* tokenizer, int64_t count) {
  const int64_t documents = dataset.num_documents();
  count = std::min(count, documents);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t document = i * documents / count;
    const int64_t length = dataset.document_length(document);
    std::vector<int32_t> tokens(
        static_cast<size_t>(std::min<int64_t>(length, tokenizer != nullptr ? 160 : 24)));
    dataset.read(dataset.document_begin(document), static_cast<int64_t>(tokens.size()), tokens.data(),
                 tokenizer != nullptr ? tokenizer->vocab_size() : 0);
    std::string text;
    if (tokenizer != nullptr) {
      text = one_line(tokenizer->decode(tokens));
    } else {
      for (int32_t token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
    }
    fmt::print("document {} ({} tokens): {}{}\n", document, length, text,
               length > static_cast<int64_t>(tokens.size()) ? " ..." : "");
  }
}

void print_scan(const te::IndexedDataset& dataset, int64_t vocab_size) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<int32_t> tokens(kChunk);
  std::vector<bool> seen;
  int32_t largest = 0;
  Progress progress;
  for (int64_t begin = 0; begin < dataset.num_tokens(); begin += kChunk) {
    const int64_t count = std::min(kChunk, dataset.num_tokens() - begin);
    dataset.read(begin, count, tokens.data(), vocab_size);
    for (int64_t i = 0; i < count; ++i) {
      const auto token = static_cast<size_t>(tokens[static_cast<size_t>(i)]);
      if (token >= seen.size()) seen.resize(token + 1);
      seen[token] = true;
    }
    largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + count));
    progress.show(0, begin + count, (begin + count) * te::token_size(dataset.token_type()));
  }
  fmt::print("largest token {}, {} distinct tokens\n", largest, std::count(seen.begin(), seen.end(), true));
}

int inspect(const InspectArguments& arguments) {
  std::unique_ptr<te::Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer = te::make_tokenizer(arguments.tokenizer);
  const te::IndexedDataset dataset(arguments.prefix);
  const int64_t documents = dataset.num_documents();
  fmt::print("{}: {} documents, {} sequences, {} tokens, {} bytes as {}\n", arguments.prefix, documents,
             dataset.num_sequences(), dataset.num_tokens(),
             dataset.num_tokens() * te::token_size(dataset.token_type()),
             te::token_type_name(dataset.token_type()));
  if (documents == 0) return 0;
  std::vector<int64_t> lengths(static_cast<size_t>(documents));
  for (int64_t i = 0; i < documents; ++i) lengths[static_cast<size_t>(i)] = dataset.document_length(i);
  std::sort(lengths.begin(), lengths.end());
  fmt::print("tokens per document: min {}, median {}, mean {:.1f}, max {}\n", lengths.front(),
             lengths[lengths.size() / 2],
             static_cast<double>(dataset.num_tokens()) / static_cast<double>(documents), lengths.back());
  print_histogram(lengths);
  if (arguments.scan) print_scan(dataset, tokenizer ? tokenizer->vocab_size() : 0);
  print_samples(dataset, tokenizer.get(), arguments.samples);
  return 0;
}

void add_tokenize(CLI::App& app, TokenizeArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Turn text and JSONL files into PREFIX.bin and PREFIX.idx");
  command
      ->add_option(
          "--input", arguments.inputs,
          "A file, a folder (all text files below it), or - for standard input; may be given several times")
      ->required();
  command->add_option("--output", arguments.output, "Prefix of the dataset: writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--tokenizer", arguments.tokenizer, "bytes: one token per byte, vocab_size 257")
      ->required();
  command->add_option("--format", arguments.format, "auto: .jsonl and .ndjson are JSONL, all else is text")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  command
      ->add_option("--jsonl-field", arguments.documents.jsonl_field,
                   "Field of a JSONL line that holds the text")
      ->capture_default_str();
  command
      ->add_option(
          "--document-separator", arguments.documents.separator,
          "Line that separates the documents of a text file, such as \"<|endoftext|>\"; without it every "
          "file is one document")
      ->type_name("LINE");
  command->add_option("--valid-fraction", arguments.valid_fraction,
                      "Put this share of the documents, evenly spread, into the dataset of --valid-output");
  command->add_option("--valid-output", arguments.valid_output, "Prefix of the validation set")
      ->type_name("PREFIX");
  command->footer(
      "Every document ends with the tokenizer's end-of-document token. Files appear under their final\n"
      "name only when complete.\n\n"
      "  te-data tokenize --input books.txt --document-separator '<|endoftext|>' --output data/books "
      "--tokenizer bytes\n"
      "  zcat web.jsonl.gz | te-data tokenize --input - --format jsonl --output data/web --tokenizer bytes");
}

void add_inspect(CLI::App& app, InspectArguments& arguments) {
  CLI::App* command = app.add_subcommand("inspect", "Show counts, document lengths and samples of a dataset");
  command->add_option("prefix", arguments.prefix, "Dataset to show, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--tokenizer", arguments.tokenizer,
                      "Decode the samples with it, and check tokens against it");
  command->add_option("--samples", arguments.samples, "Show the beginnings of that many documents")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--scan", arguments.scan,
                    "Read every token: the largest and the number of distinct ones");
}

int body(int argc, char** argv) {
  CLI::App app("te-data: datasets for te-train (Megatron's .bin/.idx format)", "te-data");
  app.require_subcommand(1);
  TokenizeArguments tokenize_arguments;
  InspectArguments inspect_arguments;
  add_tokenize(app, tokenize_arguments);
  add_inspect(app, inspect_arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    user_error("{}; see te-data --help", message);
  }
  if (app.got_subcommand("inspect")) return inspect(inspect_arguments);
  tokenize_arguments.documents.format = tokenize_arguments.format == "jsonl"  ? te::TextFormat::kJsonl
                                        : tokenize_arguments.format == "text" ? te::TextFormat::kText
                                                                              : te::TextFormat::kAuto;
  return tokenize(tokenize_arguments);
}

}  // namespace

int main(int argc, char** argv) {
  return te::run_main("te-data", body, argc, argv);
}
