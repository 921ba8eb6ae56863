// For tests that run under mpirun: every rank runs the same tests in the same order.
#pragma once

#include "parallel/world.h"
#include "testing/testing.h"

namespace te::testing {

/// The MPI job of this test run, created in mpi_main.cpp before the first test.
parallel::World& world();

}  // namespace te::testing
