// Checks, dispatch and CPU reference of the rotary embedding.
#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rope/rope_cuda.h"

namespace te::kernels {

namespace {

void check_rope(const Rope& a) {
  const char* op = "rope";
  check_high_precision(op, "qkv", a.qkv);
  TE_CHECK(a.head_dim > 0 && a.head_dim % 2 == 0, "{}: head_dim {} must be even", op, a.head_dim);
  TE_CHECK(a.num_heads > 0 && a.num_query_groups > 0, "{}: {} heads and {} query groups must be positive", op,
           a.num_heads, a.num_query_groups);
  TE_CHECK(a.qkv.cols() == (a.num_heads + 2 * a.num_query_groups) * a.head_dim,
           "{}: qkv has {} columns, must be (heads {} + 2 x groups {}) x head_dim {}", op, a.qkv.cols(),
           a.num_heads, a.num_query_groups, a.head_dim);
  if (a.positions) {
    check_tensor(op, "positions", a.positions, DType::i32, {a.qkv.rows()});
  } else {
    TE_CHECK(a.seq > 0 && a.qkv.rows() % a.seq == 0, "{}: {} rows of qkv must be a multiple of seq {}", op,
             a.qkv.rows(), a.seq);
  }
  check_dtype(op, "cos", a.cos, DType::f32);
  check_dtype(op, "sin", a.sin, DType::f32);
  const int64_t least = a.positions ? 1 : a.seq;
  TE_CHECK(a.cos.shape.rank() == 2 && a.cos.dim(0) >= least && a.cos.dim(1) == a.head_dim / 2,
           "{}: cos has shape {}, must be [>= {}, {}]", op, a.cos.shape.str(), least, a.head_dim / 2);
  check_shape(op, "sin", a.sin, a.cos.shape);
  if (a.out) check_fp8_output(op, a.out, a.qkv.rows(), a.qkv.cols());
  TE_CHECK(a.out || !a.dbias, "{}: dbias requires out", op);
}

template <class T>
void rope_cpu(const Rope& a) {
  const int64_t rows = a.qkv.rows(), columns = a.qkv.cols(), half = a.head_dim / 2;
  const float sign = a.backward ? -1.0f : 1.0f;
  const int32_t* positions = a.positions.as<int32_t>();
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = positions != nullptr ? positions[r] : r % a.seq;
    const float* cos = a.cos.as<float>() + position * half;
    const float* sin = a.sin.as<float>() + position * half;
    for (int64_t head = 0; head < a.num_heads + a.num_query_groups; ++head) {
      T* first = a.qkv.as<T>() + r * columns + head * a.head_dim;
      T* second = first + half;
      for (int64_t i = 0; i < half; ++i) {
        const float x = to_float(first[i]), y = to_float(second[i]), s = sign * sin[i];
        first[i] = from_float<T>(x * cos[i] - y * s);
        second[i] = from_float<T>(y * cos[i] + x * s);
      }
    }
  }
}

}  // namespace

void rope(const Context& context, const Rope& args) {
  check_rope(args);
  TE_DISPATCH_CUDA(context, rope, args);
  for (int64_t r = 0; r < args.positions.numel(); ++r) {
    const int32_t position = args.positions.as<int32_t>()[r];
    TE_CHECK(position >= 0 && position < args.cos.dim(0),
             "rope: position {} of row {} exceeds the tables of {} positions", position, r, args.cos.dim(0));
  }
  visit_high_precision(args.qkv.dtype, [&](auto zero) { rope_cpu<decltype(zero)>(args); });
  if (args.out)
    quantize(context, {.x = args.qkv, .out = args.out, .dbias = args.dbias, .scratch = args.scratch});
}

namespace {

double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double slow = frequency / scaling.factor;
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  // Rotations within the sequence length of the original training.
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) * frequency / (2.0 * std::numbers::pi);
  if (turns > high) return frequency;
  if (turns < low) return slow;
  const double share = (turns - low) / (high - low);
  return (1.0 - share) * slow + share * frequency;
}

