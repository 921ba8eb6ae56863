// Helpers of the config tests: a small valid config, and the error message of an invalid one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/config.h"
#include "core/error.h"

namespace te::config {

inline const std::string kSmall =
    "model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,\n"
    "        vocab_size: 100, seq_length: 32}\n"
    "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 100}\n"
    "data: {synthetic: true}\n";

inline Config small(const std::vector<std::string>& overrides = {}) {
  return parse_config(kSmall, "dir/small.yaml", overrides);
}

/// The error message of parse_config for a text. The test fails if the text is accepted, if another exception than
/// UserError is thrown, or if the message has several lines.
inline std::string complaint(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "dir/bad.yaml", overrides);
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return {};
}

/// The error message for overrides of the small config.
inline std::string override_complaint(const std::vector<std::string>& overrides) {
  return complaint(kSmall, overrides);
}

/// Expects that the overrides are rejected with a message that contains all `parts` and ends with the origins of its
/// keys.
inline void expect_rejected(const std::vector<std::string>& overrides,
                            const std::vector<std::string>& parts) {
  const std::string message = override_complaint(overrides);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_NE(message.find(": --set", message.rfind('(')), std::string::npos) << message;
  EXPECT_EQ(message.back(), ')') << message;
}

}  // namespace te::config
