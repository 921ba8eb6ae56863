// Attention on a GPU. On Hopper, supported shapes run the kernels of flash_attention.h: BF16 without dropout, with or
// without documents and windows. Other 16-bit shapes run cuDNN's fused kernels through the graph interface of
// cudnn-frontend, which most of this file is about. FP32 and shapes that cuDNN lacks run tiled_attention.h.
//
// A plan (a graph with its compiled execution plan) is built once per shape and pass and kept for the life of the
// process. The graph names tensors by uid, and a call binds uids to pointers. q, k and v and their gradients are
// strided views into the packed qkv buffer, so no copies are needed.
//
// cuDNN handles documents of packed samples as sequences of "ragged" tensors: a batch of max_documents sequences, whose
// lengths and offsets it reads from device memory. Most are short and the last ones empty. No mask is stored, and no
// score between documents is computed.
//
// The workspace holds kSeedBytes for the generator's seed and offset, the arrays of attention_documents.h, and cuDNN's
// own workspace.
#include <cudnn_frontend.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/cuda_check.h"
#include "core/device_caps.h"
#include "core/random.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_documents.h"
#include "kernels/attention/attention_seed.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention/tiled_attention.h"

namespace te::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Bindings = std::unordered_map<int64_t, void*>;

constexpr int64_t kSeedBytes = 256;
constexpr int64_t kElementBytes = 2;  // BF16 and FP16

constexpr size_t kDocumentsVersion = 90600;  ///< of cuDNN: first with grouped ragged queries

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDO,
  kDQ,
  kDK,
  kDV,
  kSeed,
  kOffset,
  kQueryLengths,
  kKeyLengths,
  kQkvOffsets,
  kOOffsets,
  kLseOffsets
};
enum class Direction { forward, backward };

/// Whether cuDNN may have kernels for a shape of at least two positions. It lacks some combinations of masks, and its
/// offsets into ragged tensors are 32 bits.
bool cudnn_may_support(const AttentionShape& s) {
  const int64_t row = (s.num_heads + 2 * s.num_query_groups) * s.head_dim;
  const bool documents = s.max_documents > 0, dropout = s.dropout > 0.0f;
  if (s.has_range() && (documents || dropout)) return false;
  if (s.window > 0 && (documents || dropout)) return false;
  return !documents || s.batch * s.seq * row <= std::numeric_limits<int32_t>::max();
}

void check(fe::error_t status, const char* what) {
  TE_CHECK(status.is_good(), "attention: cuDNN {}: {}", what, status.get_message());
}

cudnnHandle_t library(const Context& context) {
  // The handle lives as long as the process, see gemm_cuda.cpp.
  static const cudnnHandle_t handle = [] {
    cudnnHandle_t created = nullptr;
    const cudnnStatus_t status = cudnnCreate(&created);
    TE_CHECK(status == CUDNN_STATUS_SUCCESS, "attention: cudnnCreate: {}", cudnnGetErrorString(status));
    return created;
  }();
  const cudnnStatus_t status = cudnnSetStream(handle, cuda_stream(context));
  TE_CHECK(status == CUDNN_STATUS_SUCCESS, "attention: cudnnSetStream: {}", cudnnGetErrorString(status));
  return handle;
}

