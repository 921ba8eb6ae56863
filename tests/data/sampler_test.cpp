// Guarantees of the sampler: it is a pure function of (data, seed, sample), every token occurs once per epoch, and
// blends follow their weights.
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>

#include "data/blend.h"
#include "data/permutation.h"
#include "data_testing.h"

namespace te {
namespace {

using testing::counting_documents;
using testing::Documents;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_dataset;

std::unique_ptr<data::BatchSource> open_source(const std::vector<data::WeightedDataset>& datasets,
                                               int64_t seq_length, uint64_t seed = 1, bool shuffle = true,
                                               int64_t max_samples = 0) {
  return data::make_indexed_source(datasets, {.seq_length = seq_length,
                                              .vocab_size = 65536,
                                              .seed = seed,
                                              .shuffle = shuffle,
                                              .max_samples = max_samples});
}

TEST(Permutation, IsABijectionForEverySize) {
  for (int64_t size = 1; size < 300; ++size) {
    const data::Permutation permutation(size, 7, 3);
    std::vector<int> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_LT(permutation(i), size);
      ++seen[static_cast<size_t>(permutation(i))];
    }
    EXPECT_EQ(std::ranges::count(seen, 1), size) << size;
  }
}

TEST(Permutation, InvertsSingleItemsAndRanges) {
  for (const int64_t size :
       {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{290}, int64_t{10007}, int64_t{3000000000000}}) {
    const data::Permutation permutation(size, 7, 3);
    std::vector<int64_t> many(static_cast<size_t>(std::min<int64_t>(size, 1000)));
    const int64_t first = (size - static_cast<int64_t>(many.size())) / 2;
    permutation.inverse(first, many);
    for (size_t i = 0; i < many.size(); ++i) {
      const int64_t item = first + static_cast<int64_t>(i);
      ASSERT_EQ(permutation.inverse(item), many[i]) << size << " " << item;
      ASSERT_EQ(permutation(many[i]), item) << size << " " << item;
    }
  }
}

TEST(Permutation, SpreadsEveryIndexEvenly) {
  // The images of index 0 and index 5 of 12 over 12000 keys: chi-square with 11 degrees of freedom is below 40
  // (p < 4e-5).
  constexpr int64_t kSize = 12, kKeys = 12000;
  for (int64_t index : {0, 5}) {
    std::vector<int64_t> counts(kSize);
    for (uint64_t key = 0; key < kKeys; ++key)
      ++counts[static_cast<size_t>(data::Permutation(kSize, key, 0)(index))];
    double chi_square = 0.0;
    for (int64_t count : counts) chi_square += std::pow(static_cast<double>(count) - 1000.0, 2) / 1000.0;
    EXPECT_LT(chi_square, 40.0) << index;
  }
}

TEST(Permutation, HasNoVisibleOrder) {
  // In a random permutation, about two adjacent pairs in total stay adjacent, and half of all steps go up.
  const int64_t size = 100000;
  const data::Permutation permutation(size, 99, 1);
  int64_t adjacent = 0, up = 0;
  for (int64_t i = 0; i + 1 < size; ++i) {
    adjacent += std::abs(permutation(i + 1) - permutation(i)) == 1;
    up += permutation(i + 1) > permutation(i);
  }
  EXPECT_LT(adjacent, 15);
  EXPECT_NEAR(static_cast<double>(up), 50000.0, 600.0);
}

/// FNV-1a of 32-bit values.
template <class Values>
uint64_t digest(const Values& values, uint64_t hash = 0xcbf29ce484222325ull) {
  for (const auto value : values) hash = (hash ^ static_cast<uint32_t>(value)) * 0x100000001b3ull;
  return hash;
}

// Recorded with an earlier version, so that a run of that version resumes with the same data.
TEST(Permutation, HasTheOrderOfEarlierVersions) {
  std::vector<int64_t> values;
  for (const int64_t size : {int64_t{1}, int64_t{2}, int64_t{12}, int64_t{300}, int64_t{99999},
                             int64_t{100000}, int64_t{200000000}, int64_t{12345678901}}) {
    const data::Permutation permutation(size, 99, 3);
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t value = permutation(i < size ? (size - 1) / 1000 * i + i % (size % 1000 + 1) : size - 1);
      values.push_back(value);
      values.push_back(value >> 32);
    }
  }
  EXPECT_EQ(digest(values), 9180470643538589500u);
}

