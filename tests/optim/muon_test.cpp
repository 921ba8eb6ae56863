// The optimizer with Muon on one rank, compared with PyTorch's Muon and the published algorithm in double precision;
// which parameters it updates, and skipped steps.
#include <cmath>

#include "kernels/muon_cases.h"
#include "optim/optimizer.h"

namespace te::testing {
namespace {

using parameters::ParameterShard;

/// Few-bit numbers without a pattern that would make the matrix low-rank.
std::vector<float> gradient_of(int64_t n, int64_t step) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>((i * 37 + step * 101 + (i * i * 7) % 53) % 61 - 30) / 32);
  return values;
}
std::vector<float> initial_of(int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>((i * 29 + (i * i * 3) % 47) % 41 - 20) / 16);
  return values;
}

config::OptimizerConfig muon_config() {
  config::OptimizerConfig config;
  config.name = config::OptimizerName::muon;
  config.clip_grad = 0;
  config.muon_momentum = 0.9;
  return config;
}

/// A layer of one fused matrix and one vector, in FP32 on the CPU.
class OneLayer {
 public:
  OneLayer(const config::OptimizerConfig& config, MatrixShape shape, std::vector<int64_t> matrices)
      : optimizer_({.optimizer = config}, store_, groups_) {
    matrix_ = store_.add({.name = "weight",
                          .shard = ParameterShard::full({shape.rows, shape.cols}),
                          .decay = true,
                          .matrices = std::move(matrices)});
    vector_ = store_.add({.name = "bias", .shard = ParameterShard::full({shape.rows})});
    store_.plan(plan_, {.dtype = DType::f32});
    optimizer_.plan(plan_);
    memory_ = plan_.allocate(cpu_);
    store_.bind(cpu_);
    optimizer_.bind(cpu_);
    write(matrix_->main, initial_of(matrix_->shape.numel()));
    write(vector_->main, initial_of(vector_->shape.numel()));
  }

  void step(int64_t number, float lr, float loss = 1.0f) {
    optimizer_.begin_step(cpu_);
    write(matrix_->grad, gradient_of(matrix_->shape.numel(), number));
    write(vector_->grad, gradient_of(vector_->shape.numel(), number));
    write(optimizer_.loss_sum(), {loss});
    optimizer_.step(cpu_, lr);
    optimizer_.fetch_status(cpu_);
    optimizer_.finish_step(optimizer_.status().skipped != 0);
  }
  static std::vector<float> read(const Tensor& tensor) {
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }
  static void write(const Tensor& tensor, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(), tensor.as<float>());
  }
  const parameters::Parameter& matrix() const { return *matrix_; }
  const parameters::Parameter& vector() const { return *vector_; }
  optim::Optimizer& optimizer() { return optimizer_; }

 private:
  const Context cpu_ = Context::cpu();
  const parallel::Groups groups_ = parallel::Groups::single();
  parameters::ParameterStore store_;
  optim::Optimizer optimizer_;
  parameters::Parameter *matrix_, *vector_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
};

// torch.optim.Muon of PyTorch 2.15 with lr 0.05, weight_decay 0.1, momentum 0.9, adjust_lr_fn "match_rms_adamw", three
// steps. It iterates in BF16: the same in double precision differs by up to 1.3e-3 (with steps of 0.02 to 0.05).
TEST(MuonOptimizer, AgreesWithPyTorch) {
  struct {
    MatrixShape shape;
    std::vector<float> weights;
  } const cases[] = {
      {{4, 6}, {-1.215301f, 0.750246f, 0.530202f, 0.708365f, 0.919814f, -0.690871f, 0.23395f,  -0.998719f,
                0.669345f,  0.190145f, 0.059311f, 0.307906f, 0.545693f, -0.968286f, 2.8e-05f,  -1.156959f,
                0.572256f,  0.136198f, 0.05289f,  0.005502f, 0.656935f, -1.198173f, 0.249467f, -0.848994f}},
  };
  for (const auto& c : cases) {
    OneLayer layer(muon_config(), c.shape, {c.shape.rows});
    for (int64_t step = 0; step < 3; ++step) layer.step(step, 0.05f);
    const std::vector<float> weights = OneLayer::read(layer.matrix().main);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], c.weights[i], 1.5e-3) << i;
  }
}

