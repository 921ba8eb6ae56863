// CUDA mixture-of-experts ops against the CPU reference. The order of rows and copies must be equal bit for bit.
// Elsewhere the backends differ in the order of FP32 sums and in exponentials: 1e-5 relative in FP32, an additional
// rounding in BF16.
#include <cmath>
#include <deque>

#include "kernels/quantize/quantize_groups.h"
#include "moe_quantize_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

double tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : 4e-3;
}

/// The tolerance of sums in the accumulators of FP8 tensor cores.
constexpr double kFp8Tolerance = 1e-3;

TEST(MoeGpu, RouterMatchesReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const RouterCase& c : kRouterCases) {
    for (const BalanceScope scope :
         {BalanceScope::microbatch, BalanceScope::sequence, BalanceScope::global}) {
      const RouterTensors expected(cpu(), c), actual(gpu, c);
      expected.forward(cpu(), c, scope), actual.forward(gpu, c, scope);
      expected.backward(cpu(), c, 3.0f, 0.2f), actual.backward(gpu, c, 3.0f, 0.2f);
      EXPECT_EQ(ints_of(actual.experts), ints_of(expected.experts)) << c.experts;
      EXPECT_EQ(ints_of(actual.counts), ints_of(expected.counts));
      EXPECT_EQ(ints_of(actual.step_counts), ints_of(expected.step_counts));
      const auto close = [](const TestTensor& a, const TestTensor& b) {
        EXPECT_LT(testing::relative_error(a.floats(), b.floats()), 1e-5);
      };
      close(actual.probs, expected.probs), close(actual.score_sums, expected.score_sums);
      close(actual.score_grad, expected.score_grad), close(actual.d_logits, expected.d_logits);
      // Sums of different sizes: the error of each of them.
      for (const auto& [a, b] : {std::pair(&actual.token_sums, &expected.token_sums),
                                 std::pair(&actual.step_sums, &expected.step_sums)})
        EXPECT_LT(testing::max_relative_error(a->floats(), b->floats()), 1e-5);
    }
  }
}

// Plain kernels and, in BF16 with multiples of 8, tensor cores, with one and several parts of d_weight's sum.
TEST(MoeGpu, RouterGemmsMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{70, 9, 33},
                                {1000, 64, 256},
                                {1, 1, 5},
                                {700, 130, 17},
                                {333, 8, 72},
                                {1500, 1, 64},
                                {2050, 200, 400}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const bool accumulate : {false, true}) {
        const auto run = [&, m = m, n = n, k = k](const Context& context) {
          TestTensor x(context, dtype, {m, k}), w(context, dtype, {n, k}), y(context, DType::f32, {m, n}),
              dx(context, dtype, {m, k}), dw(context, DType::f32, {n, k}),
              scratch(context, DType::u8, {router_gemm_scratch(m, n, k)});
          x.fill_normal(1), w.fill_normal(2), dx.fill_value(1.0f), dw.fill_value(2.0f);
          router_gemm(context, {.x = x, .weight = w, .logits = y});
          router_gemm_backward(context, {.d_logits = y,
                                         .x = x,
                                         .weight = w,
                                         .dx = dx,
                                         .d_weight = dw,
                                         .accumulate = accumulate,
                                         .scratch = scratch});
          return std::array{y.floats(), dx.floats(), dw.floats()};
        };
        const auto actual = run(gpu), expected = run(cpu());
        EXPECT_LT(testing::relative_error(actual[0], expected[0]), 1e-5);
        EXPECT_LT(testing::relative_error(actual[1], expected[1]), tolerance(dtype));
        EXPECT_LT(testing::relative_error(actual[2], expected[2]), 1e-5);
        EXPECT_EQ(actual, run(gpu));
      }
    }
  }
}