TEST(IndexedSource, HasTheOrderOfEarlierVersions) {
  TextFolder folder;
  write_dataset(folder / "a", counting_documents(1000, 40));
  write_dataset(folder / "b", counting_documents(70, 300));
  const auto source = open_source({{0.7, folder / "a"}, {0.3, folder / "b"}}, 32, 7);
  const data::Batch batch = source->batch(0, 6000, true);  // several epochs of both
  EXPECT_EQ(digest(batch.tokens, digest(batch.targets, digest(batch.document_start))), 8022663952671193103u);
}

TEST(IndexedSource, TargetsAreTheNextTokens) {
  TextFolder folder;
  std::vector<int32_t> tokens(101);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_dataset(folder / "a", {tokens});
  const auto source = open_source({{1.0, folder / "a"}}, 10);
  EXPECT_EQ(source->num_samples(), data::BatchSource::kEndless);
  std::set<int32_t> starts;
  for (int64_t k = 0; k < 10; ++k) {
    const data::Batch batch = source->batch(k, 1);
    ASSERT_EQ(batch.tokens.size(), 10u);
    starts.insert(batch.tokens[0]);
    for (int32_t i = 0; i < 10; ++i) {
      EXPECT_EQ(batch.tokens[static_cast<size_t>(i)], batch.tokens[0] + i);
      EXPECT_EQ(batch.targets[static_cast<size_t>(i)], batch.tokens[0] + i + 1);
    }
  }
  EXPECT_EQ(starts, (std::set<int32_t>{0, 10, 20, 30, 40, 50, 60, 70, 80, 90}));  // each sample once
}

/// In an epoch, samples * S tokens are an input exactly once, and documents are not split by the shuffle.
TEST(IndexedSource, AnEpochUsesEveryTokenOnce) {
  TextFolder folder;
  const Documents documents = counting_documents(300, 40);
  int64_t total = 0;
  for (const auto& document : documents) total += static_cast<int64_t>(document.size());
  write_dataset(folder / "a", documents);
  constexpr int64_t kLength = 16;
  const int64_t samples = (total - 1) / kLength;
  const auto source = open_source({{1.0, folder / "a"}}, kLength);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const data::Batch batch = source->batch(epoch * samples, samples);
    std::vector<int> as_input(static_cast<size_t>(total)), as_target(static_cast<size_t>(total));
    int64_t jumps = 0;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      ++as_input[static_cast<size_t>(batch.tokens[i])];
      ++as_target[static_cast<size_t>(batch.targets[i])];
      jumps += batch.targets[i] != batch.tokens[i] + 1;  // only between two documents
    }
    EXPECT_EQ(std::ranges::count(as_input, 1), samples * kLength);
    EXPECT_EQ(std::ranges::count(as_target, 1), samples * kLength);
    EXPECT_LE(*std::ranges::max_element(as_input), 1);
    EXPECT_GT(jumps, 100);  // documents are shuffled...
    EXPECT_LT(jumps, 300);  // ...and whole
  }
}

TEST(IndexedSource, IsIndependentOfOrderBatchSizeAndThreads) {
  TextFolder folder;
  write_dataset(folder / "a", counting_documents(200, 30));
  write_dataset(folder / "b", counting_documents(50, 100));
  const std::vector<data::WeightedDataset> datasets = {{0.7, folder / "a"}, {0.3, folder / "b"}};
  constexpr int64_t kCount = 5000, kLength = 8;  // several epochs, several blocks of the blend
  const data::Batch expected = open_source(datasets, kLength)->batch(0, kCount);

  const auto source = open_source(datasets, kLength);
  const auto check = [&](int64_t first, int64_t count) {
    const data::Batch batch = source->batch(first, count);
    return std::equal(batch.tokens.begin(), batch.tokens.end(), expected.tokens.begin() + first * kLength) &&
           std::equal(batch.targets.begin(), batch.targets.end(), expected.targets.begin() + first * kLength);
  };
  std::vector<int> failures(4);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const data::Permutation order(kCount - 7, 5, static_cast<uint64_t>(thread));
      for (int64_t i = 0; i < 400; ++i) failures[static_cast<size_t>(thread)] += !check(order(i), 1 + i % 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(4));
  EXPECT_TRUE(check(4999, 1));
}

