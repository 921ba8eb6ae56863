// Quantization with group scales on the GPU against the CPU reference: bytes, scales, amax and counters are bitwise
// equal.
#include "kernels/quantize/quantize_groups.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/quantize_groups_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

/// With tokens: rows that are copies of them.
void compare_groups(const GroupCase& c, const std::vector<float>& values, bool rows = true,
                    bool columns = true, int64_t tokens = 0, bool statistics = true) {
  constexpr int64_t kTopk = 3;
  SCOPED_TRACE(c.name());
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  const auto run = [&](const Context& context) {
    TestTensor x(context, c.input, {tokens > 0 ? tokens : c.rows, c.cols}),
        source(context, DType::i32, {c.rows});
    x.fill(values);
    source.fill_ints(copied_rows(c.rows, std::max<int64_t>(tokens, 1), kTopk));
    const GroupStorage storage(context, c);
    QuantizeGroups args = storage.args(x, rows, columns);
    if (tokens > 0) args.source = source, args.topk = kTopk;
    if (!statistics) args.amax = nullptr, args.counters = nullptr;
    quantize_groups(context, args);
    return storage.read();
  };
  const GroupResult actual = run(gpu), expected = run(cpu);
  EXPECT_EQ(actual.rowwise, expected.rowwise);
  EXPECT_EQ(actual.columnwise, expected.columnwise);
  expect_same_bits(actual.row_scales, expected.row_scales);
  expect_same_bits(actual.column_scales, expected.column_scales);
  expect_same_bits({actual.amax}, {expected.amax});
  EXPECT_EQ(actual.counters.saturated, expected.counters.saturated);
  EXPECT_EQ(actual.counters.flushed, expected.counters.flushed);
  EXPECT_EQ(actual.counters.total, expected.counters.total);
}

TEST(QuantizeGroupsGpu, EqualsTheCpu) {
  TE_REQUIRE_GPU();
  for (const GroupCase& c : group_cases()) compare_groups(c, group_values(c.rows, c.cols));
  for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks})
    compare_groups({2048, 1392, layout}, group_values(2048, 1392));
}

TEST(QuantizeGroupsGpu, EachLayoutAlone) {
  TE_REQUIRE_GPU();
  for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks}) {
    for (const bool statistics : {false, true}) {
      compare_groups({144, 272, layout}, group_values(144, 272), true, false, 0, statistics);
      compare_groups({144, 272, layout}, group_values(144, 272), false, true, 0, statistics);
    }
  }
}

TEST(QuantizeGroupsGpu, RowsOfTokens) {
  TE_REQUIRE_GPU();
  for (const GroupCase& c : {GroupCase{144, 272, ScaleLayout::vectors},
                             {1920, 1392, ScaleLayout::vectors},
                             {256, 128, ScaleLayout::vectors, DType::f32, DType::e5m2, false}})
    for (const auto& [rows, columns] : {std::pair{true, true}, {true, false}, {false, true}})
      for (const bool statistics : {false, true})
        compare_groups(c, group_values(200, c.cols), rows, columns, 200, statistics);
}

TEST(QuantizeGroupsGpu, SpecialValues) {
  TE_REQUIRE_GPU();
  std::vector<float> values = group_values(160, 160);
  values[7] = std::numeric_limits<float>::infinity();
  values[160 * 40 + 3] = std::numeric_limits<float>::quiet_NaN();
  values[160 * 140 + 130] = 1e-38f;
  for (const ScaleLayout layout : {ScaleLayout::rows, ScaleLayout::vectors, ScaleLayout::blocks})
    for (const DType input : {DType::f32, DType::bf16})
      for (const bool power_of_two : {false, true})
        compare_groups({160, 160, layout, input, DType::e4m3, power_of_two}, values);
}

}  // namespace
}  // namespace te::kernels
