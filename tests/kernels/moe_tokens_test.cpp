// CPU reference of the lists of tokens that ranks send once to each other, against their definition.
#include <map>
#include <utility>

#include "moe_tokens_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;

/// Whether a token selects one of a rank's experts.
bool goes_to(const TokensCase& c, const std::vector<int32_t>& choices, int64_t token, int64_t rank) {
  return std::any_of(choices.begin() + token * c.topk, choices.begin() + (token + 1) * c.topk,
                     [&](int32_t expert) { return expert >= 0 && expert / c.own() == rank; });
}

TEST(MoeTokens, ListsFollowTheirDefinition) {
  for (const TokensCase& c : kTokensCases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts, {} ranks", c.tokens, c.topk, c.experts, c.ranks));
    std::deque<SendingTokens> senders;
    std::vector<std::vector<int32_t>> all;
    for (int64_t rank = 0; rank < c.ranks; ++rank)
      senders.emplace_back(cpu(), c, rank), all.push_back(choices_of(c, rank));
    // 1. Each token once for each rank with one of its experts, by rank and token.
    for (int64_t from = 0; from < c.ranks; ++from) {
      const std::vector<int32_t>& choices = all[static_cast<size_t>(from)];
      std::vector<int32_t> source, offsets{0};
      for (int64_t to = 0; to < c.ranks; ++to) {
        for (int64_t token = 0; token < c.tokens; ++token)
          if (goes_to(c, choices, token, to)) source.push_back(static_cast<int32_t>(token * c.ranks + to));
        offsets.push_back(static_cast<int32_t>(source.size()));
      }
      const SendingTokens& sender = senders[static_cast<size_t>(from)];
      source.resize(static_cast<size_t>(c.tokens * c.ranks), -1);
      EXPECT_EQ(ints_of(sender.token_source), source);
      EXPECT_EQ(ints_of(sender.token_offsets), offsets);
    }
    // 2. The rows of the experts, of which each belongs to a received token.
    for (int64_t to = 0; to < c.ranks; ++to) {
      const ReceivedTokens received(cpu(), c, senders, to);
      const int64_t slots = received.token_rows.get().cols();
      std::map<std::pair<int64_t, int64_t>, int64_t> tokens;  // of a rank: index of the received token
      for (int64_t from = 0; from < c.ranks; ++from)
        for (int64_t token = 0; token < c.tokens; ++token)
          if (goes_to(c, all[static_cast<size_t>(from)], token, to))
            tokens.emplace(std::pair{from, token}, static_cast<int64_t>(tokens.size()));
      std::vector<int32_t> source(static_cast<size_t>(received.source.get().numel()), -1),
          rows(static_cast<size_t>(received.token_rows.get().numel()), -1);
      std::vector<int64_t> used(tokens.size(), 0);
      int64_t row = 0;
      for (int64_t expert = to * c.own(); expert < (to + 1) * c.own(); ++expert) {
        for (int64_t from = 0; from < c.ranks; ++from) {
          const std::vector<int32_t>& choices = all[static_cast<size_t>(from)];
          for (int64_t i = 0; i < c.tokens * c.topk; ++i) {
            if (choices[static_cast<size_t>(i)] != expert) continue;
            const int64_t token = tokens.at({from, i / c.topk});
            const auto place = static_cast<size_t>(token * slots + used[static_cast<size_t>(token)]++);
            source[static_cast<size_t>(row)] = static_cast<int32_t>(place);
            rows[place] = static_cast<int32_t>(row++);
          }
        }
        row = (row + c.alignment - 1) / c.alignment * c.alignment;
      }
      EXPECT_EQ(ints_of(received.token_source), source);
      EXPECT_EQ(ints_of(received.token_rows), rows);
    }
  }
}

TEST(MoeTokens, IgnoreSlotsOutsideTheReceivedTokens) {
  expect_slots_outside_ignored(cpu());
}

}  // namespace
}  // namespace te::kernels
