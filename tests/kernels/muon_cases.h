// Matrices for the tests of Newton-Schulz, and the published algorithm in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/grad_norm/grad_norm.h"
#include "kernels/muon/newton_schulz.h"
#include "testing/testing.h"

namespace te::testing {

struct MatrixShape {
  int64_t rows, cols;
};
/// Wide, tall and square; aligned and unaligned; a row, a column, an element.
inline const MatrixShape kMatrixShapes[] = {{4, 6},   {6, 4},   {64, 64}, {48, 160}, {160, 48},
                                            {13, 77}, {77, 13}, {1, 9},   {9, 1},    {1, 1}};

using DoubleMatrix = std::vector<std::vector<double>>;

inline DoubleMatrix product(const DoubleMatrix& a, const DoubleMatrix& b) {
  DoubleMatrix c(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < b.size(); ++k)
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}
inline DoubleMatrix transposed(const DoubleMatrix& a) {
  DoubleMatrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

/// As in Moonlight's code (arXiv 2502.16982): tall matrices are transposed for the iteration.
inline std::vector<float> orthogonalized_in_double(const std::vector<float>& values, MatrixShape shape,
                                                   int iterations = 5) {
  const double a = 3.4445, b = -4.7750, c = 2.0315;
  DoubleMatrix x(static_cast<size_t>(shape.rows), std::vector<double>(static_cast<size_t>(shape.cols)));
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    x[i / static_cast<size_t>(shape.cols)][i % static_cast<size_t>(shape.cols)] = values[i];
    squares += double{values[i]} * values[i];
  }
  const bool tall = shape.rows > shape.cols;
  if (tall) x = transposed(x);
  for (std::vector<double>& row : x)
    for (double& value : row) value /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < iterations; ++step) {
    const DoubleMatrix gram = product(x, transposed(x)), squared = product(gram, gram);
    DoubleMatrix polynomial = gram;
    for (size_t i = 0; i < gram.size(); ++i)
      for (size_t j = 0; j < gram.size(); ++j) polynomial[i][j] = b * gram[i][j] + c * squared[i][j];
    const DoubleMatrix change = product(polynomial, x);
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = a * x[i][j] + change[i][j];
  }
  if (tall) x = transposed(x);
  std::vector<float> result;
  for (const std::vector<double>& row : x)
    for (const double value : row) result.push_back(static_cast<float>(value));
  return result;
}

/// newton_schulz() of these values, rounded to the dtype.
inline std::vector<float> orthogonalized(const Context& context, DType dtype, MatrixShape shape,
                                         const std::vector<float>& values, int64_t iterations = 5) {
  const int64_t n = std::min(shape.rows, shape.cols);
  TestTensor x(context, dtype, {shape.rows, shape.cols}), product(context, dtype, {shape.rows, shape.cols});
  TestTensor gram(context, dtype, {n, n}), squared(context, dtype, {n, n}), sum(context, DType::f32, {1});
  TestTensor scratch(context, DType::f32, {kernels::sum_of_squares_scratch_elements()});
  x.fill(values);
  kernels::newton_schulz(context, {.x = x,
                                   .product = product,
                                   .gram = gram,
                                   .gram_squared = squared,
                                   .sum = sum,
                                   .scratch = scratch,
                                   .iterations = iterations});
  return x.floats();
}

}  // namespace te::testing
