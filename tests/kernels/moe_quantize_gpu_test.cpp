// Quantization of experts' operands in a pipeline with several items per block, and activations that quantize their
// result: bit for bit what the reference, or the activation and the quantization one after another, give. Weight
// gradients that are added: the sum of the old value and the gradient, rounded once.
#include "send_fp8_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

// Enough rows and columns that each block has several items of several steps, with ragged ranges of experts.
TEST(MoeQuantizeGpu, ManyItemsPerBlockEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const auto& [c, cols] :
       {std::pair<MoeCase, int64_t>{{9001, 37, 4, 16}, 520}, {{35001, 5, 1, 16}, 264}})
    for (const ExpertScaling scaling : {ExpertScaling::corrected, ExpertScaling::power_of_two}) {
      const auto expected = quantize_permuted(cpu(), c, cols, DType::bf16, scaling, true, false);
      for (const bool from_source : {false, true})
        EXPECT_TRUE(quantize_permuted(gpu, c, cols, DType::bf16, scaling, from_source, false) == expected)
            << cols << " " << static_cast<int>(scaling) << " " << from_source;
    }
}

// Columns and numbers of rows that vectors divide and that they do not divide, in one and several rounds.
TEST(MoeQuantizeGpu, RowsQuantizedBySendersEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  std::vector<SendCase> cases(std::begin(kSendCases), std::end(kSendCases));
  cases.push_back({{3001, 24, 4, 16}, 4, 4000, 264});
  for (SendCase c : cases)
    for (const ExpertScaling scaling : kExpertScalings)
      for (const bool counted : {false, true})
        for (const DType dtype : {DType::bf16, DType::f32}) {
          c.scaling = scaling, c.counted = counted, c.dtype = dtype;
          c.second = counted != (dtype == DType::f32), c.format = c.second ? DType::e5m2 : DType::e4m3;
          for (const bool one_layout : {false, true}) {
            c.columnwise = !one_layout;
            const auto expected = sent_operands(cpu(), c, true);
            for (const bool by_senders : {false, true})
              EXPECT_TRUE(sent_operands(gpu, c, by_senders) == expected)
                  << c.order.tokens << " tokens, " << c.order.experts << " experts, scaling "
                  << static_cast<int>(scaling) << ", counted " << counted << ", second " << c.second
                  << ", one layout " << one_layout << ", by senders " << by_senders;
          }
        }
}

void expect_equal(const Context& context, const ActivationCase& c) {
  EXPECT_TRUE(activations(context, c, true) == activations(context, c, false))
      << c.order.tokens << " tokens, " << c.order.experts << " experts, " << c.ffn << " columns, scaling "
      << static_cast<int>(c.scaling) << ", counted " << c.counted << ", layouts " << c.rowwise
      << c.columnwise;
}

TEST(MoeQuantizeGpu, ActivationsInOnePassEqualSeparateOnes) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase order : kMoeCases) {
    order.alignment = std::max<int64_t>(order.alignment, 16);
    for (const ExpertScaling scaling : kExpertScalings) {
      for (const int64_t ffn : {8, 72, 264, 776}) expect_equal(gpu, {order, ffn, scaling});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, true});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, false, true, false});
      expect_equal(gpu, {order, 72, scaling, ActivationKind::swiglu, false, false, true});
    }
    // Not in one kernel.
    for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu_clamped})
      expect_equal(gpu, {order, 72, ExpertScaling::corrected, kind});
    expect_equal(gpu, {order, 37, ExpertScaling::corrected});
    ActivationCase fp32{order, 72, ExpertScaling::corrected};
    fp32.dtype = DType::f32, fp32.gradient = DType::e4m3;
    expect_equal(gpu, fp32);
  }
}

TEST(MoeQuantizeGpu, ManyItemsOfActivationsEqualSeparateOnes) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const ExpertScaling scaling : {ExpertScaling::corrected, ExpertScaling::power_of_two}) {
    expect_equal(gpu, {{9001, 37, 8, 16}, 520, scaling});
    ActivationCase e4m3{{20001, 3, 2, 16}, 768, scaling};
    e4m3.gradient = DType::e4m3;
    expect_equal(gpu, e4m3);
  }
}

void expect_equal_by_vectors(const Context& context, const ActivationCase& c) {
  const auto in_one = activations_by_vectors(context, c, true),
             separate = activations_by_vectors(context, c, false);
  ASSERT_EQ(in_one.size(), separate.size());
  for (size_t i = 0; i < separate.size(); ++i)
    EXPECT_TRUE(in_one[i] == separate[i])
        << "output " << i << ", " << c.order.tokens << " tokens, " << c.order.experts << " experts, " << c.ffn
        << " columns, layouts " << c.rowwise << c.columnwise;
}

