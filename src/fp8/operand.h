// The operand of a linear layer's GEMMs, from the kernel that produces it to the GEMMs that read it.
//
//   producer   gets a Target from the linear layer and takes the outputs that its kernel can write: high-precision
//              values, FP8 values in both layouts, column sums (the bias gradient)
//   linear     Quantizer::complete() computes the outputs that the producer did not take
//   GEMMs      fprop(), dgrad() and wgrad() below read the result
//
// Taking an output also records it as produced, so no output is computed twice or forgotten. A GEMM refuses an operand
// that was not completed in this pass.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/fp8_output.h"

namespace te::fp8 {

class Operand {
 public:
  Tensor high_precision;  ///< [rows, cols] bf16 or fp32; may be empty if only FP8 is kept
  kernels::Matrix
      rowwise;  ///< [rows, cols] quantized, with its scales; empty if the recipe keeps high_precision
  kernels::Matrix columnwise;  ///< [cols, rows]: the layout for GEMMs that contract over the rows
  Tensor scale;                ///< fp32 [1]: scale of both layouts, kept for recomputation; or empty
  bool is_shard = false;       ///< other tensor-parallel ranks have the other rows; all share one scale

  /// high_precision has this pass's values. For producers without a Target (a weight update, the residual stream).
  void mark_high_precision_written() { produced_ = {.values = true}; }
  /// The same for producers that took a Target's quantized_copy(): those outputs stay recorded.
  void mark_high_precision_kept() { produced_.values = true; }
  int64_t rows() const { return rowwise ? rowwise.rows() : high_precision.rows(); }
  /// An operand of fewer rows in the same memory; its layouts and their scales are dense.
  Operand first_rows(int64_t rows) const;

 private:
  friend class Target;
  friend class Quantizer;
  friend kernels::Gemm fprop(const Operand&, const Operand&, int64_t, int64_t);
  friend kernels::Gemm dgrad(const Operand&, const Operand&, int64_t, int64_t);
  friend kernels::Gemm wgrad(const Operand&, const Operand&);
  void check_ready() const;

  /// Outputs that the producer of this pass has written.
  struct Produced {
    bool values = false, cast = false, sums = false;
  };
  Produced produced_;
  bool ready_ = false;  ///< complete: GEMMs may read it
  bool use_high_precision_ =
      false;  ///< in this pass GEMMs read high_precision, although there are quantized layouts
};

/// Column sums of grad_output, which are the bias gradient. Empty: not requested.
struct ColumnSums {
  Tensor into;     ///< fp32 or bf16 [cols], +=
  Tensor scratch;  ///< as in kernels::Quantize
};

/// The outputs of a kernel that produces an operand, as fields of its arguments.
struct Output {
  Tensor high_precision;
  kernels::Fp8Output fp8;
  ColumnSums sums;
};

/// Where the producer of an operand writes it. Each producer calls one of these functions, depending on what its kernel
/// supports.
class Target {
 public:
  Target() = default;  ///< nothing is needed in addition to what the producer keeps
  explicit Target(const Tensor& values) : high_precision_(values) {}  ///< memory that is not an operand

  /// High-precision values only.
  Tensor values();
  /// High-precision values and the column sums.
  Output values_and_sums();
  /// FP8 values and no high-precision values if the recipe supports fused quantization, else high-precision values.
  Output cast();
  /// The same with the column sums.
  Output cast_and_sums();
  /// The same as cast() for a kernel that works in place on memory(), which has the result if nothing is quantized.
  /// Column sums are computed only together with quantization.
  Output cast_in_place();
  Tensor memory() const { return high_precision_; }
  /// Quantized values in addition to high-precision values in the producer's memory, which the linear layer gets later.
  Output quantized_copy();

 private:
  friend class Quantizer;
  Operand* operand_ = nullptr;
  Tensor high_precision_;
  kernels::Fp8Output fp8_;
  ColumnSums sums_;
  Output take(bool values, bool cast, bool sums);
};

/// The GEMMs of y = x W^T without their outputs: rows [first, first + count) of y and of dx = dy W, and dW = dy^T x.
/// InternalError if an operand is not complete. Only fprop uses fast accumulation.
kernels::Gemm fprop(const Operand& input, const Operand& weight, int64_t first, int64_t count);
kernels::Gemm dgrad(const Operand& grad, const Operand& weight, int64_t first, int64_t count);
kernels::Gemm wgrad(const Operand& grad, const Operand& input);

}  // namespace te::fp8
