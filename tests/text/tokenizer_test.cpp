#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

using testing::user_error_of;

TEST(ByteTokenizer, EncodesEveryByteAndDecodesIt) {
  const auto tokenizer = text::make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->name(), "bytes");
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  std::vector<int32_t> tokens = {42};  // encode appends
  tokenizer->encode(text, tokens);
  ASSERT_EQ(tokens.size(), 257u);
  EXPECT_EQ(tokens[0], 42);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens[static_cast<size_t>(byte) + 1], byte);
  EXPECT_EQ(tokenizer->decode(std::span(tokens).subspan(1)), text);
  EXPECT_EQ(tokenizer->find_token("a"), 97);
  EXPECT_EQ(tokenizer->find_token("<|endoftext|>"), 256);
  EXPECT_FALSE(tokenizer->find_token("ab").has_value());
}

TEST(ByteTokenizer, DecodesTheEndOfADocumentAndRefusesUnknownTokens) {
  const auto tokenizer = text::make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'h', 'i', 256}), "hi<|endoftext|>");
  TE_EXPECT_CONTAINS(user_error_of([&] { tokenizer->decode(std::vector<int32_t>{257}); }), "token 257");
  TE_EXPECT_CONTAINS(user_error_of([&] { tokenizer->decode(std::vector<int32_t>{-1}); }), "token -1");
}

TEST(MakeTokenizer, RefusesUnknownSpecs) {
  TE_EXPECT_CONTAINS(user_error_of([] { text::make_tokenizer("gpt2"); }),
                     "tokenizer `gpt2`: no such file or folder");
  TE_EXPECT_CONTAINS(user_error_of([] { text::make_tokenizer(""); }), "bytes");
}

}  // namespace
}  // namespace te
