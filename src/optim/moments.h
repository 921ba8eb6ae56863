// One Adam moment (exp_avg or exp_avg_sq) of consecutive elements, in the format in which a rank stores it.
#pragma once

#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "core/tensor.h"

namespace te::optim {

/// FP32 or BF16 values, or the codes and exponents of kernels/adamw/moment_fp8.h.
struct Moments {
  /// Elements [first, first + count) of a shard have moments [at, at + count).
  struct Run {
    int64_t first = 0, count = 0, at = 0;
  };

  Tensor values;            ///< [n] fp32 or bf16; codes of exp_avg e4m3, of exp_avg_sq u8
  Tensor exponents;         ///< u8 [granules_of(n)], with codes
  bool is_dense = true;     ///< element i of the shard has moment i; else see runs
  std::vector<Run> runs{};  ///< in ascending order

  int64_t count() const { return values.numel(); }
  bool blocks() const { return values.dtype == DType::e4m3 || values.dtype == DType::u8; }
  /// Moments of elements [shard_first, shard_first + count). With codes `shard_first` is a multiple of
  /// kernels::kAdamWGranule. InternalError where contains() is false.
  Moments part(int64_t shard_first, int64_t count) const;
  bool contains(int64_t first, int64_t count) const { return offset_of(first, count) >= 0; }

  /// The dtype that represents all values exactly: the stored dtype; for FP8 codes bf16 (exp_avg) or fp32 (exp_avg_sq).
  DType stored_dtype() const;
  /// Bytes on the device.
  size_t raw_bytes() const { return values.bytes() + exponents.bytes(); }
  /// Copies the device's bytes, codes before exponents; asynchronous.
  void copy_raw(const Context& context, void* raw) const;
  /// Elements [first, first + count) of what copy_raw() has copied, as stored_dtype(): a pointer into `raw`, or
  /// `decoded`, which it fills. With codes `first` is a multiple of kernels::kAdamWGranule.
  const void* from_raw(const void* raw, int64_t first, int64_t count, void* decoded) const;
  /// Writes FP32 values from host memory, rounded to nearest; `rounded`: scratch memory of the same size. Synchronous.
  void write(const Context& context, const float* host, void* rounded) const;
  void zero(const Context& context) const;
  /// Plans memory of `moments` for n elements.
  static void plan(MemoryPlan& plan, Planned<Moments>& moments, const char* name, DType dtype, int64_t n,
                   MemoryPlace place = MemoryPlace::device);

 private:
  /// Position in `values` of elements [first, first + count) of the shard, or -1.
  int64_t offset_of(int64_t first, int64_t count) const;
};

}  // namespace te::optim
