// CUDA norms against the CPU reference with the same inputs.
#include <cstring>
#include <initializer_list>

#include "norm_cases.h"

namespace te::testing {
namespace {

using kernels::norm_backward;
using kernels::norm_forward;

struct GpuShape {
  int64_t rows, hidden;
};
/// One element, odd widths, blocks of one to sixteen warps, widths that leave no registers for prefetching, whose tiles
/// exceed shared memory, and beyond the fast kernels; full tiles of rows, half tiles (16 rows) and others; more rows
/// than blocks of partial sums.
const GpuShape kShapes[] = {{3, 1},     {5, 7},     {9, 130},   {4500, 35}, {7, 128},   {300, 512},
                            {37, 1024}, {96, 1024}, {200, 768}, {208, 768}, {19, 2048}, {270, 4096},
                            {48, 4096}, {20, 5120}, {80, 5120}, {32, 8192}, {17, 8192}, {1700, 1032},
                            {9, 16384}, {5, 16392}, {4, 33000}, {9000, 64}};

template <class Body>
void each_case(Body&& body, std::initializer_list<DType> dtypes = {DType::f32, DType::bf16}) {
  for (const NormKind kind : kNormKinds) {
    for (const DType dtype : dtypes) {
      for (const GpuShape& shape : kShapes) {
        SCOPED_TRACE(std::string(norm_kind_name(kind)) + " " + std::string(dtype_name(dtype)) + " " +
                     std::to_string(shape.rows) + " x " + std::to_string(shape.hidden));
        body(kind, dtype, shape);
      }
    }
  }
}

/// Also for both formats: the fast kernel supports E4M3.
template <class Body>
void each_format(Body&& body) {
  each_case([&](NormKind kind, DType dtype, const GpuShape& shape) {
    for (const DType fp8 : {DType::e4m3, DType::e5m2}) {
      SCOPED_TRACE(std::string(dtype_name(fp8)));
      body(kind, dtype, shape, fp8);
    }
  });
}

/// Statistics differ by the order of FP32 sums; y by that and one rounding, at most one ulp of bf16 (f16: less).
double tolerance(DType dtype) {
  return dtype != DType::f32 ? 8e-3 : 1e-5;
}

TEST(NormGpuTest, ForwardMatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  each_case(
      [&](NormKind kind, DType dtype, GpuShape shape) {
        for (const bool with_delta : {false, true}) {
          NormCase expected(cpu, kind, dtype, shape.rows, shape.hidden);
          NormCase actual(gpu, kind, dtype, shape.rows, shape.hidden);
          norm_forward(cpu, with_delta ? expected.forward_with_delta() : expected.forward());
          norm_forward(gpu, with_delta ? actual.forward_with_delta() : actual.forward());
          if (with_delta) {
            EXPECT_EQ(count_different(actual.sum.raw(), expected.sum.raw(), dtype_size(dtype)), 0);
          }
          EXPECT_LT(max_relative_error(actual.rstd.floats(), expected.rstd.floats()), 1e-5);
          if (kind == NormKind::layer) {
            EXPECT_LT(max_relative_error(actual.mean.floats(), expected.mean.floats(), 0.1), 1e-5);
          }
          EXPECT_LT(max_relative_error(actual.y.floats(), expected.y.floats(), 0.05), tolerance(dtype));
          EXPECT_LT(relative_error(actual.y.floats(), expected.y.floats()),
                    dtype != DType::f32 ? 5e-4 : 2e-6);
        }
      },
      {DType::f32, DType::bf16, DType::f16});
}

TEST(NormGpuTest, SumMayReplaceX) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  each_case([&](NormKind kind, DType dtype, GpuShape shape) {
    NormCase t(gpu, kind, dtype, shape.rows, shape.hidden);
    norm_forward(gpu, t.forward_with_delta());
    const std::vector<uint8_t> sum = t.sum.raw(), y = t.y.raw();
    NormForward in_place = t.forward_with_delta();
    in_place.sum = t.x;
    norm_forward(gpu, in_place);
    EXPECT_EQ(count_different(t.x.raw(), sum, 1), 0);
    EXPECT_EQ(count_different(t.y.raw(), y, 1), 0);
  });
}

/// Bytes, amax and counters of a separate quantization of the GPU's own y.
struct ExpectedFp8 {
  std::vector<uint8_t> rowwise, columnwise;
  float amax = 0.0f;
  Fp8Counters counters{};

