// Weights that the data ranks cast together: each rank casts the elements of its segments, and the bytes travel
// (comm/parameter_gatherer.h) in place of high-precision values that every rank would cast. A weight has one scale, by
// the amax of the whole tensor:
//
//   1. reset_amax(), record_amax() each part   this rank's amaxes
//   2. all_reduce_amax()                        those of the whole weights, in one message for all, and their scales
//   3. quantize() each part                     then the bytes are gathered
//   4. commit_scale()                           when a pass is about to use the weight: what a cast would leave in the
//                                               scale table
//
// Bytes, scales and state are those of a cast of the whole weight on every rank (Recipe::cast_tensor with a scale of
// the tensor's own), and the state changes at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "kernels/quantize/fp8_output.h"
#include "parallel/communicator.h"

namespace te::fp8 {

class ShardedWeightQuantizer {
 public:
  struct Weight {
    int index = 0;  ///< of the scale table
    DType format = DType::e4m3;
    bool power_of_two = false;  ///< the scale
    int margin = 0;             ///< the same of all
  };
  /// Returns its number. Only before plan().
  int add(const Weight& weight);
  int size() const { return static_cast<int>(weights_.size()); }
  const Weight& at(int number) const { return weights_[static_cast<size_t>(number)]; }

  void plan(MemoryPlan& plan);
  /// After the plan's allocation; waits for the device.
  void bind(const Context& context);

  void reset_amax(const Context& context) const;
  /// `values`: a multiple of 128 elements, bf16 or fp32.
  void record_amax(const Context& context, int number, const Tensor& values) const;
  /// `ranks`: all that hold parts of the weights; null: there are no others.
  void all_reduce_amax(const Context& context, parallel::Communicator* ranks) const;
  /// `bytes`: as many u8 elements. `counters`: added to, or null.
  void quantize(const Context& context, int number, const Tensor& values, const Tensor& bytes,
                kernels::Fp8Counters* counters) const;
  /// `out`: what a cast of the whole weight with a current_scale would be told. Its data is there already.
  void commit_scale(const Context& context, int number, const kernels::Fp8Output& out) const;

 private:
  static Tensor one(const Tensor& of_all, int number);
  std::vector<Weight> weights_;
  Tensor amax_, scale_;   ///< fp32 [n]
  Tensor fp8_max_;        ///< fp32 [n]
  Tensor powers_of_two_;  ///< u8 [n]
};

}  // namespace te::fp8
