// Elementwise ops on the GPU against the CPU: bitwise equal, except for the summation order of column sums.
#include "kernels/elementwise/elementwise.h"

#include <cmath>

#include "core/random.h"
#include "kernels/common/granule.h"
#include "kernels/quantize/quantize.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

const int64_t kCounts[] = {1, 7, 8, 1000, 4096, 100003};

TEST(ElementwiseGpu, AddEqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t count : kCounts) {
      const auto run = [&](const Context& context, bool in_place) {
        TestTensor a(context, type, {count}), b(context, type, {count}), out(context, type, {count});
        a.fill_normal(1);
        b.fill_normal(2);
        add(context, a, b, in_place ? b : out);
        return in_place ? b.raw() : out.raw();
      };
      const auto expected = run(cpu, false);
      EXPECT_EQ(testing::count_different(run(gpu, false), expected, dtype_size(type)), 0) << count;
      EXPECT_EQ(testing::count_different(run(gpu, true), expected, dtype_size(type)), 0) << count;
    }
  }
}

TEST(ElementwiseGpu, ScaleEqualsTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t count : kCounts) {
      const auto run = [&](const Context& context) {
        TestTensor x(context, type, {count});
        x.fill_normal(1);
        scale(context, x, 25.25f);
        return x.raw();
      };
      EXPECT_EQ(testing::count_different(run(gpu), run(cpu), dtype_size(type)), 0) << count;
    }
}

TEST(ElementwiseGpu, AddOfUnalignedViews) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  TestTensor a(gpu, DType::bf16, {1001}), b(gpu, DType::bf16, {1001}), out(gpu, DType::bf16, {1001});
  a.fill_normal(1);
  b.fill_normal(2);
  out.fill_value(9.0f);
  const auto tail = [](const TestTensor& t) { return Tensor{t.get().as<char>() + 2, DType::bf16, {1000}}; };
  add(gpu, tail(a), tail(b), tail(out));
  const auto x = a.floats(), y = b.floats(), sum = out.floats();
  EXPECT_EQ(sum[0], 9.0f);
  for (size_t i = 1; i < sum.size(); ++i) ASSERT_EQ(sum[i], to_float(to_bf16(x[i] + y[i])));
}

TEST(ElementwiseGpu, CastAndFillEqualTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t count : kCounts) {
        const auto run = [&](const Context& context) {
          TestTensor x(context, from, {count}), out(context, to, {count});
          x.fill_normal(4);
          cast(context, x, out);
          return out.raw();
        };
        EXPECT_EQ(testing::count_different(run(gpu), run(cpu), dtype_size(to)), 0) << count;
      }
    }
    for (const int64_t count : kCounts) {
      TestTensor x(gpu, from, {count});
      fill_value(gpu, x, -1.25f);
      EXPECT_EQ(x.floats(), std::vector<float>(static_cast<size_t>(count), -1.25f));
    }
  }
}

TEST(ElementwiseGpu, ZeroGranulesTouchesNoOthers) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t granules : {1, 31, 32, 33, 5000}) {
      std::vector<uint8_t> flags(static_cast<size_t>(granules));
      for (size_t i = 0; i < flags.size(); ++i) flags[i] = static_cast<uint8_t>(philox(1, 2, i).word[0] % 8);
      const auto run = [&](const Context& context) {
        TestTensor x(context, type, {granules * kAdamWGranule}), marks(context, DType::u8, {granules});
        marks.fill_raw(flags.data());
        zero_granules(context, {.x = x, .flags = marks});
        return x.raw();
      };
      EXPECT_EQ(testing::count_different(run(gpu), run(cpu), dtype_size(type)), 0) << granules;
    }
  }
}

TEST(ElementwiseGpu, BiasGradientIsCloseToTheCpu) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), cpu = Context::cpu();
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {128, 64}, {300, 33}, {1500, 200}, {4096, 768}}) {
      const auto run = [&](const Context& context) {
        TestTensor dy(context, type, {rows, cols}), dbias(context, DType::f32, {cols});
        TestTensor scratch(context, DType::f32, {quantize_scratch_elements(rows, cols)});
        dy.fill_normal(4);
        dbias.fill_value(0.5f);
        bias_gradient(context, dy, dbias, scratch);
        return dbias.floats();
      };
      const auto actual = run(gpu), expected = run(cpu);
      // Sums of `rows` unit normals: the rounding error of each addition is below 2^-24 of the partial sum.
      for (int64_t c = 0; c < cols; ++c) ASSERT_NEAR(actual[c], expected[c], 1e-6 * rows) << rows << " " << c;
    }
  }
}

}  // namespace
}  // namespace te::kernels