// A token's logits do not depend on the other tokens, so layouts and batches route it equally.
TEST(MoeGpu, LogitsOfATokenDependOnItAlone) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t tokens = 700, experts = 64, hidden = 512;
  TestTensor x(gpu, DType::bf16, {tokens, hidden}), w(gpu, DType::bf16, {experts, hidden}),
      y(gpu, DType::f32, {tokens, experts});
  x.fill_normal(1), w.fill_normal(2);
  router_gemm(gpu, {.x = x, .weight = w, .logits = y});
  const std::vector<float> all = y.floats();
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {130, 400}, {699, 1}}) {
    TestTensor part(gpu, DType::f32, {count, experts});
    router_gemm(gpu, {.x = x.get().slice_rows(first, count), .weight = w, .logits = part});
    EXPECT_EQ(part.floats(),
              std::vector<float>(all.begin() + first * experts, all.begin() + (first + count) * experts));
  }
}

TEST(MoeGpu, OrderOfRowsAndCopiesEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const MoeCase& c : kMoeCases) {
    for (const int64_t cols : {11, 64}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto run = [&](const Context& context) {
          const MoeOrder order(context, c);
          TestTensor x(context, dtype, {c.tokens, cols}), rows(context, dtype, {order.rows(), cols}),
              y(context, dtype, {c.tokens, cols});
          x.fill_normal(1);
          permute(context, {.x = x, .source = order.source, .topk = c.topk, .rows = rows});
          unpermute(context, {.rows = rows, .row_of = order.row_of, .addend = x, .y = y});
          return std::array{order.offsets.raw(), order.row_of.raw(), order.source.raw(), rows.raw(), y.raw()};
        };
        EXPECT_EQ(run(gpu), run(cpu())) << c.tokens << " " << c.experts;
      }
    }
  }
}

TEST(MoeGpu, LimitedRowsEqualReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  std::vector<MoeCase> cases(std::begin(kMoeCases), std::end(kMoeCases));
  cases.push_back({.tokens = 5000, .experts = 3, .topk = 2, .alignment = 16});
  cases.push_back({.tokens = 300, .experts = 8, .topk = 2, .alignment = 16, .padded = true});
  for (const MoeCase& c : cases)
    for (const auto& [capacity, factor] : std::vector<std::pair<int64_t, double>>{
             {1, 0.0}, {3, 0.0}, {c.tokens / 2 + 1, 0.0}, {c.tokens, 0.0}, {c.tokens, 0.7}}) {
      const auto run = [&, capacity = capacity, factor = factor](const Context& context) {
        const LimitedOrder order(context, c, capacity, factor);
        return std::array{order.kept.raw(), order.dropped.raw(), order.offsets.raw(), order.row_of.raw(),
                          order.source.raw()};
      };
      EXPECT_EQ(run(gpu), run(cpu())) << c.tokens << " " << c.experts << " " << capacity;
    }
}

TEST(MoeGpu, OrderOfReceivedRowsEqualsReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const DispatchCase& c : kDispatchCases)
    EXPECT_EQ(DispatchOrder(gpu, c).results, DispatchOrder(cpu(), c).results) << c.capacity;
  const auto gathered = [](const Context& context) {
    TestTensor x(context, DType::f32, {1000}), index(context, DType::i32, {3000}),
        out(context, DType::f32, {3000});
    std::vector<int32_t> indices;
    for (int32_t i = 0; i < 3000; ++i) indices.push_back(i * 7 % 1001 - 1);
    x.fill_normal(1), index.fill_ints(indices);
    gather_values(context, {.x = x, .index = index, .out = out});
    return out.raw();
  };
  EXPECT_EQ(gathered(gpu), gathered(cpu()));
}

