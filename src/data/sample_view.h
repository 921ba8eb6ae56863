// Interface of a dataset as a list of samples: parts of concatenated documents (corpus_view.h) or packed conversations
// (instruction_view.h). The sampler blends several views. Private to the data library.
#pragma once

#include <cstdint>
#include <string>

namespace te::data {

/// The destination of one sample, with S values per array. document_start may be null.
struct SampleRow {
  int32_t* tokens = nullptr;
  int32_t* targets = nullptr;  ///< the token to predict, or a negative value of BatchSource
  /// Position in the row at which the document of each token begins; it never decreases and is at most the token's
  /// position.
  int32_t* document_start = nullptr;
};

class SampleView {
 public:
  /// Totals for describe() of a source.
  struct Counts {
    int64_t tokens = 0, documents = 0;
    int64_t samples = 0;  ///< samples of the first epoch
    std::string note;     ///< additional information, or empty
  };

  virtual ~SampleView() = default;
  virtual Counts counts() const = 0;
  virtual const std::string& prefix() const = 0;

  /// Writes every value of the row, as a pure function of the view and the index. The index of a shuffled view is
  /// unlimited, that of an ordered view must be below counts().samples. Thread safe.
  virtual void read(int64_t index, const SampleRow& row) const = 0;
};

}  // namespace te::data
