// Checks, dispatch and CPU reference of AdamW.
#include "kernels/adamw/adamw.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/adamw/adamw_math.h"
#include "kernels/adamw/moment_fp8.h"
#include "kernels/common/checks.h"

namespace te::kernels {
namespace {

void check_moment(const char* name, const Tensor& moment, DType codes, const Tensor& exponents, int64_t n) {
  check_shape("adamw", name, moment, {n});
  if (moment.dtype != codes) return check_grad("adamw", name, moment);
  check_tensor("adamw", "exponents", exponents, DType::u8, {granules_of(n)});
}

void check(const AdamW& args, int64_t n) {
  check_moment("exp_avg", args.exp_avg, DType::e4m3, args.exp_avg_exponents, n);
  check_moment("exp_avg_sq", args.exp_avg_sq, DType::u8, args.exp_avg_sq_exponents, n);
  if (args.runs) check_dtype("adamw", "runs", args.runs, DType::u8);
  TE_CHECK(args.runs.bytes() % sizeof(MomentRun) == 0,
           "adamw: runs have {} bytes, which must be a multiple of {}", args.runs.bytes(), sizeof(MomentRun));
  if (args.remainder) {
    TE_CHECK(!args.main_param, "adamw: main_param must be empty with remainder");
    check_tensor("adamw", "remainder", args.remainder, DType::u16, {n});
    check_dtype("adamw", "param", args.param, DType::bf16);
  } else {
    check_tensor("adamw", "main_param", args.main_param, DType::f32, {n});
  }
  check_grad("adamw", "main_grad", args.main_grad);
  check_shape("adamw", "main_grad", args.main_grad, {n});
  if (args.param) {
    check_high_precision("adamw", "param", args.param);
    check_shape("adamw", "param", args.param, {n});
  }
  check_tensor("adamw", "flags", args.flags, DType::u8, {granules_of(n)});
  TE_CHECK(args.step >= 1, "adamw: step {} must be at least 1", args.step);
}

// Access to a moment in memory, granule by granule. `bits` extracts from a random word the bits that round this moment.

template <class T>
struct PlainMoment {
  T* values;
  static constexpr bool kRounds = sizeof(T) == 2;

  void load(int64_t begin, int64_t count, float* out) const {
    for (int64_t i = 0; i < count; ++i) out[i] = moment_value(values[begin + i]);
  }
  void store(int64_t begin, int64_t count, const float* x, const uint32_t* words, int bits) const {
    for (int64_t i = 0; i < count; ++i) round_moment(x[i], words[i] >> bits, values[begin + i]);
  }
};

template <class Format>
struct BlockMoment {
  uint8_t* codes;
  uint8_t* exponents;
  static constexpr bool kRounds = true;

  void load(int64_t begin, int64_t count, float* out) const {
    decode_block<Format>(codes + begin, exponents[begin / kAdamWGranule], count, out);
  }
  void store(int64_t begin, int64_t count, const float* x, const uint32_t* words, int bits) const {
    encode_block<Format>(
        x, count, [&](int64_t i) { return words[i] >> bits; }, codes + begin,
        exponents[begin / kAdamWGranule]);
  }
};

/// Random words of elements [begin, begin + count), which is at most a granule.
void get_words(const MomentWords& random, int64_t begin, int64_t count, uint32_t* words) {
  int run = random.run_of(begin);
  for (int64_t i = 0; i < count; i += 4) {
    uint32_t four[4];
    run = random.advance(run, begin + i);
    random.get(run, begin + i, four);
    std::copy_n(four, 4, words + i);
  }
}

/// Param is the dtype of the model's weights, Grad the dtype of the main gradients.
template <class Param, class Grad, class M, class V>
void adamw_cpu(const AdamW& args, int64_t n, const M& exp_avg, const V& exp_avg_sq) {
  if (args.skip != nullptr && *args.skip != 0) return;
  const AdamWConstants c = adamw_constants(args);
  const MomentWords random = moment_words(args);
  const float multiplier = args.grad_multiplier != nullptr ? *args.grad_multiplier : 1.0f;
  float* main_param = args.main_param.as<float>();
  uint16_t* remainder = args.remainder.as<uint16_t>();
  uint16_t* upper = args.param.as<uint16_t>();  // with remainder
  const Grad* main_grad = args.main_grad.as<Grad>();
  Param* param = args.param.as<Param>();
  const uint8_t* flags = args.flags.as<uint8_t>();
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < n; begin += kAdamWGranule) {
    const AdamWRate rate = adamw_rate(c, flags[begin / kAdamWGranule]);
    const int64_t end = std::min(begin + kAdamWGranule, n);
    float m[kAdamWGranule], v[kAdamWGranule];
    exp_avg.load(begin, end - begin, m);
    exp_avg_sq.load(begin, end - begin, v);
    if (remainder != nullptr) {
      for (int64_t i = begin; i < end; ++i) {
        SplitFloat split{upper[i], remainder[i]};
        adamw_split(c, rate, to_float(main_grad[i]) * multiplier, split, m[i - begin], v[i - begin]);
        upper[i] = split.value, remainder[i] = split.remainder;
      }
    } else {
      for (int64_t i = begin; i < end; ++i)
        adamw_element(c, rate, to_float(main_grad[i]) * multiplier, main_param[i], m[i - begin],
                      v[i - begin]);
      if (param != nullptr)
        for (int64_t i = begin; i < end; ++i) param[i] = from_float<Param>(main_param[i]);
    }
    uint32_t words[kAdamWGranule];
    if constexpr (M::kRounds || V::kRounds) get_words(random, begin, end - begin, words);
    exp_avg.store(begin, end - begin, m, words, 0);
    exp_avg_sq.store(begin, end - begin, v, words, 16);
  }
}

template <class Format, class Fn>
void visit_moment(const Tensor& moment, const Tensor& exponents, Fn&& fn) {
  if (moment.dtype == DType::f32) return fn(PlainMoment<float>{moment.as<float>()});
  if (moment.dtype == DType::bf16) return fn(PlainMoment<bfloat16>{moment.as<bfloat16>()});
  fn(BlockMoment<Format>{moment.as<uint8_t>(), exponents.as<uint8_t>()});
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  const int64_t n = args.exp_avg.numel();
  if (n == 0) return;  // the rank's shard is empty
  check(args, n);
  TE_DISPATCH_CUDA(context, adamw, args);
  const auto with_moments = [&](const auto& m, const auto& v) {
    visit_high_precision(args.param ? args.param.dtype : DType::f32, [&](auto param) {
      visit_grad(args.main_grad.dtype,
                 [&](auto grad) { adamw_cpu<decltype(param), decltype(grad)>(args, n, m, v); });
    });
  };
  visit_moment<Fp8ExpAvg>(args.exp_avg, args.exp_avg_exponents, [&](const auto& m) {
    visit_moment<Fp8ExpAvgSq>(args.exp_avg_sq, args.exp_avg_sq_exponents,
                              [&](const auto& v) { with_moments(m, v); });
  });
}

}  // namespace te::kernels
