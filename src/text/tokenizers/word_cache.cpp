#include "text/tokenizers/word_cache.h"

#include "text/tokenizers/bpe_hash.h"

namespace te::text {

WordCache::Entry& WordCache::slot(std::string_view word) {
  return entries_[hash_text(word) % kEntries];
}

}  // namespace te::text
