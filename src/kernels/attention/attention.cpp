// Checks and dispatch of attention. The CPU reference is in attention_cpu.cpp, the CUDA version in attention_cuda.cpp.
#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/checks.h"

namespace te::kernels {
namespace {

// Limits on a GPU. tiled_attention.h computes every shape within them that the other kernels do not support.
constexpr int64_t kCudaMaxHeadDim = 256;
constexpr int64_t kCudaHeadDimMultiple = 8;
constexpr int64_t kCudaMaxSeq = 65535 * 64;  // no longer one has been run

const char* broken_rule(const AttentionShape& shape) {
  if (shape.batch <= 0 || shape.seq <= 0 || shape.num_heads <= 0 || shape.num_query_groups <= 0 ||
      shape.head_dim <= 0)
    return "batch, seq, num_heads, num_query_groups and head_dim must be positive";
  if (shape.num_heads % shape.num_query_groups != 0) return "the query groups must divide the heads";
  if (shape.first_head < 0 ||
      (shape.total_heads != 0 && shape.first_head + shape.num_heads > shape.total_heads))
    return "the heads of this rank must be among those of the model";
  if (shape.max_documents < 0) return "max_documents must not be negative";
  if (shape.window < 0 || shape.window >= std::max<int64_t>(shape.seq, 1))
    return "a sliding window must be shorter than the sequence";
  const QueryRange& range = shape.range;
  if (range.count < 0 || range.position < 0 || range.keys() > shape.seq || range.first < 0 ||
      (range.count > 0 && range.first + range.count > range.rows))
    return "a range of queries must lie within the rank's tokens and the sequence";
  if (!(shape.dropout >= 0.0f && shape.dropout < 1.0f)) return "dropout must be in [0, 1)";
  return "";
}

void check_kv(const char* op, const char* name, const AttentionShape& shape, const Tensor& kv, DType dtype) {
  check_tensor(op, name, kv, dtype, {shape.batch * shape.seq, 2 * shape.num_query_groups * shape.head_dim});
}

void check_common(const Context& context, const char* op, const AttentionShape& shape, const Tensor& qkv,
                  const Tensor& o, const Tensor& lse, const Tensor& kv) {
  check_high_precision(op, "qkv", qkv);
  const char* rule = attention_unsupported(context.device(), shape, qkv.dtype);
  TE_CHECK(rule[0] == '\0', "{}: {}", op, rule);
  const bool range = shape.has_range();
  const int64_t rows = shape.batch * shape.rows();
  check_shape(op, "qkv", qkv, {rows, (shape.num_heads + 2 * shape.num_query_groups) * shape.head_dim});
  check_tensor(op, "o", o, qkv.dtype, {rows, shape.num_heads * shape.head_dim});
  check_tensor(op, "lse", lse, DType::f32, {shape.batch, shape.num_heads, shape.queries()});
  TE_CHECK(static_cast<bool>(kv) == range, "{}: kv must be given with a range of queries, and only then", op);
  if (range) check_kv(op, "kv", shape, kv, qkv.dtype);
}

void check_documents(const Context& context, const char* op, const AttentionShape& shape,
                     const Tensor& document_start) {
  TE_CHECK(static_cast<bool>(document_start) == (shape.max_documents > 0),
           "{}: document_start must be given with max_documents, and only then", op);
  if (!document_start) return;
  check_tensor(op, "document_start", document_start, DType::i32, {shape.batch * shape.seq});
  if (context.device() != DeviceKind::cpu) return;  // the values are not in memory of the host
  const int32_t* start = document_start.as<int32_t>();
  for (int64_t row = 0; row < shape.batch * shape.seq; ++row) {
    const int64_t position = row % shape.seq, least = position == 0 ? 0 : start[row - 1];
    TE_CHECK(start[row] >= least && start[row] <= position,
             "{}: document_start {} of position {} must be in {}..{}", op, start[row], position, least,
             position);
  }
  const int64_t documents = count_documents(start, shape.batch, shape.seq);
  TE_CHECK(documents <= shape.max_documents, "{}: {} documents exceed max_documents {}", op, documents,
           shape.max_documents);
}

}  // namespace

int64_t count_documents(const int32_t* document_start, int64_t batch, int64_t seq) {
  int64_t count = 0;
  for (int64_t row = 0; row < batch * seq; ++row) count += document_start[row] == row % seq ? 1 : 0;
  return count;
}

void attention_forward(const Context& context, const AttentionForward& args) {
  check_common(context, "attention_forward", args.shape, args.qkv, args.o, args.lse, args.kv);
  check_documents(context, "attention_forward", args.shape, args.document_start);
  TE_DISPATCH_CUDA(context, attention_forward, args);
  cpu::attention_forward(args);
}

void attention_backward(const Context& context, const AttentionBackward& args) {
  constexpr const char* op = "attention_backward";
  check_common(context, op, args.shape, args.qkv, args.o, args.lse, args.kv);
  check_documents(context, op, args.shape, args.document_start);
  check_tensor(op, "d_o", args.d_o, args.qkv.dtype, args.o.shape);
  check_tensor(op, "dqkv", args.dqkv, args.qkv.dtype, args.qkv.shape);
  if (args.shape.has_range()) check_kv(op, "dkv", args.shape, args.dkv, args.qkv.dtype);
  TE_DISPATCH_CUDA(context, attention_backward, args);
  cpu::attention_backward(args);
}

AttentionKernels attention_kernels(const Context& context, const AttentionShape& shape, DType dtype) {
  TE_ASK_CUDA(context, attention_kernels, shape, dtype);
  return AttentionKernels::cpu;
}

int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType dtype) {
  const char* rule = attention_unsupported(context.device(), shape, dtype);
  TE_CHECK(rule[0] == '\0', "attention_workspace_bytes: {}", rule);
  TE_ASK_CUDA(context, attention_workspace_bytes, shape, dtype);
  return 0;
}

const char* attention_unsupported(DeviceKind device, const AttentionShape& shape, DType dtype) {
  const char* rule = broken_rule(shape);
  if (rule[0] != '\0') return rule;
  if (!is_high_precision(dtype)) return "attention needs fp32, bf16 or fp16";
  if (device != DeviceKind::cuda) return "";
  if (shape.head_dim % kCudaHeadDimMultiple != 0 || shape.head_dim > kCudaMaxHeadDim)
    return "attention on a GPU needs a head_dim that is a multiple of 8 and at most 256";
  if (shape.seq > kCudaMaxSeq) return "attention on a GPU needs a sequence length of at most 4194240";
  return "";
}

}  // namespace te::kernels
