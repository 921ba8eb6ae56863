// Loops over values as they are stored in files: conversion to FP32, and the check for infinities and NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace te {

/// False if one of `count` values is infinite or NaN: saving and reading refuse such weights and moments. Types other
/// than F32 and BF16 are not checked. Memory-bound; `values` need not be aligned.
bool are_finite(DType dtype, const void* values, int64_t count);

/// Convert `count` BF16 or IEEE half numbers, which are in the second half of out's 4 * count bytes, to FP32, which is
/// exact. `out` need not be aligned.
void widen_bf16_in_place(std::byte* out, int64_t count);
void widen_f16_in_place(std::byte* out, int64_t count);

}  // namespace te
