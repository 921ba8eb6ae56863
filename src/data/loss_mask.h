// The loss mask of an instruction dataset: PREFIX_mask.bin and PREFIX_mask.idx, an indexed dataset of type u8 next to
// PREFIX.bin and PREFIX.idx, with documents of the same lengths. The value of a token is 1 if it counts in the loss
// when it is the target, else 0.
#pragma once

#include <cstdint>
#include <string>

#include "data/indexed_dataset.h"

namespace te::data {

std::string loss_mask_prefix(const std::string& prefix);  ///< PREFIX_mask
bool has_loss_mask(const std::string& prefix);            ///< whether PREFIX_mask.idx exists

class LossMask {
 public:
  /// Opens the mask of `tokens`. UserError if there is none, or if the numbers or lengths of the documents differ.
  explicit LossMask(const IndexedDataset& tokens);

  /// Copies the mask values of tokens [begin, begin + count). UserError for a value that is not 0 or 1. Thread safe.
  void read(int64_t begin, int64_t count, int32_t* out) const;
  int64_t count() const;  ///< number of tokens with mask value 1; reads the whole mask

 private:
  IndexedDataset mask_;
};

}  // namespace te::data