  ExpectedFp8(DType type, const std::vector<float>& y, int64_t rows, int64_t cols, float scale)
      : rowwise(y.size()), columnwise(y.size()) {
    for (size_t i = 0; i < y.size(); ++i) {
      const float scaled = y[i] * scale;
      const uint8_t q = type == DType::e4m3 ? to_e4m3(scaled).bits : to_e5m2(scaled).bits;
      rowwise[i] = q;
      columnwise[(i % cols) * rows + i / cols] = q;
      amax = std::max(amax, std::abs(y[i]));
      counters.saturated += std::abs(scaled) > fp8_max(type) ? 1 : 0;
      counters.flushed += y[i] != 0.0f && (q & 0x7f) == 0 ? 1 : 0;
    }
    counters.total = y.size();
  }
};

TEST(NormGpuTest, FusedFp8EqualsNormThenQuantize) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const float scale = 300.0f;
  each_format([&](NormKind kind, DType dtype, GpuShape shape, DType fp8) {
    NormCase t(gpu, kind, dtype, shape.rows, shape.hidden);
    // The format selects the kernel, and thus the order of the sums.
    Fp8Case same_kernel(gpu, fp8, shape.rows, shape.hidden, scale);
    NormForward reference = t.forward_with_delta();
    reference.y_fp8 = same_kernel.output(true, false);
    norm_forward(gpu, reference);
    const std::vector<uint8_t> y = t.y.raw();
    const ExpectedFp8 expected(fp8, t.y.floats(), shape.rows, shape.hidden, scale);
    for (int outputs = 1; outputs < 8; ++outputs) {
      const bool rowwise = (outputs & 1) != 0, columnwise = (outputs & 2) != 0, keep_y = (outputs & 4) != 0;
      if (!rowwise && !columnwise && !keep_y) continue;
      SCOPED_TRACE("outputs " + std::to_string(outputs));
      Fp8Case out(gpu, fp8, shape.rows, shape.hidden, scale);
      NormForward args = t.forward_with_delta();
      if (!keep_y) args.y = {};
      args.y_fp8 = out.output(rowwise, columnwise);
      if (!rowwise && !columnwise && fp8 != DType::e4m3) continue;  // without data there is no format
      norm_forward(gpu, args);
      if (rowwise) {
        EXPECT_EQ(count_different(out.rowwise.raw(), expected.rowwise, 1), 0);
      }
      if (columnwise) {
        EXPECT_EQ(count_different(out.columnwise.raw(), expected.columnwise, 1), 0);
      }
      if (keep_y) {
        EXPECT_EQ(count_different(t.y.raw(), y, 1), 0);
      }
      EXPECT_EQ(out.numbers.floats(), (std::vector<float>{scale, 1.0f / scale, expected.amax}));
      const Fp8Counters counters = rowwise || columnwise ? expected.counters : Fp8Counters{};
      EXPECT_EQ(std::memcmp(out.counters.raw().data(), &counters, sizeof counters), 0);
    }
  });
}

