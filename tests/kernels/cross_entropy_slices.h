// A vocabulary divided into slices, as with tensor parallelism, for the tests of the vocabulary-parallel cross-entropy.
#pragma once

#include <deque>
#include <limits>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "testing/testing.h"

namespace te::testing {

/// Logits of `rows` rows over `slices` ranks of `local` columns each; columns from `vocab` on are padding.
struct SlicedVocabulary {
  int64_t vocab, local, slices;
};

/// Unaligned and aligned slices; padding over more than one rank; a rank with padding only; one column per rank.
inline const SlicedVocabulary kSlicedVocabularies[] = {{7, 7, 1},    {257, 264, 1},    {256, 64, 4},
                                                       {250, 64, 4}, {130, 64, 4},     {3, 1, 3},
                                                       {33, 11, 3},  {50257, 12576, 4}};

/// Logits with standard deviation 4, some of them -inf; the padding holds NaN, which must not have any effect.
inline std::vector<float> whole_logits(const SlicedVocabulary& v, int64_t rows) {
  const int64_t columns = v.local * v.slices;
  std::vector<float> logits = normal_values(rows * columns, 11, 4.0f);
  for (int64_t r = 0; r < rows; ++r) {
    if (v.vocab > 7) logits[r * columns + 3] = -std::numeric_limits<float>::infinity();
    for (int64_t c = v.vocab; c < columns; ++c)
      logits[r * columns + c] = std::numeric_limits<float>::quiet_NaN();
  }
  return logits;
}

/// The target of row 1 is ignored; that of row 0 is the last row of the vocabulary.
inline std::vector<int32_t> slice_targets(const SlicedVocabulary& v, int64_t rows) {
  std::vector<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>((r * 7919 + v.vocab - 1) % v.vocab);
  targets[1] = -1;
  return targets;
}

/// CrossEntropyStatistics::preceded of a slice that starts at row 4 of the vocabulary and ends with padding.
inline void expect_preceded(const Context& context) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const float soft_cap : {0.0f, 2.0f}) {
      TestTensor logits(context, dtype, {8, 4}), targets(context, DType::i32, {8});
      TestTensor statistics(context, DType::f32, {3, 8}), preceded(context, DType::f32, {8});
      logits.fill({1, 1, 0, 9, 1, 1, 0, 9, 1, 2, 0, 9, 2, 1, 0, 9,  //
                   0, 1, 1, 9, 0, 0, 1, 9, 1, 1, 1, 9, 1, 1, 1, 9});
      // Equal to a column before it, to one after it, above and below the one before it, equal to the one before it,
      // above all; on the preceding rank; ignored.
      targets.fill_ints({5, 4, 5, 5, 6, 6, 3, -1});
      kernels::cross_entropy_statistics(context, {.logits = logits,
                                                  .targets = targets,
                                                  .first = 4,
                                                  .vocab = 7,
                                                  .statistics = statistics,
                                                  .soft_cap = soft_cap,
                                                  .preceded = preceded});
      EXPECT_EQ(preceded.floats(), (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 0}));
    }
  }
}

/// Runs both ops for all ranks on one device, with the all-gather between them done on the host.
class SlicedCrossEntropy {
 public:
  SlicedCrossEntropy(const Context& context, DType dtype, const SlicedVocabulary& v, int64_t rows,
                     const std::vector<float>& values, const std::vector<int32_t>& target_values)
      : targets(context, DType::i32, {rows}),
        statistics(context, DType::f32, {v.slices, 3, rows}),
        context_(context),
        v_(v),
        rows_(rows) {
    targets.fill_ints(target_values);
    const int64_t columns = v.local * v.slices;
    for (int64_t rank = 0; rank < v.slices; ++rank) {
      std::vector<float> part;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < v.local; ++c) part.push_back(values[r * columns + rank * v.local + c]);
      logits.emplace_back(context, dtype, Shape{rows, v.local});
      logits.back().fill(part);
      losses.emplace_back(context, DType::f32, Shape{rows});
      z_losses.emplace_back(context, DType::f32, Shape{rows});
    }
  }

  void run(float grad_scale, float z_loss = 0.0f, float soft_cap = 0.0f) {
    for (int64_t rank = 0; rank < v_.slices; ++rank) {
      const Tensor own{statistics.get().as<float>() + rank * 3 * rows_, DType::f32, {3, rows_}};
      kernels::cross_entropy_statistics(context_, {.logits = logits[rank],
                                                   .targets = targets,
                                                   .first = rank * v_.local,
                                                   .vocab = v_.vocab,
                                                   .statistics = own,
                                                   .soft_cap = soft_cap});
    }
    for (int64_t rank = 0; rank < v_.slices; ++rank)
      kernels::cross_entropy_from_statistics(context_, {.logits = logits[rank],
                                                        .targets = targets,
                                                        .first = rank * v_.local,
                                                        .vocab = v_.vocab,
                                                        .statistics = statistics,
                                                        .losses = losses[rank],
                                                        .grad_scale = grad_scale,
                                                        .z_loss = z_loss,
                                                        .soft_cap = soft_cap,
                                                        .z_losses = z_losses[rank]});
  }

  /// All ranks' logits (or gradients), joined by columns.
  std::vector<float> joined() const {
    const int64_t columns = v_.local * v_.slices;
    std::vector<float> all(static_cast<size_t>(rows_ * columns));
    for (int64_t rank = 0; rank < v_.slices; ++rank) {
      const std::vector<float> part = logits[rank].floats();
      for (int64_t r = 0; r < rows_; ++r)
        for (int64_t c = 0; c < v_.local; ++c)
          all[r * columns + rank * v_.local + c] = part[r * v_.local + c];
    }
    return all;
  }

  TestTensor targets, statistics;
  std::deque<TestTensor> logits, losses, z_losses;  ///< per rank

 private:
  const Context& context_;
  SlicedVocabulary v_;
  int64_t rows_;
};

}  // namespace te::testing
