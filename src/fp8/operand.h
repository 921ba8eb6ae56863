// The operand of a linear layer's GEMMs as values, from the kernel that produces it to the GEMMs that read it:
//
//   Operand           its memory, planned before the first pass
//   OperandRequest    what the linear layer asks the producer for: high-precision values, FP8 values in both layouts,
//                     column sums (the bias gradient)
//   ProducedOperand   the part of the request that the producer's kernel has written
//   ReadyOperand      complete: Quantizer::complete() has computed what was not produced
//
// Each stage is made from the one before, and GEMMs take only the last one, so no output is computed twice or
// forgotten. Operands of a pass that a later GEMM reads (a saved input, a gradient for a deferred wgrad) are kept as
// ReadyOperand.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/matrix.h"
#include "kernels/quantize/fp8_output.h"
#include "kernels/quantize/quantize_groups.h"

namespace te::fp8 {

/// How a pass changes the FP8 state, and which layouts it needs.
struct QuantizeMode {
  bool record_amax = false;  ///< only in training passes
  bool count = false;        ///< add to the saturation counters
  bool columnwise = true;    ///< false: no GEMM contracts over the rows (evaluation)
  /// False: only wgrad will read the operand, because fprop or dgrad has already run. complete() uses it; producers
  /// write the requested outputs.
  bool rowwise = true;
  /// Unchanged values are quantized again with the scale of the first time (Operand::scale, if any); their amax has
  /// been recorded.
  bool reuse_scale = false;
  /// A recomputed pass: the microbatch's first pass has quantized the same values. Implies `reuse_scale` for operands
  /// with Operand::scale.
  bool is_recompute = false;
  uint64_t seed = 0;   ///< of stochastic rounding, which also depends on the operand and on
  int64_t sample = 0;  ///< the global index of the microbatch's first sample
};

/// Memory of an operand. Layouts that the recipe does not use are empty.
struct Operand {
  Tensor high_precision;  ///< [rows, cols] bf16 or fp32; empty if only FP8 is kept, or if the producer has it
  kernels::Matrix rowwise;  ///< [rows, cols] quantized, with its scales
  /// [cols, rows]: the layout for GEMMs that contract over the rows; with offsets in blocks (common/row_blocks.h).
  kernels::Matrix columnwise;
  Tensor scale;           ///< fp32 [1 or experts]: of both layouts, kept for recomputation; or empty
  bool is_shard = false;  ///< other tensor-parallel ranks have the other rows; all share one scale
  /// i32 [experts + 1], for an operand of experts: the first row of each and the end (kernels/moe/permute.h). Empty:
  /// all have the same number of rows.
  Tensor offsets;
  /// With offsets: high_precision has tokens, and the rows are copies of them (kernels/moe/permute.h). Only for
  /// operands that no GEMM reads in high precision.
  Tensor source;
  int64_t topk = 1;

  /// The same with fewer rows in the same memory; its layouts and their scales are dense.
  Operand first_rows(int64_t rows) const {
    Operand part;
    if (high_precision) part.high_precision = high_precision.slice_rows(0, rows);
    const auto resized = [](kernels::Matrix matrix, int64_t layout_rows, int64_t layout_cols) {
      matrix.values.shape = {layout_rows, layout_cols};
      if (matrix.layout != kernels::ScaleLayout::tensor)
        matrix.scales.shape = kernels::scale_shape(matrix.layout, layout_rows, layout_cols);
      return matrix;
    };
    if (rowwise) part.rowwise = resized(rowwise, rows, rowwise.cols());
    if (columnwise) part.columnwise = resized(columnwise, columnwise.rows(), rows);
    part.scale = scale, part.is_shard = is_shard;
    return part;
  }
};

/// Column sums of grad_output, which are the bias gradient. Empty: not requested.
struct ColumnSums {
  Tensor into;     ///< fp32 or bf16 [cols], +=
  Tensor scratch;  ///< as in kernels::Quantize
};

/// The outputs of a kernel that has produced an operand, also as fields of the kernel's arguments.
struct ProducedOperand {
  Tensor high_precision;  ///< empty if there are only FP8 values
  kernels::Fp8Output fp8;
  ColumnSums sums;
};

/// All outputs that the linear layer can use. Empty: none in addition to what the producer keeps.
struct OperandRequest {
  Tensor high_precision;
  kernels::Fp8Output fp8;  ///< empty if the recipe does not let producers quantize
  ColumnSums sums;

  /// For a kernel that writes either high-precision or FP8 values. Without high-precision values the column sums cannot
  /// be computed later, so a kernel that does not compute them quantizes only if there are none.
  ProducedOperand quantized_or_values(bool computes_sums) const {
    const bool quantizes = fp8.wants_data() && (computes_sums || !sums.into);
    return {.high_precision = quantizes ? Tensor{} : high_precision,
            .fp8 = quantizes ? fp8 : kernels::Fp8Output{},
            .sums = computes_sums ? sums : ColumnSums{}};
  }
  /// For a kernel that writes high-precision values to memory of its own, and everything else as well.
  ProducedOperand in_addition_to(const Tensor& values) const {
    return {.high_precision = values, .fp8 = fp8, .sums = sums};
  }
};

/// For a producer of an operand of experts, which writes either this or high precision. Empty: high precision.
struct ExpertsRequest {
  kernels::Fp8Output fp8;          ///< with one scale per expert
  kernels::QuantizeGroups groups;  ///< with scales of vectors; without an input
  explicit operator bool() const { return fp8.wants_data() || groups.wants_data(); }
};

/// An operand that GEMMs can read: the quantized layout if there is one, otherwise high precision.
struct ReadyOperand {
  Tensor high_precision;
  kernels::Matrix rowwise, columnwise;
};

}  // namespace te::fp8
