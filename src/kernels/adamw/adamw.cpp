// AdamW: checks, dispatch and the CPU reference.
#include "kernels/adamw/adamw.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/adamw/adamw_math.h"
#include "kernels/common/checks.h"

namespace te::kernels {
namespace {

void check(const AdamW& args, int64_t n) {
  for (const auto& [name, tensor] : {std::pair{"exp_avg", &args.exp_avg}, {"exp_avg_sq", &args.exp_avg_sq}}) {
    check_hp("adamw", name, *tensor);
    check_shape("adamw", name, *tensor, {n});
  }
  if (args.runs) check_dtype("adamw", "runs", args.runs, DType::u8);
  TE_CHECK(args.runs.bytes() % sizeof(MomentRun) == 0, "adamw: runs of {} bytes", args.runs.bytes());
  if (args.remainder) {
    TE_CHECK(!args.main_param, "adamw: main_param and remainder exclude each other");
    check_dtype("adamw", "remainder", args.remainder, DType::u16);
    check_shape("adamw", "remainder", args.remainder, {n});
    check_dtype("adamw", "param", args.param, DType::bf16);
  } else {
    check_dtype("adamw", "main_param", args.main_param, DType::f32);
    check_shape("adamw", "main_param", args.main_param, {n});
  }
  check_hp("adamw", "main_grad", args.main_grad);
  check_shape("adamw", "main_grad", args.main_grad, {n});
  if (args.param) {
    check_hp("adamw", "param", args.param);
    check_shape("adamw", "param", args.param, {n});
  }
  check_dtype("adamw", "flags", args.flags, DType::u8);
  check_shape("adamw", "flags", args.flags, {granules_of(n)});
  TE_CHECK(args.step >= 1, "adamw: step {} must be at least 1", args.step);
}

/// Rounds elements [begin, end), at most a granule, of the moments.
template <class M, class V>
void store_moments(const MomentWords& random, int64_t begin, int64_t end, const float* m, const float* v,
                   M* exp_avg, V* exp_avg_sq) {
  uint32_t words[kAdamWGranule] = {};
  if constexpr (sizeof(M) == 2 || sizeof(V) == 2) {
    int run = random.run_of(begin);
    for (int64_t i = begin; i < end; i += 4) {
      uint32_t four[4];
      run = random.advance(run, i);
      random.get(run, i, four);
      std::copy_n(four, 4, words + (i - begin));
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    round_moment(m[i - begin], words[i - begin], exp_avg[i]);
    round_moment(v[i - begin], words[i - begin] >> 16, exp_avg_sq[i]);
  }
}

/// Param is the type of the model's copy, Grad that of the main gradients, M and V are those of the moments.
template <class Param, class Grad, class M, class V>
void adamw_cpu(const AdamW& args, int64_t n) {
  if (args.skip != nullptr && *args.skip != 0) return;
  const AdamWConstants c = adamw_constants(args);
  const MomentWords random = moment_words(args);
  const float multiplier = args.grad_multiplier != nullptr ? *args.grad_multiplier : 1.0f;
  float* main_param = args.main_param.as<float>();
  uint16_t* remainder = args.remainder.as<uint16_t>();
  uint16_t* upper = args.param.as<uint16_t>();  // with remainder
  const Grad* main_grad = args.main_grad.as<Grad>();
  M* exp_avg = args.exp_avg.as<M>();
  V* exp_avg_sq = args.exp_avg_sq.as<V>();
  Param* param = args.param.as<Param>();
  const uint8_t* flags = args.flags.as<uint8_t>();
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < n; begin += kAdamWGranule) {
    const float decay = (flags[begin / kAdamWGranule] & kGranuleDecays) != 0 ? c.decay : 0.0f;
    const int64_t end = std::min(begin + kAdamWGranule, n);
    float m[kAdamWGranule], v[kAdamWGranule];
    for (int64_t i = begin; i < end; ++i)
      m[i - begin] = moment_value(exp_avg[i]), v[i - begin] = moment_value(exp_avg_sq[i]);
    if (remainder != nullptr) {
      for (int64_t i = begin; i < end; ++i) {
        SplitFloat split{upper[i], remainder[i]};
        adamw_split(c, decay, to_float(main_grad[i]) * multiplier, split, m[i - begin], v[i - begin]);
        upper[i] = split.value, remainder[i] = split.remainder;
      }
    } else {
      for (int64_t i = begin; i < end; ++i)
        adamw_element(c, decay, to_float(main_grad[i]) * multiplier, main_param[i], m[i - begin],
                      v[i - begin]);
      if (param != nullptr)
        for (int64_t i = begin; i < end; ++i) param[i] = from_float<Param>(main_param[i]);
    }
    store_moments(random, begin, end, m, v, exp_avg, exp_avg_sq);
  }
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  const int64_t n = args.exp_avg.numel();
  if (n == 0) return;  // a rank whose shard is empty
  check(args, n);
  TE_DISPATCH_CUDA(context, adamw, args);
  visit_hp(args.param ? args.param.dtype : DType::f32, [&](auto param) {
    visit_hp(args.main_grad.dtype, [&](auto grad) {
      visit_hp(args.exp_avg.dtype, [&](auto m) {
        visit_hp(args.exp_avg_sq.dtype, [&](auto v) {
          adamw_cpu<decltype(param), decltype(grad), decltype(m), decltype(v)>(args, n);
        });
      });
    });
  });
}

}  // namespace te::kernels
