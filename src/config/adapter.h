// Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) of a config: which matrices have one, what is trained, and the
// rules of the section `adapter`.
//
// A linear layer of te-train stacks matrices that other programs keep apart (q, k and v; gate and up): its blocks of
// rows. Each targeted block has an adapter of its own, B_i A_i, as in PEFT. The layer stores them together: A [targets
// * rank, in], and B [rows of the targeted blocks, rank].
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::config {

/// Numbers of the rows of each block of a linear layer's weight, from the top: q, k, v; gate, up. Of experts: of one.
std::vector<int64_t> linear_blocks(const ModelConfig& model, const LinearId& id);

/// The linear layers of a transformer layer; of its experts the first, and the shared one.
std::vector<LinearId> layer_linears(const ModelConfig& model, int layer);

/// PEFT's names of these blocks: "q_proj", "k_proj", "v_proj".
std::vector<std::string> block_names(const ModelConfig& model, LinearKind kind);

/// The blocks of a linear layer that have an adapter, by index; empty: the layer has none.
std::vector<size_t> adapted_blocks(const AdapterConfig& adapter, const ModelConfig& model, LinearKind kind);

/// Elements of A and B of a linear layer, or of one expert.
int64_t adapter_parameters(const AdapterConfig& adapter, const ModelConfig& model, const LinearId& id);

/// Whether a matrix of the MLPs or experts has an adapter.
bool adapts_mlp(const AdapterConfig& adapter, const ModelConfig& model);

/// PEFT's names of all matrices of a layer that have an adapter.
std::vector<std::string> adapted_matrices(const AdapterConfig& adapter, const ModelConfig& model);

/// The parameters that a run trains; empty: all.
std::function<bool(const ParameterId&)> trained_parameters(const Config& config);

/// UserError for the first violated rule of the section `adapter`.
void check_adapter(const Config& config);

}  // namespace te::config
