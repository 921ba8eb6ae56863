// All parameters of this rank's part of the model, in flat buffers: values (the model's dtype), main
// parameters (FP32) and main gradients (FP32), laid out alike, so that the optimizer, the gradient norm and a
// checkpoint each walk one buffer.
//
// Initial weights are a pure function of (seed, parameter name, index within the parameter).
#pragma once

#include <deque>
#include <string>

#include "core/device.h"
#include "core/memory_plan.h"

namespace te::model {

enum class Init : uint8_t { normal, zeros, ones };

struct Parameter {
  std::string name;  ///< "layers.0.mlp.linear_fc1.weight"
  Shape shape;       ///< weights are [out, in]
  Init init = Init::normal;
  float std = 0.0f;    ///< of Init::normal
  bool decay = false;  ///< weight decay applies: matrices yes, gains and biases no
  int64_t offset = 0;  ///< elements, in the flat buffers; a multiple of the optimizer's granule

  Tensor value;  ///< what the passes read; the model's dtype
  Tensor main;   ///< FP32; the same memory as value in an FP32 model
  Tensor grad;   ///< FP32, accumulated over the step's microbatches
};

class ParameterStore {
 public:
  /// Registers a parameter; the address stays valid. Only before plan().
  Parameter* add(std::string name, Shape shape, Init init, float std, bool decay);

  void plan(MemoryPlan& plan, DType dtype);
  /// After the plan's allocation: points every parameter into the flat buffers and writes the granule flags.
  void bind(const Context& context);
  void initialize(const Context& context, uint64_t seed);
  /// value = main rounded to the model's dtype: after main parameters were loaded.
  void cast_values(const Context& context);

  const std::deque<Parameter>& parameters() const { return parameters_; }
  int64_t num_parameters() const { return count_; }  ///< without alignment gaps
  int64_t flat_size() const { return flat_size_; }   ///< elements of each flat buffer

  Tensor values;  ///< [flat_size]; empty in an FP32 model
  Tensor mains;   ///< [flat_size] fp32
  Tensor grads;   ///< [flat_size] fp32
  Tensor flags;   ///< u8 [flat_size / granule]: kGranuleDecays, kGranuleCounted

 private:
  std::deque<Parameter> parameters_;
  int64_t count_ = 0;
  int64_t flat_size_ = 0;
  DType dtype_ = DType::bf16;
};

}  // namespace te::model