TEST(MoeGpu, GateAndActivationMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const MoeCase c{33, 8, 2, 16};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [kind, ffn] : {std::pair<ActivationKind, int64_t>{ActivationKind::swiglu, 37},
                                    {ActivationKind::gelu, 37},
                                    {ActivationKind::swiglu, 520},
                                    {ActivationKind::gelu, 520}}) {
      const auto run = [&, kind = kind, ffn = ffn](const Context& context) {
        const MoeOrder order(context, c);
        const int64_t width = is_gated(kind) ? 2 * ffn : ffn, rows = order.rows();
        TestTensor x(context, dtype, {rows, width}), y(context, dtype, {rows, ffn}),
            dy(context, dtype, {rows, ffn}), dx(context, dtype, {rows, width}),
            probs(context, DType::f32, {c.tokens, c.topk}), d_probs(context, DType::f32, {c.tokens, c.topk});
        x.fill_normal(1), dy.fill_normal(2), probs.fill_normal(3);
        expert_activation(context, {.kind = kind, .x = x, .source = order.source, .probs = probs, .y = y});
        expert_activation_backward(context, {.kind = kind,
                                             .x = x,
                                             .source = order.source,
                                             .probs = probs,
                                             .dy = dy,
                                             .dx = dx,
                                             .d_probs = d_probs});
        TestTensor gate(context, DType::f32, {c.tokens, 1}), d_gate(context, DType::f32, {c.tokens, 1}),
            addend(context, dtype, {c.tokens, ffn}), out(context, dtype, {c.tokens, ffn}),
            d_out(context, dtype, {c.tokens, ffn}), d_addend(context, dtype, {c.tokens, ffn});
        gate.fill_normal(4), addend.fill_normal(5), d_out.fill_normal(6);
        unpermute(context, {.rows = y, .row_of = order.row_of, .addend = addend, .gate = gate, .y = out});
        expert_gate_backward(
            context, {.addend = addend, .gate = gate, .dy = d_out, .d_addend = d_addend, .d_gate = d_gate});
        return std::array{y.floats(),   dx.floats(),       d_probs.floats(),
                          out.floats(), d_addend.floats(), d_gate.floats()};
      };
      const auto actual = run(gpu), expected = run(cpu());
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_LT(testing::relative_error(actual[i], expected[i]), tolerance(dtype)) << i;
      EXPECT_EQ(actual, run(gpu));
    }
  }
}

TEST(MoeGpu, GroupedGemmsMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t n = 80, k = 48;
  for (const MoeCase& c : kMoeCases) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto run = [&](const Context& context) {
        const MoeOrder order(context, c);
        TestTensor x(context, dtype, {order.rows(), k}), w(context, dtype, {c.experts * n, k}),
            y(context, dtype, {order.rows(), n}), dx(context, dtype, {order.rows(), k}),
            dw(context, DType::f32, {c.experts * n, k}), added(context, DType::bf16, {c.experts * n, k}),
            sum(context, dtype, {order.rows(), n});
        x.fill_normal(1), w.fill_normal(2), added.fill_value(1.0f), y.fill_value(0.0f), dx.fill_value(0.0f);
        sum.fill_normal(3);
        grouped_gemm(context, {.a = {x}, .b = {w}, .offsets = order.offsets, .out = y, .trans_b = true});
        grouped_gemm(context, {.a = {y}, .b = {w}, .offsets = order.offsets, .out = dx});
        grouped_gemm(
            context,
            {.a = {x}, .b = {w}, .offsets = order.offsets, .out = sum, .trans_b = true, .accumulate = true});
        GroupedWgrad wgrad{.a = {y}, .b = {x}, .offsets = order.offsets, .alignment = c.alignment, .out = dw};
        grouped_wgrad(context, wgrad);
        wgrad.out = added, wgrad.accumulate = true;
        grouped_wgrad(context, wgrad);
        return std::array{y.floats(), dx.floats(), dw.floats(), added.floats(), sum.floats()};
      };
      const auto actual = run(gpu), expected = run(cpu());
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_LT(testing::relative_error(actual[i], expected[i]), tolerance(i == 3 ? DType::bf16 : dtype));
      EXPECT_EQ(actual, run(gpu));
    }
  }
}

