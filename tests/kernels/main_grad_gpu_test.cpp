// BF16 main gradients on the GPU: the old value plus the FP32 sum that the same kernel adds to an fp32 gradient,
// rounded once. The gradient norm and AdamW also read them.
#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/main_grad_cases.h"

namespace te::testing {
namespace {

TEST(MainGradGpu, Bf16HoldsTheOldValuePlusTheFp32SumRoundedOnce) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const GradientCase& c : gradient_cases()) {
    for (const DType input : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name + " " + std::string(dtype_name(input)));
      const std::vector<float> sums = c.run(gpu, input, DType::f32, {});
      for (const float old : kOldGradients) {
        const std::vector<float> actual = c.run(gpu, input, DType::bf16, {old});
        ASSERT_EQ(actual.size(), sums.size());
        for (size_t i = 0; i < sums.size(); ++i)
          ASSERT_EQ(actual[i], to_float(to_bf16(old + sums[i]))) << "element " << i << " old " << old;
      }
    }
  }
}

TEST(MainGradGpu, Bf16MatchesTheCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const GradientCase& c : gradient_cases()) {
    for (const DType input : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name + " " + std::string(dtype_name(input)));
      // Sums in another order (and the activations' gradients, which the GPU rounds to bf16 from a faster exponential)
      // may be rounded differently: by one unit of bf16, 2^-7 of the value.
      const std::vector<float> expected = c.run(cpu, input, DType::bf16, kOldGradients);
      const std::vector<float> actual = c.run(gpu, input, DType::bf16, kOldGradients);
      EXPECT_LT(max_relative_error(actual, expected, 1.0), 8e-3);
      EXPECT_LT(relative_error(actual, expected), 5e-3);
    }
  }
}

TEST(MainGradGpu, NormCountsEveryBf16ElementOnce) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  TestTensor scratch(gpu, DType::f32, {kernels::sum_of_squares_scratch_elements()});
  for (const int64_t n : {1, 7, 9, 1023, 100'003, 8'388'608 + 5}) {
    for (const int64_t offset : {0, 1}) {
      TestTensor x(gpu, DType::bf16, {n + offset, 1}), out(gpu, DType::f32, {1});
      TestTensor flags(gpu, DType::u8, {kernels::granules_of(n)});
      std::vector<float> values(static_cast<size_t>(n + offset), 1.0f);
      values.back() = 3.0f;
      x.fill(values);
      out.fill({4.0f});
      const Tensor part = x.get().slice_rows(offset, n);
      kernels::sum_of_squares(gpu, part, out, scratch);
      EXPECT_EQ(out.floats()[0], static_cast<float>(n + 12)) << n << " " << offset;
      std::vector<uint8_t> bytes(static_cast<size_t>(kernels::granules_of(n)), kernels::kGranuleDecays);
      bytes.back() = kernels::kGranuleCounted;
      flags.fill_raw(bytes.data());
      out.fill({0.0f});
      kernels::sum_of_squares(gpu, part, out, scratch, flags);
      EXPECT_EQ(out.floats()[0], static_cast<float>((n - 1) % kernels::kAdamWGranule + 9)) << n;
    }
  }
}

TEST(MainGradGpu, AdamWMatchesReferenceBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const int64_t n : {1, 5, 300, 100'003}) {
    for (const int64_t offset : {0, 1}) {
      for (const DType param : {DType::f32, DType::bf16, DType::f16}) {
        const auto run = [&](const Context& context) {
          const auto part = [&](const TestTensor& t) { return t.get().slice_rows(offset, n).view({n}); };
          const Shape size{n + offset, 1};
          TestTensor w(context, DType::f32, size), m(context, DType::f32, size), v(context, DType::f32, size);
          TestTensor g(context, DType::bf16, size), p(context, param, size);
          TestTensor flags(context, DType::u8, {kernels::granules_of(n)});
          w.fill_normal(1), g.fill_normal(2), m.fill_value(0.5f), v.fill_value(0.25f);
          context.fill_bytes(flags, kernels::kGranuleDecays);
          kernels::adamw(context, {.main_param = part(w),
                                   .main_grad = part(g),
                                   .exp_avg = part(m),
                                   .exp_avg_sq = part(v),
                                   .param = part(p),
                                   .flags = flags,
                                   .lr = 1e-2f,
                                   .weight_decay = 0.1f});
          return std::vector{w.raw(), m.raw(), v.raw(), p.raw()};
        };
        EXPECT_EQ(run(gpu), run(cpu)) << n << " " << offset << " " << dtype_name(param);
      }
    }
  }
}

}  // namespace
}  // namespace te::testing
