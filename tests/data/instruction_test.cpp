// Instruction data: packing, and samples of whole conversations with the loss on the tokens of the mask.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "data/loss_mask.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "data_testing.h"

namespace te {
namespace {

using testing::Documents;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_dataset;

std::vector<std::vector<int64_t>> bins_of(const data::Packing& packing) {
  std::vector<std::vector<int64_t>> bins;
  for (int64_t bin = 0; bin < packing.num_bins(); ++bin) {
    bins.emplace_back(packing.items.begin() + packing.begins[static_cast<size_t>(bin)],
                      packing.items.begin() + packing.begins[static_cast<size_t>(bin + 1)]);
  }
  return bins;
}

TEST(Packing, MatchesTheRuleByHand) {
  // Free capacity of the bins after each item, of 10: 6 -> [4]; 3 -> [1]; 8 -> [1, 2]; 2 -> [1, 0]; 9 -> [1, 0, 1];
  // 1 fits bins 0 and 2, which have the same free capacity: it goes into the bin that was changed last.
  const std::vector<int32_t> lengths = {6, 3, 8, 2, 9, 1, 10};
  EXPECT_EQ(bins_of(data::pack_best_fit(lengths, 10)),
            (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}, {6}}));
  EXPECT_EQ(data::pack_best_fit({}, 10).num_bins(), 0);
}

TEST(Packing, ContainsEveryItemOnceAndFillsTheBins) {
  for (const int64_t capacity : {1, 7, 128, 4096}) {
    std::vector<int32_t> lengths;
    uint32_t state = 5;
    int64_t total = 0;
    for (int i = 0; i < 5000; ++i) {
      state = state * 1664525u + 1013904223u;
      lengths.push_back(static_cast<int32_t>(1 + (state >> 8) % static_cast<uint32_t>(capacity)));
      total += lengths.back();
    }
    std::vector<int> seen(lengths.size());
    const auto bins = bins_of(data::pack_best_fit(lengths, capacity));
    for (const auto& bin : bins) {
      ASSERT_FALSE(bin.empty());
      int64_t used = 0;
      for (const int64_t item : bin) {
        used += lengths[static_cast<size_t>(item)];
        ++seen[static_cast<size_t>(item)];
      }
      EXPECT_LE(used, capacity);
    }
    EXPECT_EQ(std::ranges::count(seen, 1), static_cast<int64_t>(seen.size()));
    EXPECT_LT(static_cast<double>(bins.size() * static_cast<size_t>(capacity)),
              1.04 * static_cast<double>(total) + 1);
  }
}

/// Conversations with tokens 100 * (conversation + 1) + position; the last `response` tokens are in the loss.
struct Conversations {
  Documents tokens, masks;
  void add(int32_t length, int32_t response) {
    const auto number = static_cast<int32_t>(tokens.size()) + 1;
    std::vector<int32_t> document, mask;
    for (int32_t i = 0; i < length; ++i) {
      document.push_back(100 * number + i);
      mask.push_back(i >= length - response ? 1 : 0);
    }
    tokens.push_back(document);
    masks.push_back(mask);
  }
  void write(const std::string& prefix) const {
    write_dataset(prefix, tokens, data::TokenType::kI32);
    write_dataset(data::loss_mask_prefix(prefix), masks, data::TokenType::kU8);
  }
};

std::unique_ptr<data::BatchSource> open_instructions(const std::string& prefix, int64_t seq_length,
                                                     uint64_t seed = 1, bool shuffle = true,
                                                     bool drop = false) {
  return data::make_instruction_source({{1.0, prefix}}, {.seq_length = seq_length,
                                                         .vocab_size = 1 << 20,
                                                         .seed = seed,
                                                         .shuffle = shuffle,
                                                         .drop_overlong = drop});
}

TEST(InstructionSource, PacksInOrderByHand) {
  TextFolder folder;
  Conversations conversations;
  conversations.add(4, 2);  // 3 positions
  conversations.add(3, 1);  // 2
  conversations.add(2, 2);  // 1; its first token is in the loss, but has no preceding token
  conversations.write(folder / "a");
  const auto source = open_instructions(folder / "a", 5, 1, false);
  ASSERT_EQ(source->num_samples(), 2);
  const data::Batch batch = source->batch(0, 3, true);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{100, 101, 102, 200, 201, 300, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.targets,
            (std::vector<int32_t>{-1, 102, 103, -1, 202, 301, -2, -2, -2, -2, -2, -2, -2, -2, -2}));
  EXPECT_EQ(batch.document_start, (std::vector<int32_t>{0, 0, 0, 3, 3, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0}));
}

TEST(InstructionSource, TruncatesOrDropsLongConversations) {
  TextFolder folder;
  Conversations conversations;
  conversations.add(5, 2);
  conversations.add(9, 6);  // truncated to 5 tokens: two of them in the loss
  conversations.add(9, 2);  // truncated: no token in the loss remains
  conversations.add(4, 0);
  conversations.add(1, 1);
  conversations.write(folder / "a");
  const auto cut = open_instructions(folder / "a", 4, 1, false);
  EXPECT_EQ(cut->num_samples(), 2);
  EXPECT_EQ(cut->batch(1, 1).tokens, (std::vector<int32_t>{200, 201, 202, 203}));
  EXPECT_EQ(cut->batch(1, 1).targets, (std::vector<int32_t>{-1, -1, 203, 204}));
  TE_EXPECT_CONTAINS(cut->describe(), "1 truncated to seq_length + 1, 3 without a response dropped");
  const auto dropped = open_instructions(folder / "a", 4, 1, false, true);
  EXPECT_EQ(dropped->num_samples(), 1);
  TE_EXPECT_CONTAINS(dropped->describe(),
                     "100.0% filled, 2 too long and dropped, 2 without a response dropped");
}