/// Builds the graph of one pass.
class Builder {
 public:
  Builder(const AttentionShape& shape, DType dtype)
      : s_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> forward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_common(options);
    const auto [o, stats] =
        graph_->sdpa(input(kQ, q_view()), input(kK, kv_view()), input(kV, kv_view()), options);
    set_output(o, kO, o_view());
    set_output(stats, kLse, lse_view());
    stats->set_data_type(fe::DataType_t::FLOAT);
    return graph_;
  }

  std::shared_ptr<fe::graph::Graph> backward(bool deterministic) {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    set_common(options);
    // cuDNN's deterministic algorithm would store max_documents matrices of dP.
    options.set_deterministic_algorithm(deterministic && s_.max_documents == 0);
    if (s_.max_documents > 0)
      options.set_max_total_seq_len_q(s_.batch * s_.seq).set_max_total_seq_len_kv(s_.batch * s_.seq);
    const GraphTensor stats = input(kLse, lse_view());
    stats->set_data_type(fe::DataType_t::FLOAT);
    const auto [dq, dk, dv] =
        graph_->sdpa_backward(input(kQ, q_view()), input(kK, kv_view()), input(kV, kv_view()),
                              input(kO, o_view()), input(kDO, o_view()), stats, options);
    set_output(dq, kDQ, q_view());
    set_output(dk, kDK, kv_view());
    set_output(dv, kDV, kv_view());
    return graph_;
  }

 private:
  /// Dimensions [batch, heads, seq, head_dim] and their strides in elements. With documents, the batch counts
  /// documents, and offsets replace its stride.
  struct View {
    std::vector<int64_t> dims, strides;
    Uid offsets;
  };
  int64_t batch() const { return s_.max_documents > 0 ? s_.max_documents : s_.batch; }
  View q_view() const {
    const int64_t row = (s_.num_heads + 2 * s_.num_query_groups) * s_.head_dim;
    return {{batch(), s_.num_heads, s_.queries(), s_.head_dim},
            {s_.rows() * row, s_.head_dim, row, 1},
            kQkvOffsets};
  }
  View kv_view() const {
    const int64_t row = ((s_.has_range() ? 0 : s_.num_heads) + 2 * s_.num_query_groups) * s_.head_dim;
    return {{batch(), s_.num_query_groups, s_.keys(), s_.head_dim},
            {s_.seq * row, s_.head_dim, row, 1},
            kQkvOffsets};
  }
  View o_view() const {
    const int64_t row = s_.num_heads * s_.head_dim;
    return {{batch(), s_.num_heads, s_.queries(), s_.head_dim},
            {s_.rows() * row, s_.head_dim, row, 1},
            kOOffsets};
  }
  View lse_view() const {
    const int64_t heads = s_.num_heads;
    if (s_.max_documents > 0)
      return {{batch(), heads, s_.seq, 1}, {heads * s_.seq, 1, heads, 1}, kLseOffsets};
    const int64_t queries = s_.queries();
    return {{batch(), heads, queries, 1}, {heads * queries, queries, 1, 1}, kLseOffsets};
  }

  GraphTensor input(Uid uid, const View& view) {
    auto attributes = fe::graph::Tensor_attributes();
    attributes.set_uid(uid).set_dim(view.dims).set_stride(view.strides);
    if (s_.max_documents > 0) attributes.set_ragged_offset(integers(view.offsets, s_.max_documents + 1));
    return graph_->tensor(attributes);
  }
  /// An int32 array. Repeated calls return the same tensor.
  GraphTensor integers(Uid uid, int64_t count) {
    GraphTensor& known = integers_[uid];
    if (known == nullptr)
      known = graph_->tensor(fe::graph::Tensor_attributes()
                                 .set_uid(uid)
                                 .set_dim({count, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(fe::DataType_t::INT32));
    return known;
  }
  GraphTensor scalar(Uid uid) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(uid)
                              .set_dim({1, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT64));
  }
  void set_output(const GraphTensor& tensor, Uid uid, const View& view) {
    tensor->set_output(true).set_uid(uid).set_dim(view.dims).set_stride(view.strides);
    if (s_.max_documents > 0) tensor->set_ragged_offset(integers(view.offsets, s_.max_documents + 1));
  }

  /// Scale, causal mask (query i sees keys 0 to i, or the last ones of them with a window), document lengths and
  /// dropout. The last query of a range sees all keys of the graph, so the diagonal ends in the lower right corner.
  template <class Options>
  void set_common(Options& options) {
    options.set_attn_scale(s_.softmax_scale)
        .set_diagonal_alignment(s_.range.position > 0 ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                      : fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (s_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
    if (s_.max_documents > 0)
      options.set_padding_mask(true)
          .set_seq_len_q(integers(kQueryLengths, s_.max_documents))
          .set_seq_len_kv(integers(kKeyLengths, s_.max_documents));
    if (s_.dropout > 0.0f) options.set_dropout(s_.dropout, scalar(kSeed), scalar(kOffset));
  }

  AttentionShape s_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::map<Uid, GraphTensor> integers_;
};

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes = 0;  ///< including seed and documents
};

/// Empty if this cuDNN has no kernel for the pass.
std::optional<Plan> make_plan(const Context& context, const AttentionShape& shape, DType dtype,
                              Direction pass) {
  const cudnnHandle_t handle = library(context);
  if (shape.max_documents > 0 && cudnnGetVersion() < kDocumentsVersion)
    user_error("attention within documents needs cuDNN 9.6 or newer, found {}; install a newer version",
               cudnnGetVersion());
  Plan plan;
  plan.graph = pass == Direction::forward
                   ? Builder(shape, dtype).forward()
                   : Builder(shape, dtype).backward(context.options().deterministic_attention);
  if (plan.graph->validate().is_bad() || plan.graph->build_operation_graph(handle).is_bad() ||
      plan.graph->create_execution_plans({fe::HeurMode_t::A}).is_bad() ||
      plan.graph->check_support(handle).is_bad())
    return {};
  check(plan.graph->build_plans(handle), "plan");
  int64_t bytes = 0;
  check(plan.graph->get_workspace_size(bytes), "workspace size");
  plan.workspace_bytes = kSeedBytes + document_bytes(shape) + bytes;
  return plan;
}

/// The cached plan of a pass; null if cuDNN has none.
const Plan* find_plan(const Context& context, const AttentionShape& s, DType dtype, Direction pass) {
  using Key = std::tuple<DType, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, float, float, Direction, bool>;
  static auto& plans = *new std::map<Key, std::optional<Plan>>;  // never destroyed, like the library's handle
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const Key key{
      dtype,        s.batch,         s.seq,     s.num_heads,   s.num_query_groups,
      s.head_dim,   s.max_documents, s.window,  s.range.count, s.range.position,
      s.range.rows, s.softmax_scale, s.dropout, pass,          context.options().deterministic_attention};
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(context, s, dtype, pass)).first;
  return found->second ? &*found->second : nullptr;
}

