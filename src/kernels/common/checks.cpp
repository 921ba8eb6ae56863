#include "kernels/common/checks.h"

#include "kernels/quantize/quantize.h"

namespace te::kernels {

void check_high_precision(const char* op, const char* name, const Tensor& tensor) {
  TE_CHECK(tensor, "{}: tensor {} is missing", op, name);
  TE_CHECK(is_high_precision(tensor.dtype), "{}: {} must be fp32, bf16 or fp16, not {}", op, name,
           dtype_name(tensor.dtype));
}

void check_grad(const char* op, const char* name, const Tensor& tensor) {
  TE_CHECK(tensor, "{}: tensor {} is missing", op, name);
  TE_CHECK(tensor.dtype == DType::f32 || tensor.dtype == DType::bf16, "{}: {} must be fp32 or bf16, not {}",
           op, name, dtype_name(tensor.dtype));
}

void check_dtype(const char* op, const char* name, const Tensor& tensor, DType dtype) {
  TE_CHECK(tensor, "{}: tensor {} is missing", op, name);
  TE_CHECK(tensor.dtype == dtype, "{}: {} must be {}, not {}", op, name, dtype_name(dtype),
           dtype_name(tensor.dtype));
}

void check_shape(const char* op, const char* name, const Tensor& tensor, Shape shape) {
  TE_CHECK(tensor, "{}: tensor {} is missing", op, name);
  TE_CHECK(tensor.shape == shape, "{}: {} has shape {}, must be {}", op, name, tensor.shape.str(),
           shape.str());
}

void check_tensor(const char* op, const char* name, const Tensor& tensor, DType dtype, Shape shape) {
  check_dtype(op, name, tensor, dtype);
  check_shape(op, name, tensor, shape);
}

void check_fp8_output(const char* op, const Fp8Output& out, int64_t rows, int64_t cols) {
  TE_CHECK(out.wants_data() || out.requantize.state == nullptr, "{}: requantization requires FP8 data", op);
  TE_CHECK(out.requantize.state == nullptr || out.requantize.num_quantizations != nullptr,
           "{}: requantization requires num_quantizations", op);
  TE_CHECK(out.requantize.predicted_scales == nullptr || out.requantize.current_scale != nullptr,
           "{}: predicted_scales require current_scale", op);
  if (!out.wants_data()) return;
  TE_CHECK(out.scale != nullptr, "{}: an FP8 output needs a scale", op);
  if (out.rowwise) {
    TE_CHECK(is_fp8(out.rowwise.dtype), "{}: rowwise must be FP8", op);
    check_shape(op, "rowwise", out.rowwise, {rows, cols});
  }
  if (out.columnwise) {
    TE_CHECK(is_fp8(out.columnwise.dtype), "{}: columnwise must be FP8", op);
    check_shape(op, "columnwise", out.columnwise, {cols, rows});
    TE_CHECK(!out.rowwise || out.rowwise.dtype == out.columnwise.dtype,
             "{}: rowwise and columnwise must have the same FP8 format", op);
  }
}

void check_column_sums(const char* op, const Tensor& dbias, const Tensor& scratch, int64_t rows,
                       int64_t cols) {
  check_grad(op, "dbias", dbias);
  check_shape(op, "dbias", dbias, {cols});
  check_dtype(op, "scratch", scratch, DType::f32);
  const int64_t needed = quantize_scratch_elements(rows, cols);
  TE_CHECK(scratch.numel() >= needed, "{}: scratch holds {} elements, needs {}", op, scratch.numel(), needed);
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto *first = static_cast<const char*>(a.data), *second = static_cast<const char*>(b.data);
  return a && b && first < second + b.bytes() && second < first + a.bytes();
}

void no_cuda(const char* op) {
  internal_error(std::string(op) + ": this is a CPU-only build", std::source_location::current());
}

}  // namespace te::kernels
