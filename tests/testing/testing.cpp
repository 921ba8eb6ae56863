#include "testing/testing.h"

#include <malloc.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "core/random.h"

namespace te::testing {
namespace {

/// Calls body(i) for i in [0, count), with all cores if count is large.
template <typename Body>
void each(int64_t count, const Body& body) {
#pragma omp parallel for schedule(static) if (count > 1 << 16)
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Tests allocate and free tensors of megabytes frequently; this keeps glibc from returning their pages to the kernel.
[[maybe_unused]] const bool keeps_memory = [] {
  return mallopt(M_MMAP_THRESHOLD, 1 << 30) != 0 && mallopt(M_TRIM_THRESHOLD, 1 << 30) != 0;
}();

}  // namespace

const Context& cpu() {
  static const Context context = Context::cpu();
  return context;
}

TestTensor::TestTensor(const Context& context, DType dtype, Shape shape)
    : context_(context), buffer_(context, static_cast<size_t>(shape.numel()) * dtype_size(dtype)) {
  tensor_ = {buffer_.data(), dtype, shape};
  context_.fill_bytes(tensor_, 0xff);
}

void TestTensor::fill(const std::vector<float>& values) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), tensor_.numel());
  std::vector<uint8_t> bytes(tensor_.bytes());
  const auto put = [&](auto zero) {
    using T = decltype(zero);
    each(tensor_.numel(), [&](int64_t i) {
      const T value = from_float<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    });
  };
  ASSERT_TRUE(visit_high_precision(tensor_.dtype, put) || visit_fp8(tensor_.dtype, put));
  fill_raw(bytes.data());
}

void TestTensor::fill_raw(const void* bytes) {
  context_.copy_to_device(tensor_, bytes);
  context_.synchronize();
}

void TestTensor::fill_normal(uint64_t seed, float std, float mean) {
  std::vector<float> values = normal_values(tensor_.numel(), seed, std);
  for (float& value : values) value += mean;
  fill(values);
}

void TestTensor::fill_value(float value) {
  fill(std::vector<float>(static_cast<size_t>(tensor_.numel()), value));
}

void TestTensor::fill_ints(const std::vector<int32_t>& values) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), tensor_.numel());
  fill_raw(values.data());
}

std::vector<uint8_t> TestTensor::raw() const {
  std::vector<uint8_t> bytes(tensor_.bytes());
  context_.copy_to_host(bytes.data(), tensor_);
  context_.synchronize();
  return bytes;
}

std::vector<float> TestTensor::floats() const {
  const std::vector<uint8_t> bytes = raw();
  std::vector<float> values(static_cast<size_t>(tensor_.numel()));
  const auto get = [&](auto zero) {
    using T = decltype(zero);
    each(tensor_.numel(), [&](int64_t i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = to_float(value);
    });
  };
  if (tensor_.dtype == DType::i32) {
    get(int32_t{});
  } else {
    EXPECT_TRUE(visit_high_precision(tensor_.dtype, get) || visit_fp8(tensor_.dtype, get));
  }
  return values;
}

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    if (std::isnan(actual[i]) != std::isnan(expected[i])) return std::numeric_limits<double>::infinity();
    if (std::isinf(expected[i]) && actual[i] == expected[i]) continue;
    difference += (double(actual[i]) - expected[i]) * (double(actual[i]) - expected[i]);
    norm += double(expected[i]) * expected[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double max_relative_error(const std::vector<float>& actual, const std::vector<float>& expected,
                          double floor) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(actual[i]) != std::isnan(expected[i])) return std::numeric_limits<double>::infinity();
    const double error = std::abs(double(actual[i]) - expected[i]) / (std::abs(double(expected[i])) + floor);
    if (error > worst) worst = error;
  }
  return worst;
}

int64_t count_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, size_t element_size) {
  EXPECT_EQ(a.size(), b.size());
  int64_t count = 0;
  for (size_t i = 0; i + element_size <= b.size(); i += element_size) {
    count += std::memcmp(a.data() + i, b.data() + i, element_size) != 0 ? 1 : 0;
  }
  return count;
}

namespace {

/// Cached random numbers of a seed, at least `count`: tests run kernels repeatedly on the same inputs, and generating
/// these took most of their time.
const std::vector<float>& drawn_before(uint64_t seed, int64_t count) {
  constexpr size_t kKept = size_t{1} << 27;  ///< numbers of all seeds, 512 MiB
  thread_local std::map<uint64_t, std::vector<float>> drawn;
  thread_local size_t kept = 0;
  if (kept > kKept) drawn.clear(), kept = 0;
  std::vector<float>& values = drawn[seed];
  const auto before = static_cast<int64_t>(values.size());
  if (before >= count) return values;
  kept += static_cast<size_t>(count - before);
  values.resize(static_cast<size_t>(count));
  each(count - before, [&](int64_t i) {
    values[before + i] = normal(seed, stream_of("test"), static_cast<uint64_t>(before + i));
  });
  return values;
}

}  // namespace

std::vector<float> normal_values(int64_t count, uint64_t seed, float std) {
  std::vector<float> values(static_cast<size_t>(count));
  const std::vector<float>& drawn = drawn_before(seed, count);
  each(count, [&](int64_t i) { values[i] = std * drawn[i]; });
  return values;
}

}  // namespace te::testing
