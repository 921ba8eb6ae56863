// One dataset as a list of samples, whatever a sample is made of: a cut of a stream of documents
// (corpus_view.h) or packed conversations (instruction_view.h). The sampler blends several of them.
// Private to the data room.
#pragma once

#include <cstdint>
#include <string>

namespace te::data {

/// Where one sample goes: S values each. document_start may be null.
struct SampleRow {
  int32_t* tokens = nullptr;
  int32_t* targets = nullptr;  ///< the token to predict, or -1
  /// Position in the row at which the document of each token begins: never decreases, and never passes the
  /// token.
  int32_t* document_start = nullptr;
};

class SampleView {
 public:
  /// What describe() of a source adds up.
  struct Counts {
    int64_t tokens = 0, documents = 0;
    int64_t samples = 0;  ///< of the first epoch
    std::string note;     ///< what else is worth saying, or empty
  };

  virtual ~SampleView() = default;
  virtual Counts counts() const = 0;
  virtual const std::string& prefix() const = 0;

  /// Writes every value of the row: a pure function of the view and the index. Indices of shuffled views are
  /// endless, those of ordered ones end at counts().samples. Thread safe.
  virtual void read(int64_t index, const SampleRow& row) const = 0;
};

}  // namespace te::data
