// The GPU of this rank, opened once for all tests of a program under mpirun.
#pragma once

#include "parallel/launch.h"
#include "testing/mpi.h"

namespace te::testing {

/// Never destroyed: static objects are destroyed after CUDA's.
inline const Context& gpu() {
  static const Context& context = *new Context(parallel::open_cuda_device(world()));
  return context;
}

}  // namespace te::testing
