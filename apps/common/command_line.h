// Command-line parsing of all executables, and interruption that leaves no half-written files.
#pragma once

#include <CLI/CLI.hpp>

#include "common/command_model.h"

namespace te::apps {

/// Call it first in main(). Opens /dev/null in place of a closed standard input, output or error, so that no file that
/// is opened later gets that descriptor and receives console output.
void reserve_standard_streams();

/// Adds --version and --completion, parses the command line, and runs the callbacks of subcommands. Numbers must
/// be finite. Returns false if the user asked for --help or one of these; its text is printed unless `quiet`. Throws
/// UserError if the command line is wrong. The app's name is the program's; `words` is for programs with --config and
/// --set.
bool parse_command_line(CLI::App& app, int argc, char** argv, bool quiet = false,
                        const ConfigWords& words = {});

/// From now on Ctrl-C and SIGTERM make check_interrupted() throw Interrupted, so that destructors remove unfinished
/// files. A second one ends the program at once. A limit on file sizes (ulimit -f) makes writes fail instead of ending
/// the program.
void catch_interrupts();
struct Interrupted {};
bool interrupted();
/// Commands call it between steps of their work.
void check_interrupted();

/// parse_command_line for a program whose subcommands write files: catches interrupts and prints that no output was
/// written. Returns the exit code: 0, or 130 if interrupted.
int run_commands(CLI::App& app, int argc, char** argv);

}  // namespace te::apps
