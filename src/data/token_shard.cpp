#include "data/token_shard.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace te::data {
namespace {

constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr int64_t kBlockTokens = int64_t{1} << 20;

struct Layout {
  int32_t magic, version;
  int64_t token_bytes;
};
constexpr Layout kLayouts[] = {{20240520, 1, 2}, {20240801, 7, 4}};

constexpr int32_t kEvaluationMagic = 20240522;

template <class Stored>
std::vector<int64_t> to_int64(const uint8_t* data, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(Stored)), sizeof(Stored));
    values[static_cast<size_t>(i)] = value;
  }
  return values;
}

}  // namespace

TokenShard::TokenShard(const std::string& path) : file_(path) {
  const auto size = static_cast<int64_t>(file_.bytes().size());
  if (size < kHeaderBytes)
    user_error("{}: has {} bytes, fewer than the {} of a token shard's header", path, size, kHeaderBytes);
  int32_t header[3];
  std::memcpy(header, file_.bytes().data(), sizeof(header));
  const int32_t magic = header[0], version = header[1];
  if (magic == kEvaluationMagic)
    user_error("{}: is an evaluation file of llm.c (magic {}), which has no documents to train on", path,
               magic);
  const Layout* layout = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                      [&](const Layout& l) { return l.magic == magic; });
  if (layout == std::end(kLayouts))
    user_error("{}: is not a token shard of llm.c or modded-nanogpt: the magic is {}, not {} or {}", path,
               magic, kLayouts[0].magic, kLayouts[1].magic);
  if (version != layout->version)
    user_error("{}: has version {} of magic {}; only version {} is supported", path, version, magic,
               layout->version);
  token_bytes_ = layout->token_bytes;
  num_tokens_ = header[2];
  if (num_tokens_ < 0 || size != kHeaderBytes + num_tokens_ * token_bytes_)
    user_error(
        "{}: has {} bytes, but its header declares {} tokens of {} bytes, which need {}; download or create "
        "the file again",
        path, size, num_tokens_, token_bytes_, kHeaderBytes + num_tokens_ * token_bytes_);
}

void TokenShard::read(int64_t vocab_size,
                      const std::function<void(std::span<const int32_t> tokens)>& on_tokens) const {
  std::vector<int32_t> tokens;
  for (int64_t begin = 0; begin < num_tokens_; begin += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, num_tokens_ - begin);
    const uint8_t* data = file_.bytes().data() + kHeaderBytes + begin * token_bytes_;
    const std::vector<int64_t> values =
        token_bytes_ == 2 ? to_int64<uint16_t>(data, count) : to_int64<uint32_t>(data, count);
    const auto bad = std::ranges::find_if(values, [&](int64_t v) { return v >= vocab_size; });
    if (bad != values.end())
      user_error(
          "{}: token {} is {}, but must be below the vocabulary size {}; pass the --tokenizer or "
          "--vocab-size of these tokens",
          file_.path(), begin + (bad - values.begin()), *bad, vocab_size);
    tokens.assign(values.begin(), values.end());
    on_tokens(tokens);
  }
}

}  // namespace te::data
