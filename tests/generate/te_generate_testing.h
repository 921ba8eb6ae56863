// Runs the executable te-generate.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "testing/temporary_folder.h"
#include "train/te_train_testing.h"

namespace te::testing {

/// A temporary folder for the files of te-generate.
class GenerateFolder : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_ / name; }
  Result run(const std::string& arguments, const std::string& shell = "") const {
    const std::string command =
        shell + " " TE_GENERATE_EXECUTABLE " " + arguments + " >" + file("out") + " 2>" + file("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(file("out")), read_file(file("err")), 0};
  }
  static void expect_refused(const Result& result, const std::string& part) {
    EXPECT_EQ(result.code, 2) << result.out << result.error;
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    TE_EXPECT_CONTAINS(result.error, "te-generate: error: ");
    TE_EXPECT_CONTAINS(result.error, part);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace te::testing
