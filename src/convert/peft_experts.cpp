#include "convert/peft_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/printable.h"
#include "core/stored_values.h"

namespace te::convert {
namespace {

/// PEFT's pattern for gate_up_proj of all layers.
constexpr const char* kGateUpPattern = R"(.*\.gate_up_proj)";

/// lora_alpha of twice the rank with the scale of the rank.
double doubled_alpha(const config::AdapterConfig& adapter) {
  return adapter.alpha * (adapter.use_rslora ? std::sqrt(2.0) : 2.0);
}

bool is_set(const JsonKeys& keys, const char* key) {
  return keys.has(key) && !keys.object().at(key).empty();
}

}  // namespace

void read_peft_tensor(const TensorFiles& files, const std::string& file, const std::string& name,
                      int64_t rows, int64_t cols, float* out) {
  const StoredTensor* stored = files.find(name);
  if (stored == nullptr || stored->shape != std::vector<int64_t>{rows, cols})
    user_error("{}: tensor {} {}, must be [{}, {}]; use an adapter of this model", file, printable(name),
               stored == nullptr ? "is missing" : "has another shape", rows, cols);
  files.read(*stored, 0, rows * cols, DType::f32, reinterpret_cast<std::byte*>(out));
  if (!are_finite(DType::f32, out, rows * cols))
    user_error("{}: tensor {} has infinite or NaN values; use another copy of the adapter", file,
               printable(name));
}

FusedTargets FusedTargets::of(const JsonKeys& keys, const config::AdapterConfig& adapter,
                              const config::ModelConfig& model) {
  FusedTargets targets;
  if (is_set(keys, "target_parameters")) {
    const nlohmann::json& parameters = keys.object().at("target_parameters");
    if (!parameters.is_array()) keys.refuse("target_parameters", "must be a list", "copy the adapter again");
    for (const nlohmann::json& parameter : parameters) {
      const std::string path = parameter.is_string() ? parameter.get<std::string>() : parameter.dump();
      const std::string name = path.substr(path.rfind('.') + 1);
      if (model.num_moe_experts == 0 || (name != "gate_up_proj" && name != "down_proj"))
        keys.refuse("target_parameters", "has " + printable(path),
                    "te-train supports gate_up_proj and down_proj of experts");
      (name == "down_proj" ? targets.down : targets.gate_up) = true;
    }
  }
  const bool ranks = is_set(keys, "rank_pattern"), alphas = is_set(keys, "alpha_pattern");
  if (!ranks && !alphas) return targets;
  const auto only = [&](const char* key, double value) {
    const nlohmann::json& pattern = keys.object().at(key);
    return pattern.is_object() && pattern.size() == 1 && pattern.contains(kGateUpPattern) &&
           pattern.at(kGateUpPattern).is_number() &&
           std::abs(pattern.at(kGateUpPattern).get<double>() - value) <= 1e-6 * value;
  };
  targets.own_rows = targets.gate_up && ranks && alphas &&
                     only("rank_pattern", 2.0 * static_cast<double>(adapter.rank)) &&
                     only("alpha_pattern", doubled_alpha(adapter));
  if (!targets.own_rows)
    keys.refuse(ranks ? "rank_pattern" : "alpha_pattern", "is not supported",
                "te-train supports LoRA with one rank and alpha");
  return targets;
}

void FusedTargets::write(nlohmann::json& keys, const config::AdapterConfig& adapter) const {
  std::vector<std::string> parameters;
  if (gate_up) parameters.emplace_back("mlp.experts.gate_up_proj");
  if (down) parameters.emplace_back("mlp.experts.down_proj");
  keys["target_parameters"] = parameters;
  if (!own_rows) return;
  keys["rank_pattern"] = {{kGateUpPattern, 2 * adapter.rank}};
  keys["alpha_pattern"] = {{kGateUpPattern, doubled_alpha(adapter)}};
}

void FusedExperts::load(const std::string& name, int64_t rank, int64_t out, int64_t in) {
  if (loaded_ == name) return;
  loaded_ = name;
  a_.resize(static_cast<size_t>(experts_ * rank * in));
  b_.resize(static_cast<size_t>(out * rank * experts_));
  read_peft_tensor(files_, file_, name + "lora_A.weight", experts_ * rank, in, a_.data());
  read_peft_tensor(files_, file_, name + "lora_B.weight", out, rank * experts_, b_.data());
  names_.insert({name + "lora_A.weight", name + "lora_B.weight"});
}

void FusedExperts::read(const ExpertMatrix& matrix, float* a, float* b) {
  const bool gate_up = matrix.kind == LinearKind::fc1, own = gate_up && targets_.own_rows;
  const int64_t all = own ? 2 * rank_ : rank_, first = own ? matrix.block * rank_ : 0;
  const std::string name = targets_.name(matrix.experts, matrix.kind);
  load(name, all, gate_up ? 2 * matrix.rows : matrix.rows, matrix.in);
  std::copy_n(a_.data() + (matrix.expert * all + first) * matrix.in, rank_ * matrix.in, a);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const float* const from = b_.data() + (matrix.block * matrix.rows + row) * all * experts_ + matrix.expert;
    for (int64_t j = 0; j < all; ++j) {
      if (j >= first && j < first + rank_)
        b[row * rank_ + j - first] = from[j * experts_];
      else if (from[j * experts_] != 0.0f)
        user_error(
            "{}: tensor {}lora_B.weight mixes gate and up, which is not supported; te-train supports LoRA "
            "with one rank",
            file_, printable(name));
    }
  }
}

std::vector<float> fuse_b(const std::vector<float>& b, int64_t experts, int64_t rank,
                          const std::vector<int64_t>& blocks, const std::vector<size_t>& targets) {
  const int64_t out = std::accumulate(blocks.begin(), blocks.end(), int64_t{0}),
                columns = rank * static_cast<int64_t>(targets.size());
  std::vector<float> fused(static_cast<size_t>(out * columns * experts));
  const float* from = b.data();
  for (int64_t expert = 0; expert < experts; ++expert) {
    int64_t row = 0, column = 0;
    for (size_t block = 0; block < blocks.size(); row += blocks[block++]) {
      if (std::ranges::find(targets, block) == targets.end()) continue;
      for (int64_t i = 0; i < blocks[block]; ++i)
        for (int64_t j = 0; j < rank; ++j)
          fused[static_cast<size_t>(((row + i) * columns + column + j) * experts + expert)] = *from++;
      column += rank;
    }
  }
  return fused;
}

}  // namespace te::convert
