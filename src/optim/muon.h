// Muon (Jordan et al., 2024) in the form of Moonlight (Liu et al., arXiv 2502.16982): the update of the matrices inside
// the layers. All other parameters are AdamW's (optimizer.h), and so are learning rate, weight decay, clipping and the
// decision to skip a step.
//
// For each logical matrix W [rows, cols] (of linear_qkv q, k and v, of linear_fc1 gate and up, each by itself), with
// its gradient G after clipping:
//   M = muon_momentum M + G
//   U = muon_nesterov ? G + muon_momentum M : M
//   W = W (1 - lr weight_decay) - lr muon_scale sqrt(max(rows, cols)) newton_schulz(U)
//
// M is kept where AdamW keeps exp_avg; there is no second moment. Where ranks share a matrix, it is orthogonalized
// whole. Per bucket (parameters/parameter_store.h) that has matrices:
//   1. Each data rank makes its segment of U, from its segments of G and M, in the model's dtype (of FP16 models in
//      BF16, whose range U needs).
//   2. all_gather of U over the data group: 2 bytes a parameter in BF16, as many as the gather of the values sends.
//   3. all_gather over the tensor group of those parameters that this rank's segment touches.
//   4. Newton-Schulz of the matrices that the segment touches, and the update of the segment's elements. A matrix that
//      a segment's end cuts is orthogonalized by both data ranks that have a part of it, and by all its tensor ranks.
// All ranks take a matrix through the same GEMMs. So on the CPU every layout makes the same bits of the same gradients;
// on a GPU ranks do whose GEMMs have the same algorithms.
#pragma once

#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::optim {

/// The parameter is a matrix of a layer, and the optimizer is Muon: it has one moment instead of two.
bool has_one_moment(config::OptimizerName optimizer, const parameters::Parameter& parameter);

/// What changes from step to step.
struct MuonStep {
  Tensor momentum;  ///< fp32 [shard_size]; elements of other parameters are not touched
  float lr = 0.0f;
  const float* grad_multiplier = nullptr;
  const int32_t* skip = nullptr;
};

class Muon {
 public:
  Muon(const config::OptimizerConfig& config, const parameters::ParameterStore& parameters,
       const parallel::Groups& groups)
      : config_(config), parameters_(parameters), groups_(groups) {}

  /// After the store's plan(). `update`: when the scratch of an update is alive; empty: always.
  void plan(MemoryPlan& plan, Lifetime update);
  /// Momentum, main parameters and values of this rank's segments. Values of others are gathered by the caller.
  void update(const Context& context, const MuonStep& step) const;

 private:
  /// A matrix within a parameter: of the rank's part rows [first_row, first_row + local_rows).
  struct Matrix {
    int64_t rows = 0, cols = 0;  ///< of the whole
    int64_t first_row = 0, local_rows = 0;
  };
  std::vector<Matrix> matrices_of(const parameters::Parameter& parameter) const;
  /// All of the parameter's rows and columns are on every tensor rank, or there is one.
  bool is_full(const parameters::Parameter& parameter) const;
  void plan_scratch(MemoryPlan& plan, Lifetime update, int64_t window, int64_t shared, int64_t elements,
                    int64_t side);
  /// U of this rank's elements [begin, end) of the flat buffers, at `begin` - `origin` in update_.
  void make_update(const Context& context, const MuonStep& step, size_t bucket, int64_t origin, int64_t begin,
                   int64_t end) const;
  /// `mine`: U of this rank's part of the parameter, complete.
  void update_parameter(const Context& context, const MuonStep& step, const parameters::Parameter& parameter,
                        const Tensor& mine) const;
  Tensor orthogonalized(const Context& context, const parameters::Parameter& parameter, const Matrix& matrix,
                        const Tensor& parts) const;
  void apply(const Context& context, const MuonStep& step, const parameters::Parameter& parameter,
             const Matrix& matrix, const Tensor& orthogonal, int64_t begin, int64_t end) const;

  const config::OptimizerConfig config_;
  const parameters::ParameterStore& parameters_;
  const parallel::Groups& groups_;
  std::vector<std::vector<const parameters::Parameter*>> buckets_;  ///< the matrices of each
  // Scratch of an update, in the model's dtype:
  Tensor update_;               ///< U of a bucket, or with one data rank of a parameter
  Tensor parts_;                ///< [tensor ranks, part of a parameter], only with several tensor ranks
  Tensor x_, product_;          ///< the largest matrix
  Tensor gram_, gram_squared_;  ///< the largest [min(rows, cols), min(rows, cols)]
  Tensor sum_, sum_scratch_;    ///< fp32: of the norm
};

}  // namespace te::optim
