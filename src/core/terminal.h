// Properties of the console: whether it is a terminal, its width, and whether to use colors.
#pragma once

#include <string>
#include <string_view>

namespace te {

struct Terminal {
  bool is_terminal = false;
  bool color = false;
  int columns = 0;  ///< at least 1
};

/// Inspects standard output; under mpirun that of mpirun, which gives its ranks a pseudo-terminal even if its own
/// output is a file. Nothing is cached because windows change their size. The width is that of the window, else
/// COLUMNS, else 120. Colors need a terminal, and are off with NO_COLOR (https://no-color.org) or TERM=dumb.
Terminal console_terminal();

/// Breaks a text at blanks into lines of at most `columns`; lines after the first begin with `indent` blanks. A longer
/// word is not broken. The result ends with a newline.
std::string wrapped(std::string_view text, int columns, int indent);
/// Wraps each line of a text; continuation lines are indented by the line's leading blanks plus four.
std::string wrapped_lines(std::string_view text, int columns);

}  // namespace te
