#include "data/verify.h"

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "data/command.h"
#include "data/dataset_record.h"
#include "data/indexed_dataset.h"
#include "data/loss_mask.h"
#include "text/tokenizer.h"

namespace te::data {
namespace {

struct VerifyArguments {
  std::vector<std::string> prefixes;
  std::string tokenizer;
  int64_t vocab_size = 0;
};

uint32_t crc32_of(const std::string& path) {
  constexpr size_t kChunk = size_t{4} << 20;
  const MappedFile file(path);
  uLong crc = crc32(0L, nullptr, 0);
  for (std::span<const uint8_t> rest = file.bytes(); !rest.empty();) {
    const std::span<const uint8_t> chunk = rest.first(std::min(kChunk, rest.size()));
    crc = crc32(crc, chunk.data(), static_cast<uInt>(chunk.size()));
    rest = rest.subspan(chunk.size());
    check_interrupted();
  }
  return static_cast<uint32_t>(crc);
}

/// Reads all tokens of all documents; read() throws UserError for invalid tokens.
void read_all(const IndexedDataset& dataset, int64_t vocab_size, int64_t* largest, int64_t* empty) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<int32_t> tokens(kChunk);
  const int64_t size = token_size(dataset.token_type());
  Progress progress(dataset.num_tokens() * size);
  for (int64_t document = 0; document < dataset.num_documents(); ++document) {
    const int64_t end = dataset.document_begin(document + 1);
    int64_t begin = dataset.document_begin(document);
    *empty += begin == end ? 1 : 0;
    while (begin < end) {
      const int64_t count = std::min(kChunk, end - begin);
      dataset.read(begin, count, tokens.data(), vocab_size);
      *largest = std::max<int64_t>(*largest, *std::max_element(tokens.begin(), tokens.begin() + count));
      begin += count;
    }
    progress.show(begin * size, [&] { return fmt::format("{} documents", document + 1); });
  }
}

void verify_one(const std::string& prefix, int64_t vocab_size) {
  const IndexedDataset dataset(prefix);
  dataset.check_all();
  int64_t largest = -1, empty = 0;
  read_all(dataset, vocab_size, &largest, &empty);
  if (const std::optional<DatasetRecord> record = read_dataset_record(prefix);
      record && (record->documents != dataset.num_documents() || record->tokens != dataset.num_tokens() ||
                 record->largest_token != largest)) {
    user_error(
        "{}: does not match {}: it records {} documents, {} tokens, largest token {}, but the dataset has "
        "{}, {} and {}; remove it",
        dataset_record_path(prefix), prefix, record->documents, record->tokens, record->largest_token,
        dataset.num_documents(), dataset.num_tokens(), largest);
  }
  const bool masked = has_loss_mask(prefix);
  const int64_t in_loss =
      masked ? LossMask(dataset).count() : 0;  // checks the mask before anything is printed
  fmt::print("{}: ok, {} documents{}, {} tokens as {}, largest token {}, crc32 bin {:08x} idx {:08x}\n",
             prefix, dataset.num_documents(), empty > 0 ? fmt::format(" ({} empty)", empty) : "",
             dataset.num_tokens(), token_type_name(dataset.token_type()), largest, crc32_of(prefix + ".bin"),
             crc32_of(prefix + ".idx"));
  if (!masked) return;
  fmt::print("{}: ok, {} of {} tokens in the loss, crc32 bin {:08x} idx {:08x}\n", loss_mask_prefix(prefix),
             in_loss, dataset.num_tokens(), crc32_of(loss_mask_prefix(prefix) + ".bin"),
             crc32_of(loss_mask_prefix(prefix) + ".idx"));
}

void verify(const VerifyArguments& arguments) {
  int64_t vocab_size = arguments.vocab_size;
  if (!arguments.tokenizer.empty()) vocab_size = text::make_tokenizer(arguments.tokenizer)->vocab_size();
  for (const std::string& prefix : arguments.prefixes) verify_one(prefix, vocab_size);
}

}  // namespace

void add_verify_command(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand("verify", "Read and check datasets completely");
  command->add_option("prefixes", arguments->prefixes, "Datasets to check, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  auto* vocab_size =
      command->add_option("--vocab-size", arguments->vocab_size, "All token ids must be below this number")
          ->check(CLI::PositiveNumber);
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "All token ids must be below this tokenizer's vocab_size")
      ->excludes(vocab_size);
  command->footer(
      "Prints counts and checksums (CRC-32 of both files, as in zlib, gzip and cksum -a crc32b). Stops with\n"
      "exit code 2 at the first problem.\n\n"
      "  te-data verify data/books_train data/books_valid --vocab-size 50257");
  command->callback([arguments] { verify(*arguments); });
}

}  // namespace te::data
