// Helpers for tests of te-convert's checkpoint tools: running te-convert, checking its result, writing small files.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "train/te_train_testing.h"

namespace te::testing {

/// Runs te-convert with shell-quoted arguments; `before` is put at the start of the shell command.
inline Result te_convert(const TrainFolder& folder, const std::string& arguments,
                         const std::string& before = "") {
  const std::string out = folder / "convert_out", error = folder / "convert_error";
  const int status =
      std::system((before + TE_CONVERT_EXECUTABLE " " + arguments + " >" + out + " 2>" + error).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(error)};
}

/// Expects exit code 2 and one line on stderr that contains `part`.
inline void expect_convert_refused(const Result& result, const std::string& part) {
  EXPECT_EQ(result.code, 2) << result.out;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  TE_EXPECT_CONTAINS(result.error, "te-convert: error: ");
  TE_EXPECT_CONTAINS(result.error, part);
}

/// Changes one byte of a file.
inline void flip_byte(const std::string& path, size_t from_end) {
  std::string bytes = read_file(path);
  bytes.at(bytes.size() - from_end) ^= 0x10;
  write_file(path, bytes);
}

/// A safetensors file of FP32 tensors.
inline void write_tensors(const std::string& path, const std::map<std::string, std::vector<float>>& tensors) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, values] : tensors)
    specs.push_back({name, DType::f32, {static_cast<int64_t>(values.size())}});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, values] : tensors) writer.write(name, values.data(), values.size() * sizeof(float));
  writer.finish();
}

}  // namespace te::testing
