// One of AdamW's moments of consecutive elements, in the format in which a rank keeps it.
#pragma once

#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "core/tensor.h"

namespace te::optim {

/// FP32 or BF16 numbers, or the codes and exponents of kernels/adamw/moment_fp8.h.
struct Moments {
  /// Elements [first, first + count) of a shard have the moments [at, at + count).
  struct Run {
    int64_t first = 0, count = 0, at = 0;
  };

  Tensor values;            ///< [n] fp32 or bf16; codes of exp_avg e4m3, of exp_avg_sq u8
  Tensor exponents;         ///< u8 [granules_of(n)], with codes
  bool is_dense = true;     ///< element i of the shard has moment i; else what is in a run has one
  std::vector<Run> runs{};  ///< in ascending order

  int64_t count() const { return values.numel(); }
  bool blocks() const { return values.dtype == DType::e4m3 || values.dtype == DType::u8; }
  /// Elements [shard_first, shard_first + count). With codes `shard_first` is a multiple of kernels::kAdamWGranule.
  /// InternalError where holds() is false.
  Moments part(int64_t shard_first, int64_t count) const;
  bool contains(int64_t first, int64_t count) const { return offset_of(first, count) >= 0; }

  /// The dtype that has all their values: their own; of exp_avg in FP8 bf16, of exp_avg_sq in FP8 fp32.
  DType stored_dtype() const;
  /// Bytes on the device.
  size_t raw_bytes() const { return values.bytes() + exponents.bytes(); }
  /// The device's bytes, codes before exponents. Returns before the copy is done.
  void copy_raw(const Context& context, void* raw) const;
  /// Elements [first, first + count) from what copy_raw() has copied, as stored_dtype(): a pointer into raw, or
  /// `decoded` filled. With codes `first` is a multiple of kernels::kAdamWGranule.
  const void* from_raw(const void* raw, int64_t first, int64_t count, void* decoded) const;
  /// FP32 numbers from host memory, rounded to the nearest; `rounded`: as much host memory. Returns when they are
  /// there.
  void write(const Context& context, const float* host, void* rounded) const;
  void zero(const Context& context) const;
  /// Asks for n elements.
  void plan(MemoryPlan& plan, const char* name, DType dtype, int64_t n,
            MemoryPlace place = MemoryPlace::device);

 private:
  /// Where in `values` elements [first, first + count) of the shard are; -1: nowhere.
  int64_t offset_of(int64_t first, int64_t count) const;
};

}  // namespace te::optim