// More tiles than blocks: a block has two, and prefetches the rows of the second while it writes the first.
TEST(NormGpuTest, BlocksProcessSeveralTiles) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t rows = 132 * 32 + 48, hidden = 4096;
  for (const bool with_delta : {false, true}) {
    NormCase t(gpu, NormKind::rms, DType::bf16, rows, hidden);
    norm_forward(gpu, with_delta ? t.forward_with_delta() : t.forward());
    const ExpectedFp8 expected(DType::e4m3, t.y.floats(), rows, hidden, 8.0f);
    Fp8Case out(gpu, DType::e4m3, rows, hidden);
    NormForward args = with_delta ? t.forward_with_delta() : t.forward();
    args.y = {};
    args.y_fp8 = out.output(true, true);
    norm_forward(gpu, args);
    EXPECT_EQ(count_different(out.rowwise.raw(), expected.rowwise, 1), 0);
    EXPECT_EQ(count_different(out.columnwise.raw(), expected.columnwise, 1), 0);
  }
}

TEST(NormGpuTest, BackwardMatchesCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  each_case(
      [&](NormKind kind, DType dtype, GpuShape shape) {
        for (const bool residual : {false, true}) {
          NormCase expected(cpu, kind, dtype, shape.rows, shape.hidden);
          NormCase actual(gpu, kind, dtype, shape.rows, shape.hidden);
          norm_forward(cpu, expected.forward());
          // Both sides use the same statistics, so that only the backward pass is compared.
          actual.rstd.fill(expected.rstd.floats());
          if (kind == NormKind::layer) actual.mean.fill(expected.mean.floats());
          NormBackward expected_args = expected.backward(), actual_args = actual.backward();
          if (residual) {
            expected_args.dresidual = expected.dresidual;
            actual_args.dresidual = actual.dresidual;
          }
          norm_backward(cpu, expected_args);
          norm_backward(gpu, actual_args);
          // With one column the terms of dx cancel almost completely, so the error is relative to the terms.
          const double floor = shape.hidden == 1 ? 1.0 : 0.1;
          EXPECT_LT(max_relative_error(actual.dx.floats(), expected.dx.floats(), floor),
                    dtype != DType::f32 ? 8e-3 : 5e-5);
          // FP32 sums of up to 9000 terms of size 1, in two orders.
          EXPECT_LT(max_relative_error(actual.dgamma.floats(), expected.dgamma.floats(), 1.0), 2e-4);
          if (kind == NormKind::layer) {
            EXPECT_LT(max_relative_error(actual.dbeta.floats(), expected.dbeta.floats(), 1.0), 2e-4);
          }
        }
      },
      {DType::f32, DType::bf16, DType::f16});
}

TEST(NormGpuTest, BackwardIsDeterministicAndMayOverwriteItsInputs) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  each_case([&](NormKind kind, DType dtype, GpuShape shape) {
    std::vector<uint8_t> dx, dgamma, dbeta;
    for (int run = 0; run < 4; ++run) {
      NormCase t(gpu, kind, dtype, shape.rows, shape.hidden);
      norm_forward(gpu, t.forward());
      NormBackward args = t.backward();
      args.dresidual = t.dresidual;
      const TestTensor& out = run == 2 ? t.dy : run == 3 ? t.dresidual : t.dx;
      args.dx = out;
      norm_backward(gpu, args);
      if (run == 0) {
        dx = out.raw(), dgamma = t.dgamma.raw(), dbeta = t.dbeta.raw();
        continue;
      }
      EXPECT_EQ(count_different(out.raw(), dx, 1), 0);
      EXPECT_EQ(count_different(t.dgamma.raw(), dgamma, 1), 0);
      EXPECT_EQ(count_different(t.dbeta.raw(), dbeta, 1), 0);
    }
  });
}

