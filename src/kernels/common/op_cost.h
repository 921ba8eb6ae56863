// What each op has to move and compute: the numbers behind a floor (core/profile.h). Bytes count each input
// that is read once and each output that is written once, an in/out tensor twice, and leave out scratch and
// what is smaller than a row (gains, scalars). They are those of the op as it is called: fewer ops that do the
// same work have fewer bytes.
#pragma once

#include "core/profile.h"
#include "core/tensor.h"

namespace te::kernels {

struct ActivationForward;
struct ActivationBackward;
struct AdamW;
struct AttentionForward;
struct AttentionBackward;
struct CrossEntropy;
struct CrossEntropyStatistics;
struct CrossEntropyFromStatistics;
struct DelayedScaleUpdate;
struct Dropout;
struct EmbeddingForward;
struct EmbeddingBackward;
struct Gemm;
struct GemmActivationForward;
struct GemmActivationBackward;
struct NormForward;
struct NormBackward;
struct ParamSplit;
struct Quantize;
struct Rope;
struct ZeroGranules;

OpCost op_cost(const ActivationForward& args);
OpCost op_cost(const ActivationBackward& args);
OpCost op_cost(const AdamW& args);
/// Causal: half of the full score and value products (five products in the backward pass), documents not
/// considered.
OpCost op_cost(const AttentionForward& args);
OpCost op_cost(const AttentionBackward& args);
OpCost op_cost(const CrossEntropy& args);
OpCost op_cost(const CrossEntropyStatistics& args);
OpCost op_cost(const CrossEntropyFromStatistics& args);
OpCost op_cost(const DelayedScaleUpdate& args);
OpCost op_cost(const Dropout& args);
OpCost op_cost(const EmbeddingForward& args);
OpCost op_cost(const EmbeddingBackward& args);
OpCost op_cost(const Gemm& args);
OpCost op_cost(const GemmActivationForward& args);
OpCost op_cost(const GemmActivationBackward& args);
OpCost op_cost(const NormForward& args);
OpCost op_cost(const NormBackward& args);
OpCost op_cost(const ParamSplit& args);
OpCost op_cost(const Quantize& args);
OpCost op_cost(const Quantize* args, int count);
OpCost op_cost(const Rope& args);
OpCost op_cost(const ZeroGranules& args);

inline double tensor_bytes(const Tensor& tensor) {
  return static_cast<double>(tensor.bytes());
}
template <class T>
double tensor_bytes(const T&) {
  return 0.0;
}
/// Ops whose arguments are tensors, each read or written once.
template <class... Args>
OpCost op_cost(const Args&... args) {
  return {.bytes = (tensor_bytes(args) + ... + 0.0)};
}

/// What a benchmark needs to repeat the op by itself.
std::any op_problem(const Gemm& args);
std::any op_problem(const GemmActivationForward& args);
std::any op_problem(const GemmActivationBackward& args);
std::any op_problem(const AttentionForward& args);
std::any op_problem(const AttentionBackward& args);
template <class... Args>
std::any op_problem(const Args&...) {
  return {};
}

/// The ProfileScope of a dispatched op.
template <class... Args>
class ProfiledOp {
 public:
  ProfiledOp(const Context& context, const char* name, const Args&... args) {
    if (OpObserver::active() != nullptr) [[unlikely]]
      scope_.start(context, name, op_cost(args...), op_problem(args...));
  }

 private:
  ProfileScope scope_;
};

}  // namespace te::kernels
