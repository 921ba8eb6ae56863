#include "data/loss_mask.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace te::data {

std::string loss_mask_prefix(const std::string& prefix) {
  return prefix + "_mask";
}

bool has_loss_mask(const std::string& prefix) {
  std::error_code error;
  return std::filesystem::exists(loss_mask_prefix(prefix) + ".idx", error);
}

LossMask::LossMask(const IndexedDataset& tokens)
    : mask_([&] {
        if (!has_loss_mask(tokens.prefix())) {
          user_error("{}: has no loss mask {}.idx; create the dataset with te-data instruct", tokens.prefix(),
                     loss_mask_prefix(tokens.prefix()));
        }
        return loss_mask_prefix(tokens.prefix());
      }()) {
  if (mask_.token_type() != TokenType::kU8 || mask_.num_documents() != tokens.num_documents()) {
    user_error("{}.idx: has {} documents of type {}, but {} has {}; the two do not match, create them again",
               mask_.prefix(), mask_.num_documents(), token_type_name(mask_.token_type()), tokens.prefix(),
               tokens.num_documents());
  }
  for (int64_t i = 0; i < tokens.num_documents(); ++i) {
    if (mask_.document_length(i) == tokens.document_length(i)) continue;
    user_error(
        "{}.idx: document {} has {} values, but {} tokens in {}; the two do not match, create them again",
        mask_.prefix(), i, mask_.document_length(i), tokens.document_length(i), tokens.prefix());
  }
}

void LossMask::read(int64_t begin, int64_t count, int32_t* out) const {
  mask_.read(begin, count, out);
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] <= 1) [[likely]]  // a mask of type u8 has no negative values
      continue;
    const int64_t document = mask_.document_at(begin + i);
    user_error("{}.bin: value {} of document {} is {}, but a loss mask has 0 and 1 only; create it again",
               mask_.prefix(), begin + i - mask_.document_begin(document), document, out[i]);
  }
}

int64_t LossMask::count() const {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<int32_t> values(kChunk);
  int64_t total = 0;
  for (int64_t begin = 0; begin < mask_.num_tokens(); begin += kChunk) {
    const int64_t part = std::min(kChunk, mask_.num_tokens() - begin);
    read(begin, part, values.data());
    total = std::accumulate(values.begin(), values.begin() + part, total);
  }
  return total;
}

}  // namespace te::data
