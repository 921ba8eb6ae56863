// The CPU reference of attention.h; the arguments have been checked.
#pragma once

#include "kernels/attention/attention.h"

namespace te::kernels::cpu {

void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);

}  // namespace te::kernels::cpu
