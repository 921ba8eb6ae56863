// CPU reference of the rotary embedding against double precision; forward and backward are inverses.
#include "kernels/rope/rope.h"

#include <cmath>

#include "testing/testing.h"

namespace te::testing {
namespace {

using kernels::Rope;
using kernels::rope;
using kernels::rope_tables;

struct RopeCase {
  int64_t batch, seq, heads, groups, head_dim;
};
const RopeCase kRopeCases[] = {{1, 1, 1, 1, 2}, {2, 5, 3, 1, 6}, {2, 33, 4, 2, 64}, {1, 17, 2, 2, 80}};

/// Tables are longer than seq, as in evaluation with shorter sequences.
struct RopeTables {
  TestTensor cos, sin;
  RopeTables(const Context& context, int64_t seq, int64_t head_dim, double theta)
      : cos(context, DType::f32, {seq + 3, head_dim / 2}), sin(context, DType::f32, {seq + 3, head_dim / 2}) {
    std::vector<float> c(cos.get().numel()), s(c.size());
    rope_tables(seq + 3, head_dim, theta, c.data(), s.data());
    cos.fill(c), sin.fill(s);
  }
};

TEST(RopeTest, TablesHoldTheAngles) {
  std::vector<float> cos(3 * 2), sin(3 * 2);
  rope_tables(3, 4, 10000.0, cos.data(), sin.data());
  // angle(position, i) = position * 10000^(-i / 2): 0, position / 100
  EXPECT_EQ(cos[0], 1.0f);
  EXPECT_EQ(sin[1], 0.0f);
  EXPECT_FLOAT_EQ(cos[2 * 2], static_cast<float>(std::cos(2.0)));
  EXPECT_FLOAT_EQ(sin[2 * 2 + 1], static_cast<float>(std::sin(0.02)));
}

/// Frequencies of Llama 3.1 as its authors define them: by wavelength.
long double llama3_frequency(long double frequency, long double factor, long double low, long double high,
                             long double length) {
  const long double wavelength = 2.0L * 3.14159265358979323846264338327950288L / frequency;
  if (wavelength < length / high) return frequency;
  if (wavelength > length / low) return frequency / factor;
  const long double smooth = (length / wavelength - low) / (high - low);
  return (1.0L - smooth) * frequency / factor + smooth * frequency;
}

TEST(RopeTest, ScaledTables) {
  using kernels::RopeScaling;
  const int64_t seq = 40, dim = 128, half = dim / 2;
  std::vector<float> cos(seq * half), sin(seq * half);
  // Llama 3.1's own parameters, then odd ones with other bands.
  struct Case {
    double theta, factor, low, high;
    int64_t length;
  };
  for (const Case& c : {Case{500000.0, 8.0, 1.0, 4.0, 8192}, Case{10000.0, 3.5, 2.0, 5.5, 777}}) {
    rope_tables(seq, dim, c.theta, cos.data(), sin.data(),
                {RopeScalingKind::llama3, c.factor, c.low, c.high, c.length});
    int kept = 0, slowed = 0, between = 0;
    for (int64_t i = 0; i < half; ++i) {
      const long double plain = std::pow(static_cast<long double>(c.theta), -2.0L * i / dim);
      const long double frequency = llama3_frequency(plain, c.factor, c.low, c.high, c.length);
      if (frequency == plain) {
        ++kept;
      } else if (frequency == plain / c.factor) {
        ++slowed;
      } else {
        ++between;
      }
      for (int64_t position : {int64_t{0}, int64_t{1}, seq - 1}) {
        ASSERT_NEAR(cos[position * half + i], std::cos(position * frequency), 1e-7) << i;
        ASSERT_NEAR(sin[position * half + i], std::sin(position * frequency), 1e-7) << i;
      }
    }
    EXPECT_GT(kept, 0);
    EXPECT_GT(slowed, 0);
    EXPECT_GT(between, 0);
  }
  rope_tables(seq, dim, 10000.0, cos.data(), sin.data(), {.kind = RopeScalingKind::linear, .factor = 4.0});
  EXPECT_FLOAT_EQ(cos[8 * half], static_cast<float>(std::cos(2.0)));  // position 8 reads as position 2
  EXPECT_FLOAT_EQ(sin[39 * half + 32], static_cast<float>(std::sin(39.0 / 4.0 / 100.0)));
  const RopeScaling upside_down{RopeScalingKind::llama3, 8.0, 4.0, 1.0, 8192};
  EXPECT_THROW(rope_tables(seq, dim, 10000.0, cos.data(), sin.data(), upside_down), InternalError);
}

// Numbers of transformers 5.23 (_compute_yarn_parameters): head_dim 16, theta 20000, factor 4, original length 1200.
TEST(RopeTest, YarnTables) {
  using kernels::RopeScaling;
  const int64_t seq = 50, dim = 16, half = dim / 2;
  std::vector<float> cos(seq * half), sin(seq * half);
  RopeScaling scaling{.kind = RopeScalingKind::yarn, .factor = 4.0, .original_max_position_embeddings = 1200};
  struct Case {
    RopeScaling scaling;
    std::vector<double> frequencies;
    double attention_factor;
  };
  RopeScaling exact = scaling;
  exact.beta_fast = 16.0, exact.beta_slow = 2.0, exact.truncate = false, exact.attention_factor = 0.9;
  for (const Case& c :
       {Case{scaling,
             {1.0, 0.2899821400642395, 0.06832283735275269, 0.01524030975997448, 0.00309359235689044,
              0.0005126208416186273, 0.00014865088451188058, 4.310610529500991e-05},
             1.138629436111989},
        Case{exact,
             {1.0, 0.2899821400642395, 0.08408964425325394, 0.013529922813177109, 0.0017677670111879706,
              0.0005126208416186273, 0.00014865088451188058, 4.310610529500991e-05},
             0.9}}) {
    rope_tables(seq, dim, 20000.0, cos.data(), sin.data(), c.scaling);
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = c.frequencies[static_cast<size_t>(i)];
      for (const int64_t position : {int64_t{0}, int64_t{1}, seq - 1}) {
        ASSERT_NEAR(cos[position * half + i], c.attention_factor * std::cos(position * frequency), 1e-5) << i;
        ASSERT_NEAR(sin[position * half + i], c.attention_factor * std::sin(position * frequency), 1e-5) << i;
      }
    }
  }
  exact.beta_slow = 16.0;
  EXPECT_THROW(rope_tables(seq, dim, 20000.0, cos.data(), sin.data(), exact), InternalError);
}

// Only the first 3 of 8 pairs are rotated, with the frequencies of a head of 6 channels.
TEST(RopeTest, PartialTables) {
  const int64_t half = 8;
  std::vector<float> cos(4 * half), sin(4 * half), narrow_cos(4 * 3), narrow_sin(4 * 3);
  rope_tables(4, 16, 10000.0, cos.data(), sin.data(), {}, 3);
  rope_tables(4, 6, 10000.0, narrow_cos.data(), narrow_sin.data());
  for (int64_t position = 0; position < 4; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      EXPECT_EQ(cos[position * half + i], i < 3 ? narrow_cos[position * 3 + i] : 1.0f);
      EXPECT_EQ(sin[position * half + i], i < 3 ? narrow_sin[position * 3 + i] : 0.0f);
    }
  }
}

