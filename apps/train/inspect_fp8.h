// te-train inspect-fp8: what casting to FP8 does to the operands of a checkpoint's model, and which overrides would
// help.
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
  /// Exit code. UserError on any mistake, also in a job of several ranks.
  int run(parallel::World& world);

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
};

}  // namespace te::apps
