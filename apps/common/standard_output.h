// Detects standard output that could not be written (full disk, lost file system), which must not look like success.
#pragma once

#include <string>
#include <system_error>

namespace te::apps {

/// Flushes standard output. Returns the reason if it could not be written, else an empty string.
std::string lost_output();

/// Throws UserError if standard output could not be written, for programs whose result is their output.
void check_output();

/// For runs whose results are in files: prints a warning on standard error instead of failing.
void allow_lost_output(const char* program);

/// A program's body for run_main that fails if its output is lost.
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
