#include "kernels/gemm/block_scaled.h"

#include <limits>

namespace te::kernels {
namespace {

/// Requirements of bulk copies (TMA): 16-byte addresses and rows, 32-bit coordinates.
bool suits_bulk_copies(const Tensor& tensor) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && tensor.cols() % 16 == 0 &&
         tensor.rows() <= kMax && tensor.cols() <= kMax;
}

}  // namespace

bool is_block_scaled(const Gemm& args) {
  if (args.a.layout != ScaleLayout::vectors || !is_fp8(args.a.dtype()) || args.b.dtype() != DType::e4m3)
    return false;
  const bool weight = args.b.layout == ScaleLayout::blocks && args.out.dtype == DType::bf16 &&
                      !args.accumulate && reinterpret_cast<uintptr_t>(args.bias.data) % 4 == 0;
  const bool gradient = args.b.layout == ScaleLayout::vectors && !args.bias &&
                        (args.out.dtype == DType::f32 || args.out.dtype == DType::bf16);
  return (weight || gradient) && suits_bulk_copies(args.a.values) && suits_bulk_copies(args.b.values) &&
         suits_bulk_copies(args.out);
}

}  // namespace te::kernels
