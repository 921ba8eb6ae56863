// Helpers shared by the tests. A TestTensor owns device memory, is poisoned when made (so that an element
// that a kernel forgets to write shows), and can be filled from and read to host floats whatever its dtype.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/float_types.h"
#include "core/tensor.h"

namespace te::testing {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;  ///< steps take about ten times as long: a test may repeat less
#else
inline constexpr bool kSanitized = false;
#endif

/// The CPU's, for as long as the process runs.
const Context& cpu();

class TestTensor {
 public:
  TestTensor(const Context& context, DType dtype,
             Shape shape);  ///< every byte 0xff: NaN in every float format
  const Tensor& get() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

  void fill(const std::vector<float>& values);  ///< rounded to the dtype as the CPU backend rounds
  void fill_normal(uint64_t seed, float std = 1.0f, float mean = 0.0f);
  void fill_value(float value);
  void fill_ints(const std::vector<int32_t>& values);  ///< i32 tensors
  void fill_raw(const void* bytes);
  std::vector<float> floats() const;  ///< values as FP32 (waits for the stream)
  std::vector<uint8_t> raw() const;   ///< bytes as stored (waits for the stream)

 private:
  const Context& context_;
  DeviceBuffer buffer_;
  Tensor tensor_;
};

/// ||a - b|| / ||b||; infinite when a holds a NaN that b does not.
double relative_error(const std::vector<float>& actual, const std::vector<float>& expected);

/// max |a - b| / (|b| + floor).
double max_relative_error(const std::vector<float>& actual, const std::vector<float>& expected,
                          double floor = 1e-3);

/// Number of elements that differ in their bits.
int64_t count_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, size_t element_size);

std::vector<float> normal_values(int64_t count, uint64_t seed, float std = 1.0f);

}  // namespace te::testing

/// First line of every GPU test: skipped, visibly, without a Hopper GPU.
#define TE_REQUIRE_GPU() \
  if (::te::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"
