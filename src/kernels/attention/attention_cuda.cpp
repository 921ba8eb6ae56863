// Attention on a GPU: cuDNN's fused kernels through the graph interface of cudnn-frontend.
//
// A plan (a graph with its compiled execution plan) is made once per shape and pass and kept for the process.
// The graph names tensors by uid; a call binds the uids to pointers. q, k and v are strided views into the
// packed qkv buffer, and so are their gradients, so nothing is copied around the kernels.
//
// Workspace: kSeedBytes for the generator's seed and offset, then what cuDNN asked for.
#include <cudnn_frontend.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/cuda_check.h"
#include "core/random.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_seed.h"

namespace te::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Bindings = std::unordered_map<int64_t, void*>;

constexpr int64_t kSeedBytes = 256;
constexpr int64_t kElementBytes = 2;  // BF16
bool deterministic = true;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV, kSeed, kOffset };
enum class Pass { forward, backward };

void check(fe::error_t status, const char* what) {
  TE_CHECK(status.is_good(), "attention: cuDNN {}: {}", what, status.get_message());
}

cudnnHandle_t library(const Context& context) {
  // Lives as long as the process, see gemm_cuda.cpp.
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
  explicit Builder(const AttentionShape& shape) : s_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> forward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_common(options);
    const auto [o, stats] =
        graph_->sdpa(input(kQ, qkv_view(s_.num_heads)), input(kK, qkv_view(s_.num_query_groups)),
                     input(kV, qkv_view(s_.num_query_groups)), options);
    set_output(o, kO, o_view());
    set_output(stats, kLse, lse_view());
    stats->set_data_type(fe::DataType_t::FLOAT);
    return graph_;
  }

  std::shared_ptr<fe::graph::Graph> backward() {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    set_common(options);
    options.set_deterministic_algorithm(deterministic);
    const GraphTensor stats = input(kLse, lse_view());
    stats->set_data_type(fe::DataType_t::FLOAT);
    const auto [dq, dk, dv] = graph_->sdpa_backward(
        input(kQ, qkv_view(s_.num_heads)), input(kK, qkv_view(s_.num_query_groups)),
        input(kV, qkv_view(s_.num_query_groups)), input(kO, o_view()), input(kDO, o_view()), stats, options);
    set_output(dq, kDQ, qkv_view(s_.num_heads));
    set_output(dk, kDK, qkv_view(s_.num_query_groups));
    set_output(dv, kDV, qkv_view(s_.num_query_groups));
    return graph_;
  }

 private:
  /// Dimensions [batch, heads, seq, head_dim] and their strides in elements.
  struct View {
    std::vector<int64_t> dims, strides;
  };
  View qkv_view(int64_t heads) const {
    const int64_t row = (s_.num_heads + 2 * s_.num_query_groups) * s_.head_dim;
    return {{s_.batch, heads, s_.seq, s_.head_dim}, {s_.seq * row, s_.head_dim, row, 1}};
  }
  View o_view() const {
    const int64_t row = s_.num_heads * s_.head_dim;
    return {{s_.batch, s_.num_heads, s_.seq, s_.head_dim}, {s_.seq * row, s_.head_dim, row, 1}};
  }
  View lse_view() const {
    return {{s_.batch, s_.num_heads, s_.seq, 1}, {s_.num_heads * s_.seq, s_.seq, 1, 1}};
  }

  GraphTensor input(Uid uid, const View& view) {
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(uid).set_dim(view.dims).set_stride(view.strides));
  }
  GraphTensor scalar(Uid uid) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(uid)
                              .set_dim({1, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT64));
  }
  static void set_output(const GraphTensor& tensor, Uid uid, const View& view) {
    tensor->set_output(true).set_uid(uid).set_dim(view.dims).set_stride(view.strides);
  }

  /// Scale, causal mask (query i sees keys 0 to i) and dropout.
  template <class Options>
  void set_common(Options& options) {
    options.set_attn_scale(s_.softmax_scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (s_.dropout > 0.0f) options.set_dropout(s_.dropout, scalar(kSeed), scalar(kOffset));
  }

  AttentionShape s_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes = 0;  ///< kSeedBytes included
};

