// Helpers of the tests that run te-data: calls, their results, and checks of refusals.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "data_testing.h"

namespace te::testing {

struct Result {
  int code;
  std::string out, error;
};

/// Runs te-data with shell-quoted arguments; `before` is the beginning of the shell's command line.
inline Result run_te_data(const TextFolder& folder, const std::string& arguments,
                          const std::string& before = "") {
  const std::string command =
      before + TE_DATA_EXECUTABLE " " + arguments + " >" + (folder / "stdout") + " 2>" + (folder / "stderr");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "stdout"),
          read_file(folder / "stderr")};
}

/// Expects a refusal: exit code 2, one line on stderr, nothing on stdout.
inline void expect_refused(const Result& result, const std::string& part) {
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  EXPECT_EQ(result.out, "");
  TE_EXPECT_CONTAINS(result.error, "te-data: error: ");
  TE_EXPECT_CONTAINS(result.error, part);
}

/// The tokens of a document with the tokenizer `bytes`.
inline std::vector<int32_t> byte_document(const std::string& text) {
  std::vector<int32_t> tokens;
  for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  tokens.push_back(256);
  return tokens;
}

/// Expects that none of the files that te-data writes exists, temporary or final.
inline void expect_no_dataset(const std::string& prefix) {
  for (const char* suffix : {".bin", ".idx", ".meta.json", ".bin.tmp", ".idx.tmp", ".meta.json.tmp"}) {
    EXPECT_FALSE(std::filesystem::exists(prefix + suffix)) << prefix << suffix;
  }
}

}  // namespace te::testing
