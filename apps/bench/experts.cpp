#include "bench/experts.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "bench/session.h"
#include "core/error.h"
#include "kernels/activation/activation.h"
#include "kernels/common/row_blocks.h"
#include "kernels/moe/expert_activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/quantize_experts.h"
#include "kernels/moe/router.h"
#include "kernels/quantize/quantize_groups.h"
#include "model/mlp.h"
#include "model/moe_feed_forward.h"

namespace te::bench {
namespace {

struct ExpertOptions {
  Options common;
  std::string config;
  std::vector<std::string> overrides;
  int64_t tokens = 32768;
  std::string routing = "random";
};

/// Memory of a tensor.
struct Owned {
  Owned(const Context& context, DType dtype, Shape shape)
      : buffer(context, static_cast<size_t>(shape.numel()) * dtype_size(dtype)),
        tensor{buffer.data(), dtype, shape} {
    context.zero(tensor);
  }
  DeviceBuffer buffer;
  Tensor tensor;
};

/// The rows of `tokens` tokens, as a layer orders them.
class Routing {
 public:
  Routing(const Context& context, const ExpertOptions& options, const config::ModelConfig& model,
          int64_t alignment)
      : alignment(alignment),
        experts_(context, DType::i32, {options.tokens, model.moe_router_topk}),
        row_of_(context, DType::i32, {options.tokens, model.moe_router_topk}),
        source_(context, DType::i32,
                {kernels::max_expert_rows(options.tokens, model.moe_router_topk, model.num_moe_experts,
                                          alignment)}),
        offsets_(context, DType::i32, {model.num_moe_experts + 1}) {
    options.routing == "balanced" ? select_in_turn(context, model)
                                  : select_at_random(context, options, model);
    kernels::expert_rows(context, {.experts = experts_.tensor,
                                   .alignment = alignment,
                                   .offsets = offsets_.tensor,
                                   .row_of = row_of_.tensor,
                                   .source = source_.tensor});
    host_.resize(static_cast<size_t>(model.num_moe_experts) + 1);
    context.copy_to_host(host_.data(), offsets_.tensor);
    context.synchronize();
  }

  const int64_t alignment;
  const Tensor& offsets() const { return offsets_.tensor; }
  const Tensor& source() const { return source_.tensor; }
  int64_t rows() const { return source_.tensor.numel(); }
  int64_t used_rows() const { return host_.back(); }
  /// Rows of the expert with the most, over the mean of all experts.
  double load_max() const {
    int32_t most = 0;
    for (size_t e = 0; e + 1 < host_.size(); ++e) most = std::max(most, host_[e + 1] - host_[e]);
    return most * static_cast<double>(host_.size() - 1) / std::max(1, host_.back());
  }

 private:
  void select_in_turn(const Context& context, const config::ModelConfig& model) const {
    std::vector<int32_t> chosen(static_cast<size_t>(experts_.tensor.numel()));
    for (size_t i = 0; i < chosen.size(); ++i)
      chosen[i] = static_cast<int32_t>(i % static_cast<size_t>(model.num_moe_experts));
    context.copy_to_device(experts_.tensor, chosen.data());
    context.synchronize();  // the vector must outlive the copy
  }
  /// The largest of normal scores plus a normal bias per expert.
  void select_at_random(const Context& context, const ExpertOptions& options,
                        const config::ModelConfig& model) const {
    const Owned logits(context, DType::f32, {options.tokens, model.num_moe_experts}),
        bias(context, DType::f32, {model.num_moe_experts}),
        probs(context, DType::f32, {options.tokens, model.moe_router_topk});
    fill_random(context, logits.tensor);
    fill_random(context, bias.tensor);
    kernels::router_forward(context,
                            {.rule = {.score = kernels::RouterScore::sigmoid, .topk = model.moe_router_topk},
                             .logits = logits.tensor,
                             .bias = bias.tensor,
                             .experts = experts_.tensor,
                             .probs = probs.tensor});
    context.synchronize();
  }

