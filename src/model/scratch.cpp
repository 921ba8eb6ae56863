#include "model/scratch.h"

#include <algorithm>

#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"

namespace te::model {

Dimensions Dimensions::of(const config::Config& config, const parallel::TensorParallel& tensor) {
  const config::ModelConfig& model = config.model;
  const int64_t ranks = tensor.size();
  Dimensions dims;
  dims.batch = config.training.micro_batch_size;
  dims.seq = model.seq_length;
  dims.tokens = dims.batch * dims.seq;
  dims.stream = tensor.share(dims.tokens);
  dims.hidden = model.hidden_size;
  dims.qkv = model.qkv_width() / ranks;
  dims.attention = model.attention_width() / ranks;
  dims.ffn = model.ffn_hidden_size / ranks;
  dims.fc1 = model.fc1_width() / ranks;
  dims.vocab = model.padded_vocab_size() / ranks;
  dims.dtype = config.precision.dtype == config::ComputeDType::fp32 ? DType::f32 : DType::bf16;
  return dims;
}

int64_t Dimensions::widest_input() const {
  return std::max({hidden, attention, ffn});
}
int64_t Dimensions::widest_output() const {
  return std::max({hidden, qkv, fc1});
}

void Scratch::plan(MemoryPlan& plan, const Dimensions& dims, bool fp8, bool recompute_inputs,
                   int64_t attention_bytes) {
  const int64_t tokens = dims.tokens, in = tokens * dims.widest_input(), out = tokens * dims.widest_output();
  const auto add = [&](Tensor& slot, const char* name, DType dtype, Shape shape) {
    plan.add(slot, name, MemoryKind::scratch, dtype, shape);
  };
  // Without FP8 a linear's input is saved where it is made, unless it is recomputed; with FP8 only its
  // transposed copy is.
  if (fp8 || recompute_inputs) add(input_hp, "scratch.input_hp", dims.dtype, {in});
  if (fp8) {
    add(input_rowwise, "scratch.input_rowwise", DType::u8, {in});
    if (recompute_inputs) add(input_columnwise, "scratch.input_columnwise", DType::u8, {in});
    add(grad_rowwise, "scratch.grad_rowwise", DType::u8, {out});
    add(grad_columnwise, "scratch.grad_columnwise", DType::u8, {out});
  }
  if (dims.stream < tokens) {
    add(whole, "scratch.whole", dims.dtype, {tokens, dims.hidden});
    add(share_hp, "scratch.share_hp", dims.dtype, {dims.stream, dims.hidden});
    if (fp8) add(share_rowwise, "scratch.share_rowwise", DType::u8, {dims.stream, dims.hidden});
    if (fp8) add(share_grad_rowwise, "scratch.share_grad_rowwise", DType::u8, {dims.stream, dims.hidden});
  }
  add(delta, "scratch.delta", dims.dtype, {dims.stream, dims.hidden});
  add(d_stream, "scratch.d_stream", dims.dtype, {dims.stream, dims.hidden});
  add(d_branch, "scratch.d_branch", dims.dtype, {dims.stream, dims.hidden});
  add(d_wide, "scratch.d_wide", dims.dtype, {tokens * std::max(dims.fc1, dims.qkv)});
  add(d_inner, "scratch.d_inner", dims.dtype,
      {recompute_inputs ? in : tokens * std::max(dims.ffn, dims.attention)});
  add(column_sums, "scratch.column_sums", DType::f32,
      {kernels::quantize_scratch_elements(tokens, dims.widest_output())});
  add(norm_sums, "scratch.norm_sums", DType::f32, {kernels::norm_backward_scratch_elements(dims.hidden)});
  if (attention_bytes > 0) add(attention, "scratch.attention", DType::u8, {attention_bytes});
}

}  // namespace te::model