Plan make_plan(const Context& context, const AttentionShape& shape, Pass pass) {
  const cudnnHandle_t handle = library(context);
  Plan plan;
  plan.graph = pass == Pass::forward ? Builder(shape).forward() : Builder(shape).backward();
  check(plan.graph->validate(), "does not support the shape");
  check(plan.graph->build_operation_graph(handle), "graph");
  check(plan.graph->create_execution_plans({fe::HeurMode_t::A}), "heuristics");
  check(plan.graph->check_support(handle), "support");
  check(plan.graph->build_plans(handle), "plan");
  int64_t bytes = 0;
  check(plan.graph->get_workspace_size(bytes), "workspace size");
  plan.workspace_bytes = kSeedBytes + bytes;
  return plan;
}

const Plan& plan_of(const Context& context, const AttentionShape& s, Pass pass) {
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, float, float, Pass, bool>;
  static std::map<Key, Plan>& plans = *new std::map<Key, Plan>;  // never destroyed, like the library's handle
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const Key key{s.batch,         s.seq,     s.num_heads, s.num_query_groups, s.head_dim,
                s.softmax_scale, s.dropout, pass,        deterministic};
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  return plans.emplace(key, make_plan(context, s, pass)).first->second;
}

/// Binds q, k and v (or their gradients) in a packed buffer.
void bind_packed(Bindings& bindings, const AttentionShape& s, const Tensor& packed, Uid q, Uid k, Uid v) {
  char* data = packed.as<char>();
  bindings[q] = data;
  bindings[k] = data + s.num_heads * s.head_dim * kElementBytes;
  bindings[v] = data + (s.num_heads + s.num_query_groups) * s.head_dim * kElementBytes;
}

/// The seed of a rank's heads; that of the first ones is the caller's.
uint64_t seed_of_heads(uint64_t seed, int64_t first_head) {
  if (first_head == 0) return seed;
  const Philox4 random = philox(seed, stream_of("attention.first_head"), static_cast<uint64_t>(first_head));
  return (uint64_t{random.word[0]} << 32) | random.word[1];
}

void execute(const Context& context, const AttentionShape& shape, const Plan& plan, Bindings& bindings,
             const Tensor& workspace, uint64_t seed, uint64_t offset) {
  TE_CHECK(static_cast<int64_t>(workspace.bytes()) >= plan.workspace_bytes,
           "attention: workspace has {} bytes, attention_workspace_bytes asked for {}", workspace.bytes(),
           plan.workspace_bytes);
  if (shape.dropout > 0.0f) {
    auto* scalars = workspace.as<int64_t>();
    set_attention_seed(context, scalars, seed_of_heads(seed, shape.first_head), offset);
    bindings[kSeed] = scalars;
    bindings[kOffset] = scalars + 1;
  }
  check(plan.graph->execute(library(context), bindings, workspace.as<char>() + kSeedBytes), "execution");
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args) {
  const Plan& plan = plan_of(context, args.shape, Pass::forward);
  Bindings bindings{{kO, args.o.data}, {kLse, args.lse.data}};
  bind_packed(bindings, args.shape, args.qkv, kQ, kK, kV);
  execute(context, args.shape, plan, bindings, args.workspace, args.dropout_seed, args.dropout_offset);
}

void attention_backward(const Context& context, const AttentionBackward& args) {
  const Plan& plan = plan_of(context, args.shape, Pass::backward);
  Bindings bindings{{kO, args.o.data}, {kLse, args.lse.data}, {kDO, args.d_o.data}};
  bind_packed(bindings, args.shape, args.qkv, kQ, kK, kV);
  bind_packed(bindings, args.shape, args.dqkv, kDQ, kDK, kDV);
  execute(context, args.shape, plan, bindings, args.workspace, args.dropout_seed, args.dropout_offset);
}

int64_t attention_workspace_bytes(const Context& context, const AttentionShape& shape, DType) {
  return std::max(plan_of(context, shape, Pass::forward).workspace_bytes,
                  plan_of(context, shape, Pass::backward).workspace_bytes);
}

void set_attention_deterministic(bool enabled) {
  deterministic = enabled;
}

}  // namespace te::kernels::cuda
