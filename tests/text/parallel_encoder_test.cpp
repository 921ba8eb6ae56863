#include "text/tokenizers/parallel_encoder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "text/tokenizers/byte_tokenizer.h"

namespace te {
namespace {

using testing::user_error_of;

/// A document is a number; its tokens are that number, repeated number % 7 times. Encoding takes an uneven time, and
/// throws for "bad".
class SlowTokenizer : public text::ByteTokenizer {
 public:
  mutable std::atomic<int64_t> encoding{0};

 private:
  void encode_text(std::string_view text, std::vector<int32_t>& tokens, text::SpecialTokens) const override {
    if (text.starts_with("bad")) user_error("document `{}`: bad", text);
    const int32_t number = std::stoi(std::string(text));
    ++encoding;
    std::this_thread::sleep_for(std::chrono::microseconds(number % 5 == 0 ? 300 : 1));
    for (int i = 0; i < number % 7; ++i) tokens.push_back(number);
  }
};

/// A document of up to 30 KB, so that a few of them fill a batch.
std::string document(int number) {
  std::string text = std::to_string(number);
  text.resize(static_cast<size_t>(100 + number * 7919 % 30000), ' ');
  return text;
}

/// Exits with code 0 if more threads than fit into the address space are refused.
void start_threads_in_a_small_address_space() {
  const rlimit limit{size_t{1} << 30, size_t{1} << 30};  // 1,000 stacks take 8 GB
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(3);
  const SlowTokenizer tokenizer;
  const std::string error = user_error_of([&] {
    const text::ParallelEncoder encoder(tokenizer, {.threads = 1000},
                                        [](std::span<const int32_t>, int64_t) {});
  });
  std::_Exit(error.find(" of 1000 threads (") != std::string::npos ? 0 : 4);
}

TEST(ParallelEncoderDeathTest, RefusesMoreThreadsThanTheSystemAllows) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer maps terabytes";
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(start_threads_in_a_small_address_space(), ::testing::ExitedWithCode(0), "");
}

TEST(ParallelEncoder, KeepsTheOrderOfDocumentsAndTags) {
  const SlowTokenizer tokenizer;
  for (const int threads : {0, 1, 2, 7}) {
    int next = 0;
    text::ParallelEncoder encoder(
        tokenizer, {.threads = threads, .max_bytes_in_flight = 200000, .end_of_document = true},
        [&](std::span<const int32_t> tokens, int64_t tag) {
          ASSERT_EQ(tag, 1000 + next);
          ASSERT_EQ(tokens.size(), static_cast<size_t>(next % 7 + 1));
          for (int i = 0; i < next % 7; ++i) ASSERT_EQ(tokens[static_cast<size_t>(i)], next);
          ASSERT_EQ(tokens.back(), text::ByteTokenizer::kEndOfDocument);
          ++next;
        });
    for (int i = 0; i < 500; ++i) encoder.add(document(i), 1000 + i);
    encoder.finish();
    EXPECT_EQ(next, 500);
    encoder.add(document(500), 1500);  // adding after finish() is allowed
    encoder.finish();
    EXPECT_EQ(next, 501);
  }
}

TEST(ParallelEncoder, AddWaitsAtTheLimit) {
  const SlowTokenizer tokenizer;
  int64_t added = 0, received = 0, most = 0;
  {
    text::ParallelEncoder encoder(tokenizer, {.threads = 2, .max_bytes_in_flight = 300000},
                                  [&](std::span<const int32_t>, int64_t tag) { received += tag; });
    for (int i = 0; i < 2000; ++i) {
      const std::string text = document(i);
      added += static_cast<int64_t>(text.size());
      encoder.add(text, static_cast<int64_t>(text.size()));
      most = std::max(most, added - received);
    }
    encoder.finish();
  }
  EXPECT_EQ(added, received);
  EXPECT_LE(most, 300000 + (64 << 10));  // the limit and the batch that is being filled
}

TEST(ParallelEncoder, RethrowsExceptionsInTheOrderOfDocuments) {
  const SlowTokenizer tokenizer;
  int received = 0;
  const std::string message = user_error_of([&] {
    text::ParallelEncoder encoder(tokenizer, {.threads = 3},
                                  [&](std::span<const int32_t>, int64_t) { ++received; });
    for (int i = 0; i < 1000; ++i) encoder.add(i == 321 ? "bad 321" : document(i));
    encoder.finish();
  });
  EXPECT_EQ(message, "document `bad 321`: bad");
  EXPECT_EQ(received, 321);
}

TEST(ParallelEncoder, CanBeDestroyedWhileEncoding) {
  const SlowTokenizer tokenizer;
  int received = 0;
  try {
    text::ParallelEncoder encoder(tokenizer, {.threads = 2}, [&](std::span<const int32_t>, int64_t) {
      if (++received == 10) throw std::runtime_error("disk full");
    });
    for (int i = 0; i < 1000; ++i) encoder.add(document(i));
    encoder.finish();
    FAIL() << "the exception of the sink was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "disk full");
  }
  EXPECT_EQ(received, 10);
  EXPECT_LT(tokenizer.encoding, 1000);
}

TEST(ParallelEncoder, EncodesEmptyAndHugeDocuments) {
  const text::ByteTokenizer tokenizer;
  std::vector<std::string> texts(20000);
  texts[5] = std::string(3 << 20, 'x');
  texts[19999] = "end";
  const auto tokens = text::encode_batch(tokenizer, texts, 2);
  ASSERT_EQ(tokens.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(tokens[i].size(), texts[i].size()) << i;
  EXPECT_EQ(tokens[19999], (std::vector<int32_t>{'e', 'n', 'd'}));
  EXPECT_TRUE(text::encode_batch(tokenizer, {}, 2).empty());
}

TEST(ParallelEncoder, RefusesInvalidNumbersOfThreads) {
  const text::ByteTokenizer tokenizer;
  TE_EXPECT_CONTAINS(user_error_of([&] { text::ParallelEncoder(tokenizer, {.threads = -1}, nullptr); }),
                     "-1");
  TE_EXPECT_CONTAINS(user_error_of([&] { text::ParallelEncoder(tokenizer, {.threads = 5000}, nullptr); }),
                     "5000");
}

}  // namespace
}  // namespace te