  Owned experts_, row_of_, source_, offsets_;
  std::vector<int32_t> host_;
};

/// Operands of the grouped GEMMs.
struct Format {
  const char* name;
  DType activation, gradient;
  kernels::ScaleLayout vectors, weights;  ///< scales of activations and gradients, and of weights
};
constexpr std::array kFormats{
    Format{"bf16", DType::bf16, DType::bf16, kernels::ScaleLayout::none, kernels::ScaleLayout::none},
    Format{"fp8, a scale per expert", DType::e4m3, DType::e5m2, kernels::ScaleLayout::tensor,
           kernels::ScaleLayout::tensor},
    Format{"fp8, block scales", DType::e4m3, DType::e4m3, kernels::ScaleLayout::vectors,
           kernels::ScaleLayout::blocks}};

/// A random operand, with scales of 1 if it is FP8.
class OwnedMatrix {
 public:
  OwnedMatrix(const Context& context, DType dtype, int64_t rows, int64_t cols, kernels::ScaleLayout layout,
              int64_t experts)
      : values_(context, dtype, {rows, cols}) {
    fill_random(context, values_.tensor);
    matrix_ = {values_.tensor};
    if (layout == kernels::ScaleLayout::none) return;
    const Shape shape =
        layout == kernels::ScaleLayout::tensor ? Shape{experts} : kernels::scale_shape(layout, rows, cols);
    scales_ = std::make_unique<Owned>(context, DType::f32, shape);
    const std::vector<float> ones(static_cast<size_t>(shape.numel()), 1.0f);
    context.copy_to_device(scales_->tensor, ones.data());
    context.synchronize();
    matrix_ = {values_.tensor, scales_->tensor, layout};
  }
  const kernels::Matrix& get() const { return matrix_; }

 private:
  Owned values_;
  std::unique_ptr<Owned> scales_;
  kernels::Matrix matrix_;
};

/// Calls of the passes of a linear of all experts, with their operands.
class ExpertPasses {
 public:
  ExpertPasses(const Context& context, const Routing& routing, const Format& format, int64_t experts,
               int64_t in, int64_t out)
      : context_(context), routing_(routing), fp8_(is_fp8(format.activation)) {
    const int64_t rows = routing.rows();
    const auto add = [&](DType dtype, int64_t m, int64_t n, kernels::ScaleLayout layout) {
      operands_.push_back(std::make_unique<OwnedMatrix>(context, dtype, m, n, layout, experts));
      return operands_.back()->get();
    };
    x_ = add(format.activation, rows, in, format.vectors);
    w_ = add(format.activation, experts * out, in, format.weights);
    dy_ = add(format.gradient, rows, out, format.vectors);
    x_columns_ = fp8_ ? add(format.activation, in, rows, format.vectors) : x_;
    w_columns_ = fp8_ ? add(format.activation, in, experts * out, format.weights) : w_;
    dy_columns_ = fp8_ ? add(format.gradient, out, rows, format.vectors) : dy_;
    for (const int64_t cols : {in, out})
      results_.push_back(std::make_unique<Owned>(context, DType::bf16, Shape{rows, cols}));
    results_.push_back(std::make_unique<Owned>(context, DType::f32, Shape{experts * out, in}));
  }
  void fprop() const {
    kernels::grouped_gemm(context_, {.a = x_,
                                     .b = w_,
                                     .offsets = routing_.offsets(),
                                     .out = results_[1]->tensor,
                                     .trans_b = true,
                                     .fast_accumulation = true});
  }
  void dgrad() const {
    kernels::grouped_gemm(
        context_, {.a = dy_, .b = w_columns_, .offsets = routing_.offsets(), .out = results_[0]->tensor});
  }
  void wgrad() const {
    kernels::grouped_wgrad(context_, {.a = dy_columns_,
                                      .b = x_columns_,
                                      .offsets = routing_.offsets(),
                                      .alignment = routing_.alignment,
                                      .out = results_[2]->tensor,
                                      .accumulate = true});
  }