TEST(RopeTest, MatchesDoublePrecision) {
  const Context context = Context::cpu();
  const double theta = 500.0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const RopeCase& t : kRopeCases) {
      const int64_t rows = t.batch * t.seq, heads = t.heads + 2 * t.groups, half = t.head_dim / 2;
      const int64_t columns = heads * t.head_dim;
      TestTensor qkv(context, dtype, {rows, columns});
      qkv.fill_normal(1);
      RopeTables tables(context, t.seq, t.head_dim, theta);
      const std::vector<float> x = qkv.floats();
      for (const bool backward : {false, true}) {
        qkv.fill(x);
        rope(context, {qkv, tables.cos, tables.sin, t.seq, t.heads, t.groups, t.head_dim, backward});
        std::vector<float> expected = x;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t h = 0; h < t.heads + t.groups; ++h) {
            for (int64_t i = 0; i < half; ++i) {
              const double angle = (backward ? -1.0 : 1.0) * static_cast<double>(r % t.seq) *
                                   std::pow(theta, -2.0 * i / static_cast<double>(t.head_dim));
              const int64_t first = r * columns + h * t.head_dim + i;
              const double a = x[first], b = x[first + half];
              expected[first] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
              expected[first + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
            }
          }
        }
        EXPECT_LT(max_relative_error(qkv.floats(), expected, 0.1), dtype == DType::bf16 ? 4e-3 : 2e-6);
      }
    }
  }
}

