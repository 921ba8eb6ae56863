#include "data/inspect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/printable.h"
#include "data/command.h"
#include "data/dataset_check.h"
#include "data/indexed_dataset.h"
#include "data/loss_mask.h"
#include "text/tokenizer.h"

namespace te::data {
namespace {

struct InspectArguments {
  std::string prefix, tokenizer;
  int64_t samples = 0;
  bool scan = false;
};

/// Prints the number of documents by length: one row per power of two between the shortest and the longest.
void print_histogram(const std::vector<int64_t>& sorted_lengths) {
  std::vector<int64_t> counts(65, 0);
  for (int64_t length : sorted_lengths) ++counts[std::bit_width(static_cast<uint64_t>(length))];
  const int64_t largest = *std::ranges::max_element(counts);
  const int first = std::bit_width(static_cast<uint64_t>(sorted_lengths.front()));
  const int last = std::bit_width(static_cast<uint64_t>(sorted_lengths.back()));
  for (int power = first; power <= last; ++power) {
    const int64_t low = power == 0 ? 0 : int64_t{1} << (power - 1);
    const auto bar = static_cast<size_t>((counts[power] * 40 + largest - 1) / largest);
    const std::string row = fmt::format("  >= {:>12} {:>12}  {}", low, counts[power], std::string(bar, '#'));
    fmt::print("{}\n", row.substr(0, row.find_last_not_of(' ') + 1));
  }
}

std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    line += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  }
  return printable(line);
}

/// The text of tokens; with a mask, tokens in the loss are enclosed in [[ ]].
std::string marked_text(const text::Tokenizer& tokenizer, std::span<const int32_t> tokens,
                        const std::vector<int32_t>& mask) {
  std::string text;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = mask.empty() ? tokens.size() : begin;
    while (end < tokens.size() && mask[end] == mask[begin]) ++end;
    const std::string run = tokenizer.decode(tokens.subspan(begin, end - begin));
    text += !mask.empty() && mask[begin] != 0 ? "[[" + run + "]]" : run;
    begin = end;
  }
  return text;
}

/// Prints the first tokens of `count` evenly spaced documents, as text with a tokenizer, else as token ids.
void print_samples(const IndexedDataset& dataset, const text::Tokenizer* tokenizer, int64_t count) {
  const int64_t documents = dataset.num_documents();
  count = std::min(count, documents);
  const bool masked = count > 0 && has_loss_mask(dataset.prefix());
  const auto mask = masked ? std::make_unique<LossMask>(dataset) : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t document = i * documents / count;
    const int64_t length = dataset.document_length(document);
    const int64_t length_shown = std::min<int64_t>(length, tokenizer == nullptr ? 24 : mask ? 600 : 160);
    std::vector<int32_t> tokens(static_cast<size_t>(length_shown));
    dataset.read(dataset.document_begin(document), length_shown, tokens.data(),
                 tokenizer != nullptr ? tokenizer->vocab_size() : 0);
    std::string text;
    if (tokenizer != nullptr) {
      std::vector<int32_t> in_loss(mask ? tokens.size() : 0);
      if (mask) mask->read(dataset.document_begin(document), length_shown, in_loss.data());
      text = one_line(marked_text(*tokenizer, tokens, in_loss));
    } else {
      text = fmt::format("{}", fmt::join(tokens, " "));
    }
    fmt::print("document {} ({} tokens): {}{}\n", document, length, text,
               length > static_cast<int64_t>(tokens.size()) ? " ..." : "");
  }
}

void print_scan(const IndexedDataset& dataset, int64_t vocab_size) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<int32_t> tokens(kChunk);
  std::vector<bool> seen;
  int32_t largest = 0;
  Progress progress(dataset.num_tokens() * token_size(dataset.token_type()));
  for (int64_t begin = 0; begin < dataset.num_tokens(); begin += kChunk) {
    const int64_t count = std::min(kChunk, dataset.num_tokens() - begin);
    dataset.read(begin, count, tokens.data(), vocab_size);
    for (int64_t i = 0; i < count; ++i) {
      const auto token = static_cast<size_t>(tokens[static_cast<size_t>(i)]);
      if (token >= seen.size()) seen.resize(token + 1);
      seen[token] = true;
    }
    largest = std::max(largest, *std::max_element(tokens.begin(), tokens.begin() + count));
    progress.show((begin + count) * token_size(dataset.token_type()),
                  [&] { return fmt::format("{} tokens", begin + count); });
  }
  fmt::print("largest token {}, {} distinct tokens\n", largest, std::ranges::count(seen, true));
}

void inspect(const InspectArguments& arguments) {
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer = text::make_tokenizer(arguments.tokenizer);
  const IndexedDataset dataset(arguments.prefix);
  const int64_t documents = dataset.num_documents();
  fmt::print("{}: {} documents, {} sequences, {} tokens, {} bytes as {}\n", arguments.prefix, documents,
             dataset.num_sequences(), dataset.num_tokens(),
             dataset.num_tokens() * token_size(dataset.token_type()), token_type_name(dataset.token_type()));
  if (const std::optional<DatasetRecord> record = matching_record(dataset)) {
    const TokenizerRecord& made_by = record->tokenizer;
    fmt::print("made with the tokenizer {} ({} tokens, {}), largest token {}\n", printable(made_by.name),
               made_by.vocab_size, made_by.hash, record->largest_token);
  }
  if (documents == 0) return;
  std::vector<int64_t> lengths(static_cast<size_t>(documents));
  for (int64_t i = 0; i < documents; ++i) lengths[static_cast<size_t>(i)] = dataset.document_length(i);
  std::ranges::sort(lengths);
  fmt::print("tokens per document: min {}, median {}, mean {:.1f}, max {}\n", lengths.front(),
             lengths[lengths.size() / 2],
             static_cast<double>(dataset.num_tokens()) / static_cast<double>(documents), lengths.back());
  print_histogram(lengths);
  if (has_loss_mask(arguments.prefix)) {
    const int64_t counted = LossMask(dataset).count();
    fmt::print("loss mask: {} of {} tokens ({:.1f}%) are in the loss\n", counted, dataset.num_tokens(),
               100.0 * static_cast<double>(counted) / static_cast<double>(dataset.num_tokens()));
  }
  if (arguments.scan) print_scan(dataset, tokenizer ? tokenizer->vocab_size() : 0);
  print_samples(dataset, tokenizer.get(), arguments.samples);
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Show counts, document lengths and samples of a dataset");
  command->add_option("prefix", arguments->prefix, "Dataset to show, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--tokenizer", arguments->tokenizer,
                      "Tokenizer for decoding the samples and checking token ids");
  command
      ->add_option("--samples", arguments->samples,
                   "Show the first tokens of this many documents; with a loss mask and a tokenizer, tokens "
                   "in the loss "
                   "are enclosed in [[...]]")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--scan", arguments->scan,
                    "Read all tokens and show the largest id and the number of distinct ids");
  command->footer("  te-data inspect data/books --tokenizer bytes --samples 3 --scan");
  command->callback([arguments] { inspect(*arguments); });
}

}  // namespace te::data
