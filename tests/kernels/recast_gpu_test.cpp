// Casts that are made again on the device, against the CPU's cast of the same values with a scale of their own.
#include <bit>
#include <limits>

#include "kernels/recast_cases.h"

namespace te::testing {
namespace {

TEST(RecastGpu, OfEveryProducer) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& producer : recast_producers()) check_recast(gpu, producer);
}

TEST(RecastGpu, OfMoreTilesThanASecondLaunchHasBlocks) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    check_recast(gpu, cast_producer(DType::bf16, format, 4096, 512));
    check_recast(gpu, norm_producer(NormKind::rms, DType::bf16, format, 4096, 512, true));
    check_recast(gpu, norm_backward_producer(NormKind::layer, DType::bf16, format, 4096, 512));
    for (const bool stored : {false, true}) {
      check_recast(
          gpu, activation_producer(kernels::ActivationKind::swiglu, DType::bf16, format, 4096, 512, stored));
      check_recast(gpu, activation_gradient_producer(kernels::ActivationKind::swiglu, DType::bf16, format,
                                                     4096, 1024, stored));
    }
    check_recast(gpu, rope_producer(DType::bf16, format, 2048, 3, 128));
  }
}

TEST(RecastGpu, LeavesNonFiniteValuesAsTheyWere) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const Producer shape{"not finite", DType::bf16, DType::e4m3, 300, 80, {}};
    TestTensor x(gpu, DType::bf16, {300, 80});
    std::vector<float> values(300 * 80, 14.0f);
    values[12345] = bad;
    x.fill(values);
    RecastStorage off(gpu, shape, 64.0f), on(gpu, shape, 64.0f);
    kernels::quantize(gpu, {.x = x, .out = off.output(false)});
    kernels::quantize(gpu, {.x = x, .out = on.output(true)});
    Fp8Result expected = off.result(), actual = on.result();
    EXPECT_EQ(std::bit_cast<uint32_t>(actual.amax), std::bit_cast<uint32_t>(expected.amax));
    actual.amax = expected.amax = 0.0f;
    expect_same(actual, expected);
    expect_settled(on.state(), 64.0f, 1, 0);
  }
}

TEST(RecastGpu, SharesAgree) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const Producer& p : {cast_producer(DType::bf16, DType::e4m3, 256, 128),
                            norm_producer(NormKind::rms, DType::bf16, DType::e4m3, 256, 128, true),
                            rope_producer(DType::bf16, DType::e5m2, 64, 3, 128)}) {
    const Bytes values = p.run(gpu, {}).at("values");
    const OwnCast own = own_cast(p, values), whole = own_cast(p, values, 0, 10 * own.amax);
    TestTensor larger(gpu, DType::f32, {1});
    larger.fill_value(10 * own.amax);
    RecastStorage storage(gpu, p, own.scale);
    Fp8Output out = storage.output(true);
    out.recast.agree = [&](const Context& context) {
      context.copy({&out.recast.state->amax, DType::f32, {1}}, larger);
    };
    p.run(gpu, out);
    Fp8Result expected = whole.result;
    expected.amax = 10 * own.amax;
    expect_same_cast(storage.result(), expected);
    expect_settled(storage.state(), whole.scale, 1, 1);
  }
}

}  // namespace
}  // namespace te::testing
