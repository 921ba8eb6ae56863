#include "train/data_check.h"

#include <memory>
#include <string>
#include <vector>

#include "data/dataset_check.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hash.h"
#include "train/kept_tokenizer.h"

namespace te::train {

void check_data(const config::DataConfig& data, int64_t vocab_size, const std::string& checkpoint_directory) {
  const std::unique_ptr<text::Tokenizer> tokenizer = check_tokenizer(data.tokenizer, checkpoint_directory);
  data::DatasetCheck check = {.vocab_size = vocab_size,
                              .tokenizer = {},
                              .tokenizer_key = "data.tokenizer",
                              .any_tokenizer = !data.check_tokenizer,
                              .any_tokenizer_remedy = "set data.check_tokenizer to false"};
  if (tokenizer && data.check_tokenizer) {
    check.tokenizer = {.name = tokenizer->name(),
                       .hash = text::tokenizer_hash(*tokenizer),
                       .vocab_size = tokenizer->vocab_size(),
                       .end_of_document = tokenizer->end_of_document()};
  }
  const auto look_at = [&](const std::string& key, const std::vector<config::DataSource>& sources) {
    std::vector<std::string> prefixes;
    for (const config::DataSource& source : sources) prefixes.push_back(source.prefix);
    data::check_datasets(key, prefixes, check);
  };
  look_at("data.train", data.train);
  for (const config::ValidationSet& set : data.valid)
    look_at(set.name == config::ValidationSet{}.name ? "data.valid" : "data.valid: " + set.name, set.sources);
}

}  // namespace te::train
