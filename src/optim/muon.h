// Muon (Jordan et al., 2024) in the form of Moonlight (Liu et al., arXiv 2502.16982): updates the weight matrices of
// the layers. All other parameters use AdamW (optimizer.h). Learning rate, weight decay, clipping and skipped steps are
// shared with it.
//
// For each logical matrix W [rows, cols] (q, k and v of linear_qkv, gate and up of linear_fc1, each separately), with
// its gradient G after clipping:
//   M = muon_momentum M + G
//   U = G + muon_momentum M  (Nesterov)
//   W = W (1 - lr weight_decay) - lr 0.2 sqrt(max(rows, cols)) newton_schulz(U)
//
// M is stored in exp_avg; there is no second moment. A matrix that is sharded across ranks is orthogonalized as a
// whole. For each bucket (parameters/parameter_store.h) with matrices:
//   1. Each data-parallel rank computes its segment of U from its segments of G and M, in the model's dtype (BF16 for
//      FP16 models, whose range is too small for U).
//   2. all_gather of U over the data-parallel group: 2 bytes per parameter in BF16, like the gather of the weights.
//   3. all_gather over the tensor-parallel group of the parameters that this rank's segment touches.
//   4. Newton-Schulz of the matrices that the segment touches, and the update of the segment's elements. A matrix that
//      crosses a segment's end is orthogonalized by both data-parallel ranks, and by all its tensor-parallel ranks.
// All ranks use the same GEMMs for a matrix. On the CPU, every layout therefore gives bitwise equal updates for equal
// gradients; on a GPU, ranks whose GEMMs use the same algorithms do.
#pragma once

#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "optim/update_groups.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::optim {

inline constexpr int64_t kNewtonSchulzSteps = 5;
/// With it and sqrt(max(rows, cols)), updates are as large as AdamW's.
inline constexpr double kMuonScale = 0.2;

/// Whether the optimizer is Muon and the parameter is a matrix of a layer, with one moment instead of two.
bool has_one_moment(config::OptimizerName optimizer, const parameters::Parameter& parameter);

/// Arguments that change from step to step.
struct MuonStep {
  Tensor momentum;  ///< fp32 [shard_size]; elements of other parameters are not touched
  float lr = 0.0f;
  const float* grad_multiplier = nullptr;
  const int32_t* skip = nullptr;
};

class Muon {
 public:
  Muon(const config::OptimizerConfig& config, const parameters::ParameterStore& parameters,
       const parallel::Groups& groups, const UpdateGroups& update_groups)
      : config_(config), parameters_(parameters), groups_(groups), update_groups_(update_groups) {}

  /// After the store's plan(). `update`: lifetime of the update's scratch; empty: always.
  void plan(MemoryPlan& plan, Lifetime update);
  /// Updates momentum, FP32 master weights and BF16 weights of this rank's segments. The caller gathers other ranks'
  /// weights.
  void update(const Context& context, const MuonStep& step) const;

 private:
  /// A matrix within a parameter: rows [first_row, first_row + local_rows) of the rank's part.
  struct Matrix {
    int64_t rows = 0, cols = 0;  ///< of the full matrix
    int64_t first_row = 0, local_rows = 0;
  };
  std::vector<Matrix> matrices_of(const parameters::Parameter& parameter) const;
  /// Whether this rank has all rows and columns of the matrices of its part.
  bool is_full(const parameters::Parameter& parameter) const;
  void plan_scratch(MemoryPlan& plan, Lifetime update, int64_t window, int64_t shared, int64_t elements,
                    int64_t side);
  /// Computes U of this rank's elements [begin, end) of the flat buffers, stored at `begin` - `origin` in update_.
  void make_update(const Context& context, const MuonStep& step, size_t bucket, int64_t origin, int64_t begin,
                   int64_t end) const;
  /// `mine`: complete U of this rank's part of the parameter.
  void update_parameter(const Context& context, const MuonStep& step, const parameters::Parameter& parameter,
                        const Tensor& mine) const;
  Tensor orthogonalized(const Context& context, const parameters::Parameter& parameter, const Matrix& matrix,
                        const Tensor& parts) const;
  void apply(const Context& context, const MuonStep& step, const parameters::Parameter& parameter,
             const Matrix& matrix, const Tensor& orthogonal, int64_t begin, int64_t end) const;

  const config::OptimizerConfig config_;
  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  const UpdateGroups& update_groups_;
  std::vector<std::vector<const parameters::Parameter*>> buckets_;  ///< matrices per bucket
  // Scratch of an update, in the model's dtype:
  enum class Buffer : uint8_t { update, parts, x, product, gram, gram_squared, sum, sum_scratch };
  PlannedTensor update_;               ///< U of a bucket; with one data-parallel rank, of a parameter
  PlannedTensor parts_;                ///< [TP ranks, part of a parameter]; only with several TP ranks
  PlannedTensor x_, product_;          ///< the largest matrix
  PlannedTensor gram_, gram_squared_;  ///< the largest [min(rows, cols), min(rows, cols)]
  PlannedTensor sum_, sum_scratch_;    ///< fp32: of the norm
};

}  // namespace te::optim
