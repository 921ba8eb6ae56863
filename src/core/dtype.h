// Element types of tensors, their names in configs and files, and their sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace te {

enum class DType : uint8_t { f32, bf16, e4m3, e5m2, i32, i64, u16, u8, f16, e2m1 };

constexpr size_t dtype_size(DType type) {
  switch (type) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::e4m3:
    case DType::e5m2:
    case DType::u8:
    case DType::e2m1:  // half of it: dtype_bytes()
      return 1;
  }
  return 0;
}
/// Bytes of `count` values. Two E2M1 values share a byte, the first one in its low half.
constexpr int64_t dtype_bytes(DType type, int64_t count) {
  return type == DType::e2m1 ? (count + 1) / 2 : count * static_cast<int64_t>(dtype_size(type));
}

constexpr std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::e4m3:
      return "fp8_e4m3";
    case DType::e5m2:
      return "fp8_e5m2";
    case DType::e2m1:
      return "fp4_e2m1";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u16:
      return "uint16";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

/// True for the types of activations and weights without FP8: FP32, BF16 and FP16.
constexpr bool is_high_precision(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

constexpr bool is_fp8(DType type) {
  return type == DType::e4m3 || type == DType::e5m2;
}
/// FP8 or FP4: values with scales.
constexpr bool is_quantized(DType type) {
  return is_fp8(type) || type == DType::e2m1;
}

/// Name of a format of quantized values in messages.
constexpr std::string_view format_name(DType type) {
  return type == DType::e4m3 ? "E4M3" : type == DType::e5m2 ? "E5M2" : "E2M1";
}

/// Largest finite value of an FP8 format: 448 for E4M3 (no infinities), 57344 for E5M2; 6 for E2M1.
constexpr float fp8_max(DType type) {
  if (type == DType::e2m1) return 6.0f;
  return type == DType::e4m3 ? 448.0f : 57344.0f;
}

}  // namespace te