TEST(RopeTest, BackwardIsTheTranspose) {
  // <R x, w> = <x, R^T w>: the gradient of a linear map is its transpose.
  const Context context = Context::cpu();
  const RopeCase t{2, 9, 3, 1, 16};
  const Shape shape{t.batch * t.seq, (t.heads + 2 * t.groups) * t.head_dim};
  TestTensor x(context, DType::f32, shape), w(context, DType::f32, shape);
  x.fill_normal(1), w.fill_normal(2);
  const std::vector<float> x0 = x.floats(), w0 = w.floats();
  RopeTables tables(context, t.seq, t.head_dim, 10000.0);
  rope(context, {x, tables.cos, tables.sin, t.seq, t.heads, t.groups, t.head_dim, false});
  rope(context, {w, tables.cos, tables.sin, t.seq, t.heads, t.groups, t.head_dim, true});
  const std::vector<float> x1 = x.floats(), w1 = w.floats();
  double left = 0, right = 0, size = 0;
  for (size_t i = 0; i < x0.size(); ++i) {
    left += double{x1[i]} * w0[i];
    right += double{x0[i]} * w1[i];
    size += std::abs(double{x0[i]} * w1[i]);
  }
  EXPECT_NEAR(left, right, 1e-6 * size);
  EXPECT_GT(relative_error(x1, x0), 0.1);
}

// Rows with positions in any order are rotated as in a sequence that has them at these positions.
TEST(RopeTest, ExplicitPositions) {
  const Context context = Context::cpu();
  const std::vector<int32_t> positions = {7, 0, 3, 3, 9};
  RopeTables tables(context, 7, 6, 500.0);
  TestTensor whole(context, DType::f32, {10, 4 * 6}), rows(context, DType::f32, {5, 4 * 6});
  TestTensor ids(context, DType::i32, {5});
  ids.fill_ints(positions);
  whole.fill_normal(1);
  const std::vector<float> x = whole.floats();
  std::vector<float> chosen;
  for (const int32_t p : positions) chosen.insert(chosen.end(), x.begin() + p * 24, x.begin() + (p + 1) * 24);
  rows.fill(chosen);
  rope(context, {whole, tables.cos, tables.sin, 10, 2, 1, 6, false});
  rope(context, {rows, tables.cos, tables.sin, 0, 2, 1, 6, false, ids});
  const std::vector<float> y = whole.floats();
  std::vector<float> expected;
  for (const int32_t p : positions)
    expected.insert(expected.end(), y.begin() + p * 24, y.begin() + (p + 1) * 24);
  EXPECT_EQ(rows.floats(), expected);
  ids.fill_ints({7, 0, 3, 3, 10});
  EXPECT_THROW(rope(context, {rows, tables.cos, tables.sin, 0, 2, 1, 6, false, ids}), InternalError);
}

TEST(RopeTest, RejectsWrongArguments) {
  const Context context = Context::cpu();
  TestTensor qkv(context, DType::f32, {6, 3 * 4});
  RopeTables tables(context, 3, 4, 10000.0);
  qkv.fill_value(1);
  EXPECT_THROW(rope(context, {qkv, tables.cos, tables.sin, 4, 1, 1, 4, false}), InternalError);
  EXPECT_THROW(rope(context, {qkv, tables.cos, tables.sin, 3, 2, 1, 4, false}), InternalError);
  EXPECT_THROW(rope(context, {qkv, qkv, tables.sin, 3, 1, 1, 4, false}), InternalError);
}

}  // namespace
}  // namespace te::testing