TEST(IndexedSource, ShufflesBySeedAndEpoch) {
  TextFolder folder;
  std::vector<int32_t> tokens(1001);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_dataset(folder / "a", {tokens});  // one document: only the order of the samples changes
  const auto starts = [&](uint64_t seed, int64_t epoch) {
    const data::Batch batch = open_source({{1.0, folder / "a"}}, 10, seed)->batch(epoch * 100, 100);
    std::vector<int32_t> result;
    for (size_t i = 0; i < batch.tokens.size(); i += 10) result.push_back(batch.tokens[i]);
    return result;
  };
  std::set<std::vector<int32_t>> orders;
  for (uint64_t seed : {1, 2, 3}) {
    for (int64_t epoch : {0, 1, 2}) orders.insert(starts(seed, epoch));
  }
  EXPECT_EQ(orders.size(), 9u);
  EXPECT_FALSE(std::ranges::is_sorted(*orders.begin()));
  EXPECT_EQ(starts(2, 1), starts(2, 1));
}

TEST(IndexedSource, ValidationIsInOrderAndCountsEachTokenOnce) {
  TextFolder folder;
  write_dataset(folder / "a", {{0, 1, 2, 3}, {}, {4, 5, 6, 7, 8, 9}});
  const auto source = open_source({{1.0, folder / "a"}}, 4, 1, false);
  EXPECT_EQ(source->num_samples(), 3);
  const data::Batch batch = source->batch(0, 4);  // one sample more than available
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -2, -2, -2, -2, -2, -2}));
  const data::Batch beyond = source->batch(7, 1);
  EXPECT_EQ(beyond.targets, std::vector<int32_t>(4, -2));

  const auto limited = open_source({{1.0, folder / "a"}}, 4, 1, false, 2);
  EXPECT_EQ(limited->num_samples(), 2);
  EXPECT_EQ(limited->batch(0, 3).targets, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, -2, -2, -2, -2}));
}

TEST(IndexedSource, ValidationUsesAllSamplesOfSeveralSets) {
  TextFolder folder;
  std::vector<int32_t> a(9), b(41);
  std::iota(a.begin(), a.end(), 0);
  std::iota(b.begin(), b.end(), 100);
  write_dataset(folder / "a", {a});
  write_dataset(folder / "b", {b});
  const auto source = open_source({{0.5, folder / "a"}, {0.5, folder / "b"}}, 4, 1, false);
  ASSERT_EQ(source->num_samples(), 2 + 10);
  std::vector<int32_t> targets = source->batch(0, 12).targets;
  std::ranges::sort(targets);
  std::vector<int32_t> expected(a.begin() + 1, a.end());
  expected.insert(expected.end(), b.begin() + 1, b.end());
  EXPECT_EQ(targets, expected);
}

TEST(IndexedSource, RefusesInvalidDatasets) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2, 3, 4}});
  write_dataset(folder / "one", {{1}});
  TE_EXPECT_CONTAINS(user_error_of([&] {
                       open_source({{1.0, folder / "a"}}, 4);
                     }),
                     "a: has 4 tokens, but a sample needs seq_length + 1 = 4 + 1 = 5");
  EXPECT_NO_THROW(open_source({{1.0, folder / "a"}}, 3));
  TE_EXPECT_CONTAINS(user_error_of([&] {
                       open_source({{1.0, folder / "one"}}, 4, 1, false);
                     }),
                     "one: has 1 tokens, but validation needs at least 2");
  TE_EXPECT_CONTAINS(user_error_of([&] { open_source({}, 4); }), "data.train: names no dataset");
  for (double weight : {0.0, -1.0, std::nan(""), double{INFINITY}}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { open_source({{weight, folder / "a"}}, 3); }), "must be positive");
  }
}

TEST(IndexedSource, ChecksTokensAgainstTheVocabulary) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2, 3}, {4, 900, 6, 7}});
  const auto source =
      data::make_indexed_source({{1.0, folder / "a"}}, {.seq_length = 6, .vocab_size = 900, .seed = 1});
  TE_EXPECT_CONTAINS(user_error_of([&] { source->batch(0, 1); }), "a.bin: token 1 of document 1 is 900");
}

