// Muon's elementwise steps on the GPU. Consecutive threads process consecutive elements, without vector accesses,
// because runs may begin at any element of a matrix; compared with the GEMMs of an update these passes are short.
#include "kernels/common/cuda_common.cuh"
#include "kernels/muon/muon_math.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
/// Elements per thread, kThreads apart, so that several loads are in flight.
constexpr int kPerThread = 4;

template <class Body>
__global__ void __launch_bounds__(kThreads) elements_kernel(Body body, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kPerThread) + threadIdx.x;
  if (body.skips()) return;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < n) body(i);
  }
}

template <class Body>
void launch(const Context& context, const Body& body, int64_t n) {
  if (n == 0) return;
  elements_kernel<<<ceil_div(n, kThreads * kPerThread), kThreads, 0, cuda_stream(context)>>>(body, n);
  TE_CUDA_CHECK_LAUNCH();
}

struct Always {
  __device__ bool skips() const { return false; }
};
struct Skippable {
  const int32_t* skip;
  __device__ bool skips() const { return skip != nullptr && *skip != 0; }
};

template <class Grad, class Update>
struct Momentum : Skippable {
  const Grad* grad;
  float* momentum;
  Update* update;
  float decay;
  bool nesterov;
  const float* multiplier;
  __device__ void operator()(int64_t i) const {
    const float g = load_float(grad + i) * (multiplier != nullptr ? *multiplier : 1.0f);
    float m = momentum[i];
    store_float(update + i, muon_momentum_element(decay, nesterov, g, m));
    momentum[i] = m;
  }
};

template <class T>
struct Place : Always {
  const T* part;
  T* full;
  ParameterRegion region;
  __device__ void operator()(int64_t i) const { full[region.index(i)] = part[i]; }
};

template <class T>
struct Normalize : Always {
  T* x;
  const float* sum_of_squares;
  __device__ void operator()(int64_t i) const {
    store_float(x + i, load_float(x + i) / (sqrtf(*sum_of_squares) + kMuonEpsilon));
  }
};

template <class T>
struct Combine : Always {
  T* x;
  const T* y;
  float a, b;
  __device__ void operator()(int64_t i) const {
    store_float(x + i, fmaf(b, load_float(y + i), a * load_float(x + i)));
  }
};

template <class Param, class Orthogonal>
struct Update : Skippable {
  float* main;
  Param* param;  ///< null, a separate buffer or main itself
  const Orthogonal* orthogonal;
  ParameterRegion region;
  MuonConstants c;
  __device__ void operator()(int64_t i) const {
    const float o = load_float(orthogonal + region.index(i));
    const float w = muon_update_element(c.decay, c.step_size, o, main[i]);
    main[i] = w;
    if (param != nullptr) store_float(param + i, w);
  }
};

template <class Orthogonal>
struct UpdateSplit : Skippable {
  uint16_t *value, *remainder;
  const Orthogonal* orthogonal;
  ParameterRegion region;
  MuonConstants c;
  __device__ void operator()(int64_t i) const {
    const float o = load_float(orthogonal + region.index(i));
    const SplitFloat split = muon_update_split(c.decay, c.step_size, o, {value[i], remainder[i]});
    value[i] = split.value, remainder[i] = split.remainder;
  }
};

/// Calls fn with a zero of the device's element type.
template <class Fn>
void with_type(DType dtype, Fn&& fn) {
  visit_high_precision(dtype, [&](auto zero) { fn(typename DeviceType<decltype(zero)>::type{}); });
}

}  // namespace

void muon_momentum(const Context& context, const MuonMomentum& args) {
  visit_grad(args.main_grad.dtype, [&](auto grad) {
    with_type(args.update.dtype, [&](auto update) {
      using G = typename DeviceType<decltype(grad)>::type;
      using U = decltype(update);
      const Momentum<G, U> body{
          {args.skip}, args.main_grad.as<G>(), args.momentum.as<float>(), args.update.as<U>(),
          args.decay,  args.nesterov,          args.grad_multiplier};
      launch(context, body, args.momentum.numel());
    });
  });
}

void muon_place(const Context& context, const MuonPlace& args) {
  with_type(args.part.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(context, Place<T>{{}, args.part.as<T>(), args.full.as<T>(), args.region}, args.part.numel());
  });
}

void muon_normalize(const Context& context, const MuonNormalize& args) {
  with_type(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(context, Normalize<T>{{}, args.x.as<T>(), args.sum_of_squares.as<float>()}, args.x.numel());
  });
}

void muon_combine(const Context& context, const MuonCombine& args) {
  with_type(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(context, Combine<T>{{}, args.x.as<T>(), args.y.as<T>(), args.a, args.b}, args.x.numel());
  });
}

void muon_update(const Context& context, const MuonUpdate& args) {
  with_type(args.orthogonal.dtype, [&](auto zero) {
    using O = decltype(zero);
    const MuonConstants c = muon_constants(args);
    if (args.remainder) {
      const UpdateSplit<O> body{{args.skip},
                                args.param.as<uint16_t>(),
                                args.remainder.as<uint16_t>(),
                                args.orthogonal.as<O>(),
                                args.region,
                                c};
      return launch(context, body, args.remainder.numel());
    }
    with_type(args.param ? args.param.dtype : DType::f32, [&](auto param) {
      using P = decltype(param);
      const Update<P, O> body{{args.skip},        args.main_param.as<float>(),
                              args.param.as<P>(), args.orthogonal.as<O>(),
                              args.region,        c};
      launch(context, body, args.main_param.numel());
    });
  });
}

}  // namespace te::kernels::cuda
