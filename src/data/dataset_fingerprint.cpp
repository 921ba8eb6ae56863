#include "data/dataset_fingerprint.h"

#include <xxhash.h>

#include <memory>
#include <span>

#include "data/chunks.h"

namespace te::data {

DatasetFingerprint fingerprint_of(const IndexedDataset& dataset) {
  constexpr int64_t kChunk = int64_t{1} << 16;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const std::span<const uint8_t> bytes : {dataset.index_bytes(), dataset.token_bytes()}) {
    const auto size = static_cast<int64_t>(bytes.size());
    XXH3_64bits_update(state.get(), &size, sizeof(size));
    for_each_chunk(size, kChunk, [&](int64_t begin, int64_t count) {
      XXH3_64bits_update(state.get(), bytes.data() + begin, static_cast<size_t>(count));
    });
  }
  return {dataset.num_documents(), dataset.num_tokens(), XXH3_64bits_digest(state.get())};
}

}  // namespace te::data