/// The plan of a pass; the caller knows from kernels_of() that cuDNN has it.
const Plan& plan_of(const Context& context, const AttentionShape& s, DType dtype, Direction pass) {
  const Plan* const plan = find_plan(context, s, dtype, pass);
  TE_CHECK(plan != nullptr, "attention: cuDNN has no kernel for head_dim {}", s.head_dim);
  return *plan;
}

AttentionKernels kernels_of(const Context& context, const AttentionShape& shape, DType dtype) {
  // Only the tiled kernels compute sequences of one token.
  if (shape.seq < 2) return AttentionKernels::tiled;
  if (device_caps(context).hopper_kernels && dtype == DType::bf16 && flash_supported(shape))
    return AttentionKernels::flash;
  if (dtype == DType::f32 || !cudnn_may_support(shape)) return AttentionKernels::tiled;
  const bool both = find_plan(context, shape, dtype, Direction::forward) != nullptr &&
                    find_plan(context, shape, dtype, Direction::backward) != nullptr;
  return both ? AttentionKernels::cudnn : AttentionKernels::tiled;
}

/// Bytes from the rank's first row of a tensor to the first row of the range.
int64_t range_bytes(const AttentionShape& s, const Tensor& rows) {
  return s.range.first * rows.cols() * kElementBytes;
}

/// Binds q, k and v (or their gradients) in a packed buffer; with a range, k and v are in kv.
void bind_packed(Bindings& bindings, const AttentionShape& s, const Tensor& packed, const Tensor& kv, Uid q,
                 Uid k, Uid v) {
  const bool range = s.has_range();
  bindings[q] = packed.as<char>() + range_bytes(s, packed);
  char* keys = range ? kv.as<char>() : packed.as<char>() + s.num_heads * s.head_dim * kElementBytes;
  bindings[k] = keys;
  bindings[v] = keys + s.num_query_groups * s.head_dim * kElementBytes;
}

