// The feed-forward sublayers of docs/how-to/add-a-layer.md, in models whose layers differ: the second layer doubles its
// input, the third has a wider MLP than the others.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "model/feed_forward.h"
#include "model/tiny_model.h"

namespace te::model {

#include "pages/feed_forward.inc"

}  // namespace te::model

namespace te::testing {

inline config::Config mixed_config(config::Family family) {
  config::Config config = tiny_config(family);
  config.model.num_layers = 4;
  return config;
}

}  // namespace te::testing
