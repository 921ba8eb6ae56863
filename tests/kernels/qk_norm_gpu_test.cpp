// CUDA RMSNorm of queries and keys against the CPU reference.
#include "kernels/qk_norm_cases.h"

namespace te::testing {
namespace {

using kernels::qk_norm_backward;
using kernels::qk_norm_forward;

// Statistics and sums differ by the order of FP32 additions; stored values by that and one rounding, a unit of BF16.
TEST(QkNormGpu, MatchesTheCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const QkNormCase& c : qk_norm_cases()) {
      SCOPED_TRACE(c.name());
      QkNormData expected(cpu, c, dtype), actual(gpu, c, dtype);
      qk_norm_forward(cpu, expected.forward());
      qk_norm_forward(gpu, actual.forward());
      const double bound = dtype == DType::f32 ? 1e-5 : 1e-2;
      EXPECT_LT(max_relative_error(actual.qkv.floats(), expected.qkv.floats(), 0.1), bound);
      EXPECT_EQ(actual.raw.raw(), expected.raw.raw());
      EXPECT_LT(max_relative_error(actual.rstd.floats(), expected.rstd.floats()), 1e-6);
      qk_norm_backward(cpu, expected.backward());
      qk_norm_backward(gpu, actual.backward());
      EXPECT_LT(max_relative_error(actual.dqkv.floats(), expected.dqkv.floats(), 0.1), bound);
      EXPECT_LT(max_relative_error(actual.dq_gain.floats(), expected.dq_gain.floats(), 1.0), 1e-5);
      EXPECT_LT(max_relative_error(actual.dk_gain.floats(), expected.dk_gain.floats(), 1.0), 1e-5);
    }
  }
}

// As in MatchesTheCpu; the sums over ranks also have another order.
TEST(QkNormGpu, ShardedNormMatchesUnsharded) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [c, ranks] : shared_qk_norm_cases()) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", c.name(), ranks));
      expect_shared_qk_norm(gpu, c, ranks, dtype, dtype == DType::f32 ? 1e-5 : 1e-2);
    }
}

TEST(QkNormGpu, IsDeterministic) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const QkNormCase c{1000, 8, 2, 128, false};
  std::vector<std::vector<uint8_t>> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    QkNormData data(gpu, c, DType::bf16);
    qk_norm_forward(gpu, data.forward());
    qk_norm_backward(gpu, data.backward());
    const std::vector<std::vector<uint8_t>> bits = {data.qkv.raw(), data.dqkv.raw(), data.dq_gain.raw(),
                                                    data.dk_gain.raw()};
    if (repeat == 0) first = bits;
    EXPECT_EQ(bits, first);
  }
}

}  // namespace
}  // namespace te::testing