/// Steps of the published algorithm on rows [first, first + rows) of a matrix.
std::vector<float> expected_rows(const config::OptimizerConfig& config, MatrixShape whole, int64_t first,
                                 int64_t rows, int64_t steps, double lr) {
  const auto begin = static_cast<size_t>(first * whole.cols), count = static_cast<size_t>(rows * whole.cols);
  const auto cut = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + static_cast<ptrdiff_t>(begin),
                              all.begin() + static_cast<ptrdiff_t>(begin + count));
  };
  std::vector<float> weights = cut(initial_of(whole.rows * whole.cols));
  std::vector<double> momentum(count, 0.0);
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<float> grad = cut(gradient_of(whole.rows * whole.cols, step));
    std::vector<float> update(count);
    for (size_t i = 0; i < count; ++i) {
      momentum[i] = config.muon_momentum * momentum[i] + grad[i];
      update[i] = static_cast<float>(grad[i] + config.muon_momentum * momentum[i]);
    }
    const std::vector<float> o =
        orthogonalized_in_double(update, {rows, whole.cols}, static_cast<int>(optim::kNewtonSchulzSteps));
    const double scale = optim::kMuonScale * std::sqrt(static_cast<double>(std::max(rows, whole.cols)));
    for (size_t i = 0; i < count; ++i)
      weights[i] = static_cast<float>(weights[i] * (1 - lr * config.weight_decay) - lr * scale * o[i]);
  }
  return weights;
}

// Each matrix of a fused parameter is orthogonalized and scaled separately.
TEST(MuonOptimizer, MatchesDoublePrecision) {
  const MatrixShape shape{20, 9};
  for (const std::vector<int64_t>& matrices : {std::vector<int64_t>{20}, {12, 4, 4}, {10, 10}}) {
    const config::OptimizerConfig config = muon_config();
    OneLayer layer(config, shape, matrices);
    for (int64_t step = 0; step < 4; ++step) layer.step(step, 0.02f);
    std::vector<float> expected;
    int64_t row = 0;
    for (const int64_t rows : matrices) {
      const std::vector<float> part = expected_rows(config, shape, row, rows, 4, 0.02f);
      expected.insert(expected.end(), part.begin(), part.end());
      row += rows;
    }
    const std::vector<float> weights = OneLayer::read(layer.matrix().main);
    // The bound of NewtonSchulz.MatchesDoublePrecision on steps of about 0.02 * 0.2, four of them.
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 4e-6) << i;
  }
}

// All other parameters are updated by AdamW, bitwise equal to a run with only AdamW.
TEST(MuonOptimizer, UsesAdamWForOtherParameters) {
  config::OptimizerConfig adamw = muon_config();
  adamw.name = config::OptimizerName::adamw;
  OneLayer with(muon_config(), {16, 9}, {16}), without(adamw, {16, 9}, {16});
  for (int64_t step = 0; step < 4; ++step) with.step(step, 0.02f), without.step(step, 0.02f);
  EXPECT_EQ(OneLayer::read(with.vector().main), OneLayer::read(without.vector().main));
  EXPECT_NE(OneLayer::read(with.matrix().main), OneLayer::read(without.matrix().main));
  // One moment instead of two; the second moment has only the vector's granule.
  EXPECT_EQ(without.optimizer().exp_avg_sq.count(), 256 + 128);
  EXPECT_EQ(with.optimizer().exp_avg_sq.count(), 128);
}

TEST(MuonOptimizer, SkippedStepChangesNothing) {
  OneLayer layer(muon_config(), {6, 4}, {6});
  layer.step(0, 0.05f);
  const std::vector<float> weights = OneLayer::read(layer.matrix().main);
  const std::vector<float> momentum = OneLayer::read(layer.optimizer().exp_avg.values);
  layer.step(1, 0.05f, std::nanf(""));
  EXPECT_EQ(layer.optimizer().status().skipped, 1);
  EXPECT_EQ(OneLayer::read(layer.matrix().main), weights);
  EXPECT_EQ(OneLayer::read(layer.optimizer().exp_avg.values), momentum);
}

// The momentum accumulates the clipped gradient.
TEST(MuonOptimizer, GradientsAreClipped) {
  config::OptimizerConfig config = muon_config();
  config.clip_grad = 0.5;
  OneLayer layer(config, {6, 4}, {6});
  layer.step(0, 0.05f);
  const float multiplier = layer.optimizer().status().multiplier;
  EXPECT_LT(multiplier, 0.5f);
  const std::vector<float> momentum = OneLayer::read(layer.optimizer().exp_avg.values);
  const std::vector<float> grad = gradient_of(24, 0);
  for (size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(momentum[i], grad[i] * multiplier);
}

}  // namespace
}  // namespace te::testing
