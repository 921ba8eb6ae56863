// The operand of a linear's GEMMs, and the way it takes from the kernel that produces it to the GEMMs that read it.
//
//   producer   asks the linear for a Target and takes from it what it can write in its own pass:
//              high-precision values, FP8 values in both forms, column sums (the bias gradient)
//   linear     Quantizer::complete() does what the producer did not take
//   GEMMs      fprop(), dgrad() and wgrad() below read what the recipe has made of it
//
// Taking is recording: nobody sets a flag, nothing is done twice, a bias gradient cannot get lost, and a GEMM refuses
// an operand of which this pass has made nothing.
#pragma once

#include "core/tensor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/fp8_output.h"

namespace te::fp8 {

class Operand {
 public:
  Tensor high_precision;  ///< [rows, cols] bf16 or fp32; may be empty where only FP8 is kept
  kernels::Matrix
      rowwise;  ///< [rows, cols] quantized, with its scales; empty where the recipe keeps high_precision
  kernels::Matrix columnwise;  ///< [cols, rows], the form in which a GEMM contracts over the rows
  Tensor scale;           ///< fp32 [1]: what both forms are cast with, for a cast that is repeated; or empty
  bool is_shard = false;  ///< the tensor's other rows are those of other tensor ranks: one scale serves all

  /// high_precision holds this pass's values: of a producer that knows no Target (a weight's update, the residual
  /// stream).
  void mark_high_precision_written() { produced_ = {.values = true}; }
  /// The same where a Target was asked for quantized_copy(): what was taken from it stays done.
  void mark_high_precision_kept() { produced_.values = true; }
  int64_t rows() const { return rowwise ? rowwise.rows() : high_precision.rows(); }
  /// An operand of fewer rows in the same memory; its forms and their scales are dense all the same.
  Operand first_rows(int64_t rows) const;

 private:
  friend class Target;
  friend class Quantizer;
  friend kernels::Gemm fprop(const Operand&, const Operand&, int64_t, int64_t);
  friend kernels::Gemm dgrad(const Operand&, const Operand&, int64_t, int64_t);
  friend kernels::Gemm wgrad(const Operand&, const Operand&);
  void check_ready() const;

  /// What the producer of this pass has done already.
  struct Produced {
    bool values = false, cast = false, sums = false;
  };
  Produced produced_;
  bool ready_ = false;  ///< complete: GEMMs may read it
  bool use_high_precision_ =
      false;  ///< of this pass: GEMMs read high_precision, though there are quantized forms
};

/// Column sums of a gradient, which are a bias's gradient. Empty: not wanted.
struct ColumnSums {
  Tensor into;     ///< fp32 or bf16 [cols], +=
  Tensor scratch;  ///< as in kernels::Quantize
};

/// What a kernel writes of an operand: the fields of its own arguments.
struct Output {
  Tensor high_precision;
  kernels::Fp8Output fp8;
  ColumnSums sums;
};

/// Where the producer of an operand writes it. Each producer takes one of the outputs, according to what its kernel can
/// do.
class Target {
 public:
  Target() = default;  ///< nobody wants more than the producer keeps itself
  explicit Target(const Tensor& values) : high_precision_(values) {}  ///< memory that is no operand

  /// High-precision values alone.
  Tensor values();
  /// The same, and the column sums.
  Output values_and_sums();
  /// FP8 where the recipe can be served while the operand is produced, and then no high-precision values.
  Output cast();
  /// The same, and the column sums.
  Output cast_and_sums();
  /// Likewise of a kernel that works in place on memory(), where the values end if nothing is cast; it sums if it
  /// casts.
  Output cast_in_place();
  Tensor memory() const { return high_precision_; }
  /// Besides values that the producer keeps itself, in memory that the linear is given later.
  Output quantized_copy();

 private:
  friend class Quantizer;
  Operand* operand_ = nullptr;
  Tensor high_precision_;
  kernels::Fp8Output fp8_;
  ColumnSums sums_;
  Output take(bool values, bool cast, bool sums);
};

/// The GEMMs of y = x W^T without their results: rows [first, first + count) of y, the same of dx = dy W, dW = dy^T x.
/// InternalError for an operand that is not complete. Accumulation is fast for fprop only.
kernels::Gemm fprop(const Operand& input, const Operand& weight, int64_t first, int64_t count);
kernels::Gemm dgrad(const Operand& grad, const Operand& weight, int64_t first, int64_t count);
kernels::Gemm wgrad(const Operand& grad, const Operand& input);

}  // namespace te::fp8