 private:
  const Context& context_;
  const Routing& routing_;
  bool fp8_;
  std::vector<std::unique_ptr<OwnedMatrix>> operands_;
  kernels::Matrix x_, w_, dy_, x_columns_, w_columns_, dy_columns_;  ///< columns: as dgrad and wgrad read it
  std::vector<std::unique_ptr<Owned>> results_;                      ///< dx, y, dw
};

/// One linear of all experts.
struct ExpertLinearShape {
  const char* name;
  int64_t in, out;
};
void run_linear(const Context& context, const ExpertOptions& options, const config::ModelConfig& model,
                const Routing& routing, const Format& format, const ExpertLinearShape& linear,
                std::vector<std::vector<std::string>>& table, nlohmann::json& report) {
  const ExpertPasses passes(context, routing, format, model.num_moe_experts, linear.in, linear.out);
  const auto time = [&](const char* pass, void (ExpertPasses::*call)() const) {
    const double ms = median_ms(context, options.common.repeats, [&] { (passes.*call)(); });
    const double flops =
        2.0 * static_cast<double>(options.tokens * model.moe_router_topk * linear.in * linear.out);
    table.push_back({fmt::format("{} {}", linear.name, pass), format.name,
                     fmt::format("{} x {}", linear.out, linear.in), fmt::format("{:.3f}", ms),
                     fmt::format("{:.3g}", flops / ms / 1e9)});
    report["experts"].push_back({{"linear", linear.name},
                                 {"format", format.name},
                                 {"pass", pass},
                                 {"out_features", linear.out},
                                 {"in_features", linear.in},
                                 {"experts", model.num_moe_experts},
                                 {"tokens", options.tokens},
                                 {"topk", model.moe_router_topk},
                                 {"ms", ms},
                                 {"flops", flops}});
  };
  time("fprop", &ExpertPasses::fprop);
  time("dgrad", &ExpertPasses::dgrad);
  time("wgrad", &ExpertPasses::wgrad);
}

/// Quantization of the operands of the linears: with delayed scales, one per expert, or with block scales. Bytes: each
/// tensor once, without unused rows.
class QuantizationPasses {
 public:
  QuantizationPasses(const Context& context, const ExpertOptions& options, const config::ModelConfig& model)
      : context_(context),
        routing_(context, options, model, kernels::kScaleBlock),
        tokens_(options.tokens),
        topk_(model.moe_router_topk),
        experts_(model.num_moe_experts),
        hidden_(model.hidden_size),
        ffn_(model.moe_ffn_hidden_size),
        x_(context, DType::bf16, {tokens_, hidden_}),
        fc1_out_(context, DType::bf16, {routing_.rows(), 2 * ffn_}),
        d_fc1_(context, DType::bf16, {routing_.rows(), 2 * ffn_}),
        activated_(context, DType::bf16, {routing_.rows(), ffn_}),
        probs_(context, DType::f32, {tokens_, topk_}),
        d_probs_(context, DType::f32, {tokens_, topk_}),
        rowwise_(context, DType::u8, {routing_.rows() * std::max(hidden_, 2 * ffn_)}),
        columnwise_(context, DType::u8, {routing_.rows() * std::max(hidden_, 2 * ffn_)}),
        scales_(context, DType::f32, {experts_}),
        block_scales_(context, DType::f32,
                      {2, routing_.rows() * std::max(hidden_, 2 * ffn_) / kernels::kScaleBlock}),
        states_(context, DType::u8, {experts_ * static_cast<int64_t>(sizeof(kernels::Fp8TensorState))}),
        quantizations_(static_cast<size_t>(experts_), 0) {
    for (const Owned* const values : {&x_, &fc1_out_, &activated_, &probs_})
      fill_random(context, values->tensor);
    const std::vector<float> ones(static_cast<size_t>(experts_), 1.0f);
    context.copy_to_device(scales_.tensor, ones.data());
    context.synchronize();
  }

