#include "text/tokenizer_hash.h"

#include <spdlog/fmt/fmt.h>
#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace te::text {
namespace {

// Runs of letters, digits, spaces and line breaks, contractions, capitals and scripts: texts that tokenizers with the
// same vocabulary split differently. A change of this text invalidates the tokenizer hashes of all existing datasets.
constexpr std::string_view kProbe =
    "The quick brown fox's 12345678 jumps; they'LL don't CamelCase  two   spaces\n\n\tdef f(x):\n    return "
    "x**2 != "
    "0.5e-3\r\nÜber naïve café ﬁnal Ａ１ №5 日本語のテキスト 한국어 русский العربية हिन्दी "
    "🙂👩‍💻 "
    "<|endoftext|></s>…";

}  // namespace

std::string tokenizer_hash(const Tokenizer& tokenizer) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> owner(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_state_t* state = owner.get();
  XXH3_64bits_reset(state);
  const auto add = [&](const void* data, size_t bytes) {
    const auto length = static_cast<uint64_t>(bytes);
    XXH3_64bits_update(state, &length, sizeof(length));
    XXH3_64bits_update(state, data, bytes);
  };
  std::vector<int32_t> tokens(2);
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    // Decode the token twice in a row: decoding can drop a leading space from the first token of a text.
    tokens.assign(2, static_cast<int32_t>(id));
    const std::string text = tokenizer.decode(tokens);
    add(text.data(), text.size());
  }
  tokens.clear();
  tokenizer.encode(kProbe, tokens, SpecialTokens::kAsText);
  add(tokens.data(), tokens.size() * sizeof(int32_t));
  return fmt::format("xxh3:{:016x}", XXH3_64bits_digest(state));
}

}  // namespace te::text
