#include "bench/gemm_problems.h"

#include "core/error.h"

namespace te::bench {
namespace {

constexpr Linear kLinears[] = {
    {"llama7b", "qkv", 3 * 4096, 4096},      {"llama7b", "proj", 4096, 4096},
    {"llama7b", "gate+up", 2 * 11008, 4096}, {"llama7b", "down", 4096, 11008},
    {"gpt_4096", "qkv", 3 * 4096, 4096},     {"gpt_4096", "proj", 4096, 4096},
    {"gpt_4096", "fc1", 16384, 4096},        {"gpt_4096", "fc2", 4096, 16384},
    {"gpt2_124m", "qkv", 3 * 768, 768},      {"gpt2_124m", "proj", 768, 768},
    {"gpt2_124m", "fc1", 3072, 768},         {"gpt2_124m", "fc2", 768, 3072},
    {"gpt2_124m", "head", 50304, 768},
};

}  // namespace

std::vector<Linear> linears_of(const std::string& model) {
  std::vector<Linear> linears;
  for (const Linear& linear : kLinears)
    if (model.empty() || model == linear.model) linears.push_back(linear);
  if (linears.empty()) user_error("--model {}: must be llama7b, gpt_4096 or gpt2_124m", model);
  return linears;
}

GemmAutotune mode_of(const std::string& autotune) {
  GemmAutotune mode = GemmAutotune::full;
  from_string(autotune, mode);
  return mode;
}

kernels::Gemm problem(const Linear& linear, int64_t tokens, GemmKind kind, kernels::ScaleLayout scales) {
  using kernels::ScaleLayout;
  kernels::Gemm args;
  const bool fp8 = scales != ScaleLayout::none, wgrad = kind == GemmKind::wgrad;
  const DType gradient = fp8 ? DType::e5m2 : DType::bf16, value = fp8 ? DType::e4m3 : DType::bf16;
  const DType first = kind == GemmKind::fprop ? value : gradient;
  int64_t m = tokens, n = linear.out, k = linear.in;
  if (kind == GemmKind::dgrad) n = linear.in, k = linear.out;
  if (wgrad) m = linear.out, n = linear.in, k = tokens;
  args.trans_a = wgrad && !fp8;
  args.trans_b = kind == GemmKind::fprop || fp8;
  args.a = Tensor{nullptr, first, args.trans_a ? Shape{k, m} : Shape{m, k}};
  args.b = Tensor{nullptr, value, args.trans_b ? Shape{n, k} : Shape{k, n}};
  args.a.layout = scales;
  args.b.layout = scales == ScaleLayout::vectors && !wgrad ? ScaleLayout::blocks : scales;
  // Tensors without data do not derive the scales' shape, so it is set here.
  if (fp8) {
    args.a.scales = {nullptr, DType::f32, scale_shape(args.a.layout, m, k)};
    args.b.scales = {nullptr, DType::f32, scale_shape(args.b.layout, n, k)};
  }
  args.out = {nullptr, wgrad ? DType::f32 : DType::bf16, {m, n}};
  args.accumulate = wgrad;
  args.fast_accumulation = scales == ScaleLayout::tensor && kind == GemmKind::fprop;
  return args;
}

}  // namespace te::bench
