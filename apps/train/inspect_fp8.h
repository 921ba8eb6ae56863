// te-train inspect-fp8: shows the FP8 quantization error of a checkpoint's operands, and overrides that would help.
#pragma once

#include "common/command.h"

namespace te::apps {

/// UserError for any mistake, also in a job of several ranks.
Command add_inspect_fp8(CLI::App& app);

}  // namespace te::apps
