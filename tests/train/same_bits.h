// Checks that two runs of layout_run.h are bitwise equal.
#pragma once

#include <gtest/gtest.h>

#include "layout_run.h"

namespace te::testing {

inline void expect_same_parts(const Parts& actual, const Parts& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].name, expected[i].name);
    EXPECT_TRUE(actual[i].index == expected[i].index) << expected[i].name;
    EXPECT_TRUE(actual[i].value == expected[i].value) << expected[i].name;
  }
}

inline void expect_same_bits(const Trace& actual, const Trace& expected) {
  EXPECT_EQ(actual.loss, expected.loss);
  EXPECT_EQ(actual.grad_norm, expected.grad_norm);
  EXPECT_EQ(actual.valid_loss, expected.valid_loss);
  EXPECT_EQ(actual.fp8, expected.fp8);
  ASSERT_EQ(actual.grads.size(), expected.grads.size());
  for (const auto& [step, parts] : expected.grads) expect_same_parts(actual.grads.at(step), parts);
  expect_same_parts(actual.mains, expected.mains);
}

}  // namespace te::testing
