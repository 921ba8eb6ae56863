#include "config/window_pattern.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/error.h"

namespace te::config {
namespace {

/// Upper limit of model.num_layers.
constexpr int64_t kMaxLayers = 10000;

[[noreturn]] void refuse(std::string_view pattern, const std::string& why) {
  user_error(
      "model.window_pattern \"{}\": {}; a pattern consists of runs of layers such as \"5w f\" (w: with the "
      "window, f: full attention), repeated over the layers",
      pattern, why);
}

/// Whether `layers` repeat with the given period.
bool repeats(const std::vector<bool>& layers, size_t period) {
  for (size_t i = period; i < layers.size(); ++i)
    if (layers[i] != layers[i - period]) return false;
  return true;
}

}  // namespace

std::vector<bool> parse_window_pattern(std::string_view pattern) {
  std::vector<bool> layers;
  int64_t count = -1;  // none given
  for (const char c : pattern) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      count = std::max<int64_t>(count, 0) * 10 + (c - '0');
      if (count > kMaxLayers) refuse(pattern, "a count is too large");
    } else if (c == 'w' || c == 'f') {
      if (count == 0) refuse(pattern, "a run of 0 layers");
      layers.insert(layers.end(), static_cast<size_t>(count < 0 ? 1 : count), c == 'w');
      count = -1;
    } else if (c != ' ' || count >= 0) {
      refuse(pattern,
             count >= 0 ? "a count is not followed by w or f" : std::string("unexpected '") + c + "'");
    }
  }
  if (count >= 0) refuse(pattern, "a count is not followed by w or f");
  if (layers.empty()) layers.push_back(true);
  return layers;
}

std::string window_pattern_of(const std::vector<bool>& layers) {
  size_t period = 1;
  while (period < layers.size() && !repeats(layers, period)) ++period;
  if (layers.empty() || (period == 1 && layers[0])) return {};
  std::string pattern;
  for (size_t first = 0, end = 0; first < period; first = end) {
    while (end < period && layers[end] == layers[first]) ++end;
    if (!pattern.empty()) pattern += ' ';
    if (end - first > 1) pattern += std::to_string(end - first);
    pattern += layers[first] ? 'w' : 'f';
  }
  return pattern;
}

}  // namespace te::config
