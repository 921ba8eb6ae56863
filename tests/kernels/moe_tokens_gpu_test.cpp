// Lists of the tokens that ranks send once to each other, on the GPU: equal to the CPU reference.
#include "moe_tokens_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

TEST(MoeTokensGpu, ListsEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const TokensCase& c : kTokensCases) {
    const auto run = [&](const Context& context) {
      std::vector<std::vector<uint8_t>> results;
      std::deque<SendingTokens> senders;
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        const SendingTokens& sender = senders.emplace_back(context, c, rank);
        for (const TestTensor* list :
             {&sender.ranks, &sender.token_row_of, &sender.token_source, &sender.slots})
          results.push_back(list->raw());
      }
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        const ReceivedTokens received(context, c, senders, rank);
        for (const TestTensor* list :
             {&received.source, &received.row_of, &received.token_source, &received.token_rows})
          results.push_back(list->raw());
      }
      return results;
    };
    EXPECT_EQ(run(gpu), run(cpu())) << c.tokens << " " << c.experts << " " << c.ranks;
  }
}

TEST(MoeTokensGpu, IgnoreSlotsOutsideTheReceivedTokens) {
  TE_REQUIRE_GPU();
  expect_slots_outside_ignored(Context::cuda(0));
}

}  // namespace
}  // namespace te::kernels