/// document_start of a row, derived from its values: tokens count up over `documents`.
std::vector<int32_t> starts_by_value(const Documents& documents, const int32_t* row, int64_t length) {
  std::set<int32_t> first_tokens;
  for (const auto& document : documents) {
    if (!document.empty()) first_tokens.insert(document[0]);
  }
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < length; ++i) {
    const bool begins = i == 0 || first_tokens.contains(row[i]);
    starts.push_back(begins ? static_cast<int32_t>(i) : starts.back());
  }
  return starts;
}

TEST(IndexedSource, ReturnsWhereDocumentsBegin) {
  TextFolder folder;
  const Documents documents = counting_documents(300, 12);
  write_dataset(folder / "a", documents);
  for (const bool shuffle : {true, false}) {
    constexpr int64_t kLength = 20, kCount = 150;
    const auto source = open_source({{1.0, folder / "a"}}, kLength, 3, shuffle);
    const data::Batch batch = source->batch(0, kCount, true), plain = source->batch(0, kCount);
    EXPECT_TRUE(plain.document_start.empty());
    EXPECT_EQ(plain.tokens, batch.tokens);
    EXPECT_EQ(plain.targets, batch.targets);
    int64_t several = 0;
    for (int64_t k = 0; k < kCount; ++k) {
      const auto begin = batch.document_start.begin() + k * kLength;
      const std::vector<int32_t> starts(begin, begin + kLength);
      EXPECT_EQ(starts, starts_by_value(documents, batch.tokens.data() + k * kLength, kLength)) << k;
      several += starts.back() > starts.front();
    }
    EXPECT_GT(several, kCount / 2);
  }
}

TEST(IndexedSource, PaddingIsASeparateDocument) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2, 3, 4}, {}, {5, 6, 7}});
  const auto source = open_source({{1.0, folder / "a"}}, 5, 1, false);
  const data::Batch batch = source->batch(0, 3, true);  // one sample more than available
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{2, 3, 4, 5, 6, 7, -1, -2, -2, -2, -2, -2, -2, -2, -2}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 0, 0, 0, 4, 0, 0, 2, 2, 2, 0, 0, 0, 0, 0}));
}

TEST(IndexedSource, CanExcludeTheFirstTokenOfADocumentFromTheLoss) {
  TextFolder folder;
  write_dataset(folder / "a", {{1, 2, 3, 4}, {}, {5, 6}, {7, 8, 9}});
  const auto source = data::make_indexed_source(
      {{1.0, folder / "a"}}, {.seq_length = 4, .vocab_size = 10, .shuffle = false, .eod_mask_loss = true});
  const data::Batch batch = source->batch(0, 2, true);  // 5 is the target of 4, and 7 of 6
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{2, 3, 4, -1, 6, -1, 8, 9}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 2, 2}));

  const Documents documents = counting_documents(200, 9);
  write_dataset(folder / "b", documents);
  std::set<int32_t> first_tokens;
  for (const auto& document : documents) {
    if (!document.empty()) first_tokens.insert(document[0]);
  }
  const auto with = data::make_indexed_source(
      {{1.0, folder / "b"}}, {.seq_length = 16, .vocab_size = 65536, .seed = 5, .eod_mask_loss = true});
  const auto without =
      data::make_indexed_source({{1.0, folder / "b"}}, {.seq_length = 16, .vocab_size = 65536, .seed = 5});
  const data::Batch masked = with->batch(0, 200), plain = without->batch(0, 200);
  EXPECT_EQ(masked.tokens, plain.tokens);
  int64_t ignored = 0;
  for (size_t i = 0; i < plain.targets.size(); ++i) {
    const bool begins = first_tokens.contains(plain.targets[i]);
    ignored += begins;
    ASSERT_EQ(masked.targets[i], begins ? -1 : plain.targets[i]) << i;
  }
  EXPECT_GT(ignored, 200);
}

TEST(SyntheticSource, HasOneDocumentPerSample) {
  const data::Batch batch = data::make_synthetic_source(5, 1000, 5)->batch(3, 2, true);
  EXPECT_EQ(batch.document_start, std::vector<int32_t>(10, 0));
}

