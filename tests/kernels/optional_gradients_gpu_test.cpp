// Backward passes without the gradients of parameters that are not trained.
#include "kernels/optional_gradients.h"

namespace te::testing {
namespace {

TEST(OptionalGradientsGpu, Norm) {
  TE_REQUIRE_GPU();
  for (const DType grads : {DType::f32, DType::bf16}) norm_without_gradients(Context::cuda(0), grads);
}

TEST(OptionalGradientsGpu, QkNorm) {
  TE_REQUIRE_GPU();
  qk_norm_without_gradients(Context::cuda(0));
}

TEST(OptionalGradientsGpu, Embedding) {
  TE_REQUIRE_GPU();
  for (const DType grads : {DType::f32, DType::bf16}) embedding_without_gradients(Context::cuda(0), grads);
}

}  // namespace
}  // namespace te::testing