// dx and the other sums are bitwise equal with and without dbias, which is the sum of dx as stored.
TEST(NormGpuTest, ColumnSumsAreThoseOfStoredDx) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  each_case([&](NormKind kind, DType dtype, GpuShape shape) {
    NormCase plain(gpu, kind, dtype, shape.rows, shape.hidden);
    norm_forward(gpu, plain.forward());
    norm_backward(gpu, plain.backward_with_residual());
    const std::vector<float> dx = plain.dx.floats(), before = plain.dbias.floats();
    std::vector<float> expected(before.begin(), before.end());
    std::vector<double> sums(before.size());
    for (size_t i = 0; i < dx.size(); ++i) sums[i % sums.size()] += dx[i];
    for (size_t c = 0; c < sums.size(); ++c) expected[c] = static_cast<float>(before[c] + sums[c]);

    std::vector<uint8_t> first;
    for (int run = 0; run < 3; ++run) {
      NormCase t(gpu, kind, dtype, shape.rows, shape.hidden);
      norm_forward(gpu, t.forward());
      NormBackward args = t.backward_with_residual();
      args.dbias = t.dbias;
      const TestTensor& out = run == 2 ? t.dresidual : t.dx;
      args.dx = out;
      norm_backward(gpu, args);
      EXPECT_EQ(count_different(out.raw(), plain.dx.raw(), 1), 0);
      EXPECT_EQ(count_different(t.dgamma.raw(), plain.dgamma.raw(), 1), 0);
      EXPECT_EQ(count_different(t.dbeta.raw(), plain.dbeta.raw(), 1), 0);
      // FP32 sums of up to 9000 terms of size 1.
      EXPECT_LT(max_relative_error(t.dbias.floats(), expected, 1.0), 2e-4);
      if (run == 0) first = t.dbias.raw();
      EXPECT_EQ(count_different(t.dbias.raw(), first, 1), 0);
    }
  });
}

// The FP8 bytes correspond to dx as stored, and dx does not depend on the FP8 output.
TEST(NormGpuTest, BackwardInFp8EqualsBackwardThenQuantize) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const float scale = 300.0f;
  each_format([&](NormKind kind, DType dtype, GpuShape shape, DType fp8) {
    NormCase plain(gpu, kind, dtype, shape.rows, shape.hidden);
    norm_forward(gpu, plain.forward());
    NormBackward reference = plain.backward_with_residual();
    reference.dbias = plain.dbias;
    norm_backward(gpu, reference);
    const ExpectedFp8 expected(fp8, plain.dx.floats(), shape.rows, shape.hidden, scale);
    NormCase t(gpu, kind, dtype, shape.rows, shape.hidden);
    norm_forward(gpu, t.forward());
    const std::vector<float> dgamma = t.dgamma.floats(), dbeta = t.dbeta.floats(), dbias = t.dbias.floats();
    for (int outputs = 1; outputs < 8; ++outputs) {
      const bool rowwise = (outputs & 1) != 0, columnwise = (outputs & 2) != 0, bias = (outputs & 4) != 0;
      if (!rowwise && !columnwise) continue;
      SCOPED_TRACE("outputs " + std::to_string(outputs));
      t.dx.fill_value(std::nanf(""));
      t.dgamma.fill(dgamma), t.dbeta.fill(dbeta), t.dbias.fill(dbias);
      Fp8Case out(gpu, fp8, shape.rows, shape.hidden, scale);
      NormBackward args = t.backward_with_residual();
      args.dx_fp8 = out.output(rowwise, columnwise);
      if (bias) args.dbias = t.dbias;
      const TestTensor& dx = outputs == 7 ? t.dresidual : t.dx;
      args.dx = dx;
      norm_backward(gpu, args);
      EXPECT_EQ(count_different(dx.raw(), plain.dx.raw(), 1), 0);
      if (rowwise) {
        EXPECT_EQ(count_different(out.rowwise.raw(), expected.rowwise, 1), 0);
      }
      if (columnwise) {
        EXPECT_EQ(count_different(out.columnwise.raw(), expected.columnwise, 1), 0);
      }
      EXPECT_EQ(out.numbers.floats(), (std::vector<float>{scale, 1.0f / scale, expected.amax}));
      EXPECT_EQ(std::memcmp(out.counters.raw().data(), &expected.counters, sizeof expected.counters), 0);
      // The same sums, with rows in another order.
      EXPECT_LT(max_relative_error(t.dgamma.floats(), plain.dgamma.floats(), 1.0), 2e-4);
      if (kind == NormKind::layer) {
        EXPECT_LT(max_relative_error(t.dbeta.floats(), plain.dbeta.floats(), 1.0), 2e-4);
      }
      if (bias) {
        EXPECT_LT(max_relative_error(t.dbias.floats(), plain.dbias.floats(), 1.0), 2e-4);
      }
    }
  });
}

