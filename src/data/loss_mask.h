// Which tokens of an instruction dataset count in the loss: PREFIX_mask.bin and PREFIX_mask.idx, an indexed
// dataset of type u8 beside PREFIX.bin and PREFIX.idx, with the same documents of the same lengths. Its value
// is 1 where the token is one the model learns to write (as a target), else 0.
#pragma once

#include <cstdint>
#include <string>

#include "data/indexed_dataset.h"

namespace te::data {

std::string loss_mask_prefix(const std::string& prefix);  ///< PREFIX_mask
bool has_loss_mask(const std::string& prefix);            ///< whether PREFIX_mask.idx exists

class LossMask {
 public:
  /// Opens the mask of `tokens`, which must outlive this object. UserError when there is none, or when it does
  /// not belong to the tokens: another number of documents, or a document of another length.
  explicit LossMask(const IndexedDataset& tokens);

  /// The masks of tokens [begin, begin + count). UserError for a value that is not 0 or 1. Thread safe.
  void read(int64_t begin, int64_t count, int32_t* out) const;
  int64_t count() const;  ///< how many tokens count: reads them all

 private:
  IndexedDataset mask_;
};

}  // namespace te::data
