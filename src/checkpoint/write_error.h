// A checkpoint that could not be written because of its disk.
#pragma once

#include "core/error.h"

namespace te::checkpoint {

/// The file system takes no more: it is full, read-only, or gone. A later save may succeed, so a run that trains on
/// need not end. Other UserErrors of a save mean that trying again is no use.
class WriteError : public UserError {
 public:
  using UserError::UserError;
};

template <class... Args>
[[noreturn]] void write_error(fmt::format_string<Args...> format, Args&&... args) {
  throw WriteError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace te::checkpoint
