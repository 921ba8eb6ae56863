// Helpers for tests. A TestTensor owns device memory that is poisoned initially (to detect elements that a kernel does
// not write), and converts from and to host floats for all dtypes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/float_types.h"
#include "core/tensor.h"

namespace te::testing {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;  ///< code is much slower: a test may repeat less
#else
inline constexpr bool kSanitized = false;
#endif

/// A CPU context that lives until the process ends.
const Context& cpu();

class TestTensor {
 public:
  TestTensor(const Context& context, DType dtype,
             Shape shape);  ///< all bytes 0xff: NaN in all float formats
  const Tensor& get() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

  void fill(const std::vector<float>& values);  ///< rounded to the dtype as the CPU backend rounds
  void fill_normal(uint64_t seed, float std = 1.0f, float mean = 0.0f);
  void fill_value(float value);
  void fill_ints(const std::vector<int32_t>& values);  ///< i32 tensors
  void fill_raw(const void* bytes);
  std::vector<float> floats() const;  ///< values as FP32 (synchronizes the CUDA stream)
  std::vector<uint8_t> raw() const;   ///< bytes as stored (synchronizes the CUDA stream)

 private:
  const Context& context_;
  DeviceBuffer buffer_;
  Tensor tensor_;
};

/// ||a - b|| / ||b||; infinite if `a` has a NaN where `b` has none.
double relative_error(const std::vector<float>& actual, const std::vector<float>& expected);

/// max |a - b| / (|b| + floor).
double max_relative_error(const std::vector<float>& actual, const std::vector<float>& expected,
                          double floor = 1e-3);

/// Number of elements that differ in their bits.
int64_t count_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, size_t element_size);

std::vector<float> normal_values(int64_t count, uint64_t seed, float std = 1.0f);

}  // namespace te::testing

/// First line of GPU tests: skips the test without a Hopper GPU.
#define TE_REQUIRE_GPU() \
  if (::te::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"