/// Dropout seed of a rank's heads. The rank with head 0 uses the caller's seed.
uint64_t seed_of_heads(uint64_t seed, int64_t first_head) {
  if (first_head == 0) return seed;
  const Philox4 random = philox(seed, stream_of("attention.first_head"), static_cast<uint64_t>(first_head));
  return (uint64_t{random.word[0]} << 32) | random.word[1];
}

void execute(const Context& context, const AttentionShape& shape, const Plan& plan, Bindings& bindings,
             const Tensor& workspace, uint64_t seed, const Tensor& document_start) {
  TE_CHECK(static_cast<int64_t>(workspace.bytes()) >= plan.workspace_bytes,
           "attention: workspace has {} bytes, but needs {} (attention_workspace_bytes)", workspace.bytes(),
           plan.workspace_bytes);
  if (shape.dropout > 0.0f) {
    auto* scalars = workspace.as<int64_t>();
    set_attention_seed(context, scalars, seed_of_heads(seed, shape.first_head));
    bindings[kSeed] = scalars;
    bindings[kOffset] = scalars + 1;
  }
  char* const documents = workspace.as<char>() + kSeedBytes;
  if (shape.max_documents > 0) {
    const DocumentArrays arrays = document_arrays(shape, documents);
    find_documents(context, shape, document_start, arrays);
    bindings[kQueryLengths] = bindings[kKeyLengths] = arrays.lengths;
    bindings[kQkvOffsets] = arrays.qkv_offsets;
    bindings[kOOffsets] = arrays.o_offsets;
    bindings[kLseOffsets] = arrays.lse_offsets;
  }
  check(plan.graph->execute(library(context), bindings, documents + document_bytes(shape)), "execution");
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args) {
  const AttentionKernels kernels = kernels_of(context, args.shape, args.qkv.dtype);
  if constexpr (kHasHopperKernels)
    if (kernels == AttentionKernels::flash) return flash_forward(context, args);
  if (kernels == AttentionKernels::tiled) return tiled_forward(context, args);
  const Plan& plan = plan_of(context, args.shape, args.qkv.dtype, Direction::forward);
  Bindings bindings{{kO, args.o.as<char>() + range_bytes(args.shape, args.o)}, {kLse, args.lse.data}};
  bind_packed(bindings, args.shape, args.qkv, args.kv, kQ, kK, kV);
  execute(context, args.shape, plan, bindings, args.workspace, args.dropout_seed, args.document_start);
}

void attention_backward(const Context& context, const AttentionBackward& args) {
  const AttentionKernels kernels = kernels_of(context, args.shape, args.qkv.dtype);
  if constexpr (kHasHopperKernels)
    if (kernels == AttentionKernels::flash) return flash_backward(context, args);
  if (kernels == AttentionKernels::tiled) return tiled_backward(context, args);
  const Plan& plan = plan_of(context, args.shape, args.qkv.dtype, Direction::backward);
  const int64_t range = range_bytes(args.shape, args.o);
  Bindings bindings{
      {kO, args.o.as<char>() + range}, {kLse, args.lse.data}, {kDO, args.d_o.as<char>() + range}};
  bind_packed(bindings, args.shape, args.qkv, args.kv, kQ, kK, kV);
  bind_packed(bindings, args.shape, args.dqkv, args.dkv, kDQ, kDK, kDV);
  execute(context, args.shape, plan, bindings, args.workspace, args.dropout_seed, args.document_start);
}

AttentionKernels attention_kernels(const Context& context, const AttentionShape& shape, DType dtype) {
  return kernels_of(context, shape, dtype);
}

int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType dtype) {
  const AttentionKernels kernels = kernels_of(context, shape, dtype);
  if constexpr (kHasHopperKernels)
    if (kernels == AttentionKernels::flash)
      return std::max(flash_forward_workspace_bytes(shape), flash_backward_workspace_bytes(shape));
  if (kernels == AttentionKernels::tiled) return tiled_backward_workspace_bytes(shape);
  return std::max(plan_of(context, shape, dtype, Direction::forward).workspace_bytes,
                  plan_of(context, shape, dtype, Direction::backward).workspace_bytes);
}

}  // namespace te::kernels::cuda
