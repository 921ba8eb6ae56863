// The four directed links of a pipeline rank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace te::parallel {

/// The stages form a ring: the next stage of the last one is the first, which interleaved schedules need. With two
/// stages both neighbors are the same rank, but there are still four links, each a separate queue.
enum class Channel : uint8_t {
  forward_from_previous,  ///< receives activations
  forward_to_next,        ///< sends activations
  backward_from_next,     ///< receives gradients of activations
  backward_to_previous    ///< sends gradients of activations
};
constexpr size_t kChannels = 4;

constexpr bool sends(Channel channel) {
  return channel == Channel::forward_to_next || channel == Channel::backward_to_previous;
}

}  // namespace te::parallel