  void run(const ExpertOptions& options, nlohmann::json& report) {
    std::vector<std::vector<std::string>> table{
        {"quantization", "scales", "layouts", "columns", "ms", "GB/s"}};
    const char* scales = "expert";
    const auto time = [&](const char* name, const char* layouts, int64_t cols, int64_t bytes, auto&& call) {
      const double ms = median_ms(context_, options.common.repeats, call), read = static_cast<double>(bytes);
      table.push_back({name, scales, layouts, fmt::format("{}", cols), fmt::format("{:.3f}", ms),
                       fmt::format("{:.0f}", read / ms / 1e6)});
      report["quantization"].push_back({{"name", name},
                                        {"scales", scales},
                                        {"layouts", layouts},
                                        {"columns", cols},
                                        {"ms", ms},
                                        {"bytes", read}});
    };
    const int64_t rows = routing_.used_rows(), tokens = 2 * tokens_ * hidden_;
    time("fc1 input from tokens", "rowwise", hidden_, tokens + rows * hidden_,
         [&] { quantize(x_.tensor, true, output(hidden_, true, false)); });
    time("fc1 input from tokens", "columnwise", hidden_, tokens + rows * hidden_,
         [&] { quantize(x_.tensor, true, output(hidden_, false, true)); });
    time("fc2 gradient from tokens", "both", hidden_, tokens + 2 * rows * hidden_,
         [&] { quantize(x_.tensor, true, output(hidden_, true, true)); });
    time("rows", "both", ffn_, 4 * rows * ffn_,
         [&] { quantize(activated_.tensor, false, output(ffn_, true, true)); });
    time("rows", "both", 2 * ffn_, 8 * rows * ffn_,
         [&] { quantize(fc1_out_.tensor, false, output(2 * ffn_, true, true)); });
    time_activations(time, false);
    scales = "block";
    time("fc1 input from tokens", "rowwise", hidden_, tokens + rows * hidden_,
         [&] { quantize_groups(x_.tensor, true, hidden_, true, false); });
    time("fc1 input from tokens", "columnwise", hidden_, tokens + rows * hidden_,
         [&] { quantize_groups(x_.tensor, true, hidden_, false, true); });
    time("fc2 gradient from tokens", "both", hidden_, tokens + 2 * rows * hidden_,
         [&] { quantize_groups(x_.tensor, true, hidden_, true, true); });
    time("rows", "rowwise", ffn_, 3 * rows * ffn_,
         [&] { quantize_groups(activated_.tensor, false, ffn_, true, false); });
    time("rows", "columnwise", ffn_, 3 * rows * ffn_,
         [&] { quantize_groups(activated_.tensor, false, ffn_, false, true); });
    time("rows", "both", 2 * ffn_, 8 * rows * ffn_,
         [&] { quantize_groups(fc1_out_.tensor, false, 2 * ffn_, true, true); });
    time_activations(time, true);
    print_table(table);
  }

 private:
  /// SwiGLU and its gradient, which quantize their results. `time`: as in run().
  template <class Time>
  void time_activations(const Time& time, bool groups) {
    const int64_t rows = routing_.used_rows();
    kernels::ExpertActivation forward{.x = fc1_out_.tensor,
                                      .source = routing_.source(),
                                      .probs = probs_.tensor,
                                      .y = activated_.tensor,
                                      .offsets = routing_.offsets(),
                                      .experts = experts_};
    kernels::ExpertActivationBackward backward{.x = fc1_out_.tensor,
                                               .source = routing_.source(),
                                               .probs = probs_.tensor,
                                               .dy = activated_.tensor,
                                               .dx = d_fc1_.tensor,
                                               .d_probs = d_probs_.tensor,
                                               .offsets = routing_.offsets(),
                                               .experts = experts_};
    if (groups)
      forward.y_groups = group_output(ffn_, true, true),
      backward.dx_groups = group_output(2 * ffn_, true, true);
    time("SwiGLU: fc2 input", "both", ffn_, 6 * rows * ffn_, [&] {
      if (!groups) forward.y_fp8 = output(ffn_, true, true);
      kernels::expert_activation(context_, forward);
    });
    time("its gradient: fc1 gradient", "both", 2 * ffn_, 10 * rows * ffn_, [&] {
      if (!groups) backward.dx_fp8 = output(2 * ffn_, true, true);
      kernels::expert_activation_backward(context_, backward);
    });
  }
  kernels::QuantizeGroups group_output(int64_t cols, bool rowwise, bool columnwise) const {
    const int64_t rows = routing_.rows();
    const auto matrix = [&](const Owned& values, int64_t index, int64_t m, int64_t n) {
      const kernels::ScaleLayout layout = kernels::ScaleLayout::vectors;
      const Tensor scales{block_scales_.tensor.slice_rows(index, 1).data, DType::f32,
                          kernels::scale_shape(layout, m, n)};
      return kernels::Matrix{{values.tensor.data, DType::e4m3, {m, n}}, scales, layout};
    };
    kernels::QuantizeGroups out;
    if (rowwise) out.rowwise = matrix(rowwise_, 0, rows, cols);
    if (columnwise) out.columnwise = matrix(columnwise_, 1, cols, rows), out.row_blocks = true;
    return out;
  }
  void quantize_groups(const Tensor& x, bool from_tokens, int64_t cols, bool rowwise, bool columnwise) const {
    kernels::QuantizeGroups args = group_output(cols, rowwise, columnwise);
    args.x = x;
    if (from_tokens) args.source = routing_.source(), args.topk = topk_;
    kernels::quantize_groups(context_, args);
  }
  kernels::Fp8Output output(int64_t cols, bool rowwise, bool columnwise) {
    const int64_t rows = routing_.rows();
    kernels::Fp8Output out;
    if (rowwise) out.rowwise = {rowwise_.tensor.data, DType::e4m3, {rows, cols}};
    if (columnwise) out.columnwise = {columnwise_.tensor.data, DType::e4m3, {cols, rows}};
    out.scale = scales_.tensor.as<float>();
    out.requantize.state = states_.tensor.as<kernels::Fp8TensorState>();
    out.requantize.num_quantizations = quantizations_.data();
    return out;
  }
  void quantize(const Tensor& x, bool from_tokens, const kernels::Fp8Output& out) const {
    kernels::quantize_experts(context_, {.x = x,
                                         .offsets = routing_.offsets(),
                                         .experts = experts_,
                                         .source = from_tokens ? routing_.source() : Tensor{},
                                         .topk = topk_,
                                         .out = out});
  }

