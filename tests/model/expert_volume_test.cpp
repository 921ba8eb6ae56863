// Communication volume of the dispatch to experts.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <tuple>

#include "model/expert_dispatch.h"

namespace te::model {
namespace {

TEST(ExpertVolume, ExpectedShareCountsAllChoices) {
  for (const auto& [experts, topk, ranks] :
       {std::array{4, 2, 2}, {6, 4, 2}, {8, 1, 4}, {8, 8, 8}, {12, 3, 3}, {12, 5, 12}}) {
    int all = 0, on_rank = 0;  // choices of topk experts as bits; the rank has the first ones
    for (unsigned choice = 0; choice < 1u << experts; ++choice) {
      if (std::popcount(choice) != topk) continue;
      ++all, on_rank += (choice & ((1u << (experts / ranks)) - 1)) != 0 ? 1 : 0;
    }
    EXPECT_NEAR(expected_token_share(experts, topk, ranks), static_cast<double>(on_rank) / all, 1e-12)
        << experts << " " << topk << " " << ranks;
  }
}

// Eight experts per token: on two and four ranks tokens are less data in BF16 than their selections in FP8.
TEST(ExpertVolume, Fp8IsSentWhereItIsLessData) {
  for (const int64_t experts : {64, 128}) {
    for (const auto& [topk, ranks, dtype] : {std::tuple<int64_t, int64_t, DType>{8, 2, DType::bf16},
                                             {8, 4, DType::bf16},
                                             {8, 8, DType::bf16},
                                             {6, 4, DType::bf16},
                                             {4, 2, DType::bf16},
                                             {2, 2, DType::bf16},
                                             {1, 8, DType::bf16},
                                             {8, 2, DType::f32},
                                             {6, 2, DType::f32},
                                             {8, 4, DType::f32}}) {
      const double selections = static_cast<double>(topk) / static_cast<double>(ranks);
      const double tokens =
          expected_token_share(experts, topk, ranks) * static_cast<double>(dtype_size(dtype));
      EXPECT_EQ(sends_fp8_selections(topk, ranks, dtype, 1.0), selections < tokens) << topk << " " << ranks;
      EXPECT_TRUE(sends_fp8_selections(topk, ranks, dtype, 0.5));
    }
  }
}

}  // namespace
}  // namespace te::model
