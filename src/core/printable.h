// Text that came from a file, made safe to print.
#pragma once

#include <string>
#include <string_view>

namespace te {

/// The text on one line, as a terminal can show it: bytes that a terminal would obey or could not show (control
/// characters, also those above ASCII, marks that reverse the direction of writing, invalid UTF-8) become "\x1b".
/// Everything else, all other UTF-8 included, stays as it is. Every name or text that comes from a file of another
/// program, or that a user may have edited, goes through here before it is in a message, log line or table.
std::string printable(std::string_view text);

}  // namespace te
