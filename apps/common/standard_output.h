// Standard output that could not be written (a full disk, a vanished file system) must not look like success.
#pragma once

#include <string>
#include <system_error>

namespace te::apps {

/// Why standard output could not be written, after writing what is still buffered; empty when all was written.
std::string lost_output();

/// UserError when standard output could not be written: what a program prints is its result.
void check_output();

/// For a run whose results are in files: a warning on standard error instead, and no failure.
void allow_lost_output(const char* program);

/// A program's body for run_main, which fails when its output is lost.
template <auto Body>
int checked_output(int argc, char** argv) {
  try {
    const int code = Body(argc, argv);
    check_output();
    return code;
  } catch (const std::system_error&) {  // thrown by fmt::print
    check_output();
    throw;
  }
}

/// The same for run_job: all ranks fail when one rank's output is lost.
template <auto Body, class World>
int checked_output(World& world, int argc, char** argv) {
  try {
    const int code = Body(world, argc, argv);
    world.run_collectively(check_output);
    return code;
  } catch (const std::system_error&) {
    check_output();
    throw;
  }
}

}  // namespace te::apps
