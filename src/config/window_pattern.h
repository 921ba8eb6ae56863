// model.window_pattern: which layers have the sliding window. Runs of layers, `w` with the window and `f` with full
// attention, a count in front of each unless it is 1, repeated from the first layer to the last:
//   5w f       five layers with the window, one without, and so on (Gemma 3)
//   20f 8w     of 28 layers the last 8 (Qwen2's max_window_layers: 20)
// An empty pattern is the window in all layers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace te::config {

/// One period of the pattern, true for layers with the window; {true} where it is empty. UserError that shows the
/// pattern and the rule.
std::vector<bool> parse_window_pattern(std::string_view pattern);

/// The shortest pattern of these layers; empty if all have the window.
std::string window_pattern_of(const std::vector<bool>& layers);

}  // namespace te::config
