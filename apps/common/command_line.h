// What the executables share: command lines, and Ctrl-C that leaves nothing half-written.
#pragma once

#include <CLI/CLI.hpp>

#include "common/command_model.h"

namespace te::apps {

/// First thing in main(): where standard input, output or error is closed, /dev/null takes its place, so that no file
/// that is opened later gets the number and with it the console's lines.
void reserve_standard_streams();

/// Adds --version, --completion and --man, parses, and runs the callbacks of subcommands. Numbers must be finite. False
/// when only help or one of these was asked for; it is printed unless `quiet`. UserError for a command line that is
/// wrong. The app's name is the program's; `words`: of programs with --config and --set.
bool parse_command_line(CLI::App& app, int argc, char** argv, bool quiet = false,
                        const ConfigWords& words = {});

/// From now on Ctrl-C and SIGTERM make check_interrupted() throw Interrupted, so that destructors remove unfinished
/// files. A second one ends the program at once.
void catch_interrupts();
struct Interrupted {};
bool interrupted();
/// A command calls it between pieces of its work.
void check_interrupted();

/// parse_command_line for a program whose subcommands write files: catches interrupts, and then says that there is no
/// output. Returns its exit code: 0, or 130 when interrupted.
int run_commands(CLI::App& app, int argc, char** argv);

}  // namespace te::apps