// Several tiles of tensor cores in each direction, partial ones, and sums of several stages with a partial last one.
TEST(MoeGpu, TensorCoreTilesMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const MoeCase& c : {MoeCase{900, 3, 2, 16}, MoeCase{300, 40, 1, 16}, MoeCase{1, 4, 1, 16}}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{400, 264}, {192, 64}, {8, 1024}, {400, 16}, {16, 400}}) {
      const auto run = [&, n = n, k = k](const Context& context) {
        const MoeOrder order(context, c);
        TestTensor x(context, DType::bf16, {order.rows(), k}), w(context, DType::bf16, {c.experts * n, k}),
            wt(context, DType::bf16, {c.experts * k, n}), y(context, DType::f32, {order.rows(), n}),
            dx(context, DType::bf16, {order.rows(), n}), dw(context, DType::f32, {c.experts * k, k}),
            sum(context, DType::bf16, {order.rows(), n});
        x.fill_normal(1), w.fill_normal(2), wt.fill_normal(3), y.fill_value(0.0f), dx.fill_value(0.0f);
        dw.fill_value(2.0f), sum.fill_normal(4);
        grouped_gemm(context, {.a = {x}, .b = {w}, .offsets = order.offsets, .out = y, .trans_b = true});
        grouped_gemm(context, {.a = {x}, .b = {wt}, .offsets = order.offsets, .out = dx});
        grouped_gemm(context,
                     {.a = {x}, .b = {wt}, .offsets = order.offsets, .out = sum, .accumulate = true});
        grouped_wgrad(context, {.a = {x},
                                .b = {x},
                                .offsets = order.offsets,
                                .alignment = c.alignment,
                                .out = dw,
                                .accumulate = true});
        return std::array{y.floats(), dx.floats(), dw.floats(), sum.floats()};
      };
      const auto actual = run(gpu), expected = run(cpu());
      EXPECT_LT(testing::relative_error(actual[0], expected[0]), 1e-5);
      EXPECT_LT(testing::relative_error(actual[1], expected[1]), tolerance(DType::bf16));
      EXPECT_LT(testing::relative_error(actual[2], expected[2]), 1e-5);
      EXPECT_LT(testing::relative_error(actual[3], expected[3]), tolerance(DType::bf16));
      EXPECT_EQ(actual, run(gpu));
    }
  }
}

// Tensor cores keep 13 to 14 bits of a sum of 128 products (with fast accumulation, of all). Several tiles in each
// direction, partial ones, several stages with a partial last one. Only E4M3 weights and inputs use tensor cores.
TEST(MoeGpu, Fp8GroupedGemmsMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const std::tuple<MoeCase, int64_t, int64_t> cases[] = {
      {{100, 5, 2, 128}, 80, 48},   {{100, 5, 2, 8}, 80, 48},   {{900, 3, 2, 128}, 400, 272},
      {{300, 40, 1, 128}, 128, 64}, {{1, 4, 1, 128}, 16, 1024}, {{700, 2, 1, 16}, 16, 144}};
  for (const auto& [c, n, k] : cases) {
    for (const auto& [a_type, b_type] :
         {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}}) {
      const auto run = [&, c = c, n = n, k = k, a_type = a_type, b_type = b_type](const Context& context) {
        const MoeOrder order(context, c);
        const int64_t rows = order.rows();
        TestTensor x(context, a_type, {rows, k}), w(context, b_type, {c.experts * n, k}),
            wt(context, b_type, {n, c.experts * k}), y(context, DType::bf16, {rows, n}),
            dx(context, DType::f32, {rows, n}), dy(context, a_type, {n, rows}),
            xt(context, b_type, {k, rows}), dw(context, DType::f32, {c.experts * n, k}),
            added(context, DType::bf16, {c.experts * n, k}), a_scales(context, DType::f32, {c.experts}),
            b_scales(context, DType::f32, {c.experts});
        x.fill_normal(1), w.fill_normal(2), wt.fill_normal(3), dy.fill_normal(4), xt.fill_normal(5);
        y.fill_value(0.0f), dx.fill_value(0.0f), dw.fill_value(1e6f), added.fill_value(2.0f);
        a_scales.fill_normal(6), b_scales.fill_normal(7);
        const auto scaled = [](const TestTensor& values, const TestTensor& scales) {
          return Matrix(values, scales, ScaleLayout::tensor);
        };
        grouped_gemm(context, {.a = scaled(x, a_scales),
                               .b = scaled(w, b_scales),
                               .offsets = order.offsets,
                               .out = y,
                               .trans_b = true,
                               .fast_accumulation = true});
        const Matrix ax = scaled(x, a_scales), bt = scaled(wt, b_scales);
        grouped_gemm(context, {.a = ax, .b = bt, .offsets = order.offsets, .out = dx});
        GroupedWgrad wgrad{.a = scaled(dy, a_scales),
                           .b = scaled(xt, b_scales),
                           .offsets = order.offsets,
                           .alignment = c.alignment,
                           .out = dw};
        grouped_wgrad(context, wgrad);
        wgrad.out = added, wgrad.accumulate = true;
        grouped_wgrad(context, wgrad);
        return std::array{y.floats(), dx.floats(), dw.floats(), added.floats()};
      };
      const auto actual = run(gpu), expected = run(cpu());
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_LT(testing::relative_error(actual[i], expected[i]),
                  i % 3 == 0 ? tolerance(DType::bf16) : kFp8Tolerance)
            << i << " " << n << " " << k;
      EXPECT_EQ(actual, run(gpu));
    }
  }
}

