// Moments in BF16: how AdamW rounds what it computes in FP32.
//
// Round to nearest would lose what a moment is made of. With beta2 = 0.999 a step changes exp_avg_sq by about a
// thousandth of itself, and two neighbours of BF16 are 1/256 to 1/128 apart: every change would be rounded away, and
// the moment would stay where it is, however large or small the gradients become. So moments are rounded
// stochastically: to one of the two neighbours, up with the probability (x - lower) / (upper - lower). The mean of that
// is x, exactly, for any beta, and the errors of many steps average out. (Gupta et al., "Deep learning with limited
// numerical precision", ICML'15, show it for weights.) exp_avg is rounded the same way, although round to nearest would
// do for beta1 = 0.9: both moments of an element share one random word, so that it costs nothing.
//
// The random word of an element is a pure function of (training.seed, the parameter's name, Adam's step, the element's
// index in the whole parameter). It depends neither on the device nor on the layout of ranks: data ranks, tensor ranks
// and stages that hold the same element round it alike, and a resumed run draws what the uninterrupted one has drawn.
#pragma once

#include <bit>
#include <cstdint>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/elementwise/elementwise.h"

namespace te::kernels {

/// Elements of flat buffers that belong to one parameter, from `begin` on up to the next run: element i is element
/// region.index(i - begin) of the whole parameter. Gaps behind a parameter hold zeros, which are never rounded.
struct MomentRun {
  int64_t begin = 0;
  uint64_t stream = 0;  ///< stream_of the parameter's name
  ParameterRegion region;
};

/// Which random words a launch uses. A word's lower half rounds exp_avg, the upper half exp_avg_sq.
struct MomentWords {
  const MomentRun* runs = nullptr;  ///< ascending
  int num_runs = 0;
  uint64_t seed = 0;
  uint64_t step = 0;

  /// The run of element i, or -1 before the first one.
  TE_HOST_DEVICE int run_of(int64_t i) const {
    int low = -1, high = num_runs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (runs[middle].begin <= i ? low : high) = middle;
    }
    return low;
  }
  /// The run of element i, from the run of an element before it.
  TE_HOST_DEVICE int advance(int run, int64_t i) const {
    while (run + 1 < num_runs && runs[run + 1].begin <= i) ++run;
    return run;
  }
  /// Word number index % 4 of the four that neighbours share.
  TE_HOST_DEVICE uint32_t word(const MomentRun& run, uint64_t index) const {
    const Philox4 random = philox(seed, run.stream + step, index >> 2);
    const uint32_t first = (index & 1) != 0 ? random.word[1] : random.word[0];
    const uint32_t second = (index & 1) != 0 ? random.word[3] : random.word[2];
    return (index & 2) != 0 ? second : first;
  }
  /// Words of elements [i, i + N); `run` is that of element i. 0 before the first run.
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

/// A moment as FP32.
TE_HOST_DEVICE float moment_value(float moment) {
  return moment;
}
TE_HOST_DEVICE float moment_value(bfloat16 moment) {
  return std::bit_cast<float>(uint32_t{moment.bits} << 16);
}

/// x rounded to the moment's type by 16 random bits. Infinities and NaN stay what they are.
TE_HOST_DEVICE void round_moment(float x, uint32_t, float& moment) {
  moment = x;
}
TE_HOST_DEVICE void round_moment(float x, uint32_t random, bfloat16& moment) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // Adding up to 65,535 carries into the upper half in just as many of 65,536 cases as the lower half says.
  moment.bits = nan ? uint16_t{0x7fff} : static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

}  // namespace te::kernels
