#include "core/choices.h"

namespace te {

TE_DEFINE_NAMES(GemmAutotune, "off", "cached", "on", "full")
TE_DEFINE_NAMES(ScheduleKind, "gpipe", "1f1b", "interleaved", "zero_bubble")
TE_DEFINE_NAMES(RopeScalingKind, "none", "linear", "llama3", "yarn")
TE_DEFINE_NAMES(AmaxAlgo, "max", "most_recent")

}  // namespace te