/// An epoch contains every conversation once and complete, with the targets of its mask and its own document_start.
TEST(InstructionSource, AnEpochContainsEveryConversationOnce) {
  TextFolder folder;
  Conversations conversations;
  for (int i = 0; i < 400; ++i) conversations.add(2 + i * 7919 % 40, 1 + i % 5);
  conversations.write(folder / "a");
  constexpr int64_t kLength = 64;
  const auto source = open_instructions(folder / "a", kLength);
  EXPECT_EQ(source->num_samples(), data::BatchSource::kEndless);
  std::set<std::vector<int32_t>> orders;
  int64_t sample = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::map<int32_t, int> seen;  // conversation -> times
    std::vector<int32_t> order;
    while (seen.size() < 400) {
      const data::Batch batch = source->batch(sample++, 1, true);
      for (size_t i = 0; i < batch.tokens.size();) {
        if (batch.tokens[i] == 0) break;
        const auto number = static_cast<size_t>(batch.tokens[i] / 100 - 1);
        const auto& tokens = conversations.tokens[number];
        const auto& mask = conversations.masks[number];
        for (size_t k = 0; k + 1 < tokens.size(); ++k) {
          ASSERT_EQ(batch.tokens[i + k], tokens[k]);
          ASSERT_EQ(batch.targets[i + k], mask[k + 1] != 0 ? tokens[k + 1] : -1);
          ASSERT_EQ(batch.document_start[i + k], static_cast<int32_t>(i));
        }
        ++seen[static_cast<int32_t>(number)];
        order.push_back(static_cast<int32_t>(number));
        i += tokens.size() - 1;
      }
    }
    EXPECT_EQ(order.size(), 400u) << "epochs must not overlap";
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(InstructionSource, IsIndependentOfOrderBatchSizeAndThreads) {
  TextFolder folder;
  Conversations a, b;
  for (int i = 0; i < 60; ++i) a.add(2 + i * 7919 % 30, 1);
  for (int i = 0; i < 25; ++i) b.add(2 + i * 31 % 17, 1);
  a.write(folder / "a");
  b.write(folder / "b");
  const auto open = [&](uint64_t seed) {
    return data::make_instruction_source({{0.7, folder / "a"}, {0.3, folder / "b"}},
                                         {.seq_length = 32, .vocab_size = 1 << 20, .seed = seed});
  };
  constexpr int64_t kCount = 2000;  // many epochs of each
  const data::Batch expected = open(1)->batch(0, kCount, true);
  EXPECT_NE(open(2)->batch(0, 50).tokens, open(1)->batch(0, 50).tokens);
  const auto source = open(1);
  std::vector<int> failures(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t i = 0; i < 200; ++i) {
        const int64_t first = (i * 7919 + static_cast<int64_t>(thread) * 613) % (kCount - 4);
        const data::Batch batch = source->batch(first, 1 + i % 4, true);
        failures[thread] +=
            !std::equal(batch.tokens.begin(), batch.tokens.end(), expected.tokens.begin() + first * 32) ||
            !std::equal(batch.targets.begin(), batch.targets.end(), expected.targets.begin() + first * 32) ||
            !std::equal(batch.document_start.begin(), batch.document_start.end(),
                        expected.document_start.begin() + first * 32);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(4));
}

TEST(InstructionSource, RefusesMasksThatDoNotMatch) {
  TextFolder folder;
  Conversations conversations;
  conversations.add(6, 3);
  conversations.add(5, 3);
  const auto error = [&] { return user_error_of([&] { open_instructions(folder / "a", 16); }); };
  conversations.write(folder / "a");
  EXPECT_EQ(error(), "");
  write_dataset(folder / "a_mask", {{0, 0, 0, 1, 1, 1}}, data::TokenType::kU8);
  TE_EXPECT_CONTAINS(
      error(), "a_mask.idx: has 1 documents of type u8, but " + (folder / "a") + " has 2; the two do not");
  write_dataset(folder / "a_mask", {{0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 1, 1}}, data::TokenType::kU8);
  TE_EXPECT_CONTAINS(error(), "a_mask.idx: document 1 has 6 values, but 5 tokens in " + (folder / "a"));
  write_dataset(folder / "a_mask", {{0, 0, 0, 1, 2, 1}, {0, 0, 1, 1, 1}}, data::TokenType::kU8);
  TE_EXPECT_CONTAINS(error(), "a_mask.bin: value 4 of document 0 is 2, but a loss mask has 0 and 1 only");
  write_dataset(folder / "a_mask", {{0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}, data::TokenType::kU8);
  TE_EXPECT_CONTAINS(error(),
                     "none of its 2 conversations can be used (0 are longer than seq_length + 1 = 17, 2 "
                     "have no response");
  std::filesystem::remove(folder / "a_mask.idx");
  TE_EXPECT_CONTAINS(error(), "a: has no loss mask");
}

}  // namespace
}  // namespace te
