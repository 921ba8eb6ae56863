// Adam moments in BF16: rounding of the FP32 values that AdamW computes.
//
// Round to nearest would lose updates of the moments. With beta2 = 0.999, a step changes exp_avg_sq by about 0.1%,
// while neighboring BF16 numbers are 1/256 to 1/128 apart. Every change would be rounded away, and the moment would
// never follow the gradients. So Adam moments are rounded stochastically to one of the two neighbors, up with
// probability (x - lower) / (upper - lower). The expected value is exactly x for any beta, and errors average out over
// many steps. (Gupta et al., "Deep learning with limited numerical precision", ICML'15, show this for weights.) exp_avg
// is rounded in the same way, although round to nearest would suffice for beta1 = 0.9: both moments of an element share
// one random word, so this costs nothing.
//
// The random word of an element is a pure function of training.seed, the parameter's name, Adam's step and the
// element's index in the full parameter. It does not depend on the device or the parallel layout: all data-parallel
// ranks, tensor-parallel ranks and pipeline stages that hold an element round it in the same way. A resumed run draws
// the same words as an uninterrupted one.
#pragma once

#include <bit>
#include <cstdint>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/elementwise/elementwise.h"

namespace te::kernels {

/// Elements of a flat buffer that belong to one parameter, from `begin` to the start of the next run. Element i of the
/// buffer is element region.index(i - begin) of the full parameter. Gaps after a parameter hold zeros, which rounding
/// does not change.
struct MomentRun {
  int64_t begin = 0;
  uint64_t stream = 0;  ///< stream_of the parameter's name
  ParameterRegion region;
};

/// Source of the random words of a launch. A word's lower half rounds exp_avg, the upper half exp_avg_sq.
struct MomentWords {
  const MomentRun* runs = nullptr;  ///< ascending
  int num_runs = 0;
  uint64_t seed = 0;
  uint64_t step = 0;

  /// Index of the run that contains element i, or -1 before the first run.
  TE_HOST_DEVICE int run_of(int64_t i) const {
    int low = -1, high = num_runs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (runs[middle].begin <= i ? low : high) = middle;
    }
    return low;
  }
  /// Index of the run that contains element i, searched from the run of an earlier element.
  TE_HOST_DEVICE int advance(int run, int64_t i) const {
    while (run + 1 < num_runs && runs[run + 1].begin <= i) ++run;
    return run;
  }
  /// Word index % 4 of the Philox block that four consecutive elements share.
  TE_HOST_DEVICE uint32_t word(const MomentRun& run, uint64_t index) const {
    const Philox4 random = philox(seed, run.stream + step, index >> 2);
    const uint32_t first = (index & 1) != 0 ? random.word[1] : random.word[0];
    const uint32_t second = (index & 1) != 0 ? random.word[3] : random.word[2];
    return (index & 2) != 0 ? second : first;
  }
  /// Random words of elements [i, i + N); `run` is the run of element i. Words before the first run are 0.
  template <int N>
  TE_HOST_DEVICE void get(int run, int64_t i, uint32_t (&words)[N]) const {
    if constexpr (N == 4) {
      if (run >= 0 && (run + 1 == num_runs || runs[run + 1].begin >= i + 4)) {
        const MomentRun& r = runs[run];
        const uint64_t index = r.region.index(i - r.begin);
        if (index % 4 == 0 && r.region.index(i + 3 - r.begin) == index + 3) {
          const Philox4 random = philox(seed, r.stream + step, index >> 2);
          for (int k = 0; k < 4; ++k) words[k] = random.word[k];
          return;
        }
      }
    }
    for (int k = 0; k < N; ++k) {
      run = advance(run, i + k);
      words[k] = run < 0 ? 0 : word(runs[run], runs[run].region.index(i + k - runs[run].begin));
    }
  }
};

/// Value of a moment in FP32.
TE_HOST_DEVICE float moment_value(float moment) {
  return moment;
}
TE_HOST_DEVICE float moment_value(bfloat16 moment) {
  return std::bit_cast<float>(uint32_t{moment.bits} << 16);
}

/// Rounds x to the moment's type with 16 random bits. Infinities and NaN are preserved.
TE_HOST_DEVICE void round_moment(float x, uint32_t, float& moment) {
  moment = x;
}
TE_HOST_DEVICE void round_moment(float x, uint32_t random, bfloat16& moment) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // Adding up to 65,535 carries into the upper half with a probability of (lower half) / 65,536.
  moment.bits = nan ? uint16_t{0x7fff} : static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

}  // namespace te::kernels
