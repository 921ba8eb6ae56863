#include "fp8/operand.h"

#include "core/error.h"

namespace te::fp8 {

// --- the operand -------------------------------------------------------------------------------------------

Operand Operand::first_rows(int64_t rows) const {
  Operand part;
  if (high_precision) part.high_precision = high_precision.slice_rows(0, rows);
  const auto resized = [](kernels::Matrix matrix, int64_t form_rows, int64_t form_cols) {
    matrix.values.shape = {form_rows, form_cols};
    matrix.scales.shape = kernels::scale_shape(matrix.layout, form_rows, form_cols);
    return matrix;
  };
  if (rowwise) part.rowwise = resized(rowwise, rows, rowwise.cols());
  if (columnwise) part.columnwise = resized(columnwise, columnwise.rows(), rows);
  return part;
}

void Operand::check_ready() const {
  TE_CHECK(ready_, "a GEMM reads an operand [{}] that this pass has not completed",
           (rowwise ? rowwise.values : high_precision).shape.str());
}

// --- the producer's side -----------------------------------------------------------------------------------

// Records the outputs as produced.
Output Target::take(bool values, bool cast, bool sums) {
  Output output;
  if (cast) output.fp8 = fp8_;
  if (values) output.high_precision = high_precision_;
  if (sums) output.sums = sums_;
  if (operand_ != nullptr)
    operand_->produced_ = {.values = values, .cast = cast, .sums = sums && static_cast<bool>(sums_.into)};
  return output;
}

Tensor Target::values() {
  return take(true, false, false).high_precision;
}
Output Target::values_and_sums() {
  return take(true, false, true);
}

// Without high-precision values, the column sums could not be computed later.
Output Target::cast() {
  const bool casts = fp8_.wants_data() && !sums_.into;
  return take(!casts, casts, false);
}
Output Target::cast_and_sums() {
  const bool casts = fp8_.wants_data();
  return take(!casts, casts, true);
}
Output Target::cast_in_place() {
  const bool casts = fp8_.wants_data();
  return take(!casts, casts, casts);
}

// The linear layer calls mark_high_precision_kept() when it gets the values.
Output Target::quantized_copy() {
  return take(false, fp8_.wants_data(), true);
}

// --- the GEMMs' side ---------------------------------------------------------------------------------------

kernels::Gemm fprop(const Operand& input, const Operand& weight, int64_t first, int64_t count) {
  input.check_ready();
  weight.check_ready();
  if (!input.rowwise || input.use_high_precision_)
    return {.a = input.high_precision.slice_rows(first, count), .b = weight.high_precision, .trans_b = true};
  return {.a = input.rowwise.slice_rows(first, count),
          .b = weight.rowwise,
          .trans_b = true,
          .fast_accumulation = input.rowwise.layout == kernels::ScaleLayout::tensor ||
                               input.rowwise.layout == kernels::ScaleLayout::rows};
}

// The GEMM contracts over W's rows, so in FP8 it reads W's columnwise layout.
kernels::Gemm dgrad(const Operand& grad, const Operand& weight, int64_t first, int64_t count) {
  grad.check_ready();
  weight.check_ready();
  if (!grad.rowwise || grad.use_high_precision_)
    return {.a = grad.high_precision.slice_rows(first, count), .b = weight.high_precision};
  return {.a = grad.rowwise.slice_rows(first, count), .b = weight.columnwise, .trans_b = true};
}

kernels::Gemm wgrad(const Operand& grad, const Operand& input) {
  grad.check_ready();
  input.check_ready();
  if (!grad.columnwise || grad.use_high_precision_)
    return {.a = grad.high_precision, .b = input.high_precision, .trans_a = true};
  return {.a = grad.columnwise, .b = input.columnwise, .trans_b = true};
}

}  // namespace te::fp8
