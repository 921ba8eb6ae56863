// GPU tests of what only some GPUs can do (core/device_caps.h).
#pragma once

#include "core/device_caps.h"
#include "testing/testing.h"

/// First line of such a test: skips it without a GPU, or if the GPU lacks a member of DeviceCaps.
#define TE_REQUIRE_ABILITY(ability)                                          \
  TE_REQUIRE_GPU();                                                          \
  if (const ::te::DeviceCaps te_caps = ::te::cuda_caps(0); !te_caps.ability) \
  GTEST_SKIP() << te_caps.gpu << " lacks " #ability " (core/device_caps.h)"
