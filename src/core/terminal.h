// Where the program's console lines end up: a terminal or not, how wide, and whether colours are welcome.
#pragma once

#include <string>
#include <string_view>

namespace te {

struct Terminal {
  bool is_terminal = false;
  bool colour = false;
  int columns = 0;  ///< at least 1
};

/// Asks anew each time, since windows change their size. Standard output is looked at; under mpirun that of mpirun,
/// which gives its ranks a pseudo-terminal even where its own output is a file. The width is that of the window, else
/// COLUMNS, else 120. Colours are for terminals only, and not with NO_COLOR (https://no-color.org) or TERM=dumb.
Terminal console_terminal();

/// Breaks a text at blanks into lines of at most `columns`; lines after the first begin with `indent` blanks. A word
/// that is longer stays whole. Ends with a newline.
std::string wrapped(std::string_view text, int columns, int indent);
/// The same for each line of a text of several; those that begin with blanks go on four columns behind them.
std::string wrapped_lines(std::string_view text, int columns);

}  // namespace te
