// model.window_pattern: which layers have the sliding window. The pattern consists of runs of layers, `w` with the
// window and `f` with full attention, each preceded by a count unless it is 1, and is repeated from the first layer to
// the last:
//   5w f       five layers with the window, one without, and so on (Gemma 3)
//   20f 8w     the last 8 of 28 layers (Qwen2's max_window_layers: 20)
// With an empty pattern, all layers have the window.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace te::config {

/// One period of the pattern, true for layers with the window; {true} for an empty pattern. UserError, with the pattern
/// and the rule, if it is invalid.
std::vector<bool> parse_window_pattern(std::string_view pattern);

/// The shortest pattern for these layers; empty if all have the window.
std::string window_pattern_of(const std::vector<bool>& layers);

}  // namespace te::config
