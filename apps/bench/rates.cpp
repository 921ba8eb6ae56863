#include "bench/rates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <string>
#include <typeinfo>
#include <vector>

#include "bench/session.h"
#include "core/error.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_activation.h"

namespace te::bench {
namespace {

using kernels::AttentionBackward;
using kernels::AttentionForward;
using kernels::AttentionShape;
using kernels::Gemm;
using kernels::GemmActivationBackward;
using kernels::GemmActivationForward;

constexpr size_t kRotatedBytes = size_t{256} << 20;  ///< several times the L2 cache of an H200
constexpr size_t kMaxSets = 32;
constexpr int kBatches = 7;

/// Memory for copies of a problem's tensors, one buffer each.
class Operands {
 public:
  explicit Operands(const Context& context) : context_(context) {}

  /// A tensor of the same shape and dtype with random values; empty if `like` has no shape.
  Tensor random(const Tensor& like) {
    const Tensor tensor = plain(like);
    if (tensor) fill_random(context_, tensor);
    return tensor;
  }
  Tensor copy_of(const Tensor& from) {
    const Tensor tensor = plain(from);
    if (tensor) context_.copy(tensor, from);
    return tensor;
  }
  Tensor zeros(const Tensor& like) {
    const Tensor tensor = plain(like);
    if (tensor) context_.zero(tensor);
    return tensor;
  }
  Tensor bytes(int64_t count) { return count == 0 ? Tensor{} : plain({nullptr, DType::u8, {count}}); }

