// Fingerprints that detect whether a dataset has changed. A run that resumes with other data at the same prefix
// otherwise shows only a jump of the loss.
#pragma once

#include <cstdint>

#include "data/indexed_dataset.h"

namespace te::data {

struct DatasetFingerprint {
  int64_t documents = 0, tokens = 0;
  /// XXH3-64 of both files and their sizes: of all bytes of a file up to 16 MiB, else of 256 evenly spaced parts of
  /// 64 KiB that include both ends.
  uint64_t hash = 0;
  bool operator==(const DatasetFingerprint&) const = default;
};

DatasetFingerprint fingerprint_of(const IndexedDataset& dataset);

}  // namespace te::data
