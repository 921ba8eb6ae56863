// Backward passes without the gradients of parameters that are not trained.
#include "kernels/optional_gradients.h"

namespace te::testing {
namespace {

TEST(OptionalGradients, Norm) {
  for (const DType grads : {DType::f32, DType::bf16}) norm_without_gradients(Context::cpu(), grads);
}

TEST(OptionalGradients, QkNorm) {
  qk_norm_without_gradients(Context::cpu());
}

TEST(OptionalGradients, Embedding) {
  for (const DType grads : {DType::f32, DType::bf16}) embedding_without_gradients(Context::cpu(), grads);
}

}  // namespace
}  // namespace te::testing
