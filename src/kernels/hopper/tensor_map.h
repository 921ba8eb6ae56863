// Tensor maps: descriptions of BF16, FP8 or FP32 tensors for bulk copies (ptx.cuh). See CUDA driver API, "Tensor Map
// Object Management".
#pragma once

#include <cudaTypedefs.h>

#include <array>
#include <cstdint>
#include <limits>

#include "core/cuda_check.h"
#include "core/tensor.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::hopper {

/// The driver's function, obtained from the runtime, because te-train does not link to the driver library.
inline PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    TE_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                   &result));
#else
    TE_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
#endif
    TE_CHECK(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

inline CUtensorMapDataType element_type(DType dtype) {
  if (dtype == DType::bf16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (dtype == DType::f32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  TE_CHECK(is_fp8(dtype), "tensor_map: no tensor map for elements of {}", dtype_name(dtype));
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/// A tensor's dimensions, the innermost first: sizes, element strides (of the outer ones, multiples of 16 bytes), and
/// box sizes. The innermost box dimension has 128, 64 or 32 bytes and uses the swizzle of the same size.
template <size_t kRank = 3>
struct BoxesOf {
  std::array<int64_t, kRank> dims, strides /* [0] is 1 */, box;
};

template <size_t kRank>
CUtensorMap tensor_map(const void* data, const BoxesOf<kRank>& boxes, DType dtype = DType::bf16) {
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const int64_t row_bytes = boxes.box[0] * size;
  TE_CHECK(row_bytes == 128 || row_bytes == 64 || row_bytes == 32,
           "tensor_map: rows of a box must have 128, 64 or 32 bytes, not {} columns of {}", boxes.box[0],
           dtype_name(dtype));
  CUtensorMap map;
  std::array<cuuint64_t, kRank> dims{}, bytes{};
  std::array<cuuint32_t, kRank> box{}, steps{};
  for (size_t i = 0; i < kRank; ++i) {
    dims[i] = static_cast<cuuint64_t>(boxes.dims[i]);
    bytes[i] = static_cast<cuuint64_t>(boxes.strides[i] * size);
    box[i] = static_cast<cuuint32_t>(boxes.box[i]);
    steps[i] = 1;
  }
  const CUresult status =
      encode_function()(&map, element_type(dtype), kRank, const_cast<void*>(data), dims.data(),
                        bytes.data() + 1, box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                        row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                        : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                          : CU_TENSOR_MAP_SWIZZLE_32B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TE_CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error {}", static_cast<int>(status));
  return map;
}
inline CUtensorMap tensor_map(const void* data, const BoxesOf<3>& boxes, DType dtype = DType::bf16) {
  return tensor_map<3>(data, boxes, dtype);
}

/// Whether boxes of a tensor can be copied: TMA requires addresses and row strides in multiples of 16 bytes, and 32-bit
/// coordinates.
inline bool fits_tma(const Tensor& tensor) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return tensor.cols() * static_cast<int64_t>(dtype_size(tensor.dtype)) % 16 == 0 &&
         is_aligned(tensor.data, 16) && tensor.rows() <= kMax && tensor.cols() <= kMax;
}
/// The same for a tensor of this dtype.
inline bool fits_tma(const Tensor& tensor, DType dtype) {
  return tensor.dtype == dtype && fits_tma(tensor);
}

/// Tensor map for rows [first, first + count) of each block of [blocks * rows, columns], in boxes of `box_rows` x 128
/// bytes that are clipped at the end of the rows. Coordinates: (column, row - first, block).
inline CUtensorMap boxes_of(const Tensor& tensor, int64_t blocks, int64_t box_rows, int64_t first,
                            int64_t count) {
  const int64_t columns = tensor.cols(), rows = tensor.rows() / blocks;
  const auto size = static_cast<int64_t>(dtype_size(tensor.dtype));
  return tensor_map(tensor.as<char>() + first * columns * size,
                    {.dims = {columns, count, blocks},
                     .strides = {1, columns, rows * columns},
                     .box = {128 / size, box_rows, 1}},
                    tensor.dtype);
}

/// Tensor map for all rows.
inline CUtensorMap boxes_of(const Tensor& tensor, int64_t blocks, int64_t box_rows) {
  return boxes_of(tensor, blocks, box_rows, 0, tensor.rows() / blocks);
}

}  // namespace te::kernels::hopper
