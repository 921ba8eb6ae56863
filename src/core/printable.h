// Escapes text from files so that it is safe to print.
#pragma once

#include <string>
#include <string_view>

namespace te {

/// Returns the text as one printable line. Each byte of control characters (ASCII and C1), line separators, marks that
/// change the writing direction, and invalid UTF-8 becomes an escape such as "\x1b"; other text is unchanged. Use this
/// for every name or text from a file of another program, or that a user may have edited, before it enters a message,
/// log line or table.
std::string printable(std::string_view text);

}  // namespace te
