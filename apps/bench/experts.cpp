#include "bench/experts.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "bench/session.h"
#include "core/error.h"
#include "kernels/activation/activation.h"
#include "kernels/moe/grouped_gemm.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
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
  Routing(const Context& context, const ExpertOptions& options, const config::ModelConfig& model)
      : experts_(context, DType::i32, {options.tokens, model.moe_router_topk}),
        row_of_(context, DType::i32, {options.tokens, model.moe_router_topk}),
        source_(context, DType::i32,
                {kernels::max_expert_rows(options.tokens, model.moe_router_topk, model.num_moe_experts,
                                          model::kExpertAlignment)}),
        offsets_(context, DType::i32, {model.num_moe_experts + 1}) {
    options.routing == "balanced" ? select_in_turn(context, model)
                                  : select_at_random(context, options, model);
    kernels::expert_rows(context, {.experts = experts_.tensor,
                                   .alignment = model::kExpertAlignment,
                                   .offsets = offsets_.tensor,
                                   .row_of = row_of_.tensor,
                                   .source = source_.tensor});
    host_.resize(static_cast<size_t>(model.num_moe_experts) + 1);
    context.copy_to_host(host_.data(), offsets_.tensor);
    context.synchronize();
  }

  const Tensor& offsets() const { return offsets_.tensor; }
  int64_t rows() const { return source_.tensor.numel(); }
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

/// One linear of all experts.
void run_linear(const Context& context, const ExpertOptions& options, const config::ModelConfig& model,
                const Routing& routing, const char* name, int64_t in, int64_t out,
                std::vector<std::vector<std::string>>& table, nlohmann::json& report) {
  const int64_t experts = model.num_moe_experts, rows = routing.rows();
  const Owned x(context, DType::bf16, {rows, in}), w(context, DType::bf16, {experts * out, in}),
      dy(context, DType::bf16, {rows, out}), y(context, DType::bf16, {rows, out}),
      dx(context, DType::bf16, {rows, in}), dw(context, DType::f32, {experts * out, in});
  for (const Owned* operand : {&x, &w, &dy}) fill_random(context, operand->tensor);
  const Tensor& offsets = routing.offsets();
  const auto time = [&](const char* pass, const std::function<void()>& call) {
    const double ms = median_ms(context, options.common.repeats, call);
    const double flops = 2.0 * static_cast<double>(options.tokens * model.moe_router_topk * in * out);
    table.push_back({fmt::format("{} {}", name, pass), fmt::format("{} x {}", out, in),
                     fmt::format("{:.3f}", ms), fmt::format("{:.3g}", flops / ms / 1e9)});
    report["experts"].push_back({{"linear", name},
                                 {"pass", pass},
                                 {"out_features", out},
                                 {"in_features", in},
                                 {"experts", experts},
                                 {"tokens", options.tokens},
                                 {"topk", model.moe_router_topk},
                                 {"ms", ms},
                                 {"flops", flops}});
  };
  time("fprop", [&] {
    kernels::grouped_gemm(
        context, {.a = {x.tensor}, .b = {w.tensor}, .offsets = offsets, .out = y.tensor, .trans_b = true});
  });
  time("dgrad", [&] {
    kernels::grouped_gemm(context, {.a = {dy.tensor}, .b = {w.tensor}, .offsets = offsets, .out = dx.tensor});
  });
  time("wgrad", [&] {
    kernels::grouped_wgrad(context, {.a = {dy.tensor},
                                     .b = {x.tensor},
                                     .offsets = offsets,
                                     .alignment = model::kExpertAlignment,
                                     .out = dw.tensor,
                                     .accumulate = true});
  });
}

void run(const ExpertOptions& options) {
  // Presets have no batch sizes, which do not matter here.
  std::vector<std::string> overrides{"training.micro_batch_size=1", "training.global_batch_size=1",
                                     "training.train_steps=1"};
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  const config::ModelConfig model = load_without_data(options.config, overrides).model;
  if (model.num_moe_experts == 0) user_error("--config {}: the model has no experts", options.config);
  const Context context = open_device(options.common.device);
  nlohmann::json report = report_head(context, options.common);
  const Routing routing(context, options, model);
  report["load_max"] = routing.load_max();
  std::printf(
      "%s, %lld tokens to %lld of %lld experts, the busiest has %.2f times the mean; BF16, weight gradients "
      "are added in FP32; TFLOP/s without padding\n",
      context.info().name.c_str(), static_cast<long long>(options.tokens),
      static_cast<long long>(model.moe_router_topk), static_cast<long long>(model.num_moe_experts),
      routing.load_max());
  std::vector<std::vector<std::string>> table{{"grouped GEMM", "n x k", "ms", "TFLOP/s"}};
  const int64_t halves = kernels::is_gated(model::activation_kind(model)) ? 2 : 1;
  run_linear(context, options, model, routing, "fc1", model.hidden_size, halves * model.moe_ffn_hidden_size,
             table, report);
  run_linear(context, options, model, routing, "fc2", model.moe_ffn_hidden_size, model.hidden_size, table,
             report);
  print_table(table);
  write_report(options.common, report);
}

}  // namespace

void add_experts_command(CLI::App& app) {
  const auto options = std::make_shared<ExpertOptions>();
  CLI::App* command = app.add_subcommand("experts", "Grouped GEMMs of a mixture of experts in BF16");
  options->common.add_to(*command);
  command->add_option("--config", options->config, "config or preset of a model with experts")->required();
  command->add_option("--set", options->overrides, "override a key, as in te-train")->type_name("KEY=VALUE");
  command->add_option("--tokens", options->tokens, "tokens (each takes a row of topk experts)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--routing", options->routing, "balanced: experts in turn; random: unequal loads")
      ->check(CLI::IsMember({"balanced", "random"}))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace te::bench
