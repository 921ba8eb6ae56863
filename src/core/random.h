// Counter-based random numbers: every value is a pure function of (seed, stream, index), so initial weights and dropout
// masks do not depend on the order of evaluation, the device, or the number of ranks. A random stream has the values of
// one parameter or dropout site.
//
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): key = seed,
// counter = (index low, index high, stream low, stream high). One call returns four 32-bit words.
//
// The normal transform uses only IEEE addition, multiplication, fma, division and square root, so that host and device
// compute the same bits (their libraries' log and cos differ).
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#ifdef __CUDACC__
#define TE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TE_HOST_DEVICE inline
#endif

namespace te {

struct Philox4 {
  uint32_t word[4];
};

TE_HOST_DEVICE Philox4 philox(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in the open interval (0, 1): 23 random bits plus half a step, so never 0 or 1.
TE_HOST_DEVICE float uniform_open(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

namespace random_detail {

/// Natural logarithm of x in (0, 1); relative error below 3e-7.
/// log(x) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)).
TE_HOST_DEVICE float log_unit(float x) {
  int exponent = 0;
  float m = x;
  while (m < 0.70710678f) {  // at most 24 doublings: x >= 2^-24
    m = m * 2.0f;
    --exponent;
  }
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  float p = 0.11111111f;
  p = fmaf(p, z, 0.14285715f);
  p = fmaf(p, z, 0.2f);
  p = fmaf(p, z, 0.33333334f);
  p = fmaf(p, z, 1.0f);
  return fmaf(static_cast<float>(exponent), 0.69314718f, (s + s) * p);
}

/// Sine and cosine of 2 pi u for u in (0, 1); absolute error below 2e-7.
TE_HOST_DEVICE void sincos_turn(float u, float* sine, float* cosine) {
  // u = quadrant / 4 + r, r in [-1/8, 1/8]; the subtraction is exact.
  const int quadrant = static_cast<int>(fmaf(u, 4.0f, 0.5f));
  const float r = fmaf(static_cast<float>(quadrant), -0.25f, u);
  const float t = r * 6.28318531f;
  const float z = t * t;
  float a = 2.7557319e-6f;
  a = fmaf(a, z, -1.9841270e-4f);
  a = fmaf(a, z, 8.3333333e-3f);
  a = fmaf(a, z, -1.6666667e-1f);
  const float s = fmaf(t * z, a, t);
  float b = 2.4801587e-5f;
  b = fmaf(b, z, -1.3888889e-3f);
  b = fmaf(b, z, 4.1666667e-2f);
  b = fmaf(b, z, -0.5f);
  const float c = fmaf(z, b, 1.0f);
  switch (quadrant & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

}  // namespace random_detail

/// Standard normal value at `index` of a random stream (Box-Muller; a Philox call yields four values).
TE_HOST_DEVICE float normal(uint64_t seed, uint64_t stream, uint64_t index) {
  const Philox4 random = philox(seed, stream, index >> 2);
  const int pair = static_cast<int>(index >> 1) & 1;
  const float u1 = uniform_open(random.word[2 * pair]);
  const float u2 = uniform_open(random.word[2 * pair + 1]);
  const float radius = sqrtf(-2.0f * random_detail::log_unit(u1));
  float sine, cosine;
  random_detail::sincos_turn(u2, &sine, &cosine);
  return radius * ((index & 1) != 0 ? sine : cosine);
}

/// The random stream of a parameter or a dropout site: 64-bit FNV-1a hash of its name.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace te
