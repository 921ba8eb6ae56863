// Tokens that ranks send once to each rank with one of their experts (kernels/moe/dispatch.h), on either backend: all
// ranks in one process, whose exchanges are copies on the host.
#pragma once

#include <deque>
#include <vector>

#include "moe_cases.h"

namespace te::kernels {

enum class Choice : uint8_t { spread, one_expert, one_rank, dropped };

struct TokensCase {
  int64_t tokens, experts, topk, ranks, alignment;
  Choice choice = Choice::spread;
  int64_t own() const { return experts / ranks; }
};
inline const TokensCase kTokensCases[] = {{1, 4, 1, 2, 1},
                                          {1, 4, 4, 2, 16},
                                          {33, 8, 2, 4, 16},
                                          {64, 8, 8, 2, 16},
                                          {129, 64, 8, 4, 128},
                                          {50, 12, 3, 4, 1},
                                          {257, 16, 4, 16, 16},
                                          {40, 6, 1, 2, 16, Choice::one_expert},
                                          {29, 12, 3, 3, 1, Choice::one_rank},
                                          {300, 32, 6, 4, 32, Choice::dropped},
                                          {1000, 128, 8, 2, 16}};

/// The experts of the tokens of a rank, [tokens * topk]; -1: dropped.
inline std::vector<int32_t> choices_of(const TokensCase& c, int64_t rank) {
  // Rank 0 has fewer experts to choose from, so other ranks' experts are empty.
  const int64_t experts = c.choice == Choice::one_rank ? c.own() : c.experts;
  std::vector<int32_t> all = expert_choices({c.tokens, experts, c.topk, 1, c.choice == Choice::one_expert});
  for (size_t i = 0; i < all.size(); ++i) {
    if (c.choice == Choice::spread) all[i] = static_cast<int32_t>((all[i] + 3 * rank) % c.experts);
    if (c.choice == Choice::dropped && (i + static_cast<size_t>(rank)) % 5 < 3) all[i] = -1;
  }
  return all;
}

/// Values of another layer, which would be valid: outputs must not keep them.
inline void fill_stale(testing::TestTensor& list) {
  list.fill_ints(std::vector<int32_t>(static_cast<size_t>(list.get().numel()), 1));
}

/// What a rank sends.
struct SendingTokens {
  using T = testing::TestTensor;
  T experts, offsets, row_of, source, ranks, token_offsets, token_row_of, token_source, slots;
  SendingTokens(const Context& x, const TokensCase& c, int64_t rank)
      : experts(x, DType::i32, {c.tokens, c.topk}),
        offsets(x, DType::i32, {c.experts + 1}),
        row_of(x, DType::i32, {c.tokens, c.topk}),
        source(x, DType::i32, {c.tokens * c.topk}),
        ranks(x, DType::i32, {c.tokens, c.ranks}),
        token_offsets(x, DType::i32, {c.ranks + 1}),
        token_row_of(x, DType::i32, {c.tokens, c.ranks}),
        token_source(x, DType::i32, {c.tokens * c.ranks}),
        slots(x, DType::i32, {c.tokens * c.topk}) {
    experts.fill_ints(choices_of(c, rank));
    for (testing::TestTensor* list : {&ranks, &token_row_of, &token_source, &slots}) fill_stale(*list);
    expert_rows(x, {.experts = experts, .offsets = offsets, .row_of = row_of, .source = source});
    token_ranks(x, {.row_of = row_of, .offsets = offsets, .ranks = ranks});
    expert_rows(x,
                {.experts = ranks, .offsets = token_offsets, .row_of = token_row_of, .source = token_source});
    token_slots(x, {.row_of = row_of,
                    .offsets = offsets,
                    .token_row_of = token_row_of,
                    .token_offsets = token_offsets,
                    .slots = slots});
  }
};

/// What a rank receives from all.
struct ReceivedTokens {
  using T = testing::TestTensor;
  int64_t capacity;
  T counts, offsets, segments, source, row_of, slots, token_source, token_rows;
  ReceivedTokens(const Context& x, const TokensCase& c, const std::deque<SendingTokens>& senders,
                 int64_t rank)
      : capacity(c.ranks * c.tokens * c.topk),
        counts(x, DType::i32, {c.ranks, c.experts + 1 + c.ranks + 1}),
        offsets(x, DType::i32, {c.own() + 1}),
        segments(x, DType::i32, {c.own() * c.ranks, 3}),
        source(x, DType::i32, {dispatch_rows_capacity(capacity, c.own(), c.alignment)}),
        row_of(x, DType::i32, {capacity}),
        slots(x, DType::i32, {capacity}),
        token_source(x, DType::i32, source.get().shape),
        token_rows(x, DType::i32, {c.ranks * c.tokens, token_slot_count(c.topk, c.own())}) {
    std::vector<int32_t> fields, received;
    for (const SendingTokens& sender : senders) {
      const std::vector<int32_t> first = ints_of(sender.offsets), sent = ints_of(sender.slots);
      fields.insert(fields.end(), first.begin(), first.end());
      for (const int32_t token : ints_of(sender.token_offsets)) fields.push_back(token);
      received.insert(received.end(), sent.begin() + first[static_cast<size_t>(rank * c.own())],
                      sent.begin() + first[static_cast<size_t>((rank + 1) * c.own())]);
    }
    received.resize(static_cast<size_t>(capacity), -3);
    counts.fill_ints(fields), slots.fill_ints(received);
    for (testing::TestTensor* list : {&source, &row_of, &token_source, &token_rows}) fill_stale(*list);
    dispatch_rows(x, {.counts = counts,
                      .first_expert = rank * c.own(),
                      .alignment = c.alignment,
                      .offsets = offsets,
                      .segments = segments,
                      .source = source,
                      .row_of = row_of,
                      .slots = slots,
                      .token_source = token_source,
                      .token_rows = token_rows});
  }
};

/// A dry run receives slots of other tokens than its counts say, which are ignored.
inline void expect_slots_outside_ignored(const Context& context) {
  const TokensCase c{20, 8, 3, 2, 16};
  for (const int32_t slot : {1 << 20, -5}) {
    std::deque<SendingTokens> senders;
    for (int64_t rank = 0; rank < c.ranks; ++rank) senders.emplace_back(context, c, rank);
    senders[1].slots.fill_ints(std::vector<int32_t>(static_cast<size_t>(c.tokens * c.topk), slot));
    const ReceivedTokens received(context, c, senders, 0);
    const std::vector<int32_t> offsets = ints_of(senders[0].offsets), source = ints_of(received.token_source);
    EXPECT_EQ(std::ssize(source) - std::count(source.begin(), source.end(), -1), offsets[4]) << slot;
  }
}

}  // namespace te::kernels
