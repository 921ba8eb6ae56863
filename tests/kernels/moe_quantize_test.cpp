// Quantization of experts' operands equals that of each expert as a tensor of its own, and grouped GEMMs of quantized
// operands equal those of the dequantized ones.
#include <deque>

#include "fp8_storage.h"
#include "kernels/common/row_blocks.h"
#include "kernels/gemm/widen_cpu.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "send_fp8_cases.h"

namespace te::kernels {
namespace {

using testing::TestTensor;

const Context& host() {
  static const Context context = Context::cpu();
  return context;
}

/// The 16-aligned cases.
std::vector<MoeCase> aligned_cases(int64_t alignment) {
  std::vector<MoeCase> cases;
  for (MoeCase c : kMoeCases) {
    c.alignment = alignment;
    cases.push_back(c);
  }
  return cases;
}

TEST(MoeQuantize, SourceGivesTheRowsOfPermute) {
  for (const MoeCase& c : kMoeCases)
    for (const ExpertScaling scaling : kExpertScalings)
      EXPECT_EQ(quantize_permuted(host(), c, 40, DType::bf16, scaling, true, true),
                quantize_permuted(host(), c, 40, DType::bf16, scaling, false, true))
          << c.tokens << " " << c.experts;
}

TEST(MoeQuantize, SendersGiveTheBytesAndStateOfTheReceiver) {
  for (SendCase c : kSendCases)
    for (const ExpertScaling scaling : kExpertScalings)
      for (const bool counted : {false, true})
        for (const DType dtype : {DType::bf16, DType::f32}) {
          c.scaling = scaling, c.counted = counted, c.dtype = dtype;
          c.second = counted != (dtype == DType::f32), c.format = c.second ? DType::e5m2 : DType::e4m3;
          EXPECT_TRUE(sent_operands(host(), c, true) == sent_operands(host(), c, false))
              << c.order.tokens << " tokens, " << c.order.experts << " experts, scaling "
              << static_cast<int>(scaling) << ", counted " << counted << ", second " << c.second;
        }
}

TEST(MoeQuantize, SendersGiveOneLayoutLikeBoth) {
  for (const bool rowwise : {false, true}) {
    SendCase c = kSendCases[1];
    c.rowwise = rowwise, c.columnwise = !rowwise;
    EXPECT_TRUE(sent_operands(host(), c, true) == sent_operands(host(), c, false)) << rowwise;
  }
}

TEST(Moe, QuantizesEachExpertAsATensor) {
  const int64_t cols = 48;
  for (const MoeCase& c : aligned_cases(16)) {
    const MoeOrder order(host(), c);
    const std::vector<int32_t> offsets = ints_of(order.offsets);
    const int64_t rows = order.rows();
    for (const ExpertScaling scaling : kExpertScalings) {
      ExpertStorage all(host(), DType::e4m3, rows, cols, c.experts),
          one_by_one(host(), DType::e4m3, rows, cols, c.experts);
      for (const float factor : {1.0f, 40.0f, 0.1f}) {
        TestTensor x(host(), DType::bf16, {rows, cols});
        fill_expert_rows(x, offsets, factor);
        quantize_experts(
            host(), {.x = x, .offsets = order.offsets, .experts = c.experts, .out = all.output(scaling)});
        for (int64_t e = 0; e < c.experts; ++e) {
          const int64_t first = offsets[static_cast<size_t>(e)],
                        count = offsets[static_cast<size_t>(e) + 1] - first;
          Fp8Output out = one_by_one.output(scaling);
          TestTensor columnwise(host(), DType::e4m3, {cols, std::max<int64_t>(count, 1)});
          const Tensor transposed = out.columnwise;
          out.rowwise = {out.rowwise.as<uint8_t>() + first * cols, DType::e4m3, {count, cols}};
          out.columnwise = {columnwise.get().data, DType::e4m3, {cols, count}};
          out.scale += e, out.scale_inv += e, out.amax += e, out.counters += e;
          Fp8Requantize& own = out.requantize;
          if (own.state != nullptr) own.state += e, own.num_quantizations += e, own.used_scale += e;
          if (own.current_scale != nullptr) own.current_scale += e, own.current_amax += e;
          if (own.predicted_scales != nullptr) own.predicted_scales += 2 * e;
          const Tensor part{x.get().as<uint16_t>() + first * cols, DType::bf16, {count, cols}};
          quantize(host(), {.x = part, .out = out});
          for (int64_t col = 0; col < cols; ++col)
            for (int64_t r = 0; r < count; ++r)
              transposed.as<uint8_t>()[row_block_index(col, first + r, cols, rows)] =
                  columnwise.get().as<uint8_t>()[col * count + r];
        }
        EXPECT_EQ(all.read(), one_by_one.read()) << static_cast<int>(scaling) << " " << c.experts;
      }
    }
  }
}

TEST(Moe, QuantizesOneLayoutOfExpertsLikeBoth) {
  const MoeCase c{50, 7, 2, 16};
  const MoeOrder order(host(), c);
  const int64_t rows = order.rows(), cols = 32;
  TestTensor x(host(), DType::f32, {rows, cols});
  fill_expert_rows(x, ints_of(order.offsets), 1.0f);
  const auto run = [&](bool rowwise, bool columnwise) {
    ExpertStorage storage(host(), DType::e5m2, rows, cols, c.experts);
    quantize_experts(host(), {.x = x,
                              .offsets = order.offsets,
                              .experts = c.experts,
                              .out = storage.output(ExpertScaling::current, rowwise, columnwise)});
    return storage.read();
  };
  const ExpertResult both = run(true, true), columnwise = run(false, true), rowwise = run(true, false);
  EXPECT_EQ(columnwise.columnwise, both.columnwise);
  EXPECT_EQ(rowwise.rowwise, both.rowwise);
  EXPECT_EQ(columnwise.counters, both.counters);
  EXPECT_EQ(columnwise.scale_inv, both.scale_inv);
}

// Without offsets, experts have equal numbers of rows, as in weights, and columnwise values no blocks of rows.
TEST(Moe, QuantizesWeightsOfExperts) {
  const int64_t experts = 5, n = 32, k = 32;
  TestTensor w(host(), DType::bf16, {experts * n, k}), offsets(host(), DType::i32, {experts + 1});
  w.fill_normal(1);
  offsets.fill_ints({0, 32, 64, 96, 128, 160});
  ExpertStorage with(host(), DType::e4m3, experts * n, k, experts),
      without(host(), DType::e4m3, experts * n, k, experts);
  quantize_experts(
      host(), {.x = w, .offsets = offsets, .experts = experts, .out = with.output(ExpertScaling::current)});
  quantize_experts(host(), {.x = w, .experts = experts, .out = without.output(ExpertScaling::current)});
  ExpertResult expected = with.read();
  const std::vector<uint8_t> in_blocks = expected.columnwise;
  for (int64_t c = 0; c < k; ++c)
    for (int64_t r = 0; r < experts * n; ++r)
      expected.columnwise[static_cast<size_t>(c * experts * n + r)] =
          in_blocks[static_cast<size_t>(row_block_index(c, r, k, experts * n))];
  EXPECT_EQ(without.read(), expected);
}

/// `copies`: count the rows of tokens, each of which is the row itself.
void count_groups(bool copies) {
  const MoeCase c{40, 4, 1, 128, true};
  const MoeOrder order(host(), c);
  const int64_t rows = order.rows(), cols = 128;
  TestTensor source(host(), DType::i32, {rows});
  std::vector<int32_t> same(static_cast<size_t>(rows));
  for (size_t r = 0; r < same.size(); ++r) same[r] = static_cast<int32_t>(2 * r + r % 2);
  source.fill_ints(same);
  TestTensor x(host(), DType::bf16, {rows, cols}), q(host(), DType::e4m3, {rows, cols}),
      t(host(), DType::e4m3, {cols, rows}), amax(host(), DType::f32, {c.experts}),
      counters(host(), DType::i64, {c.experts, 3});
  std::vector<float> values(static_cast<size_t>(rows * cols), 1.0f);
  values[5] = -7.0f, values[6] = 1e-6f;  // the second underflows the scale of its group
  x.fill(values), amax.fill_value(0.0f), host().zero(counters);
  TestTensor scales(host(), DType::f32, scale_shape(ScaleLayout::vectors, rows, cols)),
      t_scales(host(), DType::f32, scale_shape(ScaleLayout::vectors, cols, rows));
  quantize_groups(host(), {.x = x,
                           .rowwise = {q, scales, ScaleLayout::vectors},
                           .columnwise = {t, t_scales, ScaleLayout::vectors},
                           .row_blocks = true});
  for (const bool columnwise : {false, true})
    count_quantized_experts(host(), {.x = x,
                                     .offsets = order.offsets,
                                     .experts = c.experts,
                                     .source = copies ? source.get() : Tensor{},
                                     .topk = copies ? 2 : 1,
                                     .rowwise = columnwise ? Tensor{} : q.get(),
                                     .columnwise = t,
                                     .amax = amax.get().as<float>(),
                                     .counters = counters.get().as<Fp8Counters>()});
  EXPECT_EQ(amax.floats(), (std::vector<float>{0, 7, 0, 0}));
  const auto* const counts = counters.get().as<Fp8Counters>();
  EXPECT_EQ(counts[1].flushed, 2u);
  EXPECT_EQ(counts[1].saturated, 0u);
  EXPECT_EQ(counts[1].total, static_cast<unsigned long long>(2 * 128 * cols));
  EXPECT_EQ(counts[0].total, 0u);
}

TEST(Moe, CountsGroupsOfExperts) {
  count_groups(false);
  count_groups(true);
}

// The activation and its gradient, with the quantization of their results.
TEST(Moe, QuantizedActivationsEqualSeparateQuantization) {
  for (const MoeCase& order : kMoeCases)
    for (const ExpertScaling scaling : kExpertScalings)
      for (const bool counted : {false, true}) {
        const ActivationCase c{order, 40, scaling, ActivationKind::swiglu, counted};
        EXPECT_TRUE(activations(host(), c, true) == activations(host(), c, false)) << order.tokens;
      }
}

TEST(Moe, ActivationsWithScalesOfVectorsEqualSeparateQuantization) {
  for (MoeCase order : kMoeCases) {
    order.alignment = std::max<int64_t>(order.alignment, 16);
    for (const auto& [rowwise, columnwise] :
         {std::pair<bool, bool>{true, true}, {true, false}, {false, true}}) {
      ActivationCase c{order, 144, ExpertScaling::given};
      c.rowwise = rowwise, c.columnwise = columnwise;
      const auto in_one = activations_by_vectors(host(), c, true);
      EXPECT_TRUE(in_one == activations_by_vectors(host(), c, false)) << order.tokens;
      for (size_t i = 0; i < in_one.size(); ++i) {  // d_probs; values and scales of y and dx
        const bool wanted = i == 0 || (i % 2 == 1 ? rowwise : columnwise);
        EXPECT_EQ(std::count(in_one[i].begin(), in_one[i].end(), 0) < std::ssize(in_one[i]), wanted) << i;
      }
    }
  }
}

/// The dequantized values of a tensor of experts, in FP32. `row_blocks`: the matrix has blocks of rows.
TestTensor dequantized(Matrix matrix, const std::vector<int32_t>& offsets, bool by_columns,
                       bool row_blocks = false) {
  std::vector<float> buffer;
  std::vector<uint8_t> bytes(static_cast<size_t>(matrix.values.numel()));
  if (row_blocks) {
    for (int64_t c = 0; c < matrix.rows(); ++c)
      for (int64_t r = 0; r < matrix.cols(); ++r)
        bytes[static_cast<size_t>(c * matrix.cols() + r)] =
            matrix.values.as<uint8_t>()[row_block_index(c, r, matrix.rows(), matrix.cols())];
    matrix.values.data = bytes.data();
  }
  const float* const values = widen(matrix, buffer);
  std::vector<float> all(values, values + matrix.values.numel());
  if (matrix.layout == ScaleLayout::tensor)
    for (size_t e = 0; e + 1 < offsets.size(); ++e)
      for (int64_t r = 0; r < matrix.rows(); ++r)
        for (int64_t c = 0; c < matrix.cols(); ++c)
          if (const int64_t i = by_columns ? c : r; i >= offsets[e] && i < offsets[e + 1])
            all[static_cast<size_t>(r * matrix.cols() + c)] *= matrix.scales.as<float>()[e];
  TestTensor result(host(), DType::f32, {matrix.rows(), matrix.cols()});
  for (float& value : all)
    if (std::isnan(value)) value = 0.0f;  // rows after the last expert
  result.fill(all);
  return result;
}

// Operands of all three GEMMs as a layer quantizes them: weights in both layouts, rows and their transposed copies.
TEST(Moe, Fp8GroupedGemmsEqualThoseOfDequantizedOperands) {
  for (const bool blockwise : {false, true}) {
    for (const MoeCase& c : aligned_cases(blockwise ? 128 : 16)) {
      if (c.experts > 64) continue;
      const int64_t n = blockwise ? 128 : 48, k = 32;
      const MoeOrder order(host(), c);
      const int64_t rows = order.rows(), all = c.experts;
      const std::vector<int32_t> offsets = ints_of(order.offsets);
      std::vector<int32_t> of_weights;
      for (int64_t e = 0; e <= all; ++e) of_weights.push_back(static_cast<int32_t>(e * n));
      TestTensor x(host(), DType::bf16, {rows, k}), dy(host(), DType::bf16, {rows, n}),
          w(host(), DType::bf16, {all * n, k});
      x.fill_normal(1), dy.fill_normal(2), w.fill_normal(3);
      struct Quantized {
        TestTensor values, transposed, scales, transposed_scales;
        Matrix rowwise, columnwise;
      };
      std::deque<Quantized> kept;
      const auto quantized = [&](const TestTensor& from, ScaleLayout groups, const Tensor& of,
                                 DType format) -> const Quantized& {
        const int64_t r = from.get().rows(), cols = from.get().cols();
        const ScaleLayout layout = blockwise ? groups : ScaleLayout::tensor;
        const auto shape = [&](int64_t a, int64_t b) {
          return blockwise ? scale_shape(layout, a, b) : Shape{all};
        };
        kept.push_back({TestTensor(host(), format, {r, cols}),
                        TestTensor(host(), format, {cols, r}),
                        TestTensor(host(), DType::f32, shape(r, cols)),
                        TestTensor(host(), DType::f32, shape(cols, r)),
                        {},
                        {}});
        Quantized& q = kept.back();
        q.rowwise = {q.values, q.scales, layout}, q.columnwise = {q.transposed, q.transposed_scales, layout};
        if (blockwise) {
          quantize_groups(host(), {.x = from,
                                   .rowwise = q.rowwise,
                                   .columnwise = q.columnwise,
                                   .row_blocks = static_cast<bool>(of)});
          return q;
        }
        ExpertStorage state(host(), format, r, cols, all);
        Fp8Output out = state.output(ExpertScaling::current);
        out.rowwise = q.values, out.columnwise = q.transposed, out.scale_inv = q.scales.get().as<float>();
        quantize_experts(host(), {.x = from, .offsets = of, .experts = all, .out = out});
        q.transposed_scales.fill(q.scales.floats());
        return q;
      };
      const Quantized& qx = quantized(x, ScaleLayout::vectors, order.offsets, DType::e4m3);
      const Quantized& qdy = quantized(dy, ScaleLayout::vectors, order.offsets, DType::e5m2);
      const Quantized& qw = quantized(w, ScaleLayout::blocks, {}, DType::e4m3);
      const TestTensor fx = dequantized(qx.rowwise, offsets, false),
                       fdy = dequantized(qdy.rowwise, offsets, false),
                       fw = dequantized(qw.rowwise, of_weights, false),
                       fwt = dequantized(qw.columnwise, of_weights, true),
                       fxt = dequantized(qx.columnwise, offsets, true, true),
                       fdyt = dequantized(qdy.columnwise, offsets, true, true);
      TestTensor y(host(), DType::f32, {rows, n}), dx(host(), DType::f32, {rows, k}),
          dw(host(), DType::f32, {all * n, k}), ey(host(), DType::f32, {rows, n}),
          edx(host(), DType::f32, {rows, k}), edw(host(), DType::f32, {all * n, k}),
          w_back(host(), DType::f32, {all * n, k}), x_back(host(), DType::f32, {rows, k}),
          dy_back(host(), DType::f32, {rows, n});
      for (TestTensor* tensor : {&y, &dx, &ey, &edx}) tensor->fill_value(0.0f);
      const auto transpose = [](const TestTensor& from, TestTensor& to) {
        const std::vector<float> in = from.floats();
        std::vector<float> out(in.size());
        const int64_t r = to.get().rows(), cols = to.get().cols();
        for (int64_t i = 0; i < r; ++i)
          for (int64_t j = 0; j < cols; ++j)
            out[static_cast<size_t>(i * cols + j)] = in[static_cast<size_t>(j * r + i)];
        to.fill(out);
      };
      transpose(fwt, w_back), transpose(fxt, x_back), transpose(fdyt, dy_back);
      grouped_gemm(host(),
                   {.a = qx.rowwise, .b = qw.rowwise, .offsets = order.offsets, .out = y, .trans_b = true});
      grouped_gemm(host(), {.a = fx, .b = fw, .offsets = order.offsets, .out = ey, .trans_b = true});
      grouped_gemm(host(), {.a = qdy.rowwise, .b = qw.columnwise, .offsets = order.offsets, .out = dx});
      grouped_gemm(host(), {.a = fdy, .b = w_back, .offsets = order.offsets, .out = edx});
      grouped_wgrad(host(), {.a = qdy.columnwise, .b = qx.columnwise, .offsets = order.offsets, .out = dw});
      grouped_wgrad(host(), {.a = dy_back, .b = x_back, .offsets = order.offsets, .out = edw});
      EXPECT_LT(testing::relative_error(y.floats(), ey.floats()), 1e-5) << blockwise << " " << c.experts;
      EXPECT_LT(testing::relative_error(dx.floats(), edx.floats()), 1e-5) << blockwise << " " << c.experts;
      EXPECT_LT(testing::relative_error(dw.floats(), edw.floats()), 1e-5) << blockwise << " " << c.experts;
      // Quantization is close to the values.
      EXPECT_LT(testing::relative_error(fw.floats(), w.floats()), 0.04);
      EXPECT_LT(testing::relative_error(w_back.floats(), w.floats()), 0.04);
    }
  }
}

}  // namespace
}  // namespace te::kernels
