// Enums of choices that a config key and a library below src/config share, and the names of enum values in configs and
// messages.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// Names an enum of this namespace: its values' names in configs or messages, in the order of the values.
#define TE_NAMES(Enum, ...)                                                              \
  inline constexpr auto k##Enum##Names = std::to_array<std::string_view>({__VA_ARGS__}); \
  constexpr std::span<const std::string_view> names_of(Enum) {                           \
    return k##Enum##Names;                                                               \
  }

namespace te {

template <class Enum>
concept NamedEnum = requires(Enum value) {
  { names_of(value) } -> std::same_as<std::span<const std::string_view>>;
};

template <NamedEnum Enum>
std::string_view to_string(Enum value) {
  return names_of(value)[static_cast<size_t>(value)];
}
/// The value of a name. False, and `value` unchanged, if no value has it.
template <NamedEnum Enum>
bool from_string(std::string_view text, Enum& value) {
  const auto names = names_of(value);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return false;
  value = static_cast<Enum>(found - names.begin());
  return true;
}

/// How a GPU chooses the algorithm of a GEMM at its first use (kernels/gemm/gemm.h). Timed choices are cached in a
/// file; later processes use them and then compute the same bits.
enum class GemmAutotune : uint8_t {
  off,     ///< cuBLASLt's first heuristic candidate
  cached,  ///< the cached algorithm, else the first candidate
  on,      ///< the cached algorithm, else times candidates, for at most a few seconds per process
  full,    ///< times all candidates, each long enough to reach the power limit; replaces choices of `on`
};
TE_NAMES(GemmAutotune, "off", "cached", "on", "full")

/// Order of a pipeline's forward and backward passes (parallel/schedule/schedule.h).
enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble };
TE_NAMES(ScheduleKind, "gpipe", "1f1b", "interleaved", "zero_bubble")

/// How RoPE's frequencies are scaled for longer sequences (kernels/rope/rope.h).
enum class RopeScalingKind : uint8_t { none, linear, llama3, yarn };
TE_NAMES(RopeScalingKind, "none", "linear", "llama3", "yarn")

/// Scaling of a pretrained model's RoPE frequencies for longer sequences (Hugging Face's `rope_scaling`). The formulas
/// are in kernels/rope/rope.h.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;                              ///< at least 1
  double low_freq_factor = 1.0;                     ///< llama3 only, below high_freq_factor
  double high_freq_factor = 4.0;                    ///< llama3 only
  int64_t original_max_position_embeddings = 8192;  ///< llama3 and yarn
  double beta_fast = 32.0;                          ///< yarn only
  double beta_slow = 1.0;                           ///< yarn only, below beta_fast
  double attention_factor = 0.0;                    ///< yarn only; 0 means 0.1 ln(factor) + 1
  bool truncate = true;                             ///< yarn only
};

/// The activation of an MLP (kernels/activation/activation.h). swiglu_clamped has no name: it is swiglu with a clamp.
enum class ActivationKind : uint8_t {
  automatic,  ///< of the family, resolved by config::resolve_defaults
  swiglu,
  gelu,
  gelu_exact,
  relu,
  silu,
  geglu,
  relu2,
  swiglu_clamped
};
TE_NAMES(ActivationKind, "auto", "swiglu", "gelu", "gelu_exact", "relu", "silu", "geglu", "relu2")

/// Scores of the router of a mixture of experts, and the scope of its load-balancing loss (kernels/moe/router.h).
enum class RouterScore : uint8_t { softmax, sigmoid };
TE_NAMES(RouterScore, "softmax", "sigmoid")
enum class BalanceScope : uint8_t { microbatch, sequence, global };
TE_NAMES(BalanceScope, "aux_loss", "seq_aux_loss", "global_aux_loss")

/// Which amax of its history a delayed scale follows (kernels/scale_update/scale_update.h).
enum class AmaxAlgo : uint8_t { max, most_recent };
TE_NAMES(AmaxAlgo, "max", "most_recent")

}  // namespace te
