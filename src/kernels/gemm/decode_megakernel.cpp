#include "kernels/gemm/decode_megakernel.h"

#include <algorithm>

#include "core/device_caps.h"
#include "core/error.h"
#include "kernels/gemm/decode_megakernel_cuda.h"
#include "kernels/gemm/gemm.h"

namespace te::kernels {
namespace {

constexpr int64_t kTile = 16;  ///< rows of a weight tile

bool is_bf16(const Tensor& tensor, const Shape& shape) {
  return tensor.dtype == DType::bf16 && tensor.shape == shape;
}

bool is_result(const MegakernelGemm& gemm, const Shape& shape) {
  const bool plain_fp32 = gemm.out.dtype == DType::f32 && !gemm.activated;
  return (gemm.out.dtype == DType::bf16 || plain_fp32) && gemm.out.shape == shape;
}

bool fits_norm(const MegakernelNorm& norm, const Tensor& x) {
  if (!norm.gamma) return !norm.delta;
  const Shape vector{x.cols()};
  return is_bf16(norm.gamma, vector) && (norm.kind != NormKind::layer || is_bf16(norm.beta, vector)) &&
         (!norm.delta || (is_bf16(norm.delta, x.shape) && is_bf16(norm.sum, x.shape)));
}

bool fits(const MegakernelGemm& gemm, int64_t rows) {
  if (!gemm.weight || gemm.x.shape.rank() != 2) return false;
  const int64_t n = gemm.weight.rows(), k = gemm.weight.cols();
  const int64_t out = gemm.activated && is_gated(gemm.kind) ? n / 2 : n;
  const bool weight = gemm.weight.dtype() == DType::bf16 ||
                      (gemm.weight.dtype() == DType::e4m3 && gemm.weight.layout == ScaleLayout::tensor);
  return weight && is_bf16(gemm.x, {rows, k}) && is_result(gemm, {rows, out}) &&
         (!gemm.bias || is_bf16(gemm.bias, {n})) && out % kTile == 0 && n % kTile == 0 && k % 16 == 0 &&
         fits_norm(gemm.norm, gemm.x);
}

}  // namespace

bool has_decode_megakernel(const Context& context, const DecodeMegakernel& megakernel) {
  const auto& gemms = megakernel.gemms;
  if (!device_caps(context).hopper_kernels || gemms.empty() || gemms.size() > kMaxMegakernelGemms)
    return false;
  const int64_t rows = gemms.front().x.rows();
  if (rows == 0 || rows > kFewRows) return false;
  if (!std::ranges::all_of(gemms, [&](const MegakernelGemm& gemm) { return fits(gemm, rows); })) return false;
#ifdef TE_WITH_SM90A
  return cuda::has_decode_megakernel(megakernel);
#else
  return false;
#endif
}

void decode_megakernel(const Context& context, const DecodeMegakernel& megakernel) {
  TE_CHECK(has_decode_megakernel(context, megakernel), "{} GEMMs of {} rows have no megakernel",
           megakernel.gemms.size(), megakernel.gemms.empty() ? 0 : megakernel.gemms.front().x.rows());
#ifdef TE_WITH_SM90A
  cuda::decode_megakernel(context, megakernel);
#endif
}

}  // namespace te::kernels