// More tiles than blocks, and a partial last tile: deterministic, also if dx replaces dy.
TEST(NormGpuTest, BackwardBlocksProcessSeveralTiles) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t rows = 132 * 32 + 48, hidden = 4096;
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    NormCase t(gpu, kind, DType::bf16, rows, hidden);
    norm_forward(gpu, t.forward());
    const std::vector<float> dgamma = t.dgamma.floats(), dbias = t.dbias.floats();
    std::vector<uint8_t> dx, dgamma_sum, dbias_sum, columnwise;
    for (int run = 0; run < 3; ++run) {
      t.dgamma.fill(dgamma), t.dbias.fill(dbias);
      Fp8Case out(gpu, DType::e5m2, rows, hidden);
      NormBackward args = t.backward_with_residual();
      args.dbias = t.dbias;
      args.dx_fp8 = out.output(true, true);
      const TestTensor& written = run == 2 ? t.dy : t.dx;
      args.dx = written;
      norm_backward(gpu, args);
      if (run == 0) {
        const ExpectedFp8 expected(DType::e5m2, t.dx.floats(), rows, hidden, 8.0f);
        dx = t.dx.raw(), columnwise = out.columnwise.raw();
        dgamma_sum = t.dgamma.raw(), dbias_sum = t.dbias.raw();
        EXPECT_EQ(count_different(out.rowwise.raw(), expected.rowwise, 1), 0);
        EXPECT_EQ(count_different(columnwise, expected.columnwise, 1), 0);
        continue;
      }
      EXPECT_EQ(count_different(written.raw(), dx, 1), 0);
      EXPECT_EQ(count_different(out.columnwise.raw(), columnwise, 1), 0);
      EXPECT_EQ(count_different(t.dgamma.raw(), dgamma_sum, 1), 0);
      EXPECT_EQ(count_different(t.dbias.raw(), dbias_sum, 1), 0);
    }
  }
}

TEST(NormGpuTest, UnalignedTensorsUseTheSlowPath) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  const int64_t rows = 6, hidden = 256;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    NormCase t(gpu, NormKind::layer, dtype, rows, hidden);
    norm_forward(gpu, t.forward());
    const std::vector<float> y = t.y.floats();
    TestTensor wide(gpu, dtype, {rows * hidden + 1});
    Tensor shifted{wide.get().as<char>() + dtype_size(dtype), dtype, {rows, hidden}};
    gpu.copy(shifted, t.x);
    NormForward args = t.forward();
    t.y.fill_value(std::nanf(""));
    args.x = shifted;
    norm_forward(gpu, args);
    EXPECT_LT(max_relative_error(t.y.floats(), y, 0.05), tolerance(dtype));
  }
}

TEST(NormGpuTest, NanReachesAmax) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  NormCase t(gpu, NormKind::rms, DType::bf16, 4, 64);
  std::vector<float> x = t.x.floats();
  x[100] = std::nanf("");
  t.x.fill(x);
  Fp8Case out(gpu, DType::e4m3, 4, 64);
  NormForward args = t.forward();
  args.y_fp8 = out.output(true, true);
  norm_forward(gpu, args);
  EXPECT_TRUE(std::isnan(out.numbers.floats()[2]));
  EXPECT_EQ(out.rowwise.raw()[100], 0x7f);
}

}  // namespace
}  // namespace te::testing