 private:
  Tensor plain(const Tensor& like) {
    if (!like.is_planned()) return {};
    buffers_.emplace_back(context_, static_cast<size_t>(like.planned_bytes()));
    return {buffers_.back().data(), like.dtype, like.shape};
  }
  const Context& context_;
  std::vector<DeviceBuffer> buffers_;
};

/// Milliseconds per call, as the median over batches of back-to-back calls.
double median_of_batches(const Context& context, double seconds, const std::function<void(int)>& call) {
  call(0);  // chooses the algorithm and loads the kernel
  const double once = median_ms(context, 1, [&] { call(1); });
  const double batch_ms = seconds * 1e3 / kBatches;
  const int calls = std::clamp(static_cast<int>(std::ceil(batch_ms / std::max(once, 1e-3))), 1, 1000);
  int next = 0;
  const double ms = median_ms(context, kBatches, [&] {
    for (int i = 0; i < calls; ++i) call(next++);
  });
  return ms / calls;
}

/// Milliseconds of op(problem), with calls rotating over copies of the problem that together exceed the L2 cache. Each
/// copy has its own `read` tensors (random values, equal in all copies) and `written` tensors; the other tensors are
/// shared.
template <class Problem>
using TensorsOf = std::vector<Tensor*> (*)(Problem&);
template <class Problem>
double rotating_ms(const Context& context, void (*op)(const Context&, const Problem&), Problem like,
                   TensorsOf<Problem> read, TensorsOf<Problem> written, double seconds, Operands& memory) {
  size_t bytes = 1;
  for (const Tensor* tensor : read(like)) bytes += static_cast<size_t>(tensor->planned_bytes());
  for (const Tensor* tensor : written(like)) bytes += static_cast<size_t>(tensor->planned_bytes());
  std::vector<Problem> problems(std::clamp<size_t>(kRotatedBytes / bytes + 1, 2, kMaxSets), like);
  const std::vector<Tensor*> originals = read(problems.front());
  for (Problem& problem : problems) {
    const bool first = &problem == &problems.front();
    const std::vector<Tensor*> copies = read(problem);
    for (size_t i = 0; i < copies.size(); ++i)
      *copies[i] = first ? memory.random(*copies[i]) : memory.copy_of(*originals[i]);
    for (Tensor* tensor : written(problem)) *tensor = memory.zeros(*tensor);
  }
  return median_of_batches(context, seconds,
                           [&](int i) { op(context, problems[static_cast<size_t>(i) % problems.size()]); });
}

/// Gives the operands scales in `memory`, because the run's may have been freed. Scales of a slice are then no
/// longer part of larger ones.
void use_own_scales(kernels::Matrix& a, kernels::Matrix& b, Operands& memory) {
  for (kernels::Matrix* matrix : {&a, &b}) {
    matrix->scales = memory.random(matrix->scales);
    matrix->factor = memory.random(matrix->factor);
    matrix->scale_stride = 0;
  }
}

double gemm_ms(const Context& context, Gemm like, double seconds) {
  Operands memory(context);
  use_own_scales(like.a, like.b, memory);
  like.bias = memory.zeros(like.bias);
  return rotating_ms<Gemm>(
      context, kernels::gemm, like,
      [](Gemm& p) {
        return std::vector<Tensor*>{&p.a.values, &p.b.values};
      },
      [](Gemm& p) { return std::vector<Tensor*>{&p.out}; }, seconds, memory);
}

double gemm_ms(const Context& context, GemmActivationForward like, double seconds) {
  using P = GemmActivationForward;
  Operands memory(context);
  use_own_scales(like.a, like.b, memory);
  like.bias = memory.zeros(like.bias);
  // The given scale is used in one launch, so the run's own scaling state does not change.
  like.y_fp8 = {.rowwise = like.y_fp8.rowwise, .columnwise = like.y_fp8.columnwise};
  if (like.y_fp8) {
    like.y_fp8.scale = like.a.scales.as<float>();
    like.y_fp8.amax = memory.zeros({nullptr, DType::f32, {1}}).as<float>();
  }
  return rotating_ms<P>(
      context, kernels::gemm_activation_forward, like,
      [](P& p) {
        return std::vector<Tensor*>{&p.a.values, &p.b.values};
      },
      [](P& p) {
        return std::vector<Tensor*>{&p.out, &p.y, &p.y_fp8.rowwise, &p.y_fp8.columnwise};
      },
      seconds, memory);
}

double gemm_ms(const Context& context, GemmActivationBackward like, double seconds) {
  using P = GemmActivationBackward;
  Operands memory(context);
  for (const auto tensor : {&P::dbias, &P::scratch, &P::d_y, &P::y})
    like.*tensor = memory.zeros(like.*tensor);
  return rotating_ms<P>(
      context, kernels::gemm_activation_backward, like,
      [](P& p) {
        return std::vector<Tensor*>{&p.a, &p.b, &p.x};
      },
      [](P& p) { return std::vector<Tensor*>{&p.dx}; }, seconds, memory);
}

/// Runs the forward pass in separate memory and returns its arguments, which the backward pass reads. Like:
/// AttentionForward or AttentionBackward.
template <class Like>
AttentionForward forward_like(const Context& context, const Like& like, Operands& memory) {
  AttentionForward args;
  args.shape = like.shape;
  args.qkv = memory.random(like.qkv);
  args.o = memory.zeros(like.o);
  args.lse = memory.zeros(like.lse);
  args.workspace = memory.bytes(kernels::attention_workspace_bytes(context, like.shape, like.qkv.dtype));
  args.document_start = memory.zeros(like.document_start);
  if (like.kv) args.kv = memory.random(like.kv);
  kernels::attention_forward(context, args);
  return args;
}

double attention_ms(const Context& context, const AttentionForward& like, double seconds) {
  Operands memory(context);
  const AttentionForward args = forward_like(context, like, memory);
  return median_of_batches(context, seconds, [&](int) { kernels::attention_forward(context, args); });
}

double attention_ms(const Context& context, const AttentionBackward& like, double seconds) {
  Operands memory(context);
  const AttentionForward forward = forward_like(context, like, memory);
  AttentionBackward args;
  args.shape = like.shape;
  args.qkv = forward.qkv;
  args.o = forward.o;
  args.lse = forward.lse;
  args.workspace = forward.workspace;
  args.document_start = forward.document_start;
  args.d_o = memory.random(like.d_o);
  args.dqkv = memory.zeros(like.dqkv);
  args.kv = forward.kv;
  if (like.dkv) args.dkv = memory.zeros(like.dkv);
  return median_of_batches(context, seconds, [&](int) { kernels::attention_backward(context, args); });
}

/// The operands, the activation, and the bias, bias gradient or FP8 output.
std::string activation_key(const char* name, kernels::ActivationKind kind, const Tensor& a, const Tensor& b,
                           const std::string& extras) {
  // Configs have no name for swiglu_clamped.
  const std::string_view activation =
      kind == kernels::ActivationKind::swiglu_clamped ? "swiglu_clamped" : to_string(kind);
  return fmt::format("gemm {} {} {}{} {}{}{}", name, activation, dtype_name(a.dtype), a.shape.str(),
                     b.dtype == a.dtype ? "" : dtype_name(b.dtype), b.shape.str(), extras);
}

/// Scales per row, vector or block use other kernels than scales per tensor.
std::string scales_key(const kernels::Matrix& a, const kernels::Matrix& b) {
  using kernels::ScaleLayout;
  if (a.layout <= ScaleLayout::tensor && b.layout <= ScaleLayout::tensor) return "";
  return fmt::format(" scales {} {}", static_cast<int>(a.layout), static_cast<int>(b.layout));
}

std::string shape_key(const AttentionShape& s, const Tensor& qkv) {
  return fmt::format(
      "{} batch {} seq {} heads {}/{} dim {} dropout {} documents {}{}{}", dtype_name(qkv.dtype), s.batch,
      s.seq, s.num_heads, s.num_query_groups, s.head_dim, s.dropout, s.max_documents,
      s.window > 0 ? fmt::format(" window {}", s.window) : "",
      s.range.count > 0 ? fmt::format(" {} queries at {}", s.range.count, s.range.position) : "");
}

}  // namespace

bool is_problem(const std::any& args) {
  for (const std::type_info* type :
       {&typeid(Gemm), &typeid(GemmActivationForward), &typeid(GemmActivationBackward),
        &typeid(AttentionForward), &typeid(AttentionBackward)})
    if (args.type() == *type) return true;
  return false;
}

double isolated_ms(const Context& context, const std::any& problem, double seconds) {
  if (const auto* gemm = std::any_cast<Gemm>(&problem)) return gemm_ms(context, *gemm, seconds);
  if (const auto* args = std::any_cast<GemmActivationForward>(&problem)) {
    return gemm_ms(context, *args, seconds);
  }
  if (const auto* args = std::any_cast<GemmActivationBackward>(&problem)) {
    return gemm_ms(context, *args, seconds);
  }
  if (const auto* args = std::any_cast<AttentionForward>(&problem)) {
    return attention_ms(context, *args, seconds);
  }
  const auto* args = std::any_cast<AttentionBackward>(&problem);
  TE_CHECK(args != nullptr, "isolated_ms: unknown kind of problem");
  return attention_ms(context, *args, seconds);
}

std::string problem_key(const std::any& problem) {
  if (const auto* gemm = std::any_cast<Gemm>(&problem)) {
    return fmt::format("gemm {}{} {}{} {} {}{}{}{}{}", dtype_name(gemm->a.dtype()),
                       gemm->a.values.shape.str(), dtype_name(gemm->b.dtype()), gemm->b.values.shape.str(),
                       dtype_name(gemm->out.dtype), gemm->trans_a ? "t" : "n", gemm->trans_b ? "t" : "n",
                       gemm->accumulate ? " accumulated" : "",
                       std::string(gemm->bias ? " bias" : "") + (gemm->fast_accumulation ? " fast" : ""),
                       scales_key(gemm->a, gemm->b));
  }
  if (const auto* args = std::any_cast<GemmActivationForward>(&problem)) {
    return activation_key("forward", args->kind, args->a.values, args->b.values,
                          std::string(args->bias ? " bias" : "") + (args->fast_accumulation ? " fast" : "") +
                              (args->y_fp8 ? " cast" : "") + (args->y_fp8.columnwise ? " transposed" : "") +
                              (args->y_fp8 && args->y ? " result" : "") + scales_key(args->a, args->b));
  }
  if (const auto* args = std::any_cast<GemmActivationBackward>(&problem)) {
    return activation_key("backward", args->kind, args->a, args->b,
                          std::string(args->dbias ? " bias gradient" : "") + (args->y ? " result" : ""));
  }
  if (const auto* args = std::any_cast<AttentionForward>(&problem)) {
    return "attention forward " + shape_key(args->shape, args->qkv);
  }
  const auto* args = std::any_cast<AttentionBackward>(&problem);
  TE_CHECK(args != nullptr, "problem_key: unknown kind of problem");
  return "attention backward " + shape_key(args->shape, args->qkv);
}

}  // namespace te::bench
