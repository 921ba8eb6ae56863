// Is a dataset still the one that it was? A run that resumes on other data than it was trained on, tokenized to the
// same prefix, shows nothing but a jump of its loss.
#pragma once

#include <cstdint>

#include "data/indexed_dataset.h"

namespace te::data {

struct DatasetFingerprint {
  int64_t documents = 0, tokens = 0;
  /// XXH3-64 of both files and their sizes: of all bytes up to 16 MiB of each, else of 256 parts of 64 KiB, evenly
  /// spread, both ends among them.
  uint64_t hash = 0;
  bool operator==(const DatasetFingerprint&) const = default;
};

DatasetFingerprint fingerprint_of(const IndexedDataset& dataset);

}  // namespace te::data