// Bytes, scales, counters and state are equal: both backends use the same formulas.
TEST(MoeGpu, QuantizationOfExpertsEqualsReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase c : kMoeCases) {
    for (const int64_t alignment : {16, 128}) {
      c.alignment = alignment;
      for (const int64_t cols : {48, 33, 200}) {
        for (const DType dtype : {DType::bf16, DType::f32}) {
          for (const DType format : {DType::e4m3, DType::e5m2}) {
            for (const ExpertScaling scaling : kExpertScalings) {
              const auto run = [&](const Context& context) {
                const MoeOrder order(context, c);
                ExpertStorage storage(context, format, order.rows(), cols, c.experts);
                std::vector<ExpertResult> results;
                for (const float factor : {1.0f, 40.0f, 0.1f}) {
                  TestTensor x(context, dtype, {order.rows(), cols});
                  fill_expert_rows(x, ints_of(order.offsets), factor);
                  quantize_experts(context, {.x = x,
                                             .offsets = order.offsets,
                                             .experts = c.experts,
                                             .out = storage.output(scaling)});
                  results.push_back(storage.read());
                }
                return results;
              };
              EXPECT_EQ(run(gpu), run(cpu())) << c.experts << " " << static_cast<int>(scaling);
            }
          }
        }
      }
    }
  }
}

// Without counters, rows are quantized before it is known whether their scale is that of the history.
TEST(MoeGpu, QuantizationFromTheSourceEqualsReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase c : kMoeCases) {
    c.alignment = 16;
    for (const int64_t cols : {33, 200})
      for (const ExpertScaling scaling : kExpertScalings)
        for (const bool counted : {false, true}) {
          const auto expected = quantize_permuted(cpu(), c, cols, DType::bf16, scaling, false, counted);
          for (const bool from_source : {false, true})
            EXPECT_EQ(quantize_permuted(gpu, c, cols, DType::bf16, scaling, from_source, counted), expected)
                << c.tokens << " " << c.experts << " " << counted;
        }
  }
}

TEST(MoeGpu, QuantizationOfOneLayoutAndOfWeightsEqualsReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t experts = 6, rows = 96, cols = 80;
  for (const auto& [rowwise, columnwise] : {std::pair{true, false}, {false, true}, {true, true}}) {
    const auto run = [&, rowwise = rowwise, columnwise = columnwise](const Context& context) {
      ExpertStorage storage(context, DType::e4m3, rows, cols, experts);
      TestTensor w(context, DType::bf16, {rows, cols});
      w.fill_normal(1);
      quantize_experts(
          context,
          {.x = w, .experts = experts, .out = storage.output(ExpertScaling::current, rowwise, columnwise)});
      Fp8Output amax_only;
      amax_only.amax = storage.output(ExpertScaling::given).amax;
      quantize_experts(context, {.x = w, .experts = experts, .out = amax_only});
      return storage.read();
    };
    EXPECT_EQ(run(gpu), run(cpu()));
  }
}

