// Quantizes weights that are sharded across data-parallel ranks: each rank quantizes its segments, and the ranks gather
// FP8 bytes (comm/parameter_gatherer.h) instead of high-precision values that every rank would quantize. A weight has
// one scale, from the amax of the full tensor:
//
//   1. reset_amax(), record_amax() each part   this rank's amaxes
//   2. all_reduce_amax()                       amaxes of the full weights, in one collective per gradient group, and
//                                              their scales
//   3. quantize() each part                    then the bytes are gathered
//   4. commit_scale()                          before a pass uses the weight: updates the scale table as quantization
//                                              of the full weight does
//
// Bytes, scales and state are those of quantizing the full weight on every rank (Quantizer::complete with current
// scaling), and the state changes at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "fp8/amax_ranks.h"
#include "kernels/quantize/fp8_output.h"

namespace te::fp8 {

class ShardedWeightQuantizer {
 public:
  struct Weight {
    int index = 0;  ///< in the scale table
    DType format = DType::e4m3;
    bool power_of_two = false;  ///< scales are powers of two
    int margin = 0;             ///< equal for all weights
    GradientGroup group = GradientGroup::dense;
  };
  /// Registers a weight and returns its number. Only before plan().
  int add(const Weight& weight);
  int size() const { return static_cast<int>(weights_.size()); }
  const Weight& at(int number) const { return weights_[static_cast<size_t>(number)]; }

  void plan(MemoryPlan& plan);
  /// After the plan's allocation; waits for the device.
  void bind(const Context& context);

  void reset_amax(const Context& context) const;
  /// `values`: a multiple of 128 elements, bf16 or fp32.
  void record_amax(const Context& context, int number, const Tensor& values) const;
  /// `ranks`: all ranks with shards of the weights.
  void all_reduce_amax(const Context& context, const AmaxRanks& ranks) const;
  /// `bytes`: u8, as many elements as `values`. `counters`: incremented, or null.
  void quantize(const Context& context, int number, const Tensor& values, const Tensor& bytes,
                kernels::Fp8Counters* counters) const;
  /// `out`: the output of quantizing the full weight with a current scale. Its data has already been gathered.
  void commit_scale(const Context& context, int number, const kernels::Fp8Output& out) const;

 private:
  Tensor one(const Tensor& of_all, int number) const;
  std::vector<Weight> weights_;
  std::vector<int64_t> rows_;    ///< by number: index in the tensors below, where groups are contiguous
  PlannedTensor amax_, scale_;   ///< fp32 [n]
  PlannedTensor fp8_max_;        ///< fp32 [n]
  PlannedTensor powers_of_two_;  ///< u8 [n]
};

}  // namespace te::fp8
