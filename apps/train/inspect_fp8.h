// te-train inspect-fp8: shows the FP8 quantization error of a checkpoint's operands, and overrides that would help.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "parallel/world.h"

namespace te::apps {

class InspectFp8Command {
 public:
  explicit InspectFp8Command(CLI::App& app);
  ~InspectFp8Command();
  bool chosen() const;
  /// Returns the exit code. UserError for any mistake, also in a job of several ranks.
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

}  // namespace te::apps