// Scales of vectors and blocks, and one of experts, in all three GEMMs with weights in both layouts.
TEST(MoeGpu, GroupedGemmsOfGroupScalesMatchReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (MoeCase c : kMoeCases) {
    if (c.experts > 64) continue;
    c.alignment = 128;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 48}, {384, 272}}) {
      const auto run = [&, n = n, k = k](const Context& context) {
        const MoeOrder order(context, c);
        const int64_t rows = order.rows(), all = c.experts * n;
        TestTensor x(context, DType::bf16, {rows, k}), dy(context, DType::bf16, {rows, n}),
            w(context, DType::bf16, {all, k}), y(context, DType::bf16, {rows, n}),
            dx(context, DType::bf16, {rows, k}), dw(context, DType::f32, {all, k}),
            tokens(context, DType::bf16, {c.tokens, k}), amax(context, DType::f32, {c.experts}),
            counters(context, DType::i64, {c.experts, 3});
        fill_expert_rows(x, std::vector<int32_t>{0, static_cast<int32_t>(rows)}, 1.0f);
        dy.fill_normal(2), w.fill_normal(3), y.fill_value(0.0f), dx.fill_value(0.0f), amax.fill_value(0.0f);
        context.zero(counters), tokens.fill_normal(4);
        std::deque<TestTensor> memory;
        const auto matrix = [&](DType format, int64_t r, int64_t cols, ScaleLayout layout) {
          const TestTensor& values = memory.emplace_back(context, format, Shape{r, cols});
          const TestTensor& scales = memory.emplace_back(context, DType::f32, scale_shape(layout, r, cols));
          return Matrix(values, scales, layout);
        };
        const auto quantized = [&](const TestTensor& from, DType format, ScaleLayout layout) {
          const int64_t r = from.get().rows(), cols = from.get().cols();
          std::pair<Matrix, Matrix> both{matrix(format, r, cols, layout), matrix(format, cols, r, layout)};
          quantize_groups(context, {.x = from,
                                    .rowwise = both.first,
                                    .columnwise = both.second,
                                    .row_blocks = layout == ScaleLayout::vectors});
          return both;
        };
        const auto [qx, qxt] = quantized(x, DType::e4m3, ScaleLayout::vectors);
        const auto [qdy, qdyt] = quantized(dy, DType::e5m2, ScaleLayout::vectors);
        const auto [qw, qwt] = quantized(w, DType::e4m3, ScaleLayout::blocks);
        grouped_gemm(context, {.a = qx, .b = qw, .offsets = order.offsets, .out = y, .trans_b = true});
        grouped_gemm(context, {.a = qdy, .b = qwt, .offsets = order.offsets, .out = dx});
        grouped_wgrad(context,
                      {.a = qdyt, .b = qxt, .offsets = order.offsets, .alignment = c.alignment, .out = dw});
        for (const bool copies : {false, true})
          count_quantized_experts(context, {.x = copies ? tokens : x,
                                            .offsets = order.offsets,
                                            .experts = c.experts,
                                            .source = copies ? order.source.get() : Tensor{},
                                            .topk = copies ? c.topk : 1,
                                            .columnwise = qxt.values,
                                            .amax = amax.get().as<float>(),
                                            .counters = counters.get().as<Fp8Counters>()});
        return std::pair{std::array{y.floats(), dx.floats(), dw.floats(), amax.floats()}, counters.raw()};
      };
      const auto actual = run(gpu), expected = run(cpu());
      for (size_t i = 0; i < actual.first.size(); ++i)
        EXPECT_LT(testing::relative_error(actual.first[i], expected.first[i]), i < 2 ? tolerance(DType::bf16)
                                                                               : i == 2 ? kFp8Tolerance
                                                                                        : 1e-5)
            << i;
      EXPECT_EQ(actual.second, expected.second);
    }
  }
}

TEST(MoeGpu, UpdateOfTheBiasEqualsReference) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const auto run = [](const Context& context) {
    TestTensor bias(context, DType::f32, {3}), counts(context, DType::i32, {5}),
        skip(context, DType::i32, {1});
    bias.fill({0.5f, -1.0f, 2.0f}), counts.fill_ints({10, 0, 4, 4, 2}), skip.fill_ints({1});
    router_bias_update(context, {.bias = bias, .first = 1, .counts = counts, .rate = 0.125f});
    router_bias_update(
        context,
        {.bias = bias, .first = 1, .counts = counts, .rate = 0.25f, .skip = skip.get().as<const int32_t>()});
    return bias.floats();
  };
  EXPECT_EQ(run(cpu()), (std::vector<float>{0.625f, -1.0f, 2.0f}));
  EXPECT_EQ(run(gpu), run(cpu()));
}

}  // namespace
}  // namespace te::kernels
