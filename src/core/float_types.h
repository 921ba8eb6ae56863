// 16-bit and 8-bit floating-point types of the CPU backend. Rounding is bit-identical to the GPU's.
//
// Conversions from FP32 round to nearest, ties to even. BF16 and FP16 keep infinities and NaN (NaN becomes 0x7fff, as
// with cvt.rn.bf16.f32 and cvt.rn.f16.f32); values that round past FP16's largest number, 65504, become infinity.
// FP8 conversions saturate: finite values beyond the largest number, and infinities, become the largest number
// (cvt.rn.satfinite.e4m3x2.f32); NaN stays NaN (0x7f in E4M3 and E5M2). The GPU tests compare every BF16 and FP16 value
// and every FP8 code bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace te {

struct bfloat16 {
  uint16_t bits;
};
/// IEEE half precision.
struct float16 {
  uint16_t bits;
};
struct float8_e4m3 {
  uint8_t bits;
};
struct float8_e5m2 {
  uint8_t bits;
};

inline float to_float(float value) {
  return value;
}
inline float to_float(bfloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}
/// Exact. Branch-free, so that loops over it vectorize.
inline float to_float(float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, magnitude = value.bits & 0x7fffu;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + kRebias;
  const uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity, NaN
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude < 0x7c00u ? finite : special));
}
inline float to_float(int32_t value) {
  return static_cast<float>(value);
}

/// Tables with the value of every FP8 code; 256 floats each.
extern const float* const kE4m3Values;
extern const float* const kE5m2Values;
inline float to_float(float8_e4m3 value) {
  return kE4m3Values[value.bits];
}
inline float to_float(float8_e5m2 value) {
  return kE5m2Values[value.bits];
}

inline bfloat16 to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}

/// Encodes the magnitude of a number (FP32 bits, not NaN) in a narrow format, rounded to nearest, ties to even.
/// Branch-free, so that loops over it vectorize. kMinExponent is the exponent of the smallest normal number; larger
/// codes than kMaxCode become kMaxCode.
template <int kMantissaBits, int kMinExponent, uint32_t kMaxCode>
inline uint32_t encode_magnitude(uint32_t magnitude) {
  constexpr int kDrop = 23 - kMantissaBits;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 + kMinExponent - 1) << kMantissaBits;
  // The unit in the last place of this power of two is the format's smallest subnormal, so adding it makes the FP32
  // adder round to a multiple of that.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + kMinExponent - kMantissaBits + 23) << 23;
  // A carry out of the mantissa correctly increments the exponent.
  const uint32_t rounded = magnitude + ((1u << (kDrop - 1)) - 1) + ((magnitude >> kDrop) & 1u);
  const uint32_t normal = (rounded >> kDrop) - kRebias;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) - kMagic;
  const uint32_t code = magnitude < kMinNormal ? subnormal : normal;
  return code > kMaxCode ? kMaxCode : code;
}

/// Saturates at kMaxCode, the code of the largest finite magnitude.
template <int kMantissaBits, int kMinExponent, uint32_t kMaxCode>
inline uint8_t encode_fp8(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t code =
      encode_magnitude<kMantissaBits, kMinExponent, kMaxCode>(magnitude) | ((bits >> 24) & 0x80u);
  return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : code);
}
inline float8_e4m3 to_e4m3(float value) {
  return {encode_fp8<3, -6, 0x7e>(value)};
}
inline float8_e5m2 to_e5m2(float value) {
  return {encode_fp8<2, -14, 0x7b>(value)};
}

inline float16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kInfinity = 0x7c00;
  const uint32_t code = encode_magnitude<10, -14, kInfinity>(magnitude) | ((bits >> 16) & 0x8000u);
  return {static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : code)};
}

/// Rounds to T: float, bfloat16, float16, float8_e4m3 or float8_e5m2.
template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bfloat16 from_float<bfloat16>(float value) {
  return to_bf16(value);
}
template <>
inline float16 from_float<float16>(float value) {
  return to_f16(value);
}
template <>
inline float8_e4m3 from_float<float8_e4m3>(float value) {
  return to_e4m3(value);
}
template <>
inline float8_e5m2 from_float<float8_e5m2>(float value) {
  return to_e5m2(value);
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<float16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<float8_e4m3>() {
  return DType::e4m3;
}
template <>
constexpr DType dtype_of<float8_e5m2>() {
  return DType::e5m2;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

/// Calls fn(T{}) with the C++ type of a high-precision dtype (FP32, BF16 or FP16). Returns false for any other dtype.
template <class Fn>
bool visit_high_precision(DType type, Fn&& fn) {
  if (type == DType::f32) return fn(float{}), true;
  if (type == DType::bf16) return fn(bfloat16{}), true;
  if (type == DType::f16) return fn(float16{}), true;
  return false;
}

/// Calls fn(T{}) with the C++ type of a dtype that gradients are accumulated in (FP32 or BF16). Returns false for any
/// other dtype.
template <class Fn>
bool visit_grad(DType type, Fn&& fn) {
  if (type == DType::f32) return fn(float{}), true;
  if (type == DType::bf16) return fn(bfloat16{}), true;
  return false;
}

/// Calls fn(T{}) with the C++ type of an FP8 dtype. Returns false for any other dtype.
template <class Fn>
bool visit_fp8(DType type, Fn&& fn) {
  if (type == DType::e4m3) return fn(float8_e4m3{}), true;
  if (type == DType::e5m2) return fn(float8_e5m2{}), true;
  return false;
}

}  // namespace te
