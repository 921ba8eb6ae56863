// CPU reference of attention.h; callers have checked the arguments.
#pragma once

#include "kernels/attention/attention.h"

namespace te::kernels::cpu {

void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);

}  // namespace te::kernels::cpu