// In one kernel with a multiple of 128 columns.
TEST(MoeQuantizeGpu, ActivationsWithScalesOfVectorsEqualSeparateOnes) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase order : kMoeCases)
    for (const int64_t alignment : {16, 128}) {
      order.alignment = std::max<int64_t>(order.alignment, alignment);
      ActivationCase c{order, 128, ExpertScaling::given};
      for (c.ffn = 128; c.ffn <= 640; c.ffn += 128) expect_equal_by_vectors(gpu, c);
      for (const DType gradient : {DType::e4m3, DType::e5m2})
        for (const auto& [rowwise, columnwise] : {std::pair<bool, bool>{true, false}, {false, true}}) {
          c.ffn = 256, c.gradient = gradient, c.rowwise = rowwise, c.columnwise = columnwise;
          expect_equal_by_vectors(gpu, c);
        }
      expect_equal_by_vectors(gpu, {order, 112, ExpertScaling::given});
      expect_equal_by_vectors(gpu, {order, 128, ExpertScaling::given, ActivationKind::geglu});
    }
  expect_equal_by_vectors(gpu, {{20001, 3, 2, 128}, 768, ExpertScaling::given});
}

// In wgrad of BF16, an expert's last stage of tensor cores includes rows of the next expert.
TEST(MoeQuantizeGpu, NansOfAnExpertStayInItsGradient) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t n = 64;
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    const bool fp8 = is_fp8(dtype);
    const MoeCase c{100, 5, 2, fp8 ? kRowBlock : 16};
    const MoeOrder order(gpu, c);
    const std::vector<int32_t> offsets = ints_of(order.offsets);
    const int64_t rows = order.rows();
    const Shape shape = fp8 ? Shape{n, rows} : Shape{rows, n};
    TestTensor x(gpu, dtype, shape), dw(gpu, DType::f32, {c.experts * n, n}),
        scales(gpu, DType::f32, {c.experts});
    x.fill_normal(1), scales.fill_value(1.0f);
    std::vector<float> values = x.floats();
    for (int64_t row = offsets[2]; row < offsets[3]; ++row)
      for (int64_t col = 0; col < n; ++col)
        values[static_cast<size_t>(fp8 ? row_block_index(col, row, n, rows) : row * n + col)] = NAN;
    x.fill(values);
    const Matrix matrix = fp8 ? Matrix(x, scales, ScaleLayout::tensor) : Matrix(x);
    grouped_wgrad(gpu,
                  {.a = matrix, .b = matrix, .offsets = order.offsets, .alignment = c.alignment, .out = dw});
    const std::vector<float> gradient = dw.floats();
    for (int64_t i = 0; i < c.experts * n * n; ++i)
      ASSERT_EQ(std::isnan(gradient[static_cast<size_t>(i)]), i / (n * n) == 2) << i;
  }
}

// Tiles of several experts, partial in both directions.
TEST(MoeQuantizeGpu, WeightGradientsAreAddedExactly) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase c : {MoeCase{700, 9, 3, 16}, {129, 64, 8, 16}, {40, 6, 1, 16, true}})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{200, 328}, {48, 592}, {768, 16}})
      for (const bool fp8 : {false, true}) {
        c.alignment = fp8 ? kRowBlock : 16;
        const MoeOrder order(gpu, c);
        const int64_t rows = order.rows();
        const DType dtype = fp8 ? DType::e4m3 : DType::bf16;
        TestTensor a(gpu, dtype, fp8 ? Shape{m, rows} : Shape{rows, m}),
            b(gpu, dtype, fp8 ? Shape{n, rows} : Shape{rows, n}), scales(gpu, DType::f32, {c.experts}),
            fresh(gpu, DType::f32, {c.experts * m, n}), added(gpu, DType::f32, {c.experts * m, n});
        a.fill_normal(1), b.fill_normal(2), scales.fill_normal(3), added.fill_normal(4);
        const std::vector<float> old = added.floats();
        const auto matrix = [&](const TestTensor& x) {
          return fp8 ? Matrix(x, scales, ScaleLayout::tensor) : Matrix(x);
        };
        GroupedWgrad wgrad{
            .a = matrix(a), .b = matrix(b), .offsets = order.offsets, .alignment = c.alignment, .out = fresh};
        grouped_wgrad(gpu, wgrad);
        wgrad.out = added, wgrad.accumulate = true;
        grouped_wgrad(gpu, wgrad);
        const std::vector<float> gradient = fresh.floats(), sum = added.floats();
        for (size_t i = 0; i < sum.size(); ++i)
          ASSERT_EQ(sum[i], old[i] + gradient[i]) << i << ", FP8 " << fp8 << ", " << m << " x " << n;
      }
}

}  // namespace
}  // namespace te::kernels