TEST(Blend, CountsFollowTheWeights) {
  const std::vector<double> weights = {5.0, 3.0, 1.0, 1.0};  // normalized by the blend
  const data::Blend blend(weights, std::vector<int64_t>(4, data::Blend::kEndless));
  std::vector<int64_t> counts(4);
  const auto items = blend.items(0, 20000);
  for (size_t n = 0; n < items.size(); ++n) {
    EXPECT_EQ(items[n].sample, counts[static_cast<size_t>(items[n].dataset)]);
    ++counts[static_cast<size_t>(items[n].dataset)];
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_NEAR(static_cast<double>(counts[i]), static_cast<double>(n + 1) * weights[i] / 10.0, 1.5) << n;
    }
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{10000, 6000, 2000, 2000}));
}

TEST(Blend, MatchesTheRuleByHand) {
  // w = (0.75, 0.25), w_i * max(n, 1) - count_i: n=0: .75 .25 -> 0; n=1: -.25 .25 -> 1; n=2: .5 -.5 -> 0;
  // n=3: .25 -.25 -> 0; n=4: 0 0 -> 0
  const data::Blend blend({3.0, 1.0}, {data::Blend::kEndless, data::Blend::kEndless});
  const std::vector<int32_t> expected = {0, 1, 0, 0, 0, 1};
  const auto items = blend.items(0, 6);
  for (size_t n = 0; n < expected.size(); ++n) EXPECT_EQ(items[n].dataset, expected[n]) << n;
}

TEST(Blend, AccessByIndexEqualsAccessInOrder) {
  const std::vector<double> weights = {0.31, 0.62, 0.07};
  const std::vector<int64_t> endless(3, data::Blend::kEndless);
  const auto expected = data::Blend(weights, endless).items(0, 6000);
  const data::Blend blend(weights, endless);
  for (int64_t first : {5000, 0, 1023, 1024, 1025, 4096, 3}) {
    const auto items = blend.items(first, 900);
    for (size_t i = 0; i < items.size(); ++i) {
      ASSERT_EQ(items[i].dataset, expected[static_cast<size_t>(first) + i].dataset) << first << " " << i;
      ASSERT_EQ(items[i].sample, expected[static_cast<size_t>(first) + i].sample) << first << " " << i;
    }
  }
}

TEST(Blend, WeightsWithAnInfiniteSumAreRefused) {
  TextFolder folder;
  write_dataset(folder / "a", {std::vector<int32_t>(20, 1)});
  EXPECT_EQ(user_error_of([&] {
              open_source({{1.5e308, folder / "a"}, {0.5e308, folder / "a"}}, 4);
            }),
            "data.train: the sum of the weights is too large; divide all weights by a number");
}

TEST(SyntheticSource, IsPureUniformAndShifted) {
  for (int64_t length : {1, 3, 4, 7, 16}) {
    const auto source = data::make_synthetic_source(length, 1000, 5);
    const data::Batch all = source->batch(0, 50);
    for (int64_t k = 49; k >= 0; --k) {
      const data::Batch one = source->batch(k, 1);
      for (int64_t i = 0; i < length; ++i) {
        ASSERT_EQ(one.tokens[static_cast<size_t>(i)], all.tokens[static_cast<size_t>(k * length + i)]);
        ASSERT_EQ(one.targets[static_cast<size_t>(i)], all.targets[static_cast<size_t>(k * length + i)]);
        if (i > 0) {
          ASSERT_EQ(one.targets[static_cast<size_t>(i - 1)], one.tokens[static_cast<size_t>(i)]);
        }
      }
    }
  }
  const auto source = data::make_synthetic_source(100, 10, 5);
  std::vector<int64_t> counts(10);
  for (int32_t token : source->batch(0, 1000).targets) {
    ASSERT_TRUE(token >= 0 && token < 10);
    ++counts[static_cast<size_t>(token)];
  }
  for (int64_t count : counts)
    EXPECT_NEAR(static_cast<double>(count), 10000.0, 500.0);  // 5 standard deviations
  EXPECT_NE(source->batch(0, 1).tokens, source->batch(1, 1).tokens);
  EXPECT_NE(source->batch(0, 1).tokens, data::make_synthetic_source(100, 10, 6)->batch(0, 1).tokens);
}

}  // namespace
}  // namespace te
