// BF16 main gradients on the CPU: every op adds its FP32 sum to the widened old value and rounds once. The gradient
// norm and AdamW also read them.
#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/main_grad_cases.h"

namespace te::testing {
namespace {

TEST(MainGrad, Bf16HoldsTheOldValuePlusTheFp32SumRoundedOnce) {
  const Context context = Context::cpu();
  for (const GradientCase& c : gradient_cases()) {
    for (const DType input : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name + " " + std::string(dtype_name(input)));
      const std::vector<float> sums = c.run(context, input, DType::f32, {});
      for (const float old : kOldGradients) {
        const std::vector<float> actual = c.run(context, input, DType::bf16, {old});
        ASSERT_EQ(actual.size(), sums.size());
        for (size_t i = 0; i < sums.size(); ++i)
          ASSERT_EQ(actual[i], to_float(to_bf16(old + sums[i]))) << "element " << i << " old " << old;
      }
    }
  }
}

TEST(MainGrad, GemmAccumulatesInFp32IntoBf16) {
  const Context context = Context::cpu();
  const int64_t m = 130, n = 70, k = 300;
  for (const DType input : {DType::f32, DType::bf16}) {
    TestTensor a(context, input, {k, m}), b(context, input, {k, n});
    TestTensor sums(context, DType::f32, {m, n}), gradient(context, DType::bf16, {m, n});
    a.fill_normal(1), b.fill_normal(2);
    fill_old(gradient, kOldGradients);
    const std::vector<float> old = gradient.floats();
    kernels::gemm(context, {.a = a, .b = b, .out = sums, .trans_a = true});
    kernels::gemm(context, {.a = a, .b = b, .out = gradient, .trans_a = true, .accumulate = true});
    const std::vector<float> sum = sums.floats(), actual = gradient.floats();
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(actual[i], to_float(to_bf16(old[i] + sum[i]))) << i;
  }
}

TEST(MainGrad, NormAndAdamWReadBf16) {
  const Context context = Context::cpu();
  for (const int64_t n : {1, 127, 300, 200'003}) {
    TestTensor half(context, DType::bf16, {n}), full(context, DType::f32, {n});
    half.fill_normal(1);
    full.fill(half.floats());
    TestTensor scratch(context, DType::f32, {kernels::sum_of_squares_scratch_elements()});
    TestTensor flags(context, DType::u8, {kernels::granules_of(n)});
    std::vector<uint8_t> bytes(static_cast<size_t>(kernels::granules_of(n)));
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = i % 2 == 0 ? kernels::kGranuleCounted | kernels::kGranuleDecays : 0;
    flags.fill_raw(bytes.data());
    std::vector<std::vector<uint8_t>> results[2];
    for (const TestTensor* gradient : {&half, &full}) {
      TestTensor out(context, DType::f32, {2});
      TestTensor w(context, DType::f32, {n}), m(context, DType::f32, {n}), v(context, DType::f32, {n});
      TestTensor p(context, DType::bf16, {n});
      out.fill_value(1.0f), w.fill_normal(2), m.fill_value(0.5f), v.fill_value(0.25f);
      float* to = out.get().as<float>();
      kernels::sum_of_squares(context, *gradient, {to, DType::f32, {1}}, scratch);
      kernels::sum_of_squares(context, *gradient, {to + 1, DType::f32, {1}}, scratch, flags);
      kernels::adamw(context, {.main_param = w,
                               .main_grad = *gradient,
                               .exp_avg = m,
                               .exp_avg_sq = v,
                               .param = p,
                               .flags = flags,
                               .lr = 1e-2f,
                               .weight_decay = 0.1f});
      results[gradient == &half ? 0 : 1] = {out.raw(), w.raw(), m.raw(), v.raw(), p.raw()};
    }
    EXPECT_EQ(results[0], results[1]) << n;
  }
}

}  // namespace
}  // namespace te::testing