/// Weight of the unscaled frequency in YaRN's frequency of pair i.
class YarnRamp {
 public:
  YarnRamp(const RopeScaling& scaling, double channels, double theta) {
    const auto pair_of = [&](double turns) {
      const double length = static_cast<double>(scaling.original_max_position_embeddings);
      return channels * std::log(length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
    };
    const double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
    low_ = std::max(scaling.truncate ? std::floor(low) : low, 0.0);
    high_ = std::min(scaling.truncate ? std::ceil(high) : high, channels - 1.0);
    if (low_ == high_) high_ += 0.001;
  }
  double operator()(double pair) const { return 1.0 - std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  double low_, high_;
};

/// Frequencies of the first `pairs` pairs of a head.
std::vector<double> rope_frequencies(int64_t pairs, double theta, const RopeScaling& scaling) {
  const double channels = 2.0 * static_cast<double>(pairs);
  const YarnRamp ramp(scaling, channels, theta);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < pairs; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / channels);
    const double slow = frequency / scaling.factor, share = ramp(static_cast<double>(i));
    switch (scaling.kind) {
      case RopeScalingKind::none:
        frequencies.push_back(frequency);
        break;
      case RopeScalingKind::linear:
        frequencies.push_back(slow);
        break;
      case RopeScalingKind::llama3:
        frequencies.push_back(llama3_frequency(frequency, scaling));
        break;
      case RopeScalingKind::yarn:
        frequencies.push_back(share * frequency + (1.0 - share) * slow);
        break;
    }
  }
  return frequencies;
}

void check_scaling(const RopeScaling& scaling) {
  TE_CHECK(scaling.factor >= 1.0, "rope_tables: factor {} must be at least 1", scaling.factor);
  TE_CHECK(scaling.kind != RopeScalingKind::llama3 ||
               (scaling.low_freq_factor > 0.0 && scaling.low_freq_factor < scaling.high_freq_factor &&
                scaling.original_max_position_embeddings > 0),
           "rope_tables: low_freq_factor {} must be positive and below high_freq_factor {}, "
           "original_max_position_embeddings {} positive",
           scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position_embeddings);
  TE_CHECK(
      scaling.kind != RopeScalingKind::yarn ||
          (scaling.beta_slow > 0.0 && scaling.beta_slow < scaling.beta_fast &&
           scaling.attention_factor >= 0.0 && scaling.original_max_position_embeddings > 0),
      "rope_tables: beta_slow {} must be positive and below beta_fast {}, attention_factor {} not negative, "
      "original_max_position_embeddings {} positive",
      scaling.beta_slow, scaling.beta_fast, scaling.attention_factor,
      scaling.original_max_position_embeddings);
}

double attention_factor_of(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::yarn) return 1.0;
  return scaling.attention_factor > 0.0 ? scaling.attention_factor : 0.1 * std::log(scaling.factor) + 1.0;
}

}  // namespace

void rope_tables(int64_t seq, int64_t head_dim, double theta, float* cos, float* sin,
                 const RopeScaling& scaling, int64_t rotary_pairs) {
  check_scaling(scaling);
  const int64_t half = head_dim / 2, pairs = rotary_pairs == 0 ? half : rotary_pairs;
  TE_CHECK(pairs <= half, "rope_tables: rotary_pairs {} exceeds the {} pairs of a head", pairs, half);
  const std::vector<double> frequencies = rope_frequencies(pairs, theta, scaling);
  const double amplitude = attention_factor_of(scaling);
  for (int64_t position = 0; position < seq; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const bool turns = i < pairs;
      const double angle = turns ? static_cast<double>(position) * frequencies[static_cast<size_t>(i)] : 0.0;
      cos[position * half + i] = static_cast<float>(turns ? amplitude * std::cos(angle) : 1.0);
      sin[position * half + i] = static_cast<float>(amplitude * std::sin(angle));
    }
  }
}

}  // namespace te::kernels