  const Context& context_;
  const Routing routing_;
  int64_t tokens_, topk_, experts_, hidden_, ffn_;
  Owned x_, fc1_out_, d_fc1_, activated_, probs_, d_probs_, rowwise_, columnwise_, scales_, block_scales_,
      states_;
  std::vector<unsigned> quantizations_;
};

void run(const ExpertOptions& options, parallel::World& world) {
  refuse_ranks(world, "experts");
  // Presets have no batch sizes, which do not matter here.
  std::vector<std::string> overrides{"training.micro_batch_size=1", "training.global_batch_size=1",
                                     "training.train_steps=1"};
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  const config::ModelConfig model = load_without_data(options.config, overrides).model;
  if (model.num_moe_experts == 0) user_error("--config {}: the model has no experts", options.config);
  check_report(options.common);
  const Context context = open_device(options.common.device);
  nlohmann::json report = report_head(context, options.common);
  std::vector<std::vector<std::string>> table{{"grouped GEMM", "operands", "n x k", "ms", "TFLOP/s"}};
  const int64_t halves = kernels::is_gated(model::activation_kind(model)) ? 2 : 1;
  for (const Format& format : kFormats) {
    const bool blocks = format.weights == kernels::ScaleLayout::blocks;
    const Routing routing(context, options, model,
                          is_fp8(format.activation) ? kernels::kRowBlock : model::kExpertAlignment);
    if (report.count("load_max") == 0) {
      report["load_max"] = routing.load_max();
      std::printf(
          "%s, %lld tokens to %lld of %lld experts, the busiest has %.2f times the mean; weight gradients "
          "are "
          "added in FP32; TFLOP/s without padding\n",
          context.info().name.c_str(), static_cast<long long>(options.tokens),
          static_cast<long long>(model.moe_router_topk), static_cast<long long>(model.num_moe_experts),
          routing.load_max());
    }
    for (const ExpertLinearShape& linear :
         {ExpertLinearShape{"fc1", model.hidden_size, halves * model.moe_ffn_hidden_size},
          {"fc2", model.moe_ffn_hidden_size, model.hidden_size}}) {
      // Block scales and their experts start at multiples of 128.
      if (blocks && (linear.in % kernels::kScaleBlock != 0 || linear.out % kernels::kScaleBlock != 0))
        continue;
      run_linear(context, options, model, routing, format, linear, table, report);
    }
  }
  print_table(table);
  if (model::activation_kind(model) == kernels::ActivationKind::swiglu)
    QuantizationPasses(context, options, model).run(options, report);
  write_report(options.common, report);
}

}  // namespace

void add_experts_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<ExpertOptions>();
  CLI::App* command = app.add_subcommand("experts", "Grouped GEMMs and quantization of a mixture of experts");
  options->common.add_to(*command);
  command->add_option("--config", options->config, "config or preset of a model with experts")->required();
  command->add_option("--set", options->overrides, "override a key, as in te-train")->type_name("KEY=VALUE");
  command->add_option("--tokens", options->tokens, "tokens (each takes a row of topk experts)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--routing", options->routing, "balanced: experts in turn; random: unequal loads")
      ->check(CLI::IsMember({"balanced", "random"}))
      ->capture_default_str();
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
