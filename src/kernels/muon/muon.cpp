// Checks, dispatch and CPU reference of Muon's elementwise steps.
#include "kernels/muon/muon.h"

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/muon/muon_math.h"

namespace te::kernels {
namespace {

void check_update(const MuonUpdate& args, int64_t n) {
  const char* op = "muon_update";
  if (args.remainder) {
    TE_CHECK(!args.main_param, "{}: main_param must be empty with remainder", op);
    check_tensor(op, "remainder", args.remainder, DType::u16, {n});
    check_dtype(op, "param", args.param, DType::bf16);
  } else {
    check_tensor(op, "main_param", args.main_param, DType::f32, {n});
  }
  if (args.param) {
    check_high_precision(op, "param", args.param);
    check_shape(op, "param", args.param, {n});
  }
  check_high_precision(op, "orthogonal", args.orthogonal);
}

/// Checks that the region's last element lies in the matrix.
void check_region(const char* op, const ParameterRegion& region, int64_t n, const Tensor& matrix) {
  TE_CHECK(region.local_cols > 0 && region.index(n - 1) < static_cast<uint64_t>(matrix.numel()),
           "{}: {} elements from {} of a region of {} columns exceed the matrix {}", op, n,
           region.first_local, region.local_cols, matrix.shape.str());
}

template <class Grad, class Update>
void momentum_cpu(const MuonMomentum& args, int64_t n) {
  if (args.skip != nullptr && *args.skip != 0) return;
  const float multiplier = args.grad_multiplier != nullptr ? *args.grad_multiplier : 1.0f;
  const Grad* grad = args.main_grad.as<Grad>();
  float* momentum = args.momentum.as<float>();
  Update* update = args.update.as<Update>();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    update[i] = from_float<Update>(
        muon_momentum_element(args.decay, args.nesterov, to_float(grad[i]) * multiplier, momentum[i]));
  }
}

template <class Param, class Orthogonal>
void update_cpu(const MuonUpdate& args, int64_t n) {
  if (args.skip != nullptr && *args.skip != 0) return;
  const MuonConstants c = muon_constants(args);
  float* main = args.main_param.as<float>();
  Param* param = args.param.as<Param>();
  uint16_t *upper = args.param.as<uint16_t>(), *remainder = args.remainder.as<uint16_t>();
  const Orthogonal* orthogonal = args.orthogonal.as<Orthogonal>();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    const float o = to_float(orthogonal[args.region.index(i)]);
    if (remainder != nullptr) {
      const SplitFloat split = muon_update_split(c.decay, c.step_size, o, {upper[i], remainder[i]});
      upper[i] = split.value, remainder[i] = split.remainder;
    } else {
      main[i] = muon_update_element(c.decay, c.step_size, o, main[i]);
      if (param != nullptr) param[i] = from_float<Param>(main[i]);
    }
  }
}

}  // namespace

void muon_momentum(const Context& context, const MuonMomentum& args) {
  const char* op = "muon_momentum";
  const int64_t n = args.momentum.numel();
  if (n == 0) return;
  check_dtype(op, "momentum", args.momentum, DType::f32);
  for (const auto& [name, tensor] : {std::pair{"main_grad", args.main_grad}, {"update", args.update}}) {
    check_high_precision(op, name, tensor);
    check_shape(op, name, tensor, {n});
  }
  TE_DISPATCH_CUDA(context, muon_momentum, args);
  visit_grad(args.main_grad.dtype, [&](auto grad) {
    visit_high_precision(args.update.dtype,
                         [&](auto update) { momentum_cpu<decltype(grad), decltype(update)>(args, n); });
  });
}

void muon_place(const Context& context, const MuonPlace& args) {
  const int64_t n = args.part.numel();
  if (n == 0) return;
  check_high_precision("muon_place", "part", args.part);
  check_dtype("muon_place", "full", args.full, args.part.dtype);
  check_region("muon_place", args.region, n, args.full);
  TE_DISPATCH_CUDA(context, muon_place, args);
  visit_high_precision(args.part.dtype, [&](auto zero) {
    const auto* part = args.part.as<decltype(zero)>();
    auto* full = args.full.as<decltype(zero)>();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) full[args.region.index(i)] = part[i];
  });
}

void muon_normalize(const Context& context, const MuonNormalize& args) {
  check_high_precision("muon_normalize", "x", args.x);
  check_dtype("muon_normalize", "sum_of_squares", args.sum_of_squares, DType::f32);
  TE_DISPATCH_CUDA(context, muon_normalize, args);
  const float divisor = std::sqrt(*args.sum_of_squares.as<float>()) + kMuonEpsilon;
  visit_high_precision(args.x.dtype, [&](auto zero) {
    auto* x = args.x.as<decltype(zero)>();
    const int64_t n = args.x.numel();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) x[i] = from_float<decltype(zero)>(to_float(x[i]) / divisor);
  });
}

void muon_combine(const Context& context, const MuonCombine& args) {
  check_high_precision("muon_combine", "x", args.x);
  check_tensor("muon_combine", "y", args.y, args.x.dtype, args.x.shape);
  TE_DISPATCH_CUDA(context, muon_combine, args);
  visit_high_precision(args.x.dtype, [&](auto zero) {
    auto* x = args.x.as<decltype(zero)>();
    const auto* y = args.y.as<decltype(zero)>();
    const int64_t n = args.x.numel();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i)
      x[i] = from_float<decltype(zero)>(std::fmaf(args.b, to_float(y[i]), args.a * to_float(x[i])));
  });
}

void muon_update(const Context& context, const MuonUpdate& args) {
  const int64_t n = args.remainder ? args.remainder.numel() : args.main_param.numel();
  if (n == 0) return;
  check_update(args, n);
  check_region("muon_update", args.region, n, args.orthogonal);
  TE_DISPATCH_CUDA(context, muon_update, args);
  visit_high_precision(args.param ? args.param.dtype : DType::f32, [&](auto param) {
    visit_high_precision(args.orthogonal.dtype,
                         [&](auto o) { update_cpu<decltype(param), decltype(o)>(args, n); });
  });
}

}  // namespace te::kernels
