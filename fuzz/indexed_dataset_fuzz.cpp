// Opens arbitrary bytes as a dataset and reads it completely; every failure must be a UserError. The input consists of
// the length of the .idx (u16), the .idx, and the .bin.
#include "data/indexed_dataset.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "fuzz_file.h"

namespace {

void read_everything(const std::string& prefix) {
  const te::data::IndexedDataset dataset(prefix);
  std::vector<int32_t> tokens;
  int64_t total = 0;
  for (int64_t document = 0; document < dataset.num_documents(); ++document) {
    const int64_t begin = dataset.document_begin(document), length = dataset.document_length(document);
    TE_CHECK(length >= 0 && begin == total, "document {} begins at {}, not {}", document, begin, total);
    tokens.resize(static_cast<size_t>(length));
    dataset.read(begin, length, tokens.data(), document % 2 == 0 ? 0 : 1000);
    if (length > 0) {
      TE_CHECK(dataset.document_at(begin) == document && dataset.document_at(begin + length - 1) == document,
               "document {} is not found", document);
    }
    total += length;
  }
  TE_CHECK(total == dataset.num_tokens(), "{} of {} tokens in documents", total, dataset.num_tokens());
  dataset.check_all();
  int64_t in_sequences = 0;
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) in_sequences += dataset.sequence_length(i);
  TE_CHECK(in_sequences == total, "{} of {} tokens in sequences", in_sequences, total);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static te::fuzz::FuzzFile index("a.idx"), tokens("a.bin");
  static const std::string prefix = te::fuzz::folder() + "/a";
  if (size < 2) return 0;
  const std::span<const uint8_t> bytes(data + 2, size - 2);
  const size_t index_size = std::min<size_t>(data[0] | data[1] << 8, bytes.size());
  index.write(bytes.first(index_size));
  tokens.write(bytes.subspan(index_size));
  try {
    read_everything(prefix);
  } catch (const te::UserError&) {
  }
  return 0;
}
