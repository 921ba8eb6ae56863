// The four directed links of a pipeline rank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace te::parallel {

/// The stages form a ring: the last one's next is the first, which interleaved schedules need. With two stages both
/// neighbours are the same rank, yet the four links stay distinct: each is a queue of its own.
enum class Channel : uint8_t {
  forward_from_previous,  ///< activations come in
  forward_to_next,        ///< activations go out
  backward_from_next,     ///< their gradients come in
  backward_to_previous    ///< gradients go out
};
constexpr size_t kChannels = 4;

constexpr bool sends(Channel channel) {
  return channel == Channel::forward_to_next || channel == Channel::backward_to_previous;
}
constexpr bool is_forward(Channel channel) {
  return channel == Channel::forward_from_previous || channel == Channel::forward_to_next;
}

}  // namespace te::parallel
