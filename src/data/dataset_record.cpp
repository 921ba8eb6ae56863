#include "data/dataset_record.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace te::data {
namespace {

constexpr const char* kFormat = "te-train dataset 1";

}  // namespace

std::string dataset_record_path(const std::string& prefix) {
  return prefix + ".meta.json";
}

std::optional<DatasetRecord> read_dataset_record(const std::string& prefix) {
  const std::string path = dataset_record_path(prefix);
  const auto refuse = [&](const std::string& what) {
    user_error("{}: {}; remove the file to use the dataset without its record", path, what);
  };
  // A record has a few hundred bytes; a pipe or a huge file of that name is refused.
  constexpr uint64_t kLongest = 1 << 20;
  const FileText file = read_file(path, kLongest);
  if (file.missing) return {};
  if (!file) refuse("is not a dataset record: " + file.error);
  DatasetRecord record;
  try {
    const auto json = parse_json(file.text);
    if (json.at("format") != kFormat) refuse("its format is not `" + std::string(kFormat) + "`");
    const auto& tokenizer = json.at("tokenizer");
    const auto& end = tokenizer.at("end_of_document");
    record = {
        .tokenizer = {.name = tokenizer.at("name").get<std::string>(),
                      .hash = tokenizer.at("hash").get<std::string>(),
                      .vocab_size = tokenizer.at("vocab_size").get<int64_t>(),
                      .end_of_document = end.is_null() ? std::nullopt : std::optional(end.get<int64_t>())},
        .documents = json.at("documents").get<int64_t>(),
        .tokens = json.at("tokens").get<int64_t>(),
        .largest_token = json.at("largest_token").get<int64_t>()};
  } catch (const nlohmann::json::exception&) {
    refuse("is damaged");
  }
  return record;
}

std::string to_json(const DatasetRecord& record) {
  const std::optional<int64_t>& end = record.tokenizer.end_of_document;
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"tokenizer",
       {{"name", record.tokenizer.name},
        {"hash", record.tokenizer.hash},
        {"vocab_size", record.tokenizer.vocab_size},
        {"end_of_document", end ? nlohmann::ordered_json(*end) : nlohmann::ordered_json()}}},
      {"documents", record.documents},
      {"tokens", record.tokens},
      {"largest_token", record.largest_token}};
  // A path can contain any bytes.
  return dump_json(json, 2) + "\n";
}

}  // namespace te::data
